"""What is asked of whatever chooses tokens from logits in one pass. Knows rows of numbers only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from radixgen.kernels.sampling import Choice, Edits, Outcome


class Chooser(Protocol):
    """What draws in one pass: the C operations (`radixgen.kernels.sampling`), or Triton's."""

    def can_choose(self, logits: Tensor, bitmask: Tensor | None) -> bool: ...
    def choose_(
        self,
        logits: Tensor,
        choices: Sequence[Choice],
        bitmask: Tensor | None = None,
        edits: Edits | None = None,
    ) -> list[tuple[int, Outcome]]: ...
    def edit_logits_(self, logits: Tensor, edits: Edits) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Choices in a device's queue, and the tokens [rows] int64 as they will be there."""

    wait: Callable[[], list[tuple[int, Outcome]]]
    token_ids: Tensor


@runtime_checkable
class QueuedChooser(Chooser, Protocol):
    """A chooser on a device with a queue of its own."""

    def launch_(
        self,
        logits: Tensor,
        choices: Sequence[Choice],
        bitmask: Tensor | None = None,
        edits: Edits | None = None,
    ) -> Chosen: ...
