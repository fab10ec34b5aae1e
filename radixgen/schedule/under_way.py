"""Steps that a device has and is not done with: one that it computes and at most one behind it.

    step     what comes of it is awaited
    ahead    planned before that is known
    leaving  sequences that are over, but whose pages these steps read or write

Knows which sequences are in which step; no pages.
"""

from radixgen.schedule.request import SequenceState
from radixgen.schedule.step import Step


class UnderWay:
    """Empty at first. `leaving` says of each sequence whether its pages are to be kept."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.ahead: Step | None = None
        self.leaving: dict[SequenceState, bool] = {}

    def defer(self, sequence: SequenceState, *, keep: bool) -> bool:
        """Whether a sequence that is over has to wait for a step to be done; then it is noted."""
        if self._uses(sequence):
            self.leaving.setdefault(sequence, keep)
            return True
        return False

    def _uses(self, sequence: SequenceState) -> bool:
        steps = (self.step, self.ahead)
        return any(step is not None and sequence in step.rows for step in steps)

    def end(self) -> list[tuple[SequenceState, bool]]:
        """The device is done with `step`; the one behind it is next. Those that may leave now."""
        self.step, self.ahead = self.ahead, None
        going = [each for each in self.leaving.items() if not self._uses(each[0])]
        for sequence, _ in going:
            del self.leaving[sequence]
        return going
