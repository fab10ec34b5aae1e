"""Derivatives of regular byte expressions: what may follow after one byte, and is anything left.

Source: J. Brzozowski, "Derivatives of regular expressions", JACM 11(4), 1964; the partition of the
bytes as in S. Owens, J. Reppy, A. Turon, "Regular-expression derivatives re-examined", JFP 2009.
Knows expressions without rules. Knows no stack, no grammar and no token.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple
from weakref import WeakSet

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import (
    ALL_BYTES,
    EMPTY,
    EPSILON,
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
    complement,
    concat,
    conj,
    repeat,
    union,
)

MAX_EMPTINESS_STATES = 20_000

# Whether an intersection or complement has no string. May raise InvalidGrammar.
Decide = Callable[[Expr], bool]


class Facts(NamedTuple):
    """What is known of an expression: it has no `Rule`; it denotes the empty string (False where
    rules would have to be asked); an `And` or `Not` is somewhere in it; no string in it is shorter
    than `least` bytes."""

    regular: bool
    nullable: bool
    boolean: bool
    least: int = 0


def facts(node: Node) -> Facts:
    """The facts of a node, computed once. Raises InvalidGrammar for a text expression."""
    if isinstance(node, Rule):
        return Facts(False, False, False)
    try:
        return node.facts  # type: ignore[no-any-return]  # the slot is untyped storage
    except AttributeError:
        node.facts = found = _find_facts(node)
        return found


def _find_facts(node: Expr) -> Facts:
    match node:
        case Literal():
            return Facts(True, not node.value, False, len(node.value))
        case Bytes():
            return Facts(True, False, False, 1)
        case Concat():
            parts = [facts(part) for part in node.args]
            return _joined(parts, all(p.nullable for p in parts), sum(p.least for p in parts))
        case Union():
            parts = [facts(part) for part in node.args]
            least = min((p.least for p in parts), default=0)
            return _joined(parts, any(p.nullable for p in parts), least)
        case Repeat():
            item = facts(node.item)
            nullable = node.low == 0 or item.nullable
            return item._replace(nullable=nullable, least=node.low * item.least)
        case And() | Not():
            return _boolean_facts(node)
    raise InvalidGrammar(f"{type(node).__name__} needs an encoding before it can run on bytes")


def _joined(parts: list[Facts], nullable: bool, least: int) -> Facts:
    return Facts(all(p.regular for p in parts), nullable, any(p.boolean for p in parts), least)


def _boolean_facts(node: Expr) -> Facts:
    parts = [facts(part) for part in node.args]
    if not all(part.regular for part in parts):
        raise InvalidGrammar("intersection and complement apply to regular expressions only")
    if isinstance(node, Not):
        return Facts(True, not parts[0].nullable, True, int(parts[0].nullable))
    return Facts(True, all(p.nullable for p in parts), True, max(p.least for p in parts))


def estimate(node: Expr) -> int:
    """About how far an end is, where each part of an intersection wants bytes of its own."""
    return sum(map(estimate, node.args)) if isinstance(node, And) else facts(node).least


def derivative(node: Expr, byte: int) -> Expr:
    """The expression of every s such that `byte` + s is in `node`; `EMPTY` when there is none."""
    match node:
        case Bytes():
            return EPSILON if node.mask >> byte & 1 else EMPTY
        case Literal():
            return Literal(node.value[1:]) if node.value[:1] == bytes((byte,)) else EMPTY
    return _derived(node, byte)


@lru_cache(4096)  # the parts of an expression come back in its derivatives
def _derived(node: Expr, byte: int) -> Expr:
    match node:
        case Concat():
            return _derive_concat(node.args, byte)
        case Union():
            return alternatives(derivative(part, byte) for part in node.args)
        case Repeat():
            rest = repeat(node.item, max(node.low - 1, 0), _less(node.high))
            return _expr(concat(derivative(node.item, byte), rest))
        case And():
            return conj(*(derivative(part, byte) for part in node.args))
        case Not():
            return complement(derivative(node.item, byte))
    raise InvalidGrammar(f"{type(node).__name__} needs an encoding before it can run on bytes")


def _derive_concat(parts: tuple[Expr, ...], byte: int) -> Expr:
    found = []
    for index, part in enumerate(parts):
        begun = derivative(part, byte)
        if begun is not EMPTY:
            found.append(_expr(concat(begun, *parts[index + 1 :])))
        if not facts(part).nullable:
            break
    return found[0] if len(found) == 1 and type(found[0]) is not Union else alternatives(found)


def _less(high: int | None) -> int | None:
    return None if high is None else high - 1


def _expr(node: Node) -> Expr:
    assert isinstance(node, Expr)  # regular parts make a regular whole
    return node


def alternatives(parts: Iterable[Expr]) -> Expr:
    """Their union in a form that does not depend on order, with overlapping counts joined.

    x{1,3}y | x{2,7}y becomes x{1,7}y, which keeps the number of derivatives of a counted repeat
    linear in its bound where texts can be read in several ways.
    """
    whole = union(*parts)
    if not isinstance(whole, Union):
        return _expr(whole)
    if sum(map(_begins_with_count, whole.args)) < 2:  # as most
        return Union(*sorted(whole.args, key=id))
    joined = union(*join_counts(whole.args))
    return Union(*sorted(joined.args, key=id)) if isinstance(joined, Union) else _expr(joined)


def _begins_with_count(part: Node) -> bool:
    return type(part.args[0] if type(part) is Concat else part) is Repeat


def join_counts(parts: Iterable[Node]) -> list[Node]:
    """The alternatives, where repeats of one item before one tail become one per count interval."""
    counted: dict[tuple[Node, ...], list[tuple[int, int | None]]] = {}
    rest: list[Node] = []
    for part in parts:
        head, *tail = part.args if isinstance(part, Concat) else (part,)
        if isinstance(head, Repeat):
            counted.setdefault((head.item, *tail), []).append((head.low, head.high))
        else:
            rest.append(part)
    for (item, *tail), counts in counted.items():
        rest.extend(concat(repeat(item, low, high), *tail) for low, high in join_intervals(counts))
    return rest


def join_intervals(counts: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """The same whole numbers in as few intervals as possible; None is no upper bound."""
    joined: list[tuple[int, int | None]] = []
    for low, high in sorted(counts, key=lambda c: (c[0], c[1] is not None, c[1] or 0)):
        if not joined or ((last := joined[-1][1]) is not None and low > last + 1):
            joined.append((low, high))
        elif last is not None and (high is None or high > last):
            joined[-1] = (joined[-1][0], high)
    return joined


def partition(node: Expr) -> list[int]:
    """Disjoint byte masks that cover all bytes; within one, every byte has the same derivative."""
    match node:
        case Bytes():
            return _split([ALL_BYTES], node.mask)
        case Literal():
            return _split([ALL_BYTES], 1 << node.value[0]) if node.value else [ALL_BYTES]
        case Concat():
            masks = [ALL_BYTES]
            for part in node.args:
                masks = refine(masks, partition(part))
                if not facts(part).nullable:
                    break
            return masks
    masks = [ALL_BYTES]
    for part in node.args[:1] if isinstance(node, Repeat) else node.args:
        masks = refine(masks, partition(part))
    return masks


def refine(masks: list[int], others: list[int]) -> list[int]:
    """The coarsest partition finer than both."""
    return [both for mask in masks for other in others if (both := mask & other)]


def _split(masks: list[int], by: int) -> list[int]:
    return refine(masks, [by, ALL_BYTES & ~by])


def lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


# Expressions that a front end has proven to denote something, by a shorter way than a search here.
_proven: "WeakSet[Expr]" = WeakSet()


def state_not_empty(node: Expr) -> None:
    """Let `is_empty` answer for this expression without a search. Only for what is proven."""
    _proven.add(node)


def is_proven(node: Expr) -> bool:
    """Whether `state_not_empty` was told of this expression."""
    return node in _proven


class Search:
    """Decides by a search among derivatives, and keeps the answers.

    Raises InvalidGrammar after MAX_EMPTINESS_STATES of them.
    """

    def __init__(self) -> None:
        self._known: dict[Expr, bool] = {}

    def __call__(self, node: Expr) -> bool:
        if node not in self._known:
            _search(node, self._known)
        return self._known[node]


class Lenient:
    """The same within a text: what no search tells of counts as empty, since the text would have
    to fail where it may as well go on in another way."""

    def __init__(self, decide: Decide | None = None) -> None:
        self._decide = decide or Search()

    def __call__(self, node: Expr) -> bool:
        try:
            return self._decide(node)
        except InvalidGrammar:
            return True


def is_empty(node: Expr, decide: Decide | None = None) -> bool:
    """Whether no string is in a regular expression. Raises what `decide` does, or a search."""
    if not facts(node).boolean:
        return node is EMPTY  # the constructors drop every empty part
    if node in _proven:
        return False
    decide = decide or Search()
    match node:
        case Concat():
            return any(is_empty(part, decide) for part in node.args)
        case Union():
            return all(is_empty(part, decide) for part in node.args)
        case Repeat():
            return node.low > 0 and is_empty(node.item, decide)
    return decide(node)


def _search(start: Expr, known: dict[Expr, bool]) -> None:
    """Look for a derivative that denotes the empty string, the nearest to one first."""
    if _settled(start, known) is False:
        known[start] = False
        return
    parents: dict[Expr, Expr | None] = {start: None}
    waiting = [(0, 0, start)]  # about how many bytes are missing, what breaks ties, the node
    while waiting:
        here = heappop(waiting)[2]
        for following in _successors(here):
            if _settled(following, known) is False:
                _mark_path(here, parents, known)
                return
            if following in parents or following in known:
                continue
            if len(parents) >= MAX_EMPTINESS_STATES:
                raise InvalidGrammar(
                    f"whether an intersection or complement is empty takes more than "
                    f"{MAX_EMPTINESS_STATES} states to decide; simplify its patterns or bounds"
                )
            parents[following] = here
            heappush(waiting, (estimate(following), len(parents), following))
    known.update(dict.fromkeys(parents, True))  # everything reachable was seen, and nothing ends


def _mark_path(
    node: Expr | None, parents: dict[Expr, Expr | None], known: dict[Expr, bool]
) -> None:
    while node is not None:
        known[node] = False
        node = parents[node]


def _settled(node: Expr, known: dict[Expr, bool]) -> bool | None:
    if facts(node).nullable:
        return False
    return known.get(node) if facts(node).boolean else node is EMPTY


def _successors(node: Expr) -> Iterator[Expr]:
    """The derivatives by each class of bytes, made as they are asked for.

    Small classes first: a single letter goes on in a pattern where `.` stays in a loop, so a
    search for an end finds one in a few steps.
    """
    return (
        derivative(node, lowest_bit(mask)) for mask in sorted(partition(node), key=int.bit_count)
    )
