"""Multiples, and what is no multiple, as decimals within a regular interval.

A step of m units of the last of k places divides a decimal if its digits, as one whole number with
k places, leave no remainder modulo m. The remainder is carried from digit to digit, one lazy rule
for each and for what is left of the interval. Knows no schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd

from radixgen.grammars.derivative import derivative, facts, partition, state_not_empty
from radixgen.grammars.expr import (
    EMPTY,
    EPSILON,
    Bytes,
    Concat,
    Expr,
    Literal,
    Node,
    Repeat,
    RuleSet,
    byte_set,
    concat,
    conj,
    literal,
    optional,
    repeat,
    star,
    union,
)
from radixgen.grammars.json_numbers import Piece

POINT, MINUS = ord("."), ord("-")
MORE_DIGITS = 20  # than those of a step, looked for until a number is within its interval
MAX_NEIGHBOURS = 8  # multiples that are tried for one that the other steps do not divide


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a number, as far as it matters.

    `remainders` by step; `beyond` whether a digit other than 0 came behind a step's places;
    `place`, digits behind the point, None before it; `free`: any number of digits may follow and
    stay within the interval.
    """

    remainders: tuple[int, ...]
    beyond: tuple[bool, ...]
    place: int | None = None
    begun: bool = False
    free: bool = False


@lru_cache(8192)
def _behind_digits(left: Expr) -> tuple[Expr, ...]:
    """The derivatives by all digits: one for those that are alike, as most are."""
    found = [EMPTY] * 10
    for mask in partition(left):
        alike = [digit for digit in range(10) if mask >> 48 + digit & 1]
        if alike:
            after = derivative(left, 48 + alike[0])
            for digit in alike:
                found[digit] = after
    return tuple(found)


@lru_cache(8192)
def _takes_digits(left: Expr, number: int) -> bool:
    """Whether any so many digits may follow, and then the end."""
    if not number:
        return facts(left).nullable
    following = set(_behind_digits(left))
    return EMPTY not in following and all(_takes_digits(one, number - 1) for one in following)


@lru_cache(8192)
def _digits_of(left: Expr) -> tuple[int, int | None]:
    """How many digits may come before a point or the end, at least and at most; None: no bound.
    A minus counts as one."""
    match left:
        case Literal():
            before = left.value.partition(b".")[0]
            return len(before), len(before)
        case Bytes():
            return 1, 1
        case Repeat():
            least, most = _digits_of(left.item)
            bound = None if most is None or left.high is None else most * left.high
            return least * left.low, bound
        case Concat():
            behind = (i for i, part in enumerate(left.args, 1) if _has_point(part))
            parts = [_digits_of(part) for part in left.args[: next(behind, None)]]
            known = [most for _, most in parts if most is not None]
            return sum(p[0] for p in parts), sum(known) if len(known) == len(parts) else None
    parts = [_digits_of(part) for part in left.args]
    known = [most for _, most in parts if most is not None]
    least = min((p[0] for p in parts), default=0)
    return least, max(known, default=0) if len(known) == len(parts) else None


def _has_point(part: Expr) -> bool:
    return isinstance(part, Literal) and b"." in part.value


def _reaches(remainder: int, modulus: int, number: int) -> bool:
    """Whether some digits, so many, leave no remainder."""
    power: int = 10**number
    return -remainder * power % modulus < power


def multiples(
    within: Expr, piece: Piece, steps: Sequence[tuple[Fraction, int]], rules: RuleSet
) -> Node:
    """The decimals of `within` that the first step divides, if the piece has a multiple, and the
    other steps do not. `steps` come with their places."""
    if len(steps) == 1 and piece.multiple is not None:
        step, places = steps[0]
        if step * 10**places == 1:  # then no digits before its last place matter
            found = conj(within, _decimals(places))
            state_not_empty(found)  # it has a multiple
            return found
    return _Remainders(piece, steps, rules).start(within)


@lru_cache(64)
def _decimals(places: int) -> Expr:
    """Those of so many places, and zeros behind them."""
    digits = byte_set(range(48, 58))
    behind = concat(literal(b"."), repeat(digits, 0, places), star(literal(b"0")))
    found = concat(optional(literal(b"-")), star(digits), optional(behind))
    assert isinstance(found, Expr)
    return found


class _Remainders:
    """The rules of one piece."""

    def __init__(self, piece: Piece, steps: Sequence[tuple[Fraction, int]], rules: RuleSet) -> None:
        self._places = [places for _, places in steps]
        self._moduli = [int(step * 10**places) for step, places in steps]
        # Of whole numbers, which a step divides whatever its last places are worth.
        whole = [
            m // gcd(m, 10**places) for m, places in zip(self._moduli, self._places, strict=True)
        ]
        self._whole = whole[0]
        self._has_whole = all(self._whole % modulus for modulus in whole[1:])
        self._most = max(self._places)
        self._wanted = piece.multiple is not None
        self._is_alone = not piece.nots
        # Then digits that may go on without end lead to a multiple of the first step that no other
        # step divides: none of these divides the first, or the piece is empty.
        self._is_sure = self._wanted and (self._is_alone or self._most == 0)
        self._above, self._below = piece.high is None, piece.low is None
        self._rules = rules

    def start(self, within: Expr) -> Node:
        none = (0,) * len(self._moduli)
        return self._rule(within, Read(none, (False,) * len(none), free=self._above))

    def _rule(self, left: Expr, now: Read) -> Node:
        if left is EMPTY or (self._wanted and now.beyond[0]) or not self._in_reach(left, now):
            return EMPTY
        key = ("multiple", tuple(self._moduli), tuple(self._places), self._wanted, left, now)
        number = self._sure_digits(left, now)
        is_free = self._is_sure and now.free and now.place is None
        sure = True if number is not None or is_free else None
        return self._rules.rule(key, lambda: self._body(left, now), sure, number)

    def _sure_digits(self, left: Expr, now: Read) -> int | None:
        """How many digits surely lead to an end; None where only a search tells."""
        if facts(left).nullable and self._may_end(now):
            return 0
        if not now.begun:
            return None
        if not self._wanted:
            return self._digits_to_none(left, now)
        remainder = now.remainders[0]
        if now.place is None:
            return self._digits(left, now, remainder)
        number = self._places[0] - now.place
        return number if self._leads_to_end(left, now, remainder, number) else None

    def _digits_to_none(self, left: Expr, now: Read) -> int | None:
        """How many digits, of which any so many may follow, lead to a number that no step divides,
        among the first few of them."""
        for number in range(1, len(str(max(self._moduli))) + MORE_DIGITS):
            if _takes_digits(left, number):
                tried = range(min(10**number, MAX_NEIGHBOURS))
                return number if any(self._ends_with(now, far, number) for far in tried) else None
        return None

    def _digits(self, left: Expr, now: Read, remainder: int) -> int | None:
        """How many digits lead to a number to end with where any so many may follow. None where the
        interval has no room for them."""
        if not self._has_whole:
            return None
        for number in range(len(str(self._whole)) + MORE_DIGITS):
            if self._leads_to_end(left, now, remainder, number):
                return number
            remainder = remainder * 10 % self._whole
        return None

    def _leads_to_end(self, left: Expr, now: Read, remainder: int, number: int) -> bool:
        """Whether one of 10**number neighbours, the first of which leaves that remainder, surely is
        a multiple of the first step and of no other, and any so many digits may follow."""
        whole = now.place is None
        step = self._whole if whole else self._moduli[0]
        if number > 0 and not whole:
            remainder = remainder * 10**number
        first = -remainder % step
        if number < 0 or first >= 10**number or not _takes_digits(left, number):
            return False
        tried = range(first, min(10**number, first + MAX_NEIGHBOURS * step), step)
        return self._is_alone or any(self._ends_with(now, far, number) for far in tried)

    def _ends_with(self, now: Read, digits: int, number: int) -> bool:
        """Whether a number may end behind some digits, so many."""
        for place in range(number - 1, -1, -1):
            now = self._after(now, digits // 10**place % 10)
        return self._may_end(now)

    def _in_reach(self, left: Expr, now: Read) -> bool:
        """Whether as many digits as may still come can make the first step divide, whichever."""
        if not self._wanted:
            return True
        remainder, modulus, places = now.remainders[0], self._moduli[0], self._places[0]
        if now.place is not None:
            return _reaches(remainder, modulus, max(places - now.place, 0))
        least, most = _digits_of(left)
        if most is None or 10 ** (most + places) >= modulus:
            return True
        return any(_reaches(remainder, modulus, n + places) for n in range(least, most + 1))

    def _body(self, left: Expr, now: Read) -> Node:
        found: list[Node] = []
        if facts(left).nullable and self._may_end(now):
            found.append(EPSILON)
        minus = Read(now.remainders, now.beyond, None, False, self._below)
        point = Read(now.remainders, now.beyond, 0, True)
        for byte, after in ((MINUS, minus), (POINT, point)):
            found.append(concat(literal(bytes((byte,))), self._rule(derivative(left, byte), after)))
        targets: dict[tuple[Expr, Read], list[int]] = {}
        for digit, rest in enumerate(_behind_digits(left)):
            target = rest, self._after(now, digit)
            targets.setdefault(target, []).append(48 + digit)
        found.extend(concat(byte_set(d), self._rule(*target)) for target, d in targets.items())
        return union(*found)

    def _after(self, now: Read, digit: int) -> Read:
        remainders, beyond = list(now.remainders), list(now.beyond)
        for index, (modulus, places) in enumerate(zip(self._moduli, self._places, strict=True)):
            if now.place is not None and now.place >= places:
                beyond[index] = beyond[index] or digit > 0
            else:
                remainders[index] = (remainders[index] * 10 + digit) % modulus
        place = None if now.place is None else min(now.place + 1, self._most)
        free = now.free and (now.begun or digit > 0)
        return Read(tuple(remainders), tuple(beyond), place, True, free)

    def _may_end(self, now: Read) -> bool:
        divides = []
        for index, (modulus, places) in enumerate(zip(self._moduli, self._places, strict=True)):
            scale = 10 ** max(places - (now.place or 0), 0)
            rest = now.remainders[index] * scale % modulus
            divides.append(not now.beyond[index] and rest == 0)
        if self._wanted and not divides.pop(0):
            return False
        return not any(divides)
