"""Whether a text expression denotes any text: a search over code points, before any encoding.

Knows text expressions. A search over bytes gives the same answer, as an encoding spells every code
point; here a class of code points is one step, not a tree of bytes, and the shortest text is found
first.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from weakref import WeakSet

from radixgen.grammars.derivative import alternatives
from radixgen.grammars.expr import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    And,
    Chars,
    Concat,
    Expr,
    Literal,
    Node,
    Not,
    Repeat,
    Union,
    complement,
    concat,
    conj,
    repeat,
)

MAX_STATES = 300  # an engine takes less time for each of many more
MIN_STATES = 100
HARD_STATES = 100  # of a search that finds a text: what follows that may take many more
MANY_PARTS = 32  # of an intersection: of one with more, each state takes longer, so fewer are seen


@lru_cache(4096)
def text_is_empty(expr: Expr) -> bool | None:
    """Whether no text is in the language; None where `most_states` do not tell."""
    if not is_boolean(expr):
        return expr is EMPTY  # the constructors drop every empty part
    match expr:
        case Concat():
            return _any(map(text_is_empty, expr.args))
        case Union():
            return _all(map(text_is_empty, expr.args))
        case Repeat():
            return text_is_empty(expr.item) if expr.low else False
    return _search(expr)


def holds_text(expr: Expr, value: str) -> bool:
    """Whether a text is in the language. Half of a surrogate pair is in none."""
    here = expr
    for letter in value:
        here = _part_derivative(here, ord(letter))
        if here is EMPTY:
            return False
    return is_nullable(here) and (value.isascii() or _SURROGATES.isdisjoint(value))


_SURROGATES = frozenset(map(chr, range(0xD800, 0xE000)))


def _any(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return True if True in found else (None if None in found else False)


def _all(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return False if False in found else (None if None in found else True)


def state_not_empty(expr: Expr) -> None:
    """Let `text_is_empty` answer for this expression without a search. Only for what is proven."""
    _proven.add(expr)


_proven: WeakSet[Expr] = WeakSet()


def is_hard(expr: Expr) -> bool:
    """Whether a text of it was found late, so that one that continues a text may not be."""
    return expr in _hard


_hard: WeakSet[Expr] = WeakSet()


def _search(expr: Expr) -> bool | None:
    """Look for a derivative that plainly denotes some text.

    Depth first for a while, as one long text is found soonest so; then breadth first, as the way
    down may have no end in reach.
    """
    if expr in _proven or is_nullable(expr) or _shown(expr):
        return False
    most = most_states(expr)
    found, met = _explore(expr, most // 3, deque.pop)
    if found is None:
        found, met = _explore(expr, most, deque.popleft)
    if found is False and met > HARD_STATES:
        _hard.add(expr)
    return found


def most_states(expr: Expr) -> int:
    """How many states of an expression are searched for a text."""
    parts = len(expr.args) if isinstance(expr, And) else 1
    return max(MAX_STATES * MANY_PARTS // max(parts, MANY_PARTS), MIN_STATES)


def _shown(expr: Expr) -> bool:
    """Whether a shortest text of one part of an intersection is in all of it."""
    for part in expr.args if isinstance(expr, And) else ():
        here = expr
        for point in (None if is_boolean(part) else _shortest(part)) or ():
            here = _derivative(here, point)
        if here is not expr and is_nullable(here):
            return True
    return False


@lru_cache(1024)
def _shortest(node: Node) -> tuple[int, ...]:
    """A shortest text of an expression without intersections and complements."""
    match node:
        case Chars():
            return (next((low for low, _ in node.ranges if low >= 0x20), node.ranges[0][0]),)
        case Concat():
            return tuple(point for part in node.args for point in _shortest(part))
        case Union():
            return min(map(_shortest, node.args), key=len)
        case Repeat():
            return _shortest(node.item) * min(node.low, MAX_STATES) if node.low else ()
    return ()


@lru_cache(256)
def combinations(languages: frozenset[Expr], most: int) -> frozenset[frozenset[Expr]] | None:
    """Of which of the languages a text can be all at once and of no other.

    One search over all of them together. None where it meets more than `most` states.
    """
    start = tuple(languages)
    waiting, seen = [start], {start}
    found: set[frozenset[Expr]] = set()
    while waiting:
        here = waiting.pop()
        ends = zip(start, map(is_nullable, here), strict=True)
        found.add(frozenset([language for language, may_end in ends if may_end]))
        for point in _representatives(frozenset().union(*map(_first, here))):
            there = tuple([_part_derivative(part, point) for part in here])
            if there not in seen:
                seen.add(there)
                waiting.append(there)
        if len(seen) > most:
            return None
    return frozenset(found)


def _explore(expr: Expr, most: int, take: Callable[[deque[Expr]], Expr]) -> tuple[bool | None, int]:
    """Whether it has no text, and how many states were met to find out."""
    waiting, seen = deque((expr,)), {expr}
    while waiting:
        here = take(waiting)
        for point in _representatives(_first(here)):
            there = _derivative(here, point)
            if there is EMPTY or there in seen:
                continue
            if is_nullable(there) or not is_boolean(there):
                return False, len(seen)
            seen.add(there)
            waiting.append(there)
        if len(seen) > most:
            return None, len(seen)
    return True, len(seen)


@lru_cache(4096)
def is_endless(expr: Expr) -> bool:
    """Whether a look shows that there are texts without end in the language. False says nothing."""
    return not is_boolean(expr) and _repeats(expr)


def _repeats(node: Node) -> bool:
    match node:
        case Concat() | Union():  # of which no part is empty
            return any(map(_repeats, node.args))
        case Repeat():  # of what has a text beside the empty one
            return node.high is None or _repeats(node.item)
    return False


@lru_cache(8192)
def is_boolean(node: Node) -> bool:
    """Whether an intersection or complement is somewhere in it."""
    match node:
        case And() | Not():
            return True
        case Concat() | Union():
            return any(map(is_boolean, node.args))
        case Repeat():
            return is_boolean(node.item)
    return False


@lru_cache(8192)
def is_nullable(node: Node) -> bool:
    """Whether the empty text is in the language."""
    match node:
        case Literal():
            return not node.value
        case Concat() | And():
            return all(map(is_nullable, node.args))
        case Union():
            return any(map(is_nullable, node.args))
        case Repeat():
            return node.low == 0 or is_nullable(node.item)
        case Not():
            return not is_nullable(node.item)
    return False


@lru_cache(8192)
def _first(node: Node) -> frozenset[Chars]:
    """The classes that a first code point may be told apart by."""
    match node:
        case Chars():
            return frozenset((node,))
        case Concat():
            found: frozenset[Chars] = frozenset()
            for part in node.args:
                found |= _first(part)
                if not is_nullable(part):
                    break
            return found
        case Repeat():
            return _first(node.item)
        case Union() | And() | Not():
            return frozenset().union(*map(_first, node.args))
    return frozenset()


@lru_cache(1024)
def _representatives(classes: frozenset[Chars]) -> tuple[int, ...]:
    """One code point of each way to be in some of the classes and not in the others."""
    events: dict[int, int] = {}
    for index, one in enumerate((ANY_CHAR, *classes)):
        assert isinstance(one, Chars)
        for low, high in one.ranges:
            events[low] = events.get(low, 0) ^ 1 << index
            events[high + 1] = events.get(high + 1, 0) ^ 1 << index
    inside = 0
    found: dict[int, int] = {}
    for point in sorted(events):
        inside ^= events[point]
        if inside & 1:  # a code point that a text may hold
            found.setdefault(inside, point)
    return tuple(found.values())


def _derivative(node: Expr, point: int) -> Expr:
    """The texts that follow `point` in texts of the expression."""
    match node:
        case Chars():
            return EPSILON if any(low <= point <= high for low, high in node.ranges) else EMPTY
        case Concat():
            found = []
            for index, part in enumerate(node.args):
                begun = _part_derivative(part, point)
                if begun is not EMPTY:
                    found.append(_expr(concat(begun, *node.args[index + 1 :])))
                if not is_nullable(part):
                    break
            only = len(found) == 1 and type(found[0]) is not Union
            return found[0] if only else alternatives(found)
        case Union():
            return alternatives(_part_derivative(part, point) for part in node.args)
        case Repeat():
            high = None if node.high is None else node.high - 1
            more = repeat(node.item, max(node.low - 1, 0), high)
            return _expr(concat(_part_derivative(node.item, point), more))
        case And():
            return conj(*(_part_derivative(part, point) for part in node.args))
        case Not():
            return complement(_part_derivative(node.item, point))
    return EMPTY


@lru_cache(1 << 15)
def _part_derivative(node: Expr, point: int) -> Expr:
    """The same, kept: the parts go through few states, what they are parts of through many."""
    return _derivative(node, point)


def _expr(node: Node) -> Expr:
    assert isinstance(node, Expr)  # text expressions hold no rule
    return node
