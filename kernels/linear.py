"""x @ weight.T + bias for float and quantised weights, each output reduced in one fixed order.

Chooses between the C kernels and torch. Knows nothing of files, layers or models.
"""

import weakref

import numpy as np
import torch
from torch import Tensor

from radixgen.kernels.block_types import BLOCK_SIZES, PackedWeight
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.library import supported
from radixgen.kernels.packed import linear_float, linear_packed
from radixgen.kernels.tiles import matmul_rows

__all__ = ["BLOCK_SIZES", "PackedWeight", "Weight", "dequantize_rows", "linear"]

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
    if isinstance(weight, PackedWeight):
        fast = supported(x)
        return linear_packed(x, weight, bias) if fast else linear_reference(x, weight, bias)
    require(x.dtype == weight.dtype, f"x is {x.dtype} but the weight is {weight.dtype}")
    fast = supported(x, weight)
    return linear_float(x, weight, bias) if fast else linear_reference(x, weight, bias)


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

    data = weight.joined() if rows is None else weight.joined()[rows]
    kind = GGMLQuantizationType[weight.kind.upper()]
    values = quants.dequantize(np.ascontiguousarray(data.numpy()), kind)
    return torch.from_numpy(values).view(data.shape[0], weight.shape[1])
