"""Products with packed weights on a GPU: 4 or 8 bits a weight, a scale for 32 or 16 columns.

`pack_for_gpu` lays a weight out once in tiles of 64 outputs and 64 columns, each one run of memory:

    codes  [tile of outputs][tile of columns][output][byte]     4 bits: columns j | j + 32 of a byte
    scales [tile of outputs][tile of columns][group][output]    and lows alike

A program reads a tile's codes, makes weights of x's dtype of them in registers and feeds tensor
cores, as linear.py does: weight @ x.T. Columns are added from left to right in slices of SLICE,
and slices from left to right, whatever the number of rows (slices.py).
"""

# What a kernel computes with has Triton's types, whatever Python's operators say.
# pyright: reportOperatorIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.blocks import FORMS, CodeForm, take_apart
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device, check_floats, launch, product, to_kind
from radixgen.kernels.triton.slices import add_slices, moved, split
from radixgen.kernels.triton.tiles import Tile, tile_for

TILE, HALF = 64, 32
SLICE = 1024  # columns


@dataclass(frozen=True, slots=True, eq=False)
class TiledWeight:
    """A packed weight as the kernel reads it. `shape`: (out, in)."""

    form: CodeForm
    shape: tuple[int, int]
    codes: Tensor  # uint8 [out tiles, column tiles, 64, 8 * bits]; 8 bits: as int8
    scales: Tensor  # [out tiles, column tiles, 64 / group, 64] of the form's type
    lows: Tensor | None  # as scales

    @property
    def typed_codes(self) -> Tensor:
        """Pairs of 4 bits as uint8, 8 bits as int8."""
        return self.codes if self.form.bits == 4 else self.codes.view(torch.int8)

    @property
    def num_bytes(self) -> int:
        """Of all that a product reads of it."""
        parts = (self.codes, self.scales, *(() if self.lows is None else (self.lows,)))
        return sum(part.numel() * part.itemsize for part in parts)

    def to(self, device: torch.device | str) -> "TiledWeight":
        """The same on another device."""
        lows = None if self.lows is None else self.lows.to(device)
        parts = (self.codes.to(device), self.scales.to(device), lows)
        return TiledWeight(self.form, self.shape, *parts)


def pack_for_gpu(weight: PackedWeight, device: torch.device | str = "cpu") -> TiledWeight:
    """The kernel's form of a packed weight, on `device`: the same weights to the bit."""
    form = FORMS[weight.kind]
    outputs, columns = weight.shape
    codes, scales, lows = take_apart(weight)
    tiles = (-(-outputs // TILE), -(-columns // TILE))
    grid = torch.zeros(tiles[0] * TILE, tiles[1] * TILE, dtype=torch.uint8)
    grid[:outputs, :columns] = codes
    whole = grid.view(tiles[0], TILE, tiles[1], TILE).transpose(1, 2)
    if form.bits == 4:
        whole = whole[..., :HALF] | (whole[..., HALF:] << 4)
    made = TiledWeight(
        form,
        weight.shape,
        whole.contiguous(),
        _tile_groups(scales, tiles, TILE // form.group),
        None if lows is None else _tile_groups(lows, tiles, TILE // form.group),
    )
    return made.to(device)


def _tile_groups(numbers: Tensor, tiles: tuple[int, int], groups: int) -> Tensor:
    """[outputs, groups] as [out tiles, column tiles, groups of a tile, 64], zero beyond."""
    grid = numbers.new_zeros(tiles[0] * TILE, tiles[1] * groups)
    grid[: numbers.shape[0], : numbers.shape[1]] = numbers
    return grid.view(tiles[0], TILE, tiles[1], groups).permute(0, 2, 3, 1).contiguous()


TILES = (Tile(64, 16, 64, 4, 8), Tile(64, 64, 64, 4, 3), Tile(128, 128, 64, 8, 3))
WIDE_TILES = TILES[:2]  # of float32, whose products take registers


@triton.jit
def _numbers(at, is_output, GROUPS: tl.constexpr):
    """Scales or lows of half a tile's columns, [outputs, 1] or [outputs, 32]."""
    if GROUPS == 2:
        found = tl.load(at, mask=is_output, other=0.0)[:, None]
    else:  # a group's, then for each of its columns
        places = at[:, None] + tl.arange(0, 2)[None, :] * 64
        found = tl.load(places, mask=is_output[:, None], other=0.0)
        found = tl.broadcast_to(found[:, :, None], [found.shape[0], 2, 16])
        found = tl.reshape(found, [found.shape[0], 32])
    return found


@triton.jit
def _weights(codes, scale, low, kind: tl.constexpr, HAS_LOW: tl.constexpr):
    """float32 codes [outputs, 32] as weights of `kind`; scale and low as `_numbers` has them."""
    weights = codes * scale.to(tl.float32)
    if HAS_LOW:
        weights += low.to(tl.float32)
    return to_kind(weights, kind)


@triton.jit
def linear_packed_kernel(
    x,
    codes,
    scales,
    lows,
    bias,
    out,
    rows,
    outputs,
    columns,
    x_stride,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_LOW: tl.constexpr,
    GROUPS: tl.constexpr,
    BIASED: tl.constexpr,
    SPLIT: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """out [rows, outputs]: a tile of it, held the other way around. SPLIT: of one slice of columns,
    float32 [slices, rows, outputs]."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    byte = tl.arange(0, 32)
    is_row, is_output = row < rows, output < outputs
    kind: tl.constexpr = x.dtype.element_ty
    column_tiles = tl.cdiv(columns, 64)
    first = (output // 64).to(tl.int64) * column_tiles  # tile
    code_at = codes + first[:, None] * (512 * BITS) + (output % 64 * (8 * BITS))[:, None]
    code_at += byte[None, :]
    scale_at = first * (64 * GROUPS) + output % 64
    x_at = x + row.to(tl.int64)[:, None] * x_stride + byte[None, :]
    total = tl.zeros([BLOCK_OUTPUTS, BLOCK_ROWS], tl.float32)
    first_tile = tl.program_id(2) * (SLICE // 64)
    last_tile = tl.minimum(first_tile + SLICE // 64, column_tiles) if SPLIT else column_tiles
    for slice_tile in range(first_tile, last_tile, SLICE // 64):
        part_total = tl.zeros([BLOCK_OUTPUTS, BLOCK_ROWS], tl.float32)
        for tile in range(slice_tile, tl.minimum(slice_tile + SLICE // 64, last_tile)):
            left = columns - tile * 64
            is_low = is_row[:, None] & (byte[None, :] < left)
            is_high = is_row[:, None] & (byte[None, :] + 32 < left)
            low_x = tl.load(x_at + tile * 64, mask=is_low, other=0.0)
            high_x = tl.load(x_at + tile * 64 + 32, mask=is_high, other=0.0)
            low_at = scale_at + tile * (64 * GROUPS)
            low_scale = _numbers(scales + low_at, is_output, GROUPS)
            high_scale = _numbers(scales + low_at + 32 * GROUPS, is_output, GROUPS)
            low_add = low_scale
            high_add = high_scale
            if HAS_LOW:
                low_add = _numbers(lows + low_at, is_output, GROUPS)
                high_add = _numbers(lows + low_at + 32 * GROUPS, is_output, GROUPS)
            part = tl.load(code_at + tile * (512 * BITS), mask=is_output[:, None], other=0)
            if BITS == 4:
                low_code = (part & 15).to(tl.float32) - OFFSET
                high_code = (part >> 4).to(tl.float32) - OFFSET
            else:
                more = tl.load(code_at + tile * (512 * BITS) + 32, mask=is_output[:, None], other=0)
                low_code = part.to(tl.float32)
                high_code = more.to(tl.float32)
            weights = _weights(low_code, low_scale, low_add, kind, HAS_LOW)
            part_total = product(weights, tl.trans(low_x), part_total)
            weights = _weights(high_code, high_scale, high_add, kind, HAS_LOW)
            part_total = product(weights, tl.trans(high_x), part_total)
        total += part_total
    if BIASED:
        total += tl.load(bias + output, mask=is_output, other=0.0)[:, None]
    at = out + (tl.program_id(2) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    result = to_kind(tl.trans(total), out.dtype.element_ty)
    tl.store(at, result, mask=is_row[:, None] & is_output[None, :])


def linear_packed(x: Tensor, weight: TiledWeight, bias: Tensor | None = None) -> Tensor:
    """As linear.linear: x [rows, in] -> [rows, out] in x's dtype, to which weights are rounded."""
    outputs, columns = weight.shape
    shaped("x", x, None, columns)
    check_floats(x=x)
    check_device(x=x, weight=weight.codes)
    if bias is not None:
        shaped("bias", bias, outputs)
        check_floats(bias=bias)
    require(x.stride(1) == 1, "the columns of x must lie one after the other")
    rows = len(x)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    num_slices = split(rows, outputs, triton.cdiv(columns, SLICE), TILES)
    if num_slices == 1:
        _launch(x, weight, bias, out, 1)
        return out
    parts = torch.empty(num_slices, rows, outputs, dtype=torch.float32, device=x.device)
    _launch(x, weight, None, parts, num_slices)
    add_slices(parts, bias, out)
    return out


def _launch(
    x: Tensor, weight: TiledWeight, bias: Tensor | None, out: Tensor, num_slices: int
) -> None:
    """Fill out [rows, outputs], or [slices, rows, outputs] with what each slice adds."""
    (outputs, columns), rows, form = weight.shape, len(x), weight.form
    tile = tile_for(rows, WIDE_TILES if x.dtype == torch.float32 else TILES)
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs), num_slices)
    launch(
        linear_packed_kernel,
        grid,
        x,
        weight.typed_codes,
        weight.scales,
        weight.scales if weight.lows is None else weight.lows,
        x if bias is None else bias,
        out,
        rows,
        outputs,
        columns,
        x.stride(0),
        BITS=form.bits,
        OFFSET=form.offset,
        HAS_LOW=form.has_low,
        GROUPS=TILE // form.group,
        BIASED=bias is not None,
        SPLIT=num_slices > 1,
        SLICE=SLICE,
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_ROWS=tile.rows,
        **tile.options(),
    )


EMBED_BLOCK = 256  # columns


@triton.jit
def rows_kernel(
    token_ids,
    codes,
    scales,
    lows,
    out,
    columns,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_LOW: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of columns of the weight's row that a token names."""
    place = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ids + place)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    tile = token // 64 * tl.cdiv(columns, 64) + column // 64
    at = tile * (512 * BITS) + token % 64 * (8 * BITS)
    group = tile * (64 * GROUPS) + column % 64 // (64 // GROUPS) * 64 + token % 64
    if BITS == 4:
        pair = tl.load(codes + at + column % 32, mask=inside, other=0)
        code = tl.where(column % 64 < 32, pair & 15, pair >> 4).to(tl.float32) - OFFSET
    else:
        code = tl.load(codes + at + column % 64, mask=inside, other=0).to(tl.float32)
    value = code * tl.load(scales + group, mask=inside, other=0.0).to(tl.float32)
    if HAS_LOW:
        value += tl.load(lows + group, mask=inside, other=0.0).to(tl.float32)
    kind: tl.constexpr = out.dtype.element_ty
    tl.store(out + place * columns + column, to_kind(value, kind), mask=inside)


def dequantize_rows(weight: TiledWeight, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows token_ids (int64 [tokens], in range) of a weight, [tokens, in] in `dtype`: an embedding
    lookup."""
    shaped("token_ids", token_ids, None)
    require(token_ids.dtype == torch.int64, f"token_ids are {token_ids.dtype}, expected int64")
    check_device(weight=weight.codes, token_ids=token_ids)
    columns, form = weight.shape[1], weight.form
    out = torch.empty(len(token_ids), columns, dtype=dtype, device=token_ids.device)
    check_floats(rows=out)
    if out.numel():
        launch(
            rows_kernel,
            (len(token_ids), triton.cdiv(columns, EMBED_BLOCK)),
            token_ids,
            weight.typed_codes,
            weight.scales,
            weight.scales if weight.lows is None else weight.lows,
            out,
            columns,
            BITS=form.bits,
            OFFSET=form.offset,
            HAS_LOW=form.has_low,
            GROUPS=TILE // form.group,
            BLOCK=EMBED_BLOCK,
            num_warps=1,
        )
    return out


def cost(rows: int, weight: TiledWeight, dtype: torch.dtype) -> Cost:
    """Codes and scales are read once, as the rows of x are, and the outputs are written; what
    slices add is written and read where programs of their own compute them."""
    outputs, columns = weight.shape
    num_slices = split(rows, outputs, triton.cdiv(columns, SLICE), TILES)
    read = weight.num_bytes + rows * (columns + outputs) * dtype.itemsize
    return Cost(
        read + moved(rows, outputs, num_slices),
        2 * rows * outputs * columns,
        on_tensor_cores=dtype != torch.float32,
        launches=min(num_slices, 2),
    )
