"""Choices on a GPU: what `kernels.sampling` does for C, by Triton's kernels.

Knows rows of logits and choices, not why a bit of a mask is set.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixgen.kernels.checks import require
from radixgen.kernels.sampling import Choice, Edits, Outcome
from radixgen.kernels.triton.edits import NUMBERS, edit_logits_
from radixgen.kernels.triton.sampling import sample
from radixgen.model.chooser import Chosen
from radixgen.model.staging import Fence, Staging


class TritonChooser:
    """Draws on one device; keeps the room in which settings and masks go there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._settings, self._masks = Staging(device), Staging(device)

    def can_choose(self, logits: Tensor, bitmask: Tensor | None) -> bool:
        """Whether the kernel takes these tensors."""
        words = -(-logits.shape[1] // 32)
        fits = bitmask is None or (bitmask.dtype == torch.int32 and bitmask.shape[1] == words)
        return logits.dtype == torch.float32 and logits.stride(1) == 1 and fits

    def choose_(
        self,
        logits: Tensor,
        choices: Sequence[Choice],
        bitmask: Tensor | None = None,
        edits: Edits | None = None,
    ) -> list[tuple[int, Outcome]]:
        """As `kernels.sampling.choose_`, the logits on the device, `bitmask` and `edits` on the
        host."""
        return self.launch_(logits, choices, bitmask, edits).wait()

    def launch_(
        self,
        logits: Tensor,
        choices: Sequence[Choice],
        bitmask: Tensor | None = None,
        edits: Edits | None = None,
    ) -> Chosen:
        """`choose_`, put into the device's queue: two copies and two launches at most.

        What comes back is two numbers a row. Drafts are compared with them on the host, where both
        are.
        """
        rows, vocab = logits.shape
        require(len(choices) == rows, f"{len(choices)} choices for {rows} rows")
        mask = self._send(bitmask, choices)
        edited = [] if edits is None else _cells(edits)
        columns = self._settings.send([*edited, *_columns(choices, vocab)])
        if edits is not None:
            rows_at, token_ids, numbers = columns[: len(edited)]
            edit_logits_(logits, rows_at, token_ids, numbers.view(NUMBERS, -1))
        filtered = any(0 < c.top_k < vocab or c.top_p < 1 or c.min_p > 0 for c in choices)
        token_ids, outcomes = sample(logits, mask, *columns[len(edited) :], filtered=filtered)
        found = torch.stack((token_ids, outcomes), dim=1).to("cpu", non_blocking=True)
        there = self._fence()

        def wait() -> list[tuple[int, Outcome]]:
            there()
            return [(token_id, Outcome(outcome)) for token_id, outcome in found.tolist()]

        return Chosen(wait, token_ids)

    def _fence(self) -> Callable[[], None]:
        """What returns once the device has done all that is in its queue by now."""
        if self._device.type == "cpu":
            return lambda: None
        make_event: Any = torch.cuda.Event
        event: Fence = make_event()
        event.record()
        return event.synchronize

    def edit_logits_(self, logits: Tensor, edits: Edits) -> Tensor:
        """As `kernels.sampling.edit_logits_`."""
        rows, token_ids, numbers = self._settings.send(_cells(edits))
        return edit_logits_(logits, rows, token_ids, numbers.view(NUMBERS, -1))

    def _send(self, bitmask: Tensor | None, choices: Sequence[Choice]) -> Tensor | None:
        """The mask on the device; None where no row has one."""
        count = 0 if bitmask is None else bitmask.shape[0]
        used = [choice.mask_row for choice in choices if choice.mask_row is not None]
        for row in used:
            require(0 <= row < count, f"mask row {row} of {count}")
        if bitmask is None or not used:
            return None
        (sent,) = self._masks.send([bitmask.numpy().reshape(-1)])
        return sent.view(bitmask.shape)


def _cells(edits: Edits) -> list[NDArray[Any]]:
    return [edits.rows, edits.token_ids, edits.numbers.reshape(-1)]


def _columns(choices: Sequence[Choice], vocab: int) -> list[NDArray[Any]]:
    """Settings as `sample` takes them, row by row."""
    masks = [-1 if choice.mask_row is None else choice.mask_row for choice in choices]
    top_ks = [min(choice.top_k or vocab, vocab) for choice in choices]
    return [
        np.array(masks, np.int32),
        np.array([choice.temperature for choice in choices], np.float32),
        np.array(top_ks, np.int32),
        np.array([choice.top_p for choice in choices], np.float32),
        np.array([choice.min_p for choice in choices], np.float32),
        np.array([choice.point for choice in choices], np.float64),
    ]
