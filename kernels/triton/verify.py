"""Verifies drafts on a GPU: how many of a row's are what was drawn, and the token after them.

    drafts   a b c        row of 3 drafts and 4 draws
    drawn    a b x y      2 accepted, and x is the token after them

The draw at a position is a function of logits, seed and position, so what is accepted is what would
have been drawn one by one. One program a row, which looks at its draws BLOCK at a time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device

BLOCK = 64


@triton.jit
def verify_kernel(
    drawn, outcomes, drafts, indptr, accepted, token_ids, results, BLOCK: tl.constexpr
):
    """accepted, token_ids and results of one row."""
    row = tl.program_id(0)
    first = tl.load(indptr + row)
    count = tl.load(indptr + row + 1) - first  # draws: one more than drafts
    place = tl.arange(0, BLOCK)
    kept = count - 1
    for start in range(0, count - 1, BLOCK):
        at = start + place
        inside = at < count - 1
        draw = tl.load(drawn + first + at, mask=inside, other=0)
        draft = tl.load(drafts + first - row + at, mask=inside, other=0)
        differs = tl.where(inside & (draw != draft), at, count)
        kept = tl.minimum(kept, tl.min(differs, 0))
    result = 0
    for start in range(0, kept + 1, BLOCK):
        at = start + place
        seen = tl.load(outcomes + first + at, mask=at <= kept, other=0)
        found = tl.max(tl.where(seen != 0, (count - at) * 4 + seen, 0), 0)
        result = tl.maximum(result, found)  # of the first that is not 0
    tl.store(accepted + row, kept)
    tl.store(token_ids + row, tl.load(drawn + first + kept))
    tl.store(results + row, result % 4)


def verify(
    drawn: Tensor, outcomes: Tensor, drafts: Tensor, indptr: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Drafts accepted [rows] int32, the token after them [rows] int64, and the row's outcome [rows]
    int32.

    drawn int64 and outcomes int32 [draws], as `sampling.sample` returns them; indptr int32 [rows +
    1]: a row's draws, one at least; drafts int64 [draws - rows]: for each draw of a row but the
    last, the draft that it is compared with. A row's outcome is the first that is not CHOSEN among
    the draws that count: those of accepted drafts and the one after them. Raises KernelError for
    shapes or types that do not agree.
    """
    shaped("drawn", drawn, None)
    shaped("indptr", indptr, None)
    rows = len(indptr) - 1
    require(rows >= 0, "indptr is empty: it holds one number more than there are rows")
    shaped("outcomes", outcomes, len(drawn))
    shaped("drafts", drafts, len(drawn) - rows)
    for name, tensor, dtype in (
        ("drawn", drawn, torch.int64),
        ("outcomes", outcomes, torch.int32),
        ("drafts", drafts, torch.int64),
        ("indptr", indptr, torch.int32),
    ):
        fits = tensor.dtype == dtype and tensor.is_contiguous()
        require(fits, f"{name} must be contiguous {str(dtype)[6:]}")
    check_device(drawn=drawn, outcomes=outcomes, drafts=drafts, indptr=indptr)
    accepted, results = (indptr.new_empty(rows) for _ in range(2))
    token_ids = drawn.new_empty(rows)
    if rows:
        launch: Any = verify_kernel[(rows,)]
        launch(
            drawn,
            outcomes,
            drafts,
            indptr,
            accepted,
            token_ids,
            results,
            BLOCK=BLOCK,
            num_warps=1,
        )
    return accepted, token_ids, results


def cost(rows: int, draws: int) -> Cost:
    """Draws, drafts and outcomes are read once."""
    return Cost(draws * (8 + 8 + 4) + rows * (4 + 4 + 8 + 4), 2 * draws)
