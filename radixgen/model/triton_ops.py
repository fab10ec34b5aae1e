"""The operations of a decoder on a GPU: Triton's kernels, and torch's own where there is none.

The one place that chooses; all take tensors of any device.
"""

from radixgen.kernels.linear import linear_reference as linear
from radixgen.kernels.triton.activation import silu_mul
from radixgen.kernels.triton.norm import add_rms_norm, rms_norm
from radixgen.kernels.triton.rope_write import rope_write

__all__ = ["add_rms_norm", "linear", "rms_norm", "rope_write", "silu_mul"]
