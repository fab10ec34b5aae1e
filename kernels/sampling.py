"""What happens to logits before a token is drawn. Knows rows of numbers, not why a bit is set."""

import math

import torch
from torch import Tensor

from radixgen.kernels import pointwise
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.library import supported


def apply_bitmask_(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Set to -inf, in place, every logit whose bit is 0. Returns `logits`.

    logits [rows, vocab]; bitmask int32 [rows, ceil(vocab / 32)], bit i % 32 of word i // 32 for
    token i.
    """
    vocab = logits.shape[1]
    require(bitmask.dtype == torch.int32, f"the bitmask is {bitmask.dtype}, expected int32")
    shaped("bitmask", bitmask, logits.shape[0], (vocab + 31) // 32)
    whole = logits.stride(1) == 1 and bitmask.is_contiguous()
    if logits.dtype == torch.float32 and supported(logits) and whole:
        pointwise.bitmask(logits, bitmask)
        return logits
    return apply_bitmask_reference_(logits, bitmask)


def apply_bitmask_reference_(logits: Tensor, bitmask: Tensor) -> Tensor:
    """`apply_bitmask_` by torch alone."""
    vocab = logits.shape[1]
    bits = (bitmask[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
    allowed = bits.flatten(1)[:, :vocab].bool()
    return logits.masked_fill_(~allowed, -math.inf)
