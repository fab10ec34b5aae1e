"""The operations of a decoder on a GPU, under one roof. All take tensors of any device that Triton
reaches: a GPU's, or a CPU's where it interprets.
"""

from torch import Tensor
from torch import dtype as Dtype

from radixgen.kernels.triton.activation import silu_mul
from radixgen.kernels.triton.linear import linear
from radixgen.kernels.triton.norm import add_rms_norm, rms_norm
from radixgen.kernels.triton.packed import TiledWeight, dequantize_rows
from radixgen.kernels.triton.rope_write import rope_write

__all__ = ["add_rms_norm", "embed", "linear", "rms_norm", "rope_write", "silu_mul"]


def embed(weight: Tensor | TiledWeight, token_ids: Tensor, dtype: Dtype) -> Tensor:
    """Rows token_ids [tokens] of weight [vocab, hidden]: [tokens, hidden] in `dtype`."""
    if isinstance(weight, TiledWeight):
        return dequantize_rows(weight, token_ids, dtype)
    return weight[token_ids].to(dtype)
