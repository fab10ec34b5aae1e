"""x @ weight.T + bias for float and quantised weights, each output reduced in one fixed order.

Owns the forms a weight may have. Knows nothing of files, layers or models.
"""

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.tiles import matmul_rows

# GGUF block types: (weights a block, bytes a block)
BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PackedWeight:
    """A quantised matrix as it lies in a GGUF file.

    `kind`: a key of BLOCK_SIZES. `shape`: (out, in). `data`: uint8 [out, in / weights * bytes],
    each row its blocks from left to right. Compared and hashed by identity.
    Raises KernelError for an unknown kind or sizes that do not agree.
    """

    kind: str
    shape: tuple[int, int]
    data: Tensor

    def __post_init__(self) -> None:
        require(
            self.kind in BLOCK_SIZES,
            f"unknown block type {self.kind!r}: use one of {', '.join(BLOCK_SIZES)}",
        )
        per_block, num_bytes = BLOCK_SIZES[self.kind]
        rows, width = self.shape
        require(
            width % per_block == 0, f"{self.kind} rows of {width} are not blocks of {per_block}"
        )
        require(self.data.dtype == torch.uint8, f"packed data is {self.data.dtype}, not uint8")
        shaped("packed data", self.data, rows, width // per_block * num_bytes)


Weight = Tensor | PackedWeight


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]: [rows, out] in x's dtype.

    A row's result is bitwise the same whatever the other rows are and how many (law 6). A float
    weight must have x's dtype. Raises KernelError for other shapes or types.
    """
    out_size, in_size = weight.shape
    shaped("x", x, None, in_size)
    if bias is not None:
        shaped("bias", bias, out_size)
    return linear_reference(x, weight, bias)


def linear_reference(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`linear` by torch alone; packed weights are dequantised once and multiplied in float32."""
    if isinstance(weight, PackedWeight):
        product = matmul_rows(x.float(), dequantize(weight))
    else:
        require(x.dtype == weight.dtype, f"x is {x.dtype} but the weight is {weight.dtype}")
        product = matmul_rows(x, weight)
    return (product if bias is None else product + bias).to(x.dtype)


_dequantized: weakref.WeakKeyDictionary[PackedWeight, Tensor] = weakref.WeakKeyDictionary()


def dequantize(weight: PackedWeight) -> Tensor:
    """The float32 matrix [out, in] that a packed weight stands for; kept while the weight lives."""
    found = _dequantized.get(weight)
    if found is None:
        found = _dequantized[weight] = dequantize_rows(weight, None)
    return found


def dequantize_rows(weight: PackedWeight, rows: Tensor | None) -> Tensor:
    """float32 [len(rows), in] of the rows named (int64), all when None: an embedding lookup."""
    from gguf import GGMLQuantizationType, quants

    data = weight.data if rows is None else weight.data[rows]
    kind = GGMLQuantizationType[weight.kind.upper()]
    values = quants.dequantize(np.ascontiguousarray(data.numpy()), kind)
    return torch.from_numpy(values).view(data.shape[0], weight.shape[1])
