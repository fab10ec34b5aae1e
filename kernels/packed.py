"""The interleaved form of packed weights, and linear maps by the C kernels.

Knows cpu/linear_packed.c and cpu/linear_float.c; the public operation is in linear.py.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from radixgen.kernels.block_types import FORMS, PackedWeight
from radixgen.kernels.library import Kind, ask_for_huge_pages, is_half, library, run


@dataclass(frozen=True, slots=True, eq=False)
class Interleaved:
    """A packed weight as the kernel reads it; layout in cpu/linear_packed.c."""

    codes: Tensor  # uint8 [tiles, bytes]
    scales: Tensor  # uint8 [tiles, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Activations in 8 bits, with a scale and a sum of codes for each group of columns."""

    codes: Tensor  # int8 [rows, columns]
    scales: Tensor  # float32 [rows, groups]
    sums: Tensor  # float32 [rows, groups], whole


_interleaved: weakref.WeakKeyDictionary[PackedWeight, Interleaved] = weakref.WeakKeyDictionary()


def interleave(weight: PackedWeight) -> Interleaved:
    """The kernel's form of `weight`, made once and kept while the weight lives."""
    found = _interleaved.get(weight)
    if found is None:
        found = _interleaved[weight] = _repack(weight)
    return found


def _repack(weight: PackedWeight) -> Interleaved:
    form = FORMS[weight.kind]
    rows, columns = weight.shape
    tiles, groups = -(-rows // 16), columns // form.group
    codes = _cleared(tiles, groups * form.group * 2 * form.bits)
    scales = _cleared(tiles, groups * 16 * form.scale_bytes)
    data = weight.data.contiguous()
    loaded = library()
    assert loaded is not None
    loaded.rk_repack(
        data.data_ptr(), form.number, rows, columns, codes.data_ptr(), scales.data_ptr()
    )
    return Interleaved(codes, scales)


def _cleared(tiles: int, num_bytes: int) -> Tensor:
    made = torch.empty(tiles, num_bytes, dtype=torch.uint8)
    ask_for_huge_pages(made)
    return made.zero_()


def quantize(x: Tensor, group: int) -> Quantized:
    """x [rows, columns] float32 or bfloat16 to 8 bits, by groups of columns."""
    x = _rows_of(x)
    rows, columns = x.shape
    out = Quantized(
        torch.empty(rows, columns, dtype=torch.int8),
        torch.empty(rows, columns // group),
        torch.empty(rows, columns // group),
    )
    pointers = out.codes.data_ptr(), out.scales.data_ptr(), out.sums.data_ptr()
    run(Kind.QUANTIZE, (x.data_ptr(), is_half(x), x.stride(0), rows, columns, group, *pointers))
    return out


def linear_packed(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """`linear` with 8-bit activations on whole-number dot products."""
    form, packed = FORMS[weight.kind], interleave(weight)
    quantized = quantize(x, form.group)
    rows, columns = x.shape
    out = x.new_empty((rows, weight.shape[0]))
    wide_bias = None if bias is None else bias.float().contiguous()
    run(
        Kind.LINEAR_PACKED,
        (
            packed.codes.data_ptr(),
            packed.scales.data_ptr(),
            form.number,
            packed.codes.shape[1],
            packed.scales.shape[1],
            weight.shape[0],
            quantized.codes.data_ptr(),
            quantized.scales.data_ptr(),
            quantized.sums.data_ptr(),
            rows,
            columns,
            form.group,
            0 if wide_bias is None else wide_bias.data_ptr(),
            out.data_ptr(),
            is_half(out),
            out.stride(0),
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
