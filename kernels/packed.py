"""The interleaved form of packed weights, and linear maps by the C kernels.

Knows cpu/linear_packed.c, linear_wide.c, linear_tiles.c and linear_float.c; the public operation is
in linear.py.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from radixgen.kernels.block_types import ACTIVATION_BITS, FORMS, Activations, PackedWeight
from radixgen.kernels.checks import require
from radixgen.kernels.library import Kind, is_half, library, multiplies_by_tiles, run
from radixgen.kernels.storage import take


@dataclass(frozen=True, slots=True, eq=False)
class Interleaved:
    """A packed weight as the kernel reads it; layout in cpu/linear_packed.c, or linear_tiles.c."""

    codes: Tensor  # uint8 [tiles, bytes]; tiles of 16 outputs, or pairs of them
    scales: Tensor  # uint8 [tiles, bytes]
    factors: Tensor  # float32 [outputs of all tiles], for linear_tiles.c, or [0]


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """Inputs of products with packed weights, in the form in which they meet them.

    codes: int8 [rows, columns]; 16 bits: int8 [rows, 2 * columns], for each 4 columns the high
    bytes of 256 * high + low and then the low ones; float32 or bfloat16 [rows, columns], and no
    scales or sums. bfloat16 lies as linear_tiles.c draws it, with room for `padded` rows.
    scales, sums: float32 [rows, groups], of the codes of a group of columns; sums are whole.
    """

    codes: Tensor
    scales: Tensor
    sums: Tensor


_interleaved: weakref.WeakKeyDictionary[PackedWeight, Interleaved] = weakref.WeakKeyDictionary()


def interleave(weight: PackedWeight) -> Interleaved:
    """The kernel's form of `weight`, made once and kept while the weight lives."""
    found = _interleaved.get(weight)
    if found is None:
        found = _interleaved[weight] = _repack(weight)
    return found


def _repack(weight: PackedWeight) -> Interleaved:
    form, loaded = FORMS[weight.kind], library()
    assert loaded is not None
    rows, columns = weight.shape
    by_tiles = weight.activations == "bfloat16"
    outputs = 32 if by_tiles else 16
    repack = loaded.rk_repack_tiles if by_tiles else loaded.rk_repack
    tiles, groups = -(-rows // outputs), columns // form.group
    scale_bytes = form.tile_scale_bytes if by_tiles else form.scale_bytes
    codes = take((tiles, columns * outputs * form.bits // 8), torch.uint8).zero_()
    scales = take((tiles, groups * outputs * scale_bytes), torch.uint8).zero_()
    factors = torch.ones(tiles * outputs if by_tiles else 0)
    first, made = 0, [codes.data_ptr(), scales.data_ptr()]
    if by_tiles:
        made.append(factors.data_ptr())
    for part in weight.parts:
        data = part.contiguous()
        repack(data.data_ptr(), form.number, first, len(data), columns, *made)
        first += len(data)
    return Interleaved(codes, scales, factors)


def quantize(x: Tensor, group: int, activations: Activations = "int8") -> Rounded:
    """x [rows, columns] float32 or bfloat16 rounded by groups of columns."""
    x = _rows_of(x)
    rows, columns = x.shape
    shapes = rounded_shapes(columns, group, activations)
    room = padded(rows, activations)
    out = Rounded(*(torch.empty(room, width, dtype=dtype) for width, dtype in shapes))
    size = (x.data_ptr(), is_half(x), x.stride(0), rows, columns, group)
    pointers = out.codes.data_ptr(), out.scales.data_ptr(), out.sums.data_ptr()
    run(quantize_kind(activations), (*size, *pointers, ACTIVATION_BITS[activations]))
    return out


def padded(rows: int, activations: Activations) -> int:
    """Rows for which Rounded has room."""
    return rows if activations != "bfloat16" or rows < 16 else -(-rows // 16) * 16


def rounded_shapes(
    columns: int, group: int, activations: Activations
) -> tuple[tuple[int, torch.dtype], ...]:
    """Width and type of each part of Rounded."""
    if activations == "float32":
        return (columns, torch.float32), (0, torch.float32), (0, torch.float32)
    if activations == "bfloat16":
        return (columns, torch.bfloat16), (0, torch.float32), (0, torch.float32)
    groups = columns // group
    code_bytes = columns * ACTIVATION_BITS[activations] // 8
    return (code_bytes, torch.int8), (groups, torch.float32), (groups, torch.float32)


_QUANTIZE = {"int8": Kind.QUANTIZE, "bfloat16": Kind.STAGE_TILES}
_LINEAR = {"int8": Kind.LINEAR_PACKED, "bfloat16": Kind.LINEAR_TILES}


def quantize_kind(activations: Activations) -> Kind:
    return _QUANTIZE.get(activations, Kind.QUANTIZE_WIDE)


def linear_kind(activations: Activations) -> Kind:
    return _LINEAR.get(activations, Kind.LINEAR_WIDE)


def linear_packed(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """`linear` with x rounded as the weight says. Raises KernelError for bfloat16 without AMX."""
    require(
        weight.activations != "bfloat16" or multiplies_by_tiles(),
        "activations='bfloat16' needs a CPU with a matrix unit (AMX): take another form",
    )
    form, packed, activations = FORMS[weight.kind], interleave(weight), weight.activations
    rounded = quantize(x, form.group, activations)
    rows, columns = x.shape
    out = x.new_empty((rows, weight.shape[0]))
    wide_bias = None if bias is None else bias.float().contiguous()
    run(
        linear_kind(activations),
        (
            packed.codes.data_ptr(),
            packed.scales.data_ptr(),
            form.number,
            packed.codes.shape[1],
            packed.scales.shape[1],
            weight.shape[0],
            rounded.codes.data_ptr(),
            rounded.scales.data_ptr(),
            rounded.sums.data_ptr(),
            rows,
            columns,
            form.group,
            0 if wide_bias is None else wide_bias.data_ptr(),
            out.data_ptr(),
            is_half(out),
            out.stride(0),
            ACTIVATION_BITS[activations],
            packed.factors.data_ptr(),
        ),
    )
    return out


def linear_float(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of float32 or bfloat16, x and weight alike."""
    x, weight = _rows_of(x), weight.contiguous()
    out = x.new_empty((x.shape[0], weight.shape[0]))
    wide_bias = None if bias is None else bias.float().contiguous()
    run(
        Kind.LINEAR_FLOAT,
        (
            x.data_ptr(),
            x.stride(0),
            weight.data_ptr(),
            is_half(x),
            x.shape[0],
            x.shape[1],
            weight.shape[0],
            0 if wide_bias is None else wide_bias.data_ptr(),
            out.data_ptr(),
            is_half(out),
            out.stride(0),
        ),
    )
    return out


def _rows_of(x: Tensor) -> Tensor:
    """x with its columns next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()
