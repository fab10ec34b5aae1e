"""RMS normalisation (Zhang and Sennrich 2019), alone and fused with a residual addition."""

import torch
from torch import Tensor

from radixgen.kernels.checks import shaped


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; computed in float32, in x's dtype.

    x [..., size], weight [size]. Any leading axes: hidden states or heads.
    """
    shaped("weight", weight, x.shape[-1])
    wide = x.float()
    mean_square = wide.square().mean(dim=-1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps)).to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual): the residual stream after a sub-layer and its norm.

    x, residual [rows, size], weight [size].
    """
    shaped("residual", residual, *x.shape)
    total = x + residual
    return rms_norm(total, weight, eps), total
