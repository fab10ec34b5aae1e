"""The shortest way to the end of a text, for the automaton in Python; `native/complete.c` in C.

The cost of a node is the length of its shortest string of bytes that tokens have, a least fixpoint
over the rules. From a state, bytes that lower the cost spell a shortest completion, and the fewest
tokens that spell that text come from dynamic programming over its places. Where an intersection is
too large to say what is shortest, some short string is: its length is a bound.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from radixgen.errors import InvalidGrammar
from radixgen.grammars.automaton import Automaton, Stack, State, Tail, all_bytes, members
from radixgen.grammars.derivative import (
    Lenient,
    derivative,
    estimate,
    facts,
    lowest_bit,
    partition,
)
from radixgen.grammars.expr import (
    ALL_BYTES,
    EMPTY,
    And,
    Bytes,
    Expr,
    Literal,
    Node,
    Not,
    Repeat,
    Rule,
    Union,
)
from radixgen.grammars.normal_form import normal_body
from radixgen.grammars.productive import prune
from radixgen.grammars.vocabulary import Vocabulary

NEVER = 1 << 40
MAX_TRIED = 20_000  # derivatives of an intersection
GREED = 8  # times that what is left of one counts where these are too many
MAX_COUNTED = 1 << 16  # bytes of a shortest text whose tokens are counted
LIKED = b"a01x "  # written where any byte will do, as the native engine does


class Shortest:
    """Costs of what one automaton meets, kept."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        self._automaton = automaton
        self._first = {t: i for i, t in reversed(list(enumerate(vocabulary.tokens))) if t}
        self._spelled = {i: t for t, i in self._first.items()}
        self._longest = vocabulary.max_length
        self._usable = sum({1 << byte for token in self._first for byte in token})
        self._is_any_usable = self._usable == ALL_BYTES
        self._rules: dict[Rule, int] = {}
        self._wayless: set[Rule] = set()  # rules whose way no tokens spell
        self._regular: dict[Expr, int] = {}
        self._stacks: dict[Stack, int] = {automaton.end: 0}
        self._found: dict[State, list[int] | None] = {}
        self.has_lost = False  # whether of some node no string is known

    def tokens(self, state: State) -> list[int] | None:
        """The tokens of a short completion; None when the vocabulary cannot spell it."""
        if state not in self._found:
            is_spellable = self.cost(state.stacks) < NEVER
            self._found[state] = self._fewest(self.text(state)) if is_spellable else None
        return self._found[state]

    def number(self, state: State) -> int | None:
        """How many tokens complete a state. Where a hook on the way has a cost of its own the text
        may not be allowed: then its cost in bytes, which bounds them. So too where it has over
        MAX_COUNTED bytes, which would take long to spell."""
        cost = self.cost(state.stacks)
        if MAX_COUNTED < cost < NEVER:
            return cost
        tokens = self.tokens(state)
        if tokens is None:
            return None
        length = sum(len(self._spelled[token]) for token in tokens)
        return len(tokens) if length == cost else cost

    def text(self, state: State) -> bytes:
        """A shortest completion in bytes."""
        text = bytearray()
        while goal := self.cost(state.stacks):
            byte, state = self._cheaper(state, goal)
            text.append(byte)
        return bytes(text)

    def _cheaper(self, state: State, goal: int) -> tuple[int, State]:
        for byte in (*LIKED, *all_bytes(self._automaton.next_bytes(state))):
            after = self._automaton.step(state, byte) if self._usable >> byte & 1 else None
            if after is not None and self.cost(after.stacks) < goal:
                return byte, after
        raise InvalidGrammar("a shortest completion was lost")

    def cost(self, tail: Tail) -> int:
        """Bytes of the shortest completion of a tail."""
        return min(self._stack_cost(stack) for stack in members(tail))

    def _stack_cost(self, stack: Stack) -> int:
        chain = []
        while stack not in self._stacks and isinstance(stack.tail, Stack):
            chain.append(stack)
            stack = stack.tail
        if stack not in self._stacks:
            assert stack.tail is not None
            self._stacks[stack] = self._solve(stack.head) + self.cost(stack.tail)
        cost = self._stacks[stack]
        for above in reversed(chain):
            cost = self._stacks[above] = cost + self._solve(above.head)
        return cost

    def _solve(self, node: Node) -> int:
        """The cost of a node, all rules below it solved by iteration from above."""
        fresh: dict[Rule, int] = {}
        waiting = [node]
        while waiting:
            for rule in _rules_in(waiting.pop()):
                if rule.most is not None:
                    self._rules[rule] = min(rule.most, NEVER)
                elif rule not in self._rules and rule not in fresh:
                    fresh[rule] = NEVER
                    waiting.append(self._way(rule))
        self._rules.update(fresh)
        changed = bool(fresh)
        while changed:
            changed = False
            for rule in fresh:
                cost = self._cost(self._way(rule))
                if cost < self._rules[rule]:
                    self._rules[rule] = cost
                    changed = True
        lost = {r for r in fresh if r.way is not None and self._rules[r] == NEVER} - self._wayless
        if lost:  # no token has some byte of the way: look everywhere
            self._wayless |= lost
            for rule in fresh:
                del self._rules[rule]
            return self._solve(node)
        return self._cost(node)

    def _way(self, rule: Rule) -> Node:
        """Where the shortest text of a rule is looked for."""
        if rule.way is None or rule in self._wayless:
            return normal_body(rule)
        return prune(rule.way(), Lenient())

    def _cost(self, node: Node) -> int:
        match node:
            case Rule():
                return self._rules[node]
            case Literal():
                is_usable = self._is_any_usable or all(self._usable >> b & 1 for b in node.value)
                return len(node.value) if is_usable else NEVER
            case Bytes():
                return 1 if node.mask & self._usable else NEVER
            case Union():
                return min((self._cost(part) for part in node.args), default=NEVER)
            case Repeat():
                return node.low * self._cost(node.item) if node.low else 0
            case And() | Not():
                return self._opaque_cost(node)
        return sum(self._cost(part) for part in node.args)

    def _opaque_cost(self, node: Expr) -> int:
        if node not in self._regular:
            cost = _breadth_first(node, self._usable)
            some = _some_way(node, self._usable) if cost is None else {node: cost}
            # No budget lets a text begin what nobody knows how to end.
            self.has_lost |= not some
            self._regular.update(some or {node: NEVER})
        return self._regular[node]

    def _fewest(self, text: bytes) -> list[int] | None:
        best: list[tuple[int, int, int]] = [(0, 0, 0)] * (len(text) + 1)
        for start in range(len(text) - 1, -1, -1):
            ways = (
                (best[end][0] + 1, self._first[text[start:end]], end)
                for end in range(start + 1, min(len(text), start + self._longest) + 1)
                if text[start:end] in self._first
            )
            best[start] = min(ways, key=lambda way: way[0], default=(NEVER, 0, 0))
        if best[0][0] >= NEVER:
            return None
        tokens, place = [], 0
        while place < len(text):
            _, token, place = best[place]
            tokens.append(token)
        return tokens


def _rules_in(node: Node) -> Iterable[Rule]:
    if isinstance(node, Rule):
        return (node,)
    if facts(node).regular:
        return ()
    parts = node.args[:1] if isinstance(node, Repeat) else node.args
    return [rule for part in parts for rule in _rules_in(part)]


def _breadth_first(node: Expr, usable: int) -> int | None:
    """The length of a shortest string; None where that takes too many derivatives to find."""
    seen, level, cost = {node}, [node], 0
    while level:
        if any(facts(here).nullable for here in level):
            return cost
        following = {after for here in level for after in _following(here, usable)}
        level = [n for n in following if n not in seen]
        seen.update(level)
        cost += 1
        if len(seen) > MAX_TRIED:
            return None
    return NEVER


def _some_way(node: Expr, usable: int) -> dict[Expr, int]:
    """The length of some string of a node, and of what is left of it at each of its places; nothing
    where that takes too many derivatives to find, too."""
    came: dict[Expr, tuple[Expr | None, int]] = {node: (None, 0)}
    waiting = [(0, 0, node)]
    while waiting and len(came) < MAX_TRIED:
        here: Expr | None = heappop(waiting)[2]
        assert here is not None
        length = came[here][1]
        if facts(here).nullable:
            whole, costs = length, dict[Expr, int]()
            while here is not None:
                before, length = came[here]
                if isinstance(here, And | Not):
                    costs[here] = whole - length
                here = before
            return costs
        is_choice = isinstance(here, Union)  # each part of which is followed by itself
        for after in here.args if is_choice else _following(here, usable):
            if after not in came:
                came[after] = (here, length + (not is_choice))
                rank = came[after][1] + GREED * estimate(after)
                heappush(waiting, (rank, len(came), after))
    return {}


def _following(node: Expr, usable: int) -> Iterable[Expr]:
    found = (derivative(node, lowest_bit(m & usable)) for m in partition(node) if m & usable)
    return (after for after in found if after is not EMPTY)
