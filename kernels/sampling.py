"""What happens to logits before a token is drawn. Knows rows of numbers, not why a bit is set."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixgen.kernels import pointwise
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.library import Kind, run, supported


class Outcome(IntEnum):
    """What came of a row, numbered as in cpu/sample.c."""

    CHOSEN = 0
    NOT_FINITE = 1
    NONE_ALLOWED = 2


_OUTCOMES = tuple(Outcome)


@dataclass(frozen=True, slots=True)
class Choice:
    """How to choose from a row. top_k 0, top_p 1 and min_p 0 keep all; `point` is in [0, 1)."""

    temperature: float  # 0: the largest logit, of equal ones the first
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    point: float = 0.0
    mask_row: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """What happens to single logits: a cell each, of another row or token.

        ((logit + bias) * or / repetition) - frequency - presence

    Repetition divides what is positive and multiplies the rest. rows, token_ids int32 [cells], all
    inside the logits; numbers float32 [4, cells]: bias, repetition, the frequency penalty times how
    often the token was drawn, and the presence penalty where it was.
    """

    rows: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    numbers: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)


def edit_logits_(logits: Tensor, edits: Edits) -> Tensor:
    """Change logits [rows, vocab] float32 in place, by torch; returns them."""
    at = tuple(torch.from_numpy(ids).long() for ids in (edits.rows, edits.token_ids))
    bias, repetition, frequency, presence = torch.from_numpy(edits.numbers).to(logits.device)
    values = logits[at] + bias
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[at] = values - frequency - presence
    return logits


def can_choose(logits: Tensor, bitmask: Tensor | None) -> bool:
    """Whether the C kernel is there and takes these tensors."""
    return (
        logits.dtype == torch.float32
        and supported(logits)
        and logits.stride(1) == 1
        and (bitmask is None or can_mask(bitmask))
    )


def can_mask(bitmask: Tensor) -> bool:
    """Whether the C kernel takes this mask."""
    return bitmask.dtype == torch.int32 and bitmask.is_contiguous()


def choose_(
    logits: Tensor,
    choices: Sequence[Choice],
    bitmask: Tensor | None = None,
    edits: Edits | None = None,
) -> list[tuple[int, Outcome]]:
    """A token of each row of logits [rows, vocab] float32, which are overwritten.

    `edits` come first. `bitmask` int32 [any, words], indexed by Choice.mask_row: see
    `apply_bitmask_`; tokens beyond its words are forbidden. Where nothing is chosen the token is 0.
    """
    rows = logits.shape[0]
    require(len(choices) == rows, f"{len(choices)} choices for {rows} rows")
    if edits is not None:
        edit_logits_(logits, edits)
    settings = array("d")
    for c in choices:
        settings.extend((c.temperature, c.top_k, c.top_p, c.min_p, c.point))
    return choose_at_(logits, settings, bitmask, [c.mask_row for c in choices])


def choose_at_(
    logits: Tensor,
    settings: "array[float]",
    bitmask: Tensor | None,
    mask_rows: Iterable[int | None],
) -> list[tuple[int, Outcome]]:
    """`choose_` by numbers: of each row temperature, top_k, top_p, min_p and point; its mask."""
    rows, vocab = logits.shape
    # Arrays, not tensors: for a few numbers, what a tensor costs is a part of a step.
    masks, words = array("q", bytes(8 * rows)), 0
    start, count = 0, 0
    if bitmask is not None:
        start, (count, words) = bitmask.data_ptr(), bitmask.shape
    for i, row in enumerate(mask_rows):
        if row is not None:
            require(0 <= row < count, f"mask row {row} of {count}")
            masks[i] = start + 4 * words * row
    out = array("q", bytes(16 * rows))
    pointers = (masks.buffer_info()[0], words, settings.buffer_info()[0], out.buffer_info()[0])
    run(Kind.SAMPLE, (logits.data_ptr(), logits.stride(0), rows, vocab, *pointers))
    return [(out[i], _OUTCOMES[out[i + 1]]) for i in range(0, 2 * rows, 2)]


def apply_bitmask_(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Set to -inf, in place, every logit whose bit is 0. Returns `logits`.

    logits [rows, vocab]; bitmask int32 [rows, ceil(vocab / 32)], bit i % 32 of word i // 32 for
    token i.
    """
    vocab = logits.shape[1]
    require(bitmask.dtype == torch.int32, f"the bitmask is {bitmask.dtype}, expected int32")
    shaped("bitmask", bitmask, logits.shape[0], (vocab + 31) // 32)
    whole = logits.stride(1) == 1 and bitmask.is_contiguous()
    if logits.dtype == torch.float32 and supported(logits) and whole:
        pointwise.bitmask(logits, bitmask)
        return logits
    return apply_bitmask_reference_(logits, bitmask)


def apply_bitmask_reference_(logits: Tensor, bitmask: Tensor) -> Tensor:
    """`apply_bitmask_` by torch alone."""
    vocab = logits.shape[1]
    bits = (bitmask[:, :, None] >> torch.arange(32, dtype=torch.int32, device=bitmask.device)) & 1
    allowed = bits.flatten(1)[:, :vocab].bool()
    return logits.masked_fill_(~allowed, -math.inf)
