"""What happens to logits before a token is drawn. Knows rows of numbers, not why a bit is set."""

import math

import torch
from torch import Tensor

from radixgen.kernels.checks import require, shaped


def apply_bitmask_(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Set to -inf, in place, every logit whose bit is 0. Returns `logits`.

    logits [rows, vocab]; bitmask int32 [rows, ceil(vocab / 32)], bit i % 32 of word i // 32 for
    token i.
    """
    vocab = logits.shape[1]
    require(bitmask.dtype == torch.int32, f"the bitmask is {bitmask.dtype}, expected int32")
    shaped("bitmask", bitmask, logits.shape[0], (vocab + 31) // 32)
    bits = (bitmask[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
    allowed = bits.flatten(1)[:, :vocab].bool()
    return logits.masked_fill_(~allowed, -math.inf)
