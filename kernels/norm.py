"""RMS normalisation (Zhang and Sennrich 2019), alone and fused with a residual addition."""

import torch
from torch import Tensor

from radixgen.kernels import pointwise
from radixgen.kernels.checks import shaped
from radixgen.kernels.library import supported


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; computed in float32, in x's dtype.

    x [..., size], weight [size]. Any leading axes: hidden states or heads.
    """
    shaped("weight", weight, x.shape[-1])
    if _takes(x, weight):
        return pointwise.norm(x, None, weight, eps)[0]
    return rms_norm_reference(x, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` by torch alone."""
    wide = x.float()
    mean_square = wide.square().mean(dim=-1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps)).to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual): the residual stream after a sub-layer and its norm.

    x, residual [rows, size], weight [size].
    """
    shaped("residual", residual, *x.shape)
    shaped("weight", weight, x.shape[-1])
    if _takes(x, weight) and x.dtype == residual.dtype and residual.is_contiguous():
        normed, summed = pointwise.norm(x, residual, weight, eps)
        assert summed is not None
        return normed, summed
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def _takes(x: Tensor, weight: Tensor) -> bool:
    same = x.dtype == weight.dtype and weight.is_contiguous()
    return supported(x) and same and pointwise.takes_rows(x)
