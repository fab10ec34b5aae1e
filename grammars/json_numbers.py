"""Sets of numbers, exact, closed under union, intersection and complement.

A set is finitely many points and pieces. A piece is an interval, whose members may have to be
multiples of something (an integer is a multiple of 1) and must not be multiples of others. Ends
are fractions, so no bound is rounded. Knows no JSON text: see `json_decimals.py` for that.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, lcm

MAX_POINTS = 1000  # a bounded piece with at most so many members becomes points
FEW = 16  # of a range: integers one after another, written by comparing digits if they are more
MAX_LOOKED_AT = 64  # multiples, for one that the others do not divide
EXACT = 10**15  # beyond, a printer of JSON may write an integer with an exponent

Number = Fraction | int  # equal ones are one; integers are made and looked up ten times as fast


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval; None is no end. `whole`: written without a fraction, as integers are."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    multiple: Fraction | None = None
    nots: frozenset[Fraction] = frozenset()
    whole: bool = False

    def holds(self, value: Number) -> bool:
        """Whether `value` is in the piece."""
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        if self.multiple is not None and not divides(self.multiple, value):
            return False
        return not any(divides(m, value) for m in self.nots)

    def is_empty(self) -> bool:
        """Whether nothing is left; exact for intervals and one multiple, else it may say no."""
        if self.low is not None and self.high is not None:
            if self.low > self.high:
                return True
            if self.low == self.high and (self.low_open or self.high_open):
                return True
        if self.multiple is None:
            return False
        if any(divides(m, self.multiple) for m in self.nots):
            return True
        first, last = self.first(), self.last()
        return first is not None and last is not None and first > last

    def has_some(self) -> bool:
        """Whether a look shows a member of what is not known to be empty. False says nothing."""
        if not self.nots:
            return True
        if self.multiple is None:  # of an interval, in which the others are far apart
            return self.low is None or self.high is None or self.low < self.high
        step, first, last = self.multiple, self.first(), self.last()
        if first is None:
            first, step = last or step, -step
        return any(self.holds(first + step * index) for index in range(MAX_LOOKED_AT))

    def first(self) -> Fraction | None:
        """The smallest multiple in the piece; None without a lower end."""
        if self.low is None or self.multiple is None:
            return None
        found = ceil(self.low / self.multiple) * self.multiple
        return found + self.multiple if self.low_open and found == self.low else found

    def last(self) -> Fraction | None:
        """The greatest multiple in the piece; None without an upper end."""
        if self.high is None or self.multiple is None:
            return None
        found = floor(self.high / self.multiple) * self.multiple
        return found - self.multiple if self.high_open and found == self.high else found

    def members(self) -> frozenset[Number] | None:
        """The members, where they are few."""
        if self.low is not None and self.low == self.high:
            return frozenset((self.low,)) if self.holds(self.low) else frozenset()
        first, last = self.first(), self.last()
        if first is None or last is None or self.multiple is None:
            return None
        if last - first > self.multiple * MAX_POINTS:
            return None
        scale = lcm(first.denominator, self.multiple.denominator)
        scaled = range(int(first * scale), int(last * scale) + 1, int(self.multiple * scale))
        every: Iterable[Number] = scaled
        if scale != 1:
            every = (Fraction(n, scale) for n in scaled)
        if not self.nots:
            return frozenset(every)
        return frozenset(value for value in every if not any(divides(m, value) for m in self.nots))

    def is_range(self) -> bool:
        """Whether the members are integers one after another, between ends, and not few."""
        if not self.whole or self.multiple != 1 or self.nots:
            return False
        first, last = self.first(), self.last()
        if first is None or last is None:
            return False
        return -EXACT < first < last - FEW and last < EXACT


def divides(step: Fraction, value: Number) -> bool:
    """Whether a number is a multiple, by integers alone: a remainder of fractions costs ten times
    as much."""
    return value.numerator * step.denominator % (step.numerator * value.denominator) == 0


def meet_pieces(one: Piece, other: Piece) -> Piece:
    """What both hold."""
    low, low_open = _later(one.low, one.low_open, other.low, other.low_open)
    high, high_open = _earlier(one.high, one.high_open, other.high, other.high_open)
    multiple = one.multiple or other.multiple
    if one.multiple is not None and other.multiple is not None:
        multiple = least_multiple(one.multiple, other.multiple)
    whole, nots = one.whole or other.whole, one.nots | other.nots
    return Piece(low, high, low_open, high_open, multiple, nots, whole)


def _later(
    a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool
) -> tuple[Fraction | None, bool]:
    if a is None or (b is not None and (b > a or (b == a and b_open))):
        return b, b_open
    return a, a_open


def _earlier(
    a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool
) -> tuple[Fraction | None, bool]:
    if a is None or (b is not None and (b < a or (b == a and b_open))):
        return b, b_open
    return a, a_open


def least_multiple(a: Fraction, b: Fraction) -> Fraction:
    """The least common multiple of two positive fractions."""
    bottom = lcm(a.denominator, b.denominator)
    return Fraction(lcm(int(a * bottom), int(b * bottom)), bottom)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A set of numbers: the points and the pieces together."""

    points: frozenset[Number] = frozenset()
    pieces: tuple[Piece, ...] = ()

    def holds(self, value: Number) -> bool:
        return value in self.points or any(piece.holds(value) for piece in self.pieces)

    def meet(self, other: "Numbers") -> "Numbers":
        if self is EVERY:
            return other
        if other is EVERY:
            return self
        points = frozenset(p for p in self.points if other.holds(p))
        points |= frozenset(p for p in other.points if self.holds(p))
        return numbers((meet_pieces(a, b) for a in self.pieces for b in other.pieces), points)

    def join(self, other: "Numbers") -> "Numbers":
        if self is EVERY or other is EVERY:
            return EVERY
        pieces = dict.fromkeys(self.pieces + other.pieces)
        return Numbers(self.points | other.points, tuple(pieces))

    def complement(self) -> "Numbers":
        points, endless = self.points, []
        for piece in self.pieces:
            few = piece.members()
            if few is None:
                endless.append(piece)
            else:
                points |= few
        found = without_points(points)
        for piece in endless:
            found = found.meet(_outside(piece))
        return found

    def is_empty(self) -> bool:
        return not self.points and not self.pieces

    def members(self) -> frozenset[Number] | None:
        """All members, where they are few."""
        found = self.points
        for piece in self.pieces:
            more = piece.members()
            if more is None:
                return None
            found |= more
        return found


EVERY = Numbers(pieces=(Piece(),))
NONE = Numbers()
INTEGERS = Numbers(pieces=(Piece(multiple=Fraction(1), whole=True),))


def numbers(pieces: Iterable[Piece], points: Iterable[Number] = ()) -> Numbers:
    """A set without its empty pieces, its small ones as points unless they are ranges."""
    found = set(points)
    kept: dict[Piece, None] = {}
    for piece in pieces:
        if piece.is_empty():
            continue
        listed = piece.low is not None and not piece.is_range()
        few = piece.members() if listed else None
        if few is None:
            kept[piece] = None
        else:
            found |= few
    return Numbers(frozenset(found), tuple(kept))


def without_points(points: Iterable[Number]) -> Numbers:
    """Every number but these."""
    ends: list[Fraction | None] = [None, *map(Fraction, sorted(points)), None]
    if len(ends) == 2:
        return EVERY
    gaps = itertools.pairwise(ends)
    return Numbers(pieces=tuple(Piece(a, b, a is not None, b is not None) for a, b in gaps))


def _outside(piece: Piece) -> Numbers:
    """Every number but those of a piece."""
    found: list[Piece] = []
    if piece.low is not None:
        found.append(Piece(high=piece.low, high_open=not piece.low_open))
    if piece.high is not None:
        found.append(Piece(low=piece.high, low_open=not piece.high_open))
    inside = Piece(piece.low, piece.high, piece.low_open, piece.high_open)
    if piece.multiple is not None:
        found.append(replace(inside, nots=frozenset((piece.multiple,))))
    found.extend(replace(inside, multiple=m) for m in piece.nots)
    return numbers(found)
