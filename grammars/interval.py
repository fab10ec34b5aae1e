"""Intervals of numbers, as rules that an automaton may put together by itself.

Most numbers with bounds are one. An automaton may read such a rule as the expression it stands for,
or write its texts from the two ends (`native/intervals.c`). Knows no JSON and no automaton.
"""

from collections.abc import Callable
from dataclasses import dataclass

from radixgen.grammars.expr import Node, Rule


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Two ends as decimals without leading or trailing zeros, empty where there is none.

    `whole`: without a fraction; `plain_only`: without scientific notation.
    """

    low: bytes
    high: bytes
    low_open: bool
    high_open: bool
    whole: bool
    plain_only: bool

    @property
    def flags(self) -> int:
        """As native/intervals.c takes them."""
        return self.low_open | self.high_open << 1 | self.whole << 2 | self.plain_only << 3


class IntervalRule(Rule):
    """The texts of an interval."""

    __slots__ = ("ends",)

    def __init__(
        self, ends: NumberRange, expand: Callable[[], Node], productive: bool | None
    ) -> None:
        super().__init__(("interval", ends), expand, productive)
        self.ends = ends

    @property
    def has_begun(self) -> bool:
        """A number has a digit."""
        return True
