"""Which rules derive a string at all: what does not is cut out before an automaton sees it.

A mask may allow only what can still be completed, so a dead alternative must never be entered. The
answer is the least fixpoint over the rules; it is sought lazily, one alternative of a choice being
proof enough, so that a grammar is expanded no further than the proof needs.
"""

from collections import deque
from collections.abc import Iterator

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import Decide, Search, facts, is_empty
from radixgen.grammars.expr import (
    EMPTY,
    And,
    Bytes,
    Concat,
    Literal,
    Node,
    Not,
    Repeat,
    Rule,
    Union,
    concat,
    repeat,
    union,
)

MAX_RULES = 50_000


def is_productive(node: Node, decide: Decide | None = None) -> bool:
    """Whether `node` derives any string. Raises InvalidGrammar where that cannot be decided.

    `decide` is asked of intersections and complements: an engine's is faster than a search here.
    """
    if isinstance(node, Rule) and node.productive:
        return True
    if isinstance(node, Rule) and node.productive is None and _is_plain(node.body()):
        node.productive = True
        return True
    proof = _Proof(decide or Search())
    try:
        if proof.holds(node):
            return True
    except RecursionError:  # a chain of thousands of rules: found from the bottom up instead
        pass
    _settle(node, proof.decide)
    return derives(node, proof.decide)


def _is_plain(node: Node) -> bool:
    """Whether a look at the node alone shows that it derives something, as most rules do."""
    match node:
        case Rule():
            return node.productive is True
        case Literal() | Bytes():
            return True
        case Concat():
            return all(_is_plain(part) for part in node.args)
        case Union():
            return any(_is_plain(part) for part in node.args)
        case Repeat():
            return node.low == 0 or _is_plain(node.item)
    return False


class _Proof:
    """One search, depth first. A rule met again below itself proves nothing there."""

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self._tried: set[Rule] = set()

    def holds(self, node: Node) -> bool:
        if isinstance(node, Rule):
            return self._rule_holds(node)
        if facts(node).regular:
            return not is_empty(node, self.decide)
        if isinstance(node, Union):
            return any(self.holds(part) for part in sorted(node.args, key=_effort))
        if isinstance(node, Repeat):
            return node.low == 0 or self.holds(node.item)
        return all(self.holds(part) for part in node.args)

    def _rule_holds(self, rule: Rule) -> bool:
        if rule.productive is not None:
            return rule.productive
        if rule in self._tried:
            return False
        self._tried.add(rule)
        if len(self._tried) > MAX_RULES:
            raise InvalidGrammar(
                f"a proof that the grammar derives text needs over {MAX_RULES} rules; simplify "
                f"what has to be there, such as items or members of several kinds at once"
            )
        if self.holds(rule.body()):
            rule.productive = True
            return True
        return False


def _effort(node: Node) -> int:
    """Cheap alternatives first: the regular, the proven, the recursive."""
    if isinstance(node, Rule):
        return 1 if node.productive is not None else 3
    return 0 if facts(node).regular else 2


def rules_in(node: Node) -> Iterator[Rule]:
    """The rules that an expression mentions, in order, with repetition."""
    if isinstance(node, Rule):
        yield node
    elif not facts(node).regular:
        for part in node.args[:1] if isinstance(node, Repeat) else node.args:
            yield from rules_in(part)


def rules_below(node: Node) -> Iterator[Rule]:
    """The rules that `node` leads to, nearest first, each expanded as the next is asked for."""
    found: dict[Rule, None] = dict.fromkeys(rules_in(node))
    waiting = deque(found)
    while waiting:
        rule = waiting.popleft()
        yield rule
        for other in rules_in(rule.body()):
            if other not in found:
                found[other] = None
                waiting.append(other)


def _settle(node: Node, decide: Decide) -> None:
    """Find for every undecided rule below `node` whether it is productive, by iteration."""
    undecided: dict[Rule, None] = {}
    waiting = list(rules_in(node))
    while waiting:
        rule = waiting.pop()
        if rule.productive is None and rule not in undecided:
            undecided[rule] = None
            waiting.extend(rules_in(rule.body()))
            if len(undecided) > MAX_RULES:
                raise InvalidGrammar(
                    f"the grammar has over {MAX_RULES} rules that may be empty; simplify what has "
                    f"to be there"
                )
    progress = True
    while progress:
        progress = False
        for rule in [r for r in undecided if r.productive is None]:
            if derives(rule.body(), decide):
                rule.productive = progress = True
    for rule in undecided:
        rule.productive = rule.productive or False


def derives(node: Node, decide: Decide) -> bool:
    """Whether `node` derives a text by the rules that are known to be productive so far."""
    if isinstance(node, Rule):
        return node.productive is True
    if facts(node).regular:
        return not is_empty(node, decide)
    if isinstance(node, Union):
        return any(derives(part, decide) for part in node.args)
    if isinstance(node, Repeat):
        return node.low == 0 or derives(node.item, decide)
    return all(derives(part, decide) for part in node.args)


def prune(node: Node, decide: Decide | None = None) -> Node:
    """`node` without the parts that derive nothing; `EMPTY` when nothing is left."""
    if isinstance(node, Rule):
        return node if is_productive(node, decide) else EMPTY
    known = facts(node)
    if known.regular and not known.boolean:
        return node
    match node:
        case And() | Not():
            return EMPTY if is_empty(node, decide) else node
        case Concat():
            return concat(*(prune(part, decide) for part in node.args))
        case Union():
            return union(*(prune(part, decide) for part in node.args))
        case Repeat():
            return repeat(prune(node.item, decide), node.low, node.high)
    return node
