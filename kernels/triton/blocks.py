"""Block types of GGUF files taken apart: codes, and the scales and lows of groups of columns.

    weight = scale * (code - offset)            q4_0, q5_0, q8_0, q6_K
    weight = scale * code + low                 q4_1, q5_1, q4_K, q5_K

What a block of K holds are products, a number of 16 bits times one of 6 or 8: they are made here
once, in float32, which holds them exactly. So weights are the dequantised ones to the bit. Knows
bytes, no kernel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from radixgen.kernels.block_types import PackedWeight


@dataclass(frozen=True, slots=True)
class CodeForm:
    """How codes of a block type stand for weights."""

    bits: int  # of a code as it is stored on a GPU
    offset: int  # of codes of 4 bits; others are stored without
    has_low: bool
    group: int = 32  # columns that share a scale
    scale_dtype: torch.dtype = torch.float16

    @property
    def group_bytes(self) -> int:
        """Of a group's scale and low."""
        return self.scale_dtype.itemsize * (2 if self.has_low else 1)


FORMS = {
    "q4_0": CodeForm(4, 8, False),
    "q4_1": CodeForm(4, 0, True),
    "q5_0": CodeForm(8, 16, False),
    "q5_1": CodeForm(8, 0, True),
    "q8_0": CodeForm(8, 0, False),
    "q4_k": CodeForm(4, 0, True, scale_dtype=torch.float32),
    "q5_k": CodeForm(8, 0, True, scale_dtype=torch.float32),
    "q6_k": CodeForm(8, 32, False, 16, torch.float32),
}
Parts = tuple[Tensor, Tensor, Tensor | None]


def take_apart(weight: PackedWeight) -> Parts:
    """Codes uint8 [outputs, columns], scales and lows [outputs, groups] of the form's type.

    Codes of 8 bits are int8 without their offset.
    """
    outputs, columns = weight.shape
    per_block = 256 if weight.kind.endswith("_k") else 32
    data = weight.joined().cpu().contiguous()
    blocks = data.view(outputs * (columns // per_block), -1)
    codes, scales, lows = _READERS.get(weight.kind, _plain)(blocks, weight.kind)
    shape = outputs, columns // FORMS[weight.kind].group
    return (
        codes.reshape(weight.shape),
        scales.reshape(shape),
        None if lows is None else lows.reshape(shape),
    )


def _halves(data: Tensor) -> Tensor:
    """Bytes [blocks, 2] as float16 [blocks]."""
    return data.contiguous().view(torch.float16)[:, 0]


def _plain(blocks: Tensor, kind: str) -> Parts:
    """A block is: scale, (low), (fifth bits,) codes; those of 4 bits as columns j | j + 16."""
    form = FORMS[kind]
    at = 4 if form.has_low else 2
    scales, lows = _halves(blocks[:, :2]), _halves(blocks[:, 2:4]) if form.has_low else None
    if kind == "q8_0":
        return blocks[:, at:], scales, lows
    nibbles = blocks[:, -16:]
    codes = torch.cat((nibbles & 15, nibbles >> 4), -1)
    if form.bits == 8:
        fifth = blocks[:, at : at + 4, None] >> torch.arange(8, dtype=torch.uint8) & 1
        codes = (codes | (fifth.flatten(-2) << 4)) - form.offset  # as int8
    return codes, scales, lows


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and lows [blocks, 8] of q4_K and q5_K: d, dmin, then 8 pairs of 6 bits in 12 bytes,
    the first four's as they are, with the upper bits of the last four's above them."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    steps = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), 1).float()
    least = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), 1).float()
    scale, low = (_halves(blocks[:, at : at + 2]).float()[:, None] for at in (0, 2))
    return scale * steps, -(low * least)


def _q4_k(blocks: Tensor, kind: str) -> Parts:
    """32 bytes of codes for each 64 columns, j | j + 32."""
    nibbles = blocks[:, -128:].view(-1, 4, 1, 32)
    return torch.cat((nibbles & 15, nibbles >> 4), 2), *_k_scales(blocks)


def _q5_k(blocks: Tensor, kind: str) -> Parts:
    """As q4_K, with bit g of 32 bytes for the fifth bits of group g."""
    codes, scales, lows = _q4_k(blocks, kind)
    fifth = blocks[:, 16:48].view(-1, 1, 32) >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    return codes.reshape(-1, 8, 32) | (fifth << 4), scales, lows


def _q6_k(blocks: Tensor, kind: str) -> Parts:
    """For each half of 128 columns 64 bytes of lower and 32 of upper bits; int8 scales, then d."""
    lower, upper = blocks[:, :128].view(-1, 2, 2, 32), blocks[:, 128:192].view(-1, 2, 1, 32)
    low = torch.cat((lower & 15, lower >> 4), 2)
    high = upper >> torch.tensor([[0], [2], [4], [6]], dtype=torch.uint8) & 3
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    codes = (low | (high << 4)) - FORMS[kind].offset  # as int8
    return codes, _halves(blocks[:, 208:]).float()[:, None] * scales, None


_READERS = {"q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k}
