"""Rotary position embedding (Su et al. 2021) in the half-split layout of Hugging Face models."""

import torch
from torch import Tensor

from radixgen.kernels import pointwise
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.library import supported


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q [tokens, num_heads, head_dim] and k [tokens, num_kv_heads, head_dim].

    cos, sin [tokens, head_dim], float32, both halves filled: dimension i turns with dimension
    i + head_dim / 2.
    Computed in float32; results are new tensors in the dtypes of q and k.
    """
    shaped("q", q, None, None, None)
    shaped("k", k, q.shape[0], None, q.shape[2])
    shaped("cos", cos, q.shape[0], q.shape[2])
    shaped("sin", sin, q.shape[0], q.shape[2])
    require(q.shape[2] % 2 == 0, f"head_dim={q.shape[2]} must be even")
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    tables = cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    if tables and supported(x, cos) and pointwise.takes_rows(x):
        return pointwise.rope(x, cos, sin)
    return rotate_reference(x, cos, sin)


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] rotated, by torch alone."""
    half = x.shape[2] // 2
    wide = x.float()
    turned = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos[:, None] + turned * sin[:, None]).to(x.dtype)
