"""x @ weight.T + bias on a GPU, each output reduced in one order whatever the number of rows.

The product is computed as weight @ x.T, so that the weight's rows fill the 64 rows that Hopper's
tensor cores want and a tile may have as few as 16 of x's. Tiles differ in size by the number of
rows, but every one adds up its columns from left to right with the same instruction, 16 columns at
a time, in slices of SLICE columns, and slices from left to right (slices.py). That the instruction
is the same is tested on the binaries. Packed weights are in packed.py.

What fills a GPU's memory is bytes on their way: bandwidth times latency, 2.7 MB on an H100. Of a
decode's program four of five stages of 16 KB are, and two fit a multiprocessor: the 64 programs of
4,096 outputs suffice. Longer columns than a slice, as those of a down projection, are shared out to
more programs, which then end together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_floats, launch, product, to_kind
from radixgen.kernels.triton.packed import TiledWeight, linear_packed
from radixgen.kernels.triton.slices import add_slices, moved, split
from radixgen.kernels.triton.tiles import Tile, tile_for

SLICE = 4096  # columns
TILES = (Tile(64, 16, 128, 4, 5), Tile(64, 64, 64, 4, 4), Tile(128, 128, 64, 8, 3))
# A slice's sum beside the total takes registers, which fewer columns at a time give back.
SLICED_TILES = (*TILES[:2], Tile(128, 128, 32, 8, 4))
# float32 has no tensor cores in full precision, and takes twice the shared memory.
WIDE_TILES = (Tile(32, 16, 32, 4, 2), Tile(64, 64, 32, 8, 2))


@triton.jit
def _columns(
    x_at,
    weight_at,
    is_row,
    is_output,
    column,
    start,
    end,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """The product over columns start to end, float32 [outputs, rows]."""
    total = tl.zeros([BLOCK_OUTPUTS, BLOCK_ROWS], tl.float32)
    for at in range(start, end, BLOCK_COLUMNS):
        inside = column[None, :] < end - at
        weights = tl.load(weight_at + at, mask=is_output[:, None] & inside, other=0.0)
        values = tl.load(x_at + at, mask=is_row[:, None] & inside, other=0.0)
        total = product(weights, tl.trans(values), total)
    return total


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
    SLICED: tl.constexpr,
    SPLIT: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """out [rows, outputs]: a tile of it, held the other way around. SLICED: columns are more than a
    slice, and added up here. SPLIT: of one slice of them, float32 [slices, rows, outputs]."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    column = tl.arange(0, BLOCK_COLUMNS)
    is_row, is_output = row < rows, output < outputs
    x_at = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    weight_at = weight + output.to(tl.int64)[:, None] * weight_stride + column[None, :]
    start = tl.program_id(2) * SLICE if SPLIT else 0
    end = tl.minimum(start + SLICE, columns) if SPLIT else columns
    if SLICED:
        total = tl.zeros([BLOCK_OUTPUTS, BLOCK_ROWS], tl.float32)
        for start in range(0, columns, SLICE):
            end = tl.minimum(start + SLICE, columns)
            total += _columns(
                x_at, weight_at, is_row, is_output, column, start, end,
                BLOCK_OUTPUTS, BLOCK_ROWS, BLOCK_COLUMNS,
            )  # fmt: skip
    else:
        total = _columns(
            x_at, weight_at, is_row, is_output, column, start, end,
            BLOCK_OUTPUTS, BLOCK_ROWS, BLOCK_COLUMNS,
        )  # fmt: skip
    if BIASED:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    at = out + (tl.program_id(2) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
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
    if not out.numel():
        return out
    num_slices = split(rows, outputs, triton.cdiv(columns, SLICE), tiles_of(x.dtype))
    if num_slices <= 1:
        _launch(x, weight, bias, out, 1)
        return out
    parts = torch.empty(num_slices, rows, outputs, dtype=torch.float32, device=x.device)
    _launch(x, weight, None, parts, num_slices)
    add_slices(parts, bias, out)
    return out


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, num_slices: int) -> None:
    """Fill out [rows, outputs], or [slices, rows, outputs] with what each slice adds."""
    (outputs, columns), rows = weight.shape, len(x)
    sliced = num_slices == 1 and columns > SLICE
    tile = tile_for(rows, tiles_of(x.dtype, sliced))
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs), num_slices)
    launch(
        linear_kernel,
        grid,
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
        SLICED=sliced,
        SPLIT=num_slices > 1,
        SLICE=SLICE,
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        **tile.options(),
    )


def tiles_of(dtype: torch.dtype, sliced: bool = False) -> tuple[Tile, ...]:
    """Those for weights of `dtype`, in rising order; `sliced`: that add up several slices."""
    if dtype == torch.float32:
        return WIDE_TILES
    return SLICED_TILES if sliced else TILES


def cost(rows: int, outputs: int, columns: int, dtype: torch.dtype) -> Cost:
    """The weight is read once, as the rows of x are, and the outputs are written; what slices add
    is written and read where programs of their own compute them.

    Rows beyond those of a tile read the weight again, from the cache; a product and its sum are 2
    operations.
    """
    num_slices = split(rows, outputs, triton.cdiv(columns, SLICE), tiles_of(dtype))
    read = (outputs * columns + rows * (columns + outputs)) * dtype.itemsize
    return Cost(
        read + moved(rows, outputs, num_slices),
        2 * rows * outputs * columns,
        on_tensor_cores=dtype != torch.float32,
        launches=min(num_slices, 2),
    )
