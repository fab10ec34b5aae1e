"""Multiples, and what is no multiple, as decimals within a regular interval.

A step of m units of the last of k places divides a decimal if its digits, as one whole number with
k places, leave no remainder modulo m. The remainder is carried from digit to digit, one lazy rule
for each and for what is left of the interval. Knows no schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from radixgen.grammars.derivative import derivative, facts, partition
from radixgen.grammars.expr import (
    EMPTY,
    EPSILON,
    Expr,
    Node,
    RuleSet,
    byte_set,
    concat,
    literal,
    union,
)
from radixgen.grammars.json_numbers import Piece

POINT, MINUS = ord("."), ord("-")
MORE_DIGITS = 20  # than those of a step, looked for until a number is within its interval


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


def multiples(
    within: Expr, piece: Piece, steps: Sequence[tuple[Fraction, int]], rules: RuleSet
) -> Node:
    """The decimals of `within` that the first step divides, if the piece has a multiple, and the
    other steps do not. `steps` come with their places."""
    return _Remainders(piece, steps, rules).start(within)


class _Remainders:
    """The rules of one piece."""

    def __init__(self, piece: Piece, steps: Sequence[tuple[Fraction, int]], rules: RuleSet) -> None:
        self._places = [places for _, places in steps]
        self._moduli = [int(step * 10**places) for step, places in steps]
        self._most = max(self._places)
        self._wanted = piece.multiple is not None
        self._plain = self._wanted and not piece.nots
        self._above, self._below = piece.high is None, piece.low is None
        self._rules = rules

    def start(self, within: Expr) -> Node:
        none = (0,) * len(self._moduli)
        return self._rule(within, Read(none, (False,) * len(none), free=self._above))

    def _rule(self, left: Expr, now: Read) -> Node:
        if left is EMPTY or (self._wanted and now.beyond[0]) or not self._in_reach(now):
            return EMPTY
        key = ("multiple", tuple(self._moduli), tuple(self._places), self._wanted, left, now)
        number = self._sure_digits(left, now)
        is_free = self._plain and now.free and now.place is None
        sure = True if number is not None or is_free else None
        return self._rules.rule(key, lambda: self._body(left, now), sure, number)

    def _sure_digits(self, left: Expr, now: Read) -> int | None:
        """How many digits surely lead to an end; None where only a search tells."""
        if facts(left).nullable and self._may_end(now):
            return 0
        if not self._plain:
            return None
        if now.place is not None:
            return self._behind_point(left, now.remainders[0], self._places[0] - now.place)
        return self._digits(left, now.remainders[0]) if now.begun and self._most == 0 else None

    def _behind_point(self, left: Expr, remainder: int, number: int) -> int | None:
        """As many digits as a step still has places, if one of them all is a multiple and any so
        many may follow."""
        modulus = self._moduli[0]
        is_near = number > 0 and -remainder * 10**number % modulus < 10**number
        return number if is_near and _takes_digits(left, number) else None

    def _digits(self, left: Expr, remainder: int) -> int | None:
        """How many digits lead to a multiple where any so many may follow: one of 10**k neighbours
        is a multiple if the next one is no farther. None where the interval has no room for them.
        """
        modulus = self._moduli[0]
        for number in range(len(str(modulus)) + MORE_DIGITS):
            if -remainder % modulus < 10**number and _takes_digits(left, number):
                return number
            remainder = remainder * 10 % modulus
        return None

    def _in_reach(self, now: Read) -> bool:
        """Whether the digits that may still come behind the point can make the step divide."""
        if not self._wanted or now.place is None:
            return True
        remainder, modulus = now.remainders[0], self._moduli[0]
        left = self._places[0] - now.place
        return left <= 0 or -remainder * 10**left % modulus < 10**left

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
