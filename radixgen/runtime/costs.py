"""What steps cost by their rows, measured, and whether drafts are worth theirs.

    seconds |            drafted  ,-'     one line for steps of one row a sequence, one for those
            |               ,-'           with drafts: the first draft of a step may cost more than
            |    plain ..-'               the next, as sixteen rows are what some processors like
            |  ..--''
            +----------------------- rows

Seconds are no straight line of the rows either: a step reads all weights, for which few rows wait.
So each band of sizes has a line of its own. Knows numbers only.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

Line = tuple[float, float]
"""Seconds of a step's fixed part, and of a row."""


class StepCosts:
    """What steps cost. Until it has been seen, a row is taken to cost `ROW_RATIO` of a step's fixed
    part, and steps with drafts to cost no more than others of as many rows."""

    ROW_RATIO = 0.1
    MAX_RATIO = 2.0
    MARGIN = 1.3

    def __init__(self) -> None:
        self._all = _Fit()
        self._plain = _Bands()
        self._drafted = _Bands()

    def add(self, num_sequences: int, num_rows: int, seconds: float) -> None:
        """A step of `num_rows`, of which those above `num_sequences` were drafts."""
        self._all.add(num_rows, seconds)
        (self._drafted if num_rows > num_sequences else self._plain).add(num_rows, seconds)

    def row_ratio(self) -> float:
        """Seconds of one row more over those of a step's fixed part, over steps of all sizes."""
        fixed, row = self._all.line or _UNKNOWN
        return min(max(row / fixed, 0.002), self.MAX_RATIO)

    def least_chance(self, num_sequences: int) -> float:
        """A draft more in a step with drafts pays when it is right at least this often: it costs a
        row, and saves, when right, what its sequence's token costs without."""
        fixed, row = self._drafted_line(2 * num_sequences)
        plain = _seconds(self._plain_line(num_sequences), num_sequences)
        return max(row, 0.002 * fixed) * num_sequences / plain

    def pays(self, num_sequences: int, num_drafts: int, num_right: float) -> bool:
        """Whether drafts of which `num_right` are likely to be right save more than they cost, by a
        `MARGIN`: what is known of both is known roughly, and without drafts nothing is at stake."""
        num_rows = num_sequences + num_drafts
        drafted = _seconds(self._drafted_line(num_rows), num_rows)
        plain = _seconds(self._plain_line(num_sequences), num_sequences)
        return num_right * plain / num_sequences > self.MARGIN * (drafted - plain)

    def _plain_line(self, num_rows: int) -> Line:
        return self._line(self._plain, self._drafted, num_rows)

    def _drafted_line(self, num_rows: int) -> Line:
        return self._line(self._drafted, self._plain, num_rows)

    def _line(self, own: "_Bands", other: "_Bands", num_rows: int) -> Line:
        """Steps of about this size tell more than others, also when they are of the other sort."""
        return own.line(num_rows) or other.line(num_rows) or self._all.line or _UNKNOWN


_UNKNOWN: Line = (1.0, StepCosts.ROW_RATIO)


def _seconds(line: Line, num_rows: float) -> float:
    return line[0] + num_rows * line[1]


class _Bands:
    """Lines of steps of about as many rows."""

    LIMITS = ((1, 17), (4, 33), (8, 65), (16, math.inf))
    MIDDLES = (6, 14, 30, math.inf)  # sizes up to these are told of by the band

    def __init__(self) -> None:
        self._fits = [_Fit() for _ in self.LIMITS]

    def add(self, num_rows: int, seconds: float) -> None:
        for (low, high), fit in zip(self.LIMITS, self._fits, strict=True):
            if low <= num_rows < high:
                fit.add(num_rows, seconds)

    def line(self, num_rows: int) -> Line | None:
        places = zip(self.MIDDLES, self._fits, strict=True)
        return next(fit.line for most, fit in places if num_rows <= most)


@dataclass(slots=True)
class _Sums:
    """Samples of steps, of which older ones count less, as what least squares needs of them."""

    MEMORY: ClassVar[float] = 0.99

    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0  # of rows
    products: float = 0.0  # of rows and seconds

    def add(self, rows: int, seconds: float, weight: float) -> None:
        keep = self.MEMORY
        self.weight = keep * self.weight + weight
        self.rows = keep * self.rows + weight * rows
        self.seconds = keep * self.seconds + weight * seconds
        self.squares = keep * self.squares + weight * rows * rows
        self.products = keep * self.products + weight * rows * seconds

    def line(self, shape: Line) -> Line | None:
        """None: too few steps. Too much of one size to tell a slope from chance: that of `shape`,
        through their middle."""
        if self.weight < 4:
            return None
        mean, level = self.rows / self.weight, self.seconds / self.weight
        spread = self.squares / self.weight - mean * mean
        if spread < max(0.1, (0.1 * mean) ** 2):
            scale = level / _seconds(shape, mean)
            return shape[0] * scale, shape[1] * scale
        row = max((self.products / self.weight - mean * level) / spread, 0.0)
        return max(level - row * mean, row / StepCosts.MAX_RATIO, 1e-9), row


@dataclass(slots=True)
class _Fit:
    """Seconds of a step as a line of its rows, by least squares that forget.

    Whatever else the machine does only ever makes a step longer, so samples above the line count
    `ABOVE` of those below it, and no more than twice the line. `RUN` of them and none below are no
    disturbance: the machine is slower, and the line is theirs.
    """

    ABOVE: ClassVar[float] = 0.1
    RUN: ClassVar[float] = 28.0  # samples, as they are remembered: 33 in a row

    line: Line | None = None
    _past: _Sums = field(default_factory=_Sums)
    _run: _Sums = field(default_factory=_Sums)  # since a sample was on the line or below
    _least: float = math.inf  # of these: seconds over those expected

    def add(self, num_rows: int, seconds: float) -> None:
        if self.line is None:
            self._past.add(num_rows, seconds, 1.0)
            self.line = self._past.line(_UNKNOWN)
            return
        expected = _seconds(self.line, num_rows)
        is_above = seconds > 1.001 * expected
        self._past.add(num_rows, min(seconds, 2 * expected), self.ABOVE if is_above else 1.0)
        if is_above:
            self._least = min(self._least, seconds / expected)
            self._run.add(num_rows, min(seconds, 2 * self._least * expected), 1.0)
        is_slower = is_above and self._run.weight >= self.RUN
        if is_slower:
            self._past = self._run
        if is_slower or not is_above:
            self._run, self._least = _Sums(), math.inf
        self.line = self._past.line(self.line) or self.line
