"""The gated activation of Llama-family feed-forward layers on a GPU, by blocks of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_floats, launch, to_kind

BLOCK = 2048
NUM_WARPS = 4


@triton.jit
def silu_mul_kernel(gate_up, out, stride, size, BLOCK: tl.constexpr):
    """A block of silu(gate) * up of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    at = gate_up + row * stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + size, mask=inside, other=0.0).to(tl.float32)
    decay = tl.exp(-tl.abs(gate))  # not above 1, however large the gate is
    share = tl.where(gate >= 0, 1.0, decay) / (1.0 + decay)
    value = gate * share * up
    tl.store(out + row * size + columns, to_kind(value, out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [rows, 2 * size], gate first: [rows, size] in the same dtype.

    Computed in float32. Raises KernelError for other shapes or types.
    """
    shaped("gate_up", gate_up, None, None)
    check_floats(gate_up=gate_up)
    rows, columns = gate_up.shape
    require(columns % 2 == 0, f"gate_up has {columns} columns, which do not halve")
    require(gate_up.stride(1) == 1, "the columns of gate_up must lie one after the other")
    size = columns // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        launch(
            silu_mul_kernel,
            (rows, triton.cdiv(size, BLOCK)),
            gate_up,
            out,
            gate_up.stride(0),
            size,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
    return out


def cost(rows: int, size: int, dtype: torch.dtype) -> Cost:
    """Two values are read, one is written; exp, sum, quotient and 2 products are 5 operations."""
    return Cost(rows * size * 3 * dtype.itemsize, rows * size * 5)
