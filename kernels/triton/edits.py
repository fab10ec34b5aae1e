"""Changes single logits on a GPU before a token is drawn: bias and penalties, in one launch.

The law is that of `kernels.sampling.Edits`, in its order of operations and without fused
multiply-adds, so that the numbers are those of a CPU.
"""

import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device, check_logits, launch

BLOCK = 256
NUMBERS = 4  # of a cell: bias, repetition, frequency, presence


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
    at = logits + row.to(tl.int64) * logits_stride + token
    value = tl.load(at, mask=inside, other=0.0) + bias
    value = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    tl.store(at, value - frequency - presence, mask=inside)


def edit_logits_(logits: Tensor, rows: Tensor, token_ids: Tensor, numbers: Tensor) -> Tensor:
    """Change logits [rows, vocab] float32 in place; returns them. The rest is as in
    `kernels.sampling.Edits`, on the device, but a cell outside the logits is left out.

    Raises KernelError for shapes or types that do not agree.
    """
    check_logits(logits)
    num_rows, vocab = logits.shape
    num_cells = len(rows)
    shaped("token_ids", token_ids, num_cells)
    shaped("numbers", numbers, NUMBERS, num_cells)
    require(numbers.is_contiguous(), "numbers must be contiguous")
    check_device(logits=logits, rows=rows, numbers=numbers)
    if num_cells and num_rows:
        launch(
            edit_kernel,
            (triton.cdiv(num_cells, BLOCK),),
            logits,
            rows,
            token_ids,
            numbers,
            num_cells,
            num_rows,
            logits.stride(0),
            vocab,
            BLOCK=BLOCK,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return logits


def cost(num_cells: int) -> Cost:
    """A cell is 6 numbers; its logit costs two sectors of 32 bytes."""
    return Cost(num_cells * (6 * 4 + 64), num_cells * 5)
