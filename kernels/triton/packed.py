"""Products with packed weights on a GPU: 4 or 8 bits a weight, 32 columns of a row to a scale.

    weight = scale * (code - offset)            q4_0, q5_0, q8_0
    weight = scale * code + low                 q4_1, q5_1

`pack_for_gpu` lays a weight out once in tiles of 64 outputs and 64 columns, each one run of memory:

    codes  [tile of outputs][tile of columns][output][byte]     4 bits: columns j | j + 32 of a byte
    scales [tile of outputs][tile of columns][group][output]    two groups of 32 columns

A program reads a tile's codes, makes weights of x's dtype of them in registers and feeds tensor
cores, as linear.py does: weight @ x.T. Columns are added from left to right in slices of SLICE,
and slices from left to right, whatever the number of rows. Where rows and outputs are too few to
keep a GPU busy, slices are computed by programs of their own and added by another launch: in the
same order, so nothing shows which way was taken.
"""

# What a kernel computes with has Triton's types, whatever Python's operators say.
# pyright: reportOperatorIssue=false

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device, check_floats, product, to_kind
from radixgen.kernels.triton.tiles import Tile, tile_for

TILE, GROUP = 64, 32
SLICE = 1024  # columns
BUSY = 256  # programs that keep a GPU's memory busy
SUM_BLOCK = 256  # outputs whose slices a program adds


@dataclass(frozen=True, slots=True)
class CodeForm:
    """How codes of a block type stand for weights."""

    bits: int  # of a code as it is stored here
    offset: int
    has_low: bool


FORMS = {
    "q4_0": CodeForm(4, 8, False),
    "q4_1": CodeForm(4, 0, True),
    "q5_0": CodeForm(8, 16, False),
    "q5_1": CodeForm(8, 0, True),
    "q8_0": CodeForm(8, 0, False),
}


@dataclass(frozen=True, slots=True, eq=False)
class TiledWeight:
    """A packed weight as the kernel reads it. `shape`: (out, in)."""

    form: CodeForm
    shape: tuple[int, int]
    codes: Tensor  # uint8 [out tiles, column tiles, 64, 8 * bits]; 8 bits: as int8
    scales: Tensor  # float16 [out tiles, column tiles, 2, 64]
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
    """The kernel's form of a packed weight, on `device`.

    Raises KernelError for a block type whose scales are not of 32 columns.
    """
    require(
        weight.kind in FORMS,
        f"{weight.kind} weights: the GPU kernels take {', '.join(FORMS)}; "
        "dequantise others when they are loaded",
    )
    form = FORMS[weight.kind]
    outputs, columns = weight.shape
    codes, scales, lows = _unpack(weight, form)
    tiles = (-(-outputs // TILE), -(-columns // TILE))
    grid = torch.zeros(tiles[0] * TILE, tiles[1] * TILE, dtype=torch.uint8)
    grid[:outputs, :columns] = codes.view(outputs, columns)
    whole = grid.view(tiles[0], TILE, tiles[1], TILE).transpose(1, 2)
    if form.bits == 4:
        whole = whole[..., :GROUP] | (whole[..., GROUP:] << 4)
    made = TiledWeight(
        form,
        weight.shape,
        whole.contiguous(),
        _tile_groups(scales, tiles),
        None if lows is None else _tile_groups(lows, tiles),
    )
    return made.to(device)


def _tile_groups(numbers: Tensor, tiles: tuple[int, int]) -> Tensor:
    """float16 [outputs, groups] as [out tiles, column tiles, 2, 64], zero beyond."""
    grid = torch.zeros(tiles[0] * TILE, tiles[1] * 2, dtype=torch.float16)
    grid[: numbers.shape[0], : numbers.shape[1]] = numbers
    return grid.view(tiles[0], TILE, tiles[1], 2).permute(0, 2, 3, 1).contiguous()


def _unpack(weight: PackedWeight, form: CodeForm) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes uint8 [outputs, groups, 32] in the order of columns, float16 scales and lows [outputs,
    groups]. A block is: scale, (low), (fifth bits,) codes; 4-bit ones as columns j | j + 16."""
    outputs, columns = weight.shape
    blocks = weight.joined().cpu().contiguous().view(outputs, columns // GROUP, -1)
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
    at = 4 if form.has_low else 2
    lows = blocks[..., 2:4].contiguous().view(torch.float16)[..., 0] if form.has_low else None
    if weight.kind == "q8_0":
        return blocks[..., at:].contiguous(), scales, lows
    nibbles = blocks[..., -16:]
    codes = torch.cat((nibbles & 15, nibbles >> 4), -1)
    if form.bits == 8:
        fifth = blocks[..., at : at + 4, None] >> torch.arange(8, dtype=torch.uint8) & 1
        codes = (codes | (fifth.flatten(-2) << 4)) - form.offset  # as int8
    return codes, scales, lows


TILES = (Tile(64, 16, 64, 4, 8), Tile(64, 64, 64, 4, 3), Tile(128, 128, 64, 8, 3))


@triton.jit
def _weights(codes, scale, low, kind: tl.constexpr, HAS_LOW: tl.constexpr):
    """float32 codes [outputs, 32] as weights of `kind`; scale, low [outputs]."""
    weights = codes * scale.to(tl.float32)[:, None]
    if HAS_LOW:
        weights += low.to(tl.float32)[:, None]
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
    scale_at = first * 128 + output % 64
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
            low_at = scale_at + tile * 128
            low_scale = tl.load(scales + low_at, mask=is_output, other=0.0)
            high_scale = tl.load(scales + low_at + 64, mask=is_output, other=0.0)
            low_add = low_scale
            high_add = high_scale
            if HAS_LOW:
                low_add = tl.load(lows + low_at, mask=is_output, other=0.0)
                high_add = tl.load(lows + low_at + 64, mask=is_output, other=0.0)
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
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    at = out + (tl.program_id(2) * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    result = to_kind(tl.trans(total), out.dtype.element_ty)
    tl.store(at, result, mask=is_row[:, None] & is_output[None, :])


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
    num_slices = triton.cdiv(columns, SLICE)
    if not _is_split(rows, outputs, num_slices):
        _launch(x, weight, bias, out, 1)
        return out
    parts = torch.empty(num_slices, rows, outputs, dtype=torch.float32, device=x.device)
    _launch(x, weight, None, parts, num_slices)
    launch: Any = add_slices_kernel[(rows, triton.cdiv(outputs, SUM_BLOCK))]
    launch(
        parts,
        x if bias is None else bias,
        out,
        rows,
        outputs,
        num_slices,
        BIASED=bias is not None,
        BLOCK=SUM_BLOCK,
        num_warps=1,
    )
    return out


def _is_split(rows: int, outputs: int, num_slices: int) -> bool:
    tile = tile_for(rows, TILES)
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
    return num_slices > 1 and programs < BUSY and rows <= TILES[1].rows


def _launch(
    x: Tensor, weight: TiledWeight, bias: Tensor | None, out: Tensor, num_slices: int
) -> None:
    """Fill out [rows, outputs], or [slices, rows, outputs] with what each slice adds."""
    (outputs, columns), rows, form = weight.shape, len(x), weight.form
    tile = tile_for(rows, TILES)
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs), num_slices)
    launch: Any = linear_packed_kernel[grid]
    launch(
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
    BLOCK: tl.constexpr,
):
    """A block of columns of the weight's row that a token names."""
    place = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ids + place)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    tile = token // 64 * tl.cdiv(columns, 64) + column // 64
    at = tile * (512 * BITS) + token % 64 * (8 * BITS)
    group = tile * 128 + column % 64 // 32 * 64 + token % 64
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
        launch: Any = rows_kernel[(len(token_ids), triton.cdiv(columns, EMBED_BLOCK))]
        launch(
            token_ids,
            weight.typed_codes,
            weight.scales,
            weight.scales if weight.lows is None else weight.lows,
            out,
            columns,
            BITS=form.bits,
            OFFSET=form.offset,
            HAS_LOW=form.has_low,
            BLOCK=EMBED_BLOCK,
            num_warps=1,
        )
    return out


def cost(rows: int, weight: TiledWeight, dtype: torch.dtype) -> Cost:
    """Codes and scales are read once, as the rows of x are, and the outputs are written; what
    slices add is written and read where programs of their own compute them."""
    outputs, columns = weight.shape
    moved = weight.num_bytes + rows * (columns + outputs) * dtype.itemsize
    num_slices = triton.cdiv(columns, SLICE)
    is_split = _is_split(rows, outputs, num_slices)
    if is_split:
        moved += 2 * num_slices * rows * outputs * 4
    flops = 2 * rows * outputs * columns
    in_halves = dtype != torch.float32
    return Cost(moved, flops, on_tensor_cores=in_halves, launches=2 if is_split else 1)
