"""The gated activation of Llama-family feed-forward layers."""

import torch
from torch import Tensor

from radixgen.kernels import pointwise
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.library import supported


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [rows, 2 * size], gate first: [rows, size] in the same dtype."""
    shaped("gate_up", gate_up, None, None)
    require(
        gate_up.shape[1] % 2 == 0, f"gate_up has {gate_up.shape[1]} columns, which do not halve"
    )
    if supported(gate_up) and gate_up.is_contiguous():
        return pointwise.silu_mul(gate_up)
    return silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """`silu_mul` by torch alone."""
    size = gate_up.shape[1] // 2
    wide = gate_up.float()
    gate, up = wide[:, :size], wide[:, size:]
    # Not torch's silu: it computes the ends of the threads' shares by another exp than the rest, so
    # a row's bits would depend on how many rows there are.
    return (gate / (1.0 + torch.exp(-gate)) * up).to(gate_up.dtype)
