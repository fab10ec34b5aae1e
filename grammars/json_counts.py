"""How many values a goal surely has, and how long its shortest strings are.

Lower bounds: what is hard to count counts as nothing. For `uniqueItems`, which needs another value
for every item. Knows sets of values. Knows no rule.
"""

from collections.abc import Iterable
from functools import lru_cache

from radixgen.grammars.derivative import derivative, facts, lowest_bit, partition
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import (
    EMPTY,
    And,
    Chars,
    Concat,
    Expr,
    Node,
    Not,
    Repeat,
    Union,
    chars,
    common,
    complement,
    concat,
    conj,
    repeat,
    union,
)
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_numbers import Numbers, Piece
from radixgen.grammars.json_proofs import Proofs
from radixgen.grammars.json_shapes import ArrayShape, Goal, ObjectShape, is_never
from radixgen.grammars.json_texts import Texts
from radixgen.grammars.text_emptiness import is_boolean

MAX_DEPTH = 4  # of members within members
COUNTED = 256  # texts of a set, unless more are asked for
MAX_LENGTH = 200  # of the texts that are counted
MAX_BREADTH = 200  # states that a text may be in after so many characters
_PRINTABLE = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))  # but the quote and the backslash
_PLAIN = sum(1 << byte for byte in range(0x20, 0x7F) if byte not in b'"\\')


class Counts:
    """Counts of the goals of one document."""

    def __init__(self, algebra: Algebra, proofs: Proofs) -> None:
        self._algebra = algebra
        self._proofs = proofs

    def at_least(self, wanted: Goal, most: int, depth: int = 0) -> int:
        """How many values a goal surely has, counted up to `most`."""
        if is_never(wanted) or depth > MAX_DEPTH:
            return 0
        number = 0
        for kind in ("null", "boolean", "string", "number", "object", "array"):
            found = self._algebra.goal_set(wanted, kind)
            if kind == "string":
                number += _count_texts(found, most)
            elif kind == "number":
                number += _count_numbers(found, most)
            elif kind in ("null", "boolean"):
                number += len(found)
            else:
                number += max((self._shape(one, most, depth) for one in found), default=0)
            if number >= most:
                return most
        return number

    def strings(self, wanted: Goal, most: int) -> list[int]:
        """The lengths of the shortest strings of a goal, `most` at most, in order."""
        return lengths(self._algebra.goal_set(wanted, "string"), most)

    def has_strings(self, wanted: Goal, number: int) -> bool:
        """Whether a goal surely has so many strings, which says less than how long they are."""
        return _count_texts(self._algebra.goal_set(wanted, "string"), number) >= number

    def containers(self, wanted: Goal, kind: str, most: int) -> int:
        """How many values of the kind "object" or "array" a goal surely has, up to `most`."""
        found = self._algebra.goal_set(wanted, kind)
        return max((self._shape(one, most, 0) for one in found), default=0)

    def has_negatives(self, wanted: Goal) -> bool:
        """Whether a goal surely has numbers below zero without end."""
        pieces = self._algebra.goal_set(wanted, "number").pieces
        return any(piece.low is None and not piece.nots for piece in pieces)

    def _shape(self, shape: ObjectShape | ArrayShape, most: int, depth: int) -> int:
        number = self._count(shape, most + len(shape.unlike), depth)
        return max(number - len(shape.unlike), 0)

    def _count(self, shape: ObjectShape | ArrayShape, most: int, depth: int) -> int:
        if isinstance(shape, ObjectShape):
            return self._objects(shape, most, depth)
        if shape.counts or shape.high == 0:
            return 0
        endless = shape.high is None and not (shape.unique or shape.prefix)
        if shape.low <= 1:  # arrays of one item, of which one will do where more may follow
            number = self.at_least(shape.goal_of(0), 1 if endless else most, depth + 1)
        else:
            number = int(self._proofs.shape(shape) is True)
        return most if endless and number else number

    def _objects(self, shape: ObjectShape, most: int, depth: int) -> int:
        """By the values of one member, where the others may stay as they are."""
        if shape.some or shape.high is not None or shape.low > len(shape.required):
            return 0
        if not all(self._has_value(shape.goal_of(name), depth + 1) for name in shape.required):
            return 0
        if not shape.every:  # any other name may be there
            return most
        number = 1
        for name in shape.goals:
            number = max(number, self.at_least(shape.goal_of(name), most, depth + 1))
            if number >= most:
                break
        return number

    def _has_value(self, wanted: Goal, depth: int) -> bool:
        return self._proofs.productive(wanted) is True or self.at_least(wanted, 1, depth) > 0


def _count_texts(found: Texts, most: int) -> int:
    if found.finite is None and _is_endless(found.expr):
        return most
    return len(lengths(found, most))


@lru_cache(1024)
def _is_endless(expr: Expr) -> bool:
    """Whether a look shows that there are texts without end."""
    return not is_boolean(expr) and _repeats(expr)


def _repeats(expr: Expr) -> bool:
    """Whether some part may come again and again; no part is empty, as constructors see to it."""
    if isinstance(expr, Repeat):
        return expr.high is None or _repeats(expr.item)
    return isinstance(expr, Concat | Union) and any(map(_repeats, expr.args))


def _count_numbers(found: Numbers, most: int) -> int:
    pieces = (_count_piece(piece, most) for piece in found.pieces)
    return max(len(found.points), *pieces, 0)


def _count_piece(piece: Piece, most: int) -> int:
    if piece.nots:
        return 0
    if piece.low is None or piece.high is None:
        return most
    if piece.multiple is None:
        return most if piece.low < piece.high else 0
    first, last = piece.first(), piece.last()
    assert first is not None
    assert last is not None
    return max(int((last - first) / piece.multiple) + 1, 0)


def lengths(texts: Texts, most: int) -> list[int]:
    """The lengths in bytes of the shortest texts of a set, at most `most` of them, in order.

    A lower bound of how many there are of each length: only texts that JSON writes in one way, of
    printable ASCII, are counted.
    """
    if texts.finite is not None:
        plain = (t for t in texts.finite if all(" " <= c <= "~" and c not in '"\\' for c in t))
        return sorted(map(len, plain))[:most]
    counted = most if most < 2 else max(most, COUNTED)  # once, for all who ask about them
    return list(_lengths(texts.expr, counted)[:most])


@lru_cache(512)
def _lengths(expr: Expr, most: int) -> tuple[int, ...]:
    """By the number of ways to each state of the automaton after so many characters."""
    level: dict[Expr, int] = {utf8(_printable(expr)): 1}
    found: list[int] = []
    for length in range(MAX_LENGTH):
        ends = sum(number for node, number in level.items() if facts(node).nullable)
        found += [length] * min(ends, most - len(found))
        if len(found) >= most or not level:
            break
        level = _next_level(level.items(), most)
    return tuple(found)


def _printable(node: Expr) -> Expr:
    """The expression with its characters in printable ASCII: of those, it reads the same texts."""
    match node:
        case Chars():
            return chars(common(node.ranges, _PRINTABLE))
        case Repeat():
            return _regular(repeat(_printable(node.item), node.low, node.high))
        case Not():
            return complement(_printable(node.item))
        case Concat():
            return _regular(concat(*map(_printable, node.args)))
        case Union():
            return _regular(union(*map(_printable, node.args)))
        case And():
            return conj(*map(_printable, node.args))
    return node


def _regular(node: Node) -> Expr:
    assert isinstance(node, Expr)  # text expressions hold no rule
    return node


def _next_level(level: Iterable[tuple[Expr, int]], most: int) -> dict[Expr, int]:
    after: dict[Expr, int] = {}
    for node, number in level:
        for mask in partition(node):
            ways = (mask & _PLAIN).bit_count()
            there = derivative(node, lowest_bit(mask & _PLAIN)) if ways else EMPTY
            if there is not EMPTY:
                after[there] = min(after.get(there, 0) + number * ways, most)
    kept = sorted(after.items(), key=lambda item: -item[1])[:MAX_BREADTH]
    return dict(kept)
