"""Which tokens min_p, top_k and top_p leave to be drawn. Knows rows of probabilities, no draws.

By torch; where C or Triton draw, they filter too, by the same law.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from radixgen.types import SamplingParams

_WIDTHS = (256, 4096)  # most probable tokens sorted of a row, before all of them are


def keep_most_probable(probs: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """probs [rows, vocab] with every token zeroed that min_p, top_k or top_p leaves out.

    In falling order of probability (equal ones by token id) each filter keeps a prefix: min_p the
    tokens of at least min_p times the largest; top_k the first k; top_p the shortest whose share of
    what the other two keep reaches top_p.
    """
    vocab = probs.shape[1]
    bounds = _bounds(probs, sampling)
    kept = torch.empty_like(probs)
    for low, width in pairwise((0, *(w for w in _WIDTHS if w < vocab), vocab)):
        rows = [i for i, bound in enumerate(bounds) if low < bound <= width]
        if rows:
            index = torch.tensor(rows, device=probs.device)
            kept[index] = _keep(probs[index], [sampling[i] for i in rows], width)
    return kept


def _bounds(probs: Tensor, sampling: Sequence[SamplingParams]) -> list[int]:
    """At most so many tokens of each row can be kept: cheap, so that few need to be sorted.

    All tokens below (1 - top_p) / (2 vocab) together hold less than half of what top_p leaves out,
    so none of them is needed to reach it; the other half covers rounding, but not near top_p = 1.
    """
    vocab = probs.shape[1]
    tails = [(1 - p.top_p) / (2 * vocab) if p.top_p < 1 - 1e-4 else 0.0 for p in sampling]
    min_p = torch.tensor([p.min_p for p in sampling], device=probs.device)
    least = torch.maximum(
        min_p * probs.amax(dim=-1), torch.tensor(tails, dtype=probs.dtype, device=probs.device)
    )
    counts = (probs >= least[:, None]).sum(dim=-1).tolist()
    return [
        min(count, params.top_k or vocab) for count, params in zip(counts, sampling, strict=True)
    ]


def _keep(probs: Tensor, sampling: Sequence[SamplingParams], width: int) -> Tensor:
    """`keep_most_probable` for rows of which no token beyond the `width` largest can be kept."""
    lengths, least = _cut(probs, sampling, width)
    kept = probs >= least[:, None]
    excess = (kept.sum(dim=-1) > lengths).nonzero().flatten().tolist()
    for row in excess:  # ties at the cut
        ties = probs[row] == least[row]
        room = lengths[row] - (probs[row] > least[row]).sum()
        kept[row] &= ~ties | (ties.cumsum(dim=0) <= room)
    return probs * kept


def _cut(probs: Tensor, sampling: Sequence[SamplingParams], width: int) -> tuple[Tensor, Tensor]:
    """How many tokens each row keeps [rows], and the probability of the last of them [rows]."""
    vocab, device = probs.shape[1], probs.device
    limits = [params.top_k or vocab for params in sampling]
    top_k = torch.tensor(limits, device=device).clamp(max=vocab)
    top_p = torch.tensor([p.top_p for p in sampling], dtype=torch.float64, device=device)
    min_p = torch.tensor([p.min_p for p in sampling], device=device)

    values = probs.topk(width).values if width < vocab else probs.sort(descending=True).values
    cumulative = values.cumsum(dim=-1, dtype=torch.float64)
    num_likely = (values >= min_p[:, None] * values[:, :1]).sum(dim=-1)
    lengths = torch.minimum(top_k, torch.where(min_p > 0, num_likely, vocab))
    last = (lengths - 1).clamp(max=width - 1)[:, None]
    # With nothing cut yet the total is 1 by definition, however much of the row was looked at.
    total = torch.where(lengths == vocab, 1.0, cumulative.gather(1, last)[:, 0])
    before = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative[:, :-1]], dim=-1)
    num_mass = (before < (top_p * total)[:, None]).sum(dim=-1)
    lengths = torch.minimum(lengths, torch.where(top_p < 1, num_mass, vocab))
    return lengths, values.gather(1, (lengths - 1).clamp(max=width - 1)[:, None])[:, 0]
