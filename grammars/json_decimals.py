"""Sets of numbers as JSON text.

Owns which spellings of a number are written: decimals (`-12.50`), and scientific notation with one
digit before the point (`1.5e-07`), as printers of JSON write it; an integer is written without a
fraction. A set without bounds takes every spelling of RFC 8259, up to exponents beyond
which a double would be infinite or zero. Knows no schema.

An interval becomes a comparison with its ends digit by digit, so bounds of any size and precision
are exact. Multiples are remainders carried from digit to digit, one lazy rule for each.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import facts
from radixgen.grammars.expr import (
    EMPTY,
    EPSILON,
    Expr,
    Node,
    RuleSet,
    byte_set,
    concat,
    literal,
    optional,
    repeat,
    star,
    union,
)
from radixgen.grammars.interval import IntervalRule, NumberRange
from radixgen.grammars.json_multiples import multiples
from radixgen.grammars.json_numbers import EVERY, EXACT, INTEGERS, Number, Numbers, Piece

MAX_EXPONENT = 307  # either way: what a double holds to all its digits
MAX_DIGITS = 1500  # of a bound, or before and behind the point of a number to be written out

DIGIT = byte_set(b"0123456789")
NONZERO = byte_set(b"123456789")
DIGITS = star(DIGIT)
POINT = literal(b".")
MINUS = literal(b"-")
ZERO = literal(b"0")
ZEROS = star(ZERO)
FRACTION = optional(concat(POINT, repeat(DIGIT, 1, None)))
NATURAL = union(ZERO, concat(NONZERO, DIGITS))
E = concat(byte_set(b"eE"), optional(byte_set(b"+-")))
SMALL = concat(optional(ZERO), repeat(DIGIT, 1, 2))
LARGE = union(concat(byte_set(b"12"), DIGIT, DIGIT), concat(literal(b"30"), byte_set(b"01234567")))
# A large exponent has one digit before the point, so that a double can hold the number.
ANY_NUMBER = concat(
    optional(MINUS),
    union(concat(NATURAL, FRACTION, optional(concat(E, SMALL))), concat(DIGIT, FRACTION, E, LARGE)),
)
ANY_INTEGER = union(ZERO, concat(optional(MINUS), NONZERO, DIGITS))


def number_text(numbers: Numbers, rules: RuleSet) -> Node:
    """The texts of a set. Raises InvalidGrammar for bounds of over MAX_DIGITS digits."""
    if numbers is EVERY:
        return ANY_NUMBER
    if numbers is INTEGERS:
        return ANY_INTEGER
    points = [literal(text) for text in spellings(numbers.points)]
    return union(*points, *(_piece(piece, rules) for piece in numbers.pieces))


def spellings(points: Iterable[Number]) -> list[bytes]:
    """Every way to write one of the points, sorted."""
    return sorted(set(_spellings(points)))


def _spellings(points: Iterable[Number]) -> Iterable[bytes]:
    for point in points:
        if point.denominator == 1 and abs(point.numerator) < EXACT:
            yield str(point.numerator).encode()
            continue
        plain = spelled(point)
        if len(plain) <= 30:
            yield plain
        short = repr(float(point)) if abs(point.numerator) < point.denominator * 10**300 else ""
        if "e" in short and Fraction(short) == point:
            yield short.encode()
        elif len(plain) > 30:
            yield plain


def spelled(value: Number) -> bytes:
    """A decimal fraction written out, without trailing zeros."""
    behind = places(value)
    scaled = abs(int(value * 10**behind))
    digits = str(scaled).rjust(behind + 1, "0")
    if len(digits) > MAX_DIGITS:
        raise InvalidGrammar(f"a number in the schema has over {MAX_DIGITS} digits")
    whole, fraction = digits[: len(digits) - behind], digits[len(digits) - behind :]
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}{'.' if fraction else ''}{fraction}".encode()


def places(value: Number) -> int:
    """How many digits behind the point a decimal fraction needs."""
    twos = fives = 0
    rest = value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if max(twos, fives) > MAX_DIGITS:
        raise InvalidGrammar(f"a number in the schema has over {MAX_DIGITS} digits")
    return max(twos, fives)


def _piece(piece: Piece, rules: RuleSet) -> Node:
    plain = piece.multiple is None and not piece.nots
    if plain:
        return _interval_rule(piece, plain_only=False)
    if piece.multiple == 1 and not piece.nots and piece.whole:
        return _interval_rule(piece, plain_only=True)
    one = Fraction(1) if piece.whole else None
    ends = (piece.low, piece.high, piece.low_open, piece.high_open)
    within = _interval(Piece(*ends, one, frozenset(), piece.whole), plain_only=True)
    steps = ([piece.multiple] if piece.multiple else []) + sorted(piece.nots)
    return multiples(within, piece, [(step, places(step)) for step in steps], rules)


@lru_cache(1024)
def _interval_rule(piece: Piece, *, plain_only: bool) -> IntervalRule:
    """The texts of the interval of a piece, which the native engine writes by itself. Raises
    InvalidGrammar for ends of over MAX_DIGITS digits."""
    low, high = (b"" if end is None else spelled(end) for end in (piece.low, piece.high))
    ends = NumberRange(low, high, piece.low_open, piece.high_open, piece.whole, plain_only)
    sure = None if piece.is_empty() or (piece.whole and piece.multiple != 1) else True
    return IntervalRule(ends, lambda: _interval(piece, plain_only=plain_only), sure)


@lru_cache(1024)
def _interval(piece: Piece, *, plain_only: bool) -> Expr:
    """The texts of the interval of a piece; without scientific notation if `plain_only`."""
    signs: list[Node] = []
    for minus, part in ((EPSILON, _positive(piece)), (MINUS, _positive(_mirrored(piece)))):
        if part is None:
            continue
        low, high, low_open, high_open = part
        if minus is MINUS and low == 0 and piece.whole:
            low_open = True  # no -0 among integers
        signs.append(concat(minus, _decimals(low, high, low_open, high_open, piece.whole)))
        if not plain_only:
            signs.append(concat(minus, _scientific(low, high, low_open, high_open)))
    return _regular(union(*signs))


Interval = tuple[Fraction, Fraction | None, bool, bool]


def _mirrored(piece: Piece) -> Piece:
    low = None if piece.high is None else -piece.high
    high = None if piece.low is None else -piece.low
    return Piece(low, high, piece.high_open, piece.low_open)


def _positive(piece: Piece) -> Interval | None:
    """The part of an interval from zero up; None if there is none."""
    low, low_open = (Fraction(0), False)
    if piece.low is not None and piece.low >= 0:
        low, low_open = piece.low, piece.low_open
    high, level_open = piece.high, low_open or piece.high_open
    if high is not None and (high < low or (high == low and level_open)):
        return None
    return low, piece.high, low_open, piece.high_open


def _regular(node: Node) -> Expr:
    assert isinstance(node, Expr)  # made of regular parts
    return node


# --- decimals: comparison digit by digit --------------------------------------------------------


@lru_cache(1024)
def _decimals(
    low: Fraction, high: Fraction | None, low_open: bool, high_open: bool, whole: bool
) -> Node:
    """Decimals from `low` to `high`, both not negative."""
    if whole:
        low, high = _whole_ends(low, high, low_open, high_open)
        low_open = high_open = False
        if high is not None and low > high:
            return EMPTY
    a = _split(low)
    b = None if high is None else _split(high)
    shortest, longest = len(a[0]), len(a[0]) if b is None else len(b[0])
    found: list[Node] = []
    for length in sorted({shortest, longest}):
        tight_low = "".join(a) if length == shortest else None
        tight_high = "".join(b) if b is not None and length == len(b[0]) else None
        compare = _Compare(low_open, high_open, whole)
        found.append(compare.first(tight_low, tight_high, length))
    most = None if b is None else longest - 2  # behind the first digit: shorter than the upper end
    if most is None or most >= shortest:
        more = repeat(DIGIT, shortest, most)
        found.append(concat(NONZERO, more, EPSILON if whole else FRACTION))
    return union(*found)


def _whole_ends(
    low: Fraction, high: Fraction | None, low_open: bool, high_open: bool
) -> tuple[Fraction, Fraction | None]:
    piece = Piece(low, high, low_open, high_open, Fraction(1))
    first = piece.first()
    assert first is not None
    return first, piece.last()


def _split(value: Fraction) -> tuple[str, str]:
    whole, _, fraction = spelled(value).decode().partition(".")
    return whole, fraction


_Rest = Callable[[str | None, str | None], Node]


class _Compare:
    """Digit strings between two ends. An end that the digits so far have left is None."""

    def __init__(self, low_open: bool, high_open: bool, whole: bool) -> None:
        self._low_open = low_open
        self._high_open = high_open
        self._whole = whole
        self._known: dict[tuple[str | None, str | None, int], Node] = {}

    def first(self, low: str | None, high: str | None, length: int) -> Node:
        """Numbers of `length` digits before the point: no leading zero but in a lone one."""
        longest = max(len(low or ""), len(high or ""), length)
        for place in range(longest, 0, -1):  # from the last digit on, so that nothing nests deeply
            a, b = (None if end is None else end[place:] for end in (low, high))
            for ends in ((a, b), (a, None), (None, b)):
                if ends != (None, None):
                    self._after(*ends, length - place)
        return self._digits(low, high, length, zero=length == 1)

    def _after(self, low: str | None, high: str | None, left: int) -> Node:
        """What follows a digit, `left` more before the point; below 0 behind it."""
        key = low, high, max(left, -1)
        if key not in self._known:
            is_whole = left >= 0
            node = self._digits(low, high, left) if is_whole else self._fraction(low, high, False)
            facts(_regular(node))
            self._known[key] = node
        return self._known[key]

    def _digits(self, low: str | None, high: str | None, left: int, zero: bool = True) -> Node:
        if low is None and high is None and zero:
            return concat(repeat(DIGIT, left, left), EPSILON if self._whole else FRACTION)
        if left == 0:
            return self._point(low, high)
        return self._choose(low, high, zero, lambda a, b: self._after(a, b, left - 1))

    def _choose(self, low: str | None, high: str | None, zero: bool, rest: _Rest) -> Node:
        """One digit: strictly between the ends' digits, or at one of them, and what follows."""
        a = int(low[0]) if low else 0
        b = int(high[0]) if high else 9
        if high is not None and not high:
            b = 0
        after_low = None if low is None else low[1:]
        after_high = None if high is None else high[1:]
        found: list[Node] = []
        inside = []
        for digit in range(0 if zero else 1, 10):
            if (low is not None and digit < a) or (high is not None and digit > b):
                continue
            at_low, at_high = low is not None and digit == a, high is not None and digit == b
            if not at_low and not at_high:
                inside.append(48 + digit)
                continue
            tail = rest(after_low if at_low else None, after_high if at_high else None)
            found.append(concat(literal(bytes((48 + digit,))), tail))
        if inside:
            found.append(concat(byte_set(inside), rest(None, None)))
        return union(*found)

    def _point(self, low: str | None, high: str | None) -> Node:
        """Behind the last digit before the point: the end, or a fraction."""
        end = EPSILON if self._may_end(low, high) else EMPTY
        if self._whole:
            return end
        return union(end, concat(POINT, self._fraction(low, high, must=True)))

    def _may_end(self, low: str | None, high: str | None) -> bool:
        if low is not None and (low.strip("0") or self._low_open):
            return False
        return high is None or bool(high.strip("0")) or not self._high_open

    def _fraction(self, low: str | None, high: str | None, must: bool) -> Node:
        """Digits behind the point; at least one if `must`."""
        if low == "" and not self._low_open:
            low = None
        if low is None and high is None:
            return repeat(DIGIT, 1 if must else 0, None)
        if not low and not high:
            return self._level(low, high, must)
        end = EPSILON if not must and self._may_end(low, high) else EMPTY
        return union(end, self._choose(low, high, True, lambda a, b: self._after(a, b, -1)))

    def _level(self, low: str | None, high: str | None, must: bool) -> Node:
        """Every end that is still compared with has no digits left."""
        if low is None:  # equal to the upper end so far: zeros at most
            return EMPTY if self._high_open else repeat(literal(b"0"), 1 if must else 0, None)
        if high is None:  # equal to an excluded lower end: something has to come
            return concat(ZEROS, NONZERO, DIGITS)
        return EMPTY


# --- scientific notation -------------------------------------------------------------------------


@lru_cache(1024)
def _scientific(low: Fraction, high: Fraction | None, low_open: bool, high_open: bool) -> Node:
    """One digit from 1 to 9, a fraction, an exponent: positive numbers between the ends."""
    first = _exponent(low) if low > 0 else -MAX_EXPONENT
    last = _exponent(high) if high else (MAX_EXPONENT if high is None else first - 1)
    any_mantissa = concat(NONZERO, FRACTION)
    found: list[Node] = []
    inner_first = first + 1 if low > 0 else first
    inner_last = last - 1 if high else last
    if first == last and low > 0 and high:
        found.append(_mantissas(first, low, high, low_open, high_open))
    else:
        if low > 0:
            found.append(_mantissas(first, low, None, low_open, False))
        if high:
            found.append(_mantissas(last, None, high, False, high_open))
        if inner_first <= inner_last:
            found.append(concat(any_mantissa, _exponents(inner_first, inner_last)))
    return union(*found)


def _exponent(value: Fraction) -> int:
    """e such that 10**e <= value < 10**(e + 1)."""
    guess = len(str(value.numerator)) - len(str(value.denominator))
    while Fraction(10) ** guess > value:
        guess -= 1
    while Fraction(10) ** (guess + 1) <= value:
        guess += 1
    return guess


def _mantissas(
    exponent: int, low: Fraction | None, high: Fraction | None, low_open: bool, high_open: bool
) -> Node:
    if abs(exponent) > MAX_EXPONENT:
        return EMPTY
    scale = Fraction(10) ** exponent
    a = Fraction(1) if low is None else low / scale
    b, b_open = (Fraction(10), True) if high is None else (high / scale, high_open)
    mantissa = _decimals(a, b, low_open, b_open, False)
    return concat(mantissa, _exponents(exponent, exponent))


@lru_cache(1024)
def _exponents(first: int, last: int) -> Node:
    """`e` and an exponent from `first` to `last`, in one or two digits at least."""
    signs: list[Node] = []
    if last >= 0:
        signs.append(concat(optional(literal(b"+")), _counts(max(first, 0), last)))
    if first < 0:
        signs.append(concat(MINUS, _counts(max(-last, 1), -first)))
    return concat(byte_set(b"eE"), union(*signs))


def _counts(first: int, last: int) -> Node:
    exact = _decimals(Fraction(first), Fraction(last), False, False, True)
    if first > 9:
        return exact
    padded = _decimals(Fraction(first), Fraction(min(last, 9)), False, False, True)
    return union(exact, concat(literal(b"0"), padded))
