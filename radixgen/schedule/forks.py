"""Sequences that are to begin where the first of their request is: its other choices, or further
continuations to be scored. Which of them enters next, when requests have many and few.

    turn 1, 3, 5 ...   the request that has waited longest
    turn 2, 4, 6 ...   the request with the fewest left

So a few choices do not wait for the end of a thousand continuations, which go on meanwhile, and
requests with about as many come to their ends one after the other. Knows no pages.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from radixgen.schedule.request import Request, SequenceState


class Forks:
    """Waiting forks by request; each call is O(1), but for the end of a request: O(requests)."""

    def __init__(self) -> None:
        self._of: dict[Request, deque[SequenceState]] = {}  # none empty; the oldest first
        self._fewest: Request | None = None
        self._is_turn_of_few = False

    def __bool__(self) -> bool:
        return bool(self._of)

    def __iter__(self) -> Iterator[SequenceState]:
        return (fork for forks in self._of.values() for fork in forks)

    def awaits(self, request: Request) -> bool:
        """Whether forks of a request have not entered yet."""
        return request in self._of

    def add(self, forks: Sequence[SequenceState]) -> None:
        """All forks of one request, whose first sequence runs."""
        if forks:
            request = forks[0].request
            self._of[request] = deque(forks)
            self._note(request)

    def first(self) -> SequenceState:
        """The next to enter; it stays."""
        few = self._fewest if self._is_turn_of_few else None
        return self._of[few or next(iter(self._of))][0]

    def enter(self, fork: SequenceState) -> None:
        """Remove a fork whose turn it was."""
        self._is_turn_of_few = not self._is_turn_of_few
        self.discard(fork)

    def discard(self, fork: SequenceState) -> bool:
        """Remove a fork; False if it is not here."""
        request = fork.request
        forks = self._of.get(request)
        if forks is None or fork not in forks:
            return False
        forks.remove(fork)
        if forks:
            self._note(request)
            return True
        del self._of[request]
        if self._fewest is request:
            self._fewest = min(self._of, key=self._num_left, default=None)
        return True

    def _note(self, request: Request) -> None:
        """A request has fewer than before, or is new."""
        if self._fewest is None or self._num_left(request) < self._num_left(self._fewest):
            self._fewest = request

    def _num_left(self, request: Request) -> int:
        return len(self._of[request])
