"""Changes single logits on a GPU before a token is drawn: bias, penalties, weights, in one launch.

    ((logit + bias) * or / repetition) - frequency - presence + after

Repetition divides what is positive and multiplies the rest. That is the order of
`radixgen.model.sampler`, whose law this is; a mask may come before or after. What min_tokens
forbids has a bias of -inf, which the caller leaves out where the mask allows nothing else.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device

BLOCK = 256
NUMBERS = 5  # of a cell: bias, repetition, frequency, presence, after


@dataclass(frozen=True, slots=True)
class Cell:
    """What happens to one logit."""

    row: int
    token_id: int
    bias: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0  # the penalty times how often the token has been drawn
    presence: float = 0.0  # the penalty, if it has been drawn at all
    after: float = 0.0  # temperature * log of the token's weight in the draw


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """Cells, each of another row or token. rows, token_ids int32 [cells]; numbers float32
    [NUMBERS, cells], in the order of `Cell`."""

    rows: Tensor
    token_ids: Tensor
    numbers: Tensor

    @classmethod
    def of(cls, cells: Sequence[Cell], device: torch.device | str = "cpu") -> "Edits":
        columns = [list(column) for column in zip(*map(astuple, cells), strict=True)]
        rows, token_ids, *numbers = columns or [[]] * (2 + NUMBERS)
        return cls(
            torch.tensor(rows, dtype=torch.int32, device=device),
            torch.tensor(token_ids, dtype=torch.int32, device=device),
            torch.tensor(numbers, dtype=torch.float32, device=device),
        )


@triton.jit
def edit_kernel(
    logits,
    rows,
    token_ids,
    numbers,
    num_cells,
    num_rows,
    logits_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    """A block of cells. Those outside the logits are left out."""
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < num_cells
    row = tl.load(rows + cell, mask=inside, other=-1)
    token = tl.load(token_ids + cell, mask=inside, other=-1)
    inside = (row >= 0) & (row < num_rows) & (token >= 0) & (token < vocab)
    bias = tl.load(numbers + cell, mask=inside, other=0.0)
    repetition = tl.load(numbers + num_cells + cell, mask=inside, other=1.0)
    frequency = tl.load(numbers + 2 * num_cells + cell, mask=inside, other=0.0)
    presence = tl.load(numbers + 3 * num_cells + cell, mask=inside, other=0.0)
    after = tl.load(numbers + 4 * num_cells + cell, mask=inside, other=0.0)
    at = logits + row.to(tl.int64) * logits_stride + token
    value = tl.load(at, mask=inside, other=0.0) + bias
    value = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    tl.store(at, value - frequency - presence + after, mask=inside)


def edit_logits_(logits: Tensor, edits: Edits) -> Tensor:
    """Change logits [rows, vocab] float32 in place; returns them. A cell outside them is left out.

    Raises KernelError for shapes or types that do not agree.
    """
    rows, vocab = logits.shape
    require(logits.dtype == torch.float32, f"logits are {logits.dtype}, expected float32")
    require(logits.stride(1) == 1, "a row of logits must be contiguous")
    num_cells = len(edits.rows)
    shaped("token_ids", edits.token_ids, num_cells)
    shaped("numbers", edits.numbers, NUMBERS, num_cells)
    check_device(logits=logits, rows=edits.rows, numbers=edits.numbers)
    if num_cells and rows:
        launch: Any = edit_kernel[(triton.cdiv(num_cells, BLOCK),)]
        launch(
            logits,
            edits.rows,
            edits.token_ids,
            edits.numbers,
            num_cells,
            rows,
            logits.stride(0),
            vocab,
            BLOCK=BLOCK,
            num_warps=1,
        )
    return logits


def cost(num_cells: int) -> Cost:
    """A cell is 7 numbers; its logit costs two sectors of 32 bytes."""
    return Cost(num_cells * (7 * 4 + 64), num_cells * 6)
