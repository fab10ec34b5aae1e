"""What a program did after each of its lines, so that the next run's hints know it in advance.

A request leaves before its program has said what follows: it may be waiting for the answer. But a
program is run many times, and what followed a line last time mostly follows it again. A line that
was once not the last one is never again called so, since a wrong "last use" costs a prefix.
"""

import threading
from dataclasses import dataclass, field

from radixgen.lang.place import Place


@dataclass(slots=True)
class _Habit:
    ended: bool = False  # a run ended after this line
    went_on: bool = False  # a run asked the model again after this line
    forks: int = 0  # children of the fork that followed last time


@dataclass(slots=True)
class Habits:
    """Of one program; its states share it."""

    _lines: dict[Place, _Habit] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_last(self, place: Place | None) -> bool:
        """Whether every run seen so far ended after this line."""
        habit = self._lines.get(place) if place else None
        return habit is not None and habit.ended and not habit.went_on

    def forks(self, place: Place | None) -> int:
        """Children of the fork that followed this line last time; 0: none."""
        habit = self._lines.get(place) if place else None
        return habit.forks if habit else 0

    def ended_after(self, place: Place | None) -> None:
        """A state asked the model at this line and then never again."""
        if place:
            with self._lock:
                self._lines.setdefault(place, _Habit()).ended = True

    def went_on_after(self, place: Place | None, forks: int = 0) -> None:
        """A state asked the model at this line and then again, or forked."""
        if place:
            with self._lock:
                habit = self._lines.setdefault(place, _Habit())
                habit.went_on, habit.forks = True, forks
