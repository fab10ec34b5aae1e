"""When work beside the steps may have the interpreter, and how much of the time.

    engine's thread   step ├── schedule ──┤ forward pass ├── draw, update ──┤ step ├── ...
    paced work                            ├──────────────┤

Python runs one thread at a time, so a thread that compiles takes from the steps even where there
are processors to spare. Work on `Pace.beside` stops at its next call of a function when a step
wants the interpreter, and goes on while the step computes, which it does without. `Duty` keeps what
cannot be stopped to a share of the time. Knows threads and clocks; no steps and no grammars.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONGEST_STOP = 0.05  # seconds: work goes on even if the interpreter is never free
QUIET = 0.25  # seconds without a step after which nobody is disturbed


class Pace:
    """Of one engine: which says what it is at, and other threads ask or are stopped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free = threading.Event()
        self._free.set()
        self.is_held = False  # by the engine
        self._last = -math.inf

    def hold(self) -> None:
        """The engine needs the interpreter."""
        self.is_held = True
        self._free.clear()

    def release(self) -> None:
        """The engine computes without the interpreter, or has nothing to do."""
        self.is_held = False
        self._last = self._clock()
        self._free.set()

    @property
    def is_quiet(self) -> bool:
        """Whether there has been no step of late."""
        return not self.is_held and self._clock() - self._last > QUIET

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run the block in this thread, but not while the engine needs the interpreter.

        The block must hold no lock that a step may wait for.
        """
        previous = sys.getprofile()
        sys.setprofile(self._at_call)
        try:
            yield
        finally:
            sys.setprofile(previous)

    def _at_call(self, *_: object) -> None:
        if self.is_held:
            self._free.wait(LONGEST_STOP)


class Duty:
    """Keeps work to a `share` of the time, but for `credit` seconds of it at once."""

    def __init__(
        self, share: float, credit: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share = share
        self._credit = credit
        self._clock = clock
        self._debt = 0.0  # seconds of work, at `_since`
        self._since = clock()

    def add(self, seconds: float) -> None:
        """That much work was done."""
        now = self._clock()
        self._debt = max(self._debt - (now - self._since) * self._share, 0.0) + seconds
        self._since = now

    def rest(self) -> float:
        """Seconds from now until there may be more work."""
        due = (self._debt - self._credit) / self._share
        return max(due - (self._clock() - self._since), 0.0)
