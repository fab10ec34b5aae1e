"""Long products cut over their columns: slices from left to right, whoever computes them.

    one program      ((slice 0) + slice 1) + slice 2              in registers
    programs each    slice 0 | slice 1 | slice 2  -> memory -> the same sum by another launch

Each slice is added up by itself first, so that nothing shows which way was taken. Knows sizes and
sums, no weights.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.triton.launch import launch, to_kind
from radixgen.kernels.triton.tiles import Tile, tile_for

BUSY = 256  # programs that keep a GPU's memory busy
FEW_ROWS = 64  # which a decode has
SUM_BLOCK = 256  # outputs whose slices a program adds


@triton.jit
def add_slices_kernel(
    parts, bias, out, rows, outputs, num_slices, BIASED: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of a row of out: parts [slices, rows, outputs] from left to right, and the bias."""
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = output < outputs
    total = tl.zeros([BLOCK], tl.float32)
    at = parts + row * outputs + output
    step = rows.to(tl.int64) * outputs
    for _ in range(num_slices):
        total += tl.load(at, mask=inside, other=0.0)
        at += step
    if BIASED:
        total += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    kind: tl.constexpr = out.dtype.element_ty
    tl.store(out + row * outputs + output, to_kind(total, kind), mask=inside)


def split(rows: int, outputs: int, num_slices: int, tiles: Sequence[Tile]) -> int:
    """By how many programs a tile's slices are computed: one each, where tiles alone are too few to
    keep a GPU busy, and rows few enough for what is written and read again to be little; else 1."""
    tile = tile_for(rows, tiles)
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
    return num_slices if programs < BUSY and rows <= FEW_ROWS else 1


def add_slices(parts: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Fill out [rows, outputs] with the sums of parts [slices, rows, outputs] float32, and bias."""
    num_slices, rows, outputs = parts.shape
    launch(
        add_slices_kernel,
        (rows, triton.cdiv(outputs, SUM_BLOCK)),
        parts,
        parts if bias is None else bias,
        out,
        rows,
        outputs,
        num_slices,
        BIASED=bias is not None,
        BLOCK=SUM_BLOCK,
        num_warps=1,
    )


def moved(rows: int, outputs: int, num_slices: int) -> int:
    """Bytes of slices that programs each compute: written and read."""
    return 2 * num_slices * rows * outputs * 4 if num_slices > 1 else 0
