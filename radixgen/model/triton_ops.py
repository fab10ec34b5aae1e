"""The operations of a decoder on a GPU: Triton's kernels, and torch's own where there is none.

The one place that chooses; all take tensors of any device.
"""

import torch
from torch import Tensor

from radixgen.kernels.activation import silu_mul_reference as silu_mul
from radixgen.kernels.kv_write import write_kv_reference
from radixgen.kernels.linear import linear_reference as linear
from radixgen.kernels.norm import rms_norm_reference as rms_norm
from radixgen.kernels.rope import rotate_reference

__all__ = ["add_rms_norm", "linear", "rms_norm", "rope_write", "silu_mul"]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual); x, residual [rows, size], weight [size]."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    num_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """Norm and rotate q and k of qkv [tokens, (heads + 2 KV heads) * head_dim], store k and v at
    `slots`; the queries [tokens, num_heads, head_dim].

    cos, sin [max positions, head_dim] float32; positions, slots [tokens] int64.
    """
    num_kv_heads, head_dim = k_pages.shape[1], k_pages.shape[3]
    heads = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, head_dim)
    q, k, v = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    turn = cos[positions], sin[positions]
    q, k = rotate_reference(q, *turn), rotate_reference(k, *turn)
    write_kv_reference(k, v, k_pages, v_pages, slots)
    return q
