"""x @ weight.T + bias on a GPU, each output reduced in one order whatever the number of rows.

The product is computed as weight @ x.T, so that the weight's rows fill the 64 rows that Hopper's
tensor cores want and a tile may have as few as 16 of x's. Tiles differ in size by the number of
rows, but every one adds up its columns from left to right with the same instruction, 16 columns at
a time: nothing is split over columns. That the instruction is the same is tested on the binaries.
Packed weights are in packed.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_floats, product, to_kind
from radixgen.kernels.triton.packed import TiledWeight, linear_packed
from radixgen.kernels.triton.tiles import Tile, tile_for

TILES = (Tile(64, 16, 128, 4, 4), Tile(64, 64, 64, 4, 4), Tile(128, 128, 64, 8, 3))
# float32 has no tensor cores in full precision, and takes twice the shared memory.
WIDE_TILES = (Tile(32, 16, 32, 4, 2), Tile(64, 64, 32, 4, 2))


@triton.jit
def linear_kernel(
    x,
    weight,
    bias,
    out,
    rows,
    outputs,
    columns,
    x_stride,
    weight_stride,
    BIASED: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """out [rows, outputs]: a tile of it, held the other way around."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    column = tl.arange(0, BLOCK_COLUMNS)
    is_row, is_output = row < rows, output < outputs
    x_at = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    weight_at = weight + output.to(tl.int64)[:, None] * weight_stride + column[None, :]
    total = tl.zeros([BLOCK_OUTPUTS, BLOCK_ROWS], tl.float32)
    for start in range(0, columns, BLOCK_COLUMNS):
        inside = column[None, :] < columns - start
        weights = tl.load(weight_at + start, mask=is_output[:, None] & inside, other=0.0)
        values = tl.load(x_at + start, mask=is_row[:, None] & inside, other=0.0)
        total = product(weights, tl.trans(values), total)
    if BIASED:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    at = out + row.to(tl.int64)[:, None] * outputs + output[None, :]
    result = to_kind(tl.trans(total), out.dtype.element_ty)
    tl.store(at, result, mask=is_row[:, None] & is_output[None, :])


def linear(x: Tensor, weight: Tensor | TiledWeight, bias: Tensor | None = None) -> Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]: [rows, out] in x's dtype.

    A row's result does not depend on the other rows or on how many they are. Sums are float32. A
    float weight must have x's dtype; a tiled one is `packed.pack_for_gpu` of a packed weight.
    Raises KernelError for other shapes or types.
    """
    if isinstance(weight, TiledWeight):
        return linear_packed(x, weight, bias)
    shaped("weight", weight, None, None)
    outputs, columns = weight.shape
    shaped("x", x, None, columns)
    check_floats(x=x, weight=weight)
    if bias is not None:
        shaped("bias", bias, outputs)
        check_floats(bias=bias)
    require(x.stride(1) == 1, "the columns of x must lie one after the other")
    require(weight.stride(1) == 1, "the columns of the weight must lie one after the other")
    rows = len(x)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if out.numel():
        tile = tile_for(rows, tiles_of(x.dtype))
        grid = (triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs))
        launch: Any = linear_kernel[grid]
        launch(
            x,
            weight,
            x if bias is None else bias,
            out,
            rows,
            outputs,
            columns,
            x.stride(0),
            weight.stride(0),
            BIASED=bias is not None,
            BLOCK_OUTPUTS=tile.outputs,
            BLOCK_ROWS=tile.rows,
            BLOCK_COLUMNS=tile.columns,
            **tile.options(),
        )
    return out


def tiles_of(dtype: torch.dtype) -> tuple[Tile, ...]:
    """Those for weights of `dtype`, in rising order."""
    return WIDE_TILES if dtype == torch.float32 else TILES


def cost(rows: int, outputs: int, columns: int, dtype: torch.dtype) -> Cost:
    """The weight is read once, as the rows of x are, and the outputs are written.

    Rows beyond those of a tile read the weight again, from the cache; a product and its sum are 2
    operations.
    """
    moved = outputs * columns + rows * (columns + outputs)
    in_halves = dtype != torch.float32
    return Cost(moved * dtype.itemsize, 2 * rows * outputs * columns, on_tensor_cores=in_halves)
