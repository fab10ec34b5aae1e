"""The automaton in Python: states over interned stacks, one byte at a time.

A stack is a node still to be read, the head, and a tail: one stack, or a set of stacks where the
text can be read in several ways. A state is such a tail. The head runs, what follows it waits, a
rule is expanded when it becomes the head, and a counted repeat keeps its count instead of being
unrolled. Stacks are interned, so a state is compared, kept and forked as one reference; no two
stacks of a set have the same head, which keeps ambiguous grammars polynomial (a graph-structured
stack: M. Tomita, "Efficient Parsing for Natural Language", 1986).

This is the plain form of `native/`: the oracle of its tests, and what runs without a compiler.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import (
    Lenient,
    Search,
    derivative,
    facts,
    is_empty,
    join_intervals,
    lowest_bit,
    partition,
)
from radixgen.grammars.expr import (
    EMPTY,
    And,
    Bytes,
    Concat,
    Expr,
    Literal,
    Node,
    Not,
    Repeat,
    Rule,
    Union,
    repeat,
)
from radixgen.grammars.hook import Hook
from radixgen.grammars.normal_form import normal_body, remove_left_recursion
from radixgen.grammars.productive import prune

MAX_CONFIGURATIONS = 20_000  # of one state, while it is expanded
MAX_STATES = 500_000


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """`head`, then `tail`; without a tail it is the end. Interned, so compared by identity."""

    head: Node
    tail: "Tail | None"


# One stack, or the members of a set of them.
Tail = Stack | frozenset[Stack]


class Item(NamedTuple):
    """A way on: a byte of `mask` leads to `after`, behind the derivative of `opaque`, if any."""

    mask: int
    after: Tail
    opaque: Expr | None


@dataclass(slots=True, eq=False)
class State:
    """Where a text stands. The rest is filled in when first asked for."""

    stacks: Tail
    items: list[Item] | None = None
    accepting: bool = False
    moves: "dict[int, State | None]" = field(default_factory=dict)


class Automaton:
    """Interned stacks and states of any number of grammars. Not thread-safe."""

    def __init__(self) -> None:
        self.end = Stack(EMPTY, None)
        self._stacks: dict[tuple[Node, Tail], Stack] = {}
        self._states: dict[Tail, State] = {}
        self._merged: dict[frozenset[Stack], Tail] = {}
        self.decide = Search()
        self._within_text = Lenient(self.decide)
        self._checked: set[Rule] = set()

    def start(self, node: Node) -> State | None:
        """The first state of a grammar; None when it derives nothing."""
        node = prune(node)
        return None if node is EMPTY else self._state(self._push(node, self.end))

    def step(self, state: State, byte: int) -> State | None:
        """The state after one byte; None when no string of the language goes on like that."""
        try:
            return state.moves[byte]
        except KeyError:
            state.moves[byte] = found = self._move(state, byte)
            return found

    def run(self, state: State | None, data: bytes) -> State | None:
        """The state after some bytes."""
        for byte in data:
            if state is None:
                break
            state = self.step(state, byte)
        return state

    def hooks(self, state: State) -> list[Hook]:
        """The hooks that a state stands before."""
        return [stack.head for stack in members(state.stacks) if isinstance(stack.head, Hook)]

    def resolved(self, state: State, found: dict[Hook, Node]) -> State | None:
        """The state with what was found in the place of its hooks."""
        after: dict[Stack, None] = {}
        for stack in members(state.stacks):
            if isinstance(stack.head, Hook) and stack.head in found:
                node = prune(found[stack.head], self._within_text)
                if node is not EMPTY:
                    after.update(dict.fromkeys(members(self._push(node, stack.tail or self.end))))
            else:
                after[stack] = None
        return self._state(self._merge(after)) if after else None

    def is_accepting(self, state: State) -> bool:
        """Whether the text so far is complete."""
        self._expand(state)
        return state.accepting

    def next_bytes(self, state: State) -> int:
        """The mask of the bytes that may come next."""
        found = 0
        for mask in self.classes(state):
            if self.step(state, lowest_bit(mask)) is not None:
                found |= mask
        return found

    def classes(self, state: State) -> list[int]:
        """Disjoint masks, each of bytes that lead to the same state; bytes in none lead nowhere."""
        masks: list[int] = []
        for item in self._expand(state):
            left = item.mask
            for index, mask in enumerate(masks[:]):
                if (both := mask & left) and both != mask:
                    masks[index] = both
                    masks.append(mask & ~both)
                left &= ~both
            if left:
                masks.append(left)
        return masks

    def _move(self, state: State, byte: int) -> State | None:
        after: dict[Stack, None] = {}
        for mask, stack, opaque in self._expand(state):
            if not mask >> byte & 1:
                continue
            if opaque is None:
                after.update(dict.fromkeys(members(stack)))
            elif not is_empty(left := derivative(opaque, byte), self._within_text):
                after.update(dict.fromkeys(members(self._push(left, stack))))
        return self._state(self._merge(after)) if after else None

    def _push(self, node: Node, tail: Tail) -> Tail:
        if isinstance(node, Concat):
            for part in reversed(node.args):
                tail = self._push(part, tail)
            return tail
        if isinstance(node, Literal) and not node.value:
            return tail
        return self._stack(node, tail)

    def _stack(self, head: Node, tail: Tail) -> Stack:
        found = self._stacks.get((head, tail))
        if found is None:
            found = self._stacks[head, tail] = Stack(head, tail)
        return found

    def _state(self, stacks: Tail) -> State:
        found = self._states.get(stacks)
        if found is None:
            if len(self._states) >= MAX_STATES:
                raise InvalidGrammar(
                    f"the grammar needs over {MAX_STATES} states here; simplify it"
                )
            found = self._states[stacks] = State(stacks)
        return found

    def _merge(self, stacks: Iterable[Stack]) -> Tail:
        """The stacks as one tail: counts joined, and the tails of equal heads merged."""
        given = frozenset(stacks)
        found = self._merged.get(given)
        if found is None:
            found = self._merged[given] = self._merge_now(given)
        return found

    def _merge_now(self, stacks: Iterable[Stack]) -> Tail:
        by_head: dict[Node | None, dict[Stack, None]] = {}
        for stack in self._join_counts(dict.fromkeys(stacks)):
            by_head.setdefault(None if stack is self.end else stack.head, {})[stack] = None
        merged = [
            next(iter(same)) if len(same) == 1 else self._merge_tails(head, same)
            for head, same in by_head.items()
        ]
        return merged[0] if len(merged) == 1 else frozenset(merged)

    def _merge_tails(self, head: Node | None, stacks: Iterable[Stack]) -> Stack:
        assert head is not None
        tails = dict.fromkeys(member for s in stacks for member in members(s.tail))
        return self._stack(head, self._merge(tails))

    def _join_counts(self, stacks: dict[Stack, None]) -> Iterable[Stack]:
        """Repeats of one item before one tail as few configurations: see `join_intervals`."""
        counted: dict[tuple[Node, Tail], list[tuple[int, int | None]]] = {}
        for stack in stacks:
            if isinstance(stack.head, Repeat):
                assert stack.tail is not None
                key = (stack.head.item, stack.tail)
                counted.setdefault(key, []).append((stack.head.low, stack.head.high))
        if all(len(counts) == 1 for counts in counted.values()):
            return stacks
        plain = [s for s in stacks if not isinstance(s.head, Repeat)]
        for (item, tail), counts in counted.items():
            plain.extend(self._stack(repeat(item, *c), tail) for c in join_intervals(counts))
        return plain

    def _expand(self, state: State) -> list[Item]:
        """The ways on from a state, its rules expanded until each begins with a byte."""
        if state.items is None:
            expansion = _Expansion(self, state.stacks)
            while not expansion.run():  # a left recursion was removed: begin again
                expansion = _Expansion(self, state.stacks)
            state.items, state.accepting = expansion.items, expansion.accepting
        return state.items


class _Expansion:
    """One expansion of a state's configurations."""

    def __init__(self, automaton: Automaton, stacks: Tail) -> None:
        self.items: list[Item] = []
        self.accepting = False
        self._automaton = automaton
        self._seen = set(members(stacks))
        self._waiting = list(members(stacks))
        self._entered: set[Rule] = set()

    def run(self) -> bool:
        """False when a rule's body was rewritten on the way."""
        while self._waiting:
            stack = self._waiting.pop()
            if stack.tail is None:
                self.accepting = True
            elif isinstance(stack.head, Rule) and self._recurs(stack.head):
                return False
            else:
                self._expand(stack.head, stack.tail)
            if len(self._seen) > MAX_CONFIGURATIONS:
                raise InvalidGrammar(
                    f"over {MAX_CONFIGURATIONS} ways to read the text at one place; "
                    f"the grammar is too ambiguous"
                )
        return True

    def _recurs(self, rule: Rule) -> bool:
        """Whether a rule entered twice before a byte was read turned out to be left-recursive."""
        if rule not in self._entered:
            self._entered.add(rule)
            return False
        if rule in self._automaton._checked:
            return False
        self._automaton._checked.add(rule)
        return bool(remove_left_recursion(rule))

    def _expand(self, head: Node, tail: Tail) -> None:
        match head:
            case Rule():
                self._later(normal_body(head), tail)
            case Literal():
                rest = self._automaton._push(Literal(head.value[1:]), tail)
                self.items.append(Item(1 << head.value[0], rest, None))
            case Bytes():
                self.items.append(Item(head.mask, tail, None))
            case Union():
                for part in head.args:
                    self._later(part, tail)
            case Repeat():
                self._expand_repeat(head, tail)
            case And() | Not():
                self._expand_opaque(head, tail)
            case _:
                raise InvalidGrammar(f"{type(head).__name__} cannot run on bytes")

    def _expand_repeat(self, head: Repeat, tail: Tail) -> None:
        low = 0 if facts(head.item).nullable else head.low
        high = None if head.high is None else head.high - 1
        rest = self._automaton._push(repeat(head.item, max(low - 1, 0), high), tail)
        if low == 0:
            self._visit(tail)
            self._seen.update(members(rest))  # an item that reads nothing adds nothing
        self._later(head.item, rest)

    def _expand_opaque(self, head: Expr, tail: Tail) -> None:
        if facts(head).nullable:
            self._visit(tail)
        for mask in partition(head):
            if derivative(head, lowest_bit(mask)) is not EMPTY:
                self.items.append(Item(mask, tail, head))

    def _later(self, node: Node, tail: Tail) -> None:
        self._visit(self._automaton._push(node, tail))

    def _visit(self, tail: Tail) -> None:
        for stack in members(tail):
            if stack not in self._seen:
                self._seen.add(stack)
                self._waiting.append(stack)


def members(tail: Tail | None) -> Iterable[Stack]:
    """The stacks of a tail."""
    if tail is None:
        return ()
    return (tail,) if isinstance(tail, Stack) else tail


def all_bytes(mask: int) -> list[int]:
    """The byte values of a mask."""
    return [byte for byte in range(256) if mask >> byte & 1]
