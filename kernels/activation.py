"""The gated activation of Llama-family feed-forward layers."""

import torch
from torch import Tensor

from radixgen.kernels.checks import require, shaped


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [rows, 2 * size], gate first: [rows, size] in the same dtype."""
    shaped("gate_up", gate_up, None, None)
    size, odd = divmod(gate_up.shape[1], 2)
    require(odd == 0, f"gate_up has {gate_up.shape[1]} columns, which do not halve")
    wide = gate_up.float()
    gate, up = wide[:, :size], wide[:, size:]
    # Not torch's silu: it computes the ends of the threads' shares by another exp than the rest, so
    # a row's bits would depend on how many rows there are.
    return (gate / (1.0 + torch.exp(-gate)) * up).to(gate_up.dtype)
