"""How much a mask leaves of the law without it. Knows rows of logits; no model, page or grammar."""

from collections.abc import Sequence

import torch
from torch import Tensor

from radixgen.batch import TokenMass


def temper(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """logits [rows, vocab] over each row's temperature, in float64; greedy rows as at 1.0."""
    divisors = torch.tensor(temperatures, dtype=torch.float64, device=logits.device)
    return logits.double() / divisors.masked_fill(divisors == 0, 1.0)[:, None]


def token_masses(free: Tensor, masked: Tensor, token_ids: Sequence[int]) -> list[TokenMass]:
    """free, masked [rows, vocab]: tempered logits without and with the mask's -inf."""
    total = free.logsumexp(dim=-1)
    ids = torch.tensor(token_ids, device=free.device)[:, None]
    legal = (masked.logsumexp(dim=-1) - total).exp().clamp(max=1.0)
    own = (free.gather(1, ids)[:, 0] - total).exp()
    return [TokenMass(*pair) for pair in zip(legal.tolist(), own.tolist(), strict=True)]
