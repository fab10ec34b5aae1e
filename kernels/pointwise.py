"""Calls of the C operations of cpu/pointwise.c. Their public forms are in the file of each."""

import torch
from torch import Tensor

from radixgen.kernels.kv_types import page_type
from radixgen.kernels.library import Kind, float_bits, is_half, run


def takes_rows(x: Tensor) -> bool:
    """Whether rows of x [..., size] lie one stride apart, by pairs (row, head) at most."""
    inner = x.stride(-1) == 1
    if x.dim() == 3:
        return inner and x.stride(1) == x.shape[2]
    return inner and x.dim() == 2


def norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor | None]:
    """(normed, x + residual) for x [rows, size] or [tokens, heads, size], all of one dtype."""
    out = torch.empty(x.shape, dtype=x.dtype)
    total = None if residual is None else torch.empty(x.shape, dtype=x.dtype)
    group = x.shape[1] if x.dim() == 3 else 1
    run(
        Kind.NORM,
        (
            x.data_ptr(),
            0 if residual is None else residual.data_ptr(),
            0 if total is None else total.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            x.shape[0],
            x.shape[-1],
            is_half(x),
            float_bits(eps),
            x.stride(0),
            group,
        ),
    )
    return out, total


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] rotated by cos, sin [tokens, head_dim], float32, contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype)
    tokens, heads, head_dim = x.shape
    pointers = x.data_ptr(), x.stride(0), out.data_ptr(), cos.data_ptr(), sin.data_ptr()
    run(Kind.ROPE, (*pointers, tokens, heads, head_dim, is_half(x), 0))
    return out


def kv_write(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
    """Store k, v [tokens, heads, head_dim] at slots that were checked."""
    pointers = k_pages.data_ptr(), v_pages.data_ptr(), slots.data_ptr()
    run(
        Kind.KV_WRITE,
        (
            k.data_ptr(),
            v.data_ptr(),
            k.stride(0),
            v.stride(0),
            *pointers,
            *(k.shape[0], k.shape[1], k_pages.shape[2], k.shape[2]),
            is_half(k),
            page_type(k_pages),
        ),
    )


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of contiguous gate_up [rows, 2 * size]."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype)
    run(Kind.SILU_MUL, (gate_up.data_ptr(), out.data_ptr(), rows, size, is_half(gate_up)))
    return out


def bitmask(logits: Tensor, mask: Tensor) -> None:
    """-inf in logits [rows, vocab] float32 where mask's bit is 0."""
    run(
        Kind.BITMASK,
        (logits.data_ptr(), mask.data_ptr(), *logits.shape, mask.shape[1], logits.stride(0)),
    )
