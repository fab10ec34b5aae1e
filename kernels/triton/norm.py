"""RMS normalisation on a GPU, alone and fused with a residual addition: one program a row.

A row lies in registers as a whole and is reduced in one order, whatever rows are beside it. Rounds
where the reference does: the sum with the residual, and what is normed before its weight.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_floats, launch, power_of_two, rounded, to_kind

MAX_SIZE = 32768  # columns that registers of a program hold


@triton.jit
def norm_kernel(
    x,
    residual,
    weight,
    normed,
    total,
    x_stride,
    residual_stride,
    size,
    eps,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """normed [rows, size] and, where it ADDS, total [rows, size] of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        more = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0)
        summed = to_kind(values + more.to(tl.float32), total.dtype.element_ty)
        tl.store(total + row * size + columns, summed, mask=inside)
        values = summed.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / size + eps)
    kind: tl.constexpr = normed.dtype.element_ty
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    out = to_kind(rounded(values * scale, kind) * weights, kind)
    tl.store(normed + row * size + columns, out, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, as kernels/norm.py.

    x [..., size], weight [size], of one dtype: float32, bfloat16 or float16; sums are float32.
    Raises KernelError for other shapes or types.
    """
    rows = x.reshape(-1, x.shape[-1])
    normed, _ = _launch(rows, None, weight, eps)
    return normed.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual). x, residual [rows, size], weight [size]."""
    shaped("residual", residual, *x.shape)
    require(x.dtype == residual.dtype, f"x is {x.dtype} but the residual is {residual.dtype}")
    normed, total = _launch(x, residual, weight, eps)
    assert total is not None
    return normed, total


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor | None]:
    rows, size = x.shape
    shaped("weight", weight, size)
    check_floats(x=x, weight=weight)
    require(0 < size <= MAX_SIZE, f"rows of {size} columns: 1 to {MAX_SIZE} fit into registers")
    for name, tensor in (("x", x), ("the residual", x if residual is None else residual)):
        require(tensor.stride(1) == 1, f"the columns of {name} must lie one after the other")
    normed = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.empty_like(normed)
    if rows:
        block = power_of_two(size)
        launch(
            norm_kernel,
            (rows,),
            x,
            x if residual is None else residual,
            weight,
            normed,
            normed if total is None else total,
            x.stride(0),
            x.stride(0) if residual is None else residual.stride(0),
            size,
            eps,
            ADDS=residual is not None,
            BLOCK=block,
            num_warps=num_warps(block),
        )
    return normed, total


def num_warps(block: int) -> int:
    """As many as have 16 values a thread, so that loads are wide."""
    return min(max(block // 512, 1), 16)


def cost(rows: int, size: int, dtype: torch.dtype, *, adds: bool = True) -> Cost:
    """A row is read and written once, with the residual twice; the weight is read once.

    A value is squared and summed, then scaled twice: 4 operations, one more to add.
    """
    moved = rows * size * (4 if adds else 2) + size
    return Cost(moved * dtype.itemsize, rows * size * (5 if adds else 4))
