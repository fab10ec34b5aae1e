"""Sampling on a GPU, interpreted: the draws are those of the sampler, for every filter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.triton.sampling import sample
from radixgen.model.sampler import Draw, Sampler, uniform
from radixgen.types import SamplingParams

VOCAB = 5000  # more than one block


def run(logits: Tensor, draws: list[Draw], bitmask: Tensor | None) -> tuple[list[int], list[int]]:
    def column(values: list[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    params = [draw.sampling for draw in draws]
    vocab = logits.shape[1]
    ids, legal = sample(
        logits,
        bitmask,
        column([-1 if d.mask_row is None else d.mask_row for d in draws], torch.int32),
        column([p.temperature for p in params], torch.float32),
        column([min(p.top_k or vocab, vocab) for p in params], torch.int32),
        column([p.top_p for p in params], torch.float32),
        column([p.min_p for p in params], torch.float32),
        column([uniform(d.seed, d.position) for d in draws], torch.float64),
        filtered=any(p.top_k or p.top_p < 1 or p.min_p for p in params),
    )
    return ids.tolist(), legal.tolist()


def make_bitmask(rows: int, share: float, vocab: int = VOCAB) -> Tensor:
    bits = torch.rand(rows, -(-vocab // 32), 32, generator=torch.Generator().manual_seed(3)) < share
    return (bits.long() << torch.arange(32)).sum(-1).to(torch.int32)


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"top_k": 7},
    {"top_p": 0.6},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.8, "min_p": 0.01, "temperature": 1.4},
    {"top_k": 1},
]


@pytest.mark.parametrize("masked", [False, True])
def test_draws_are_those_of_the_sampler(masked: bool) -> None:
    draws = [
        Draw(SamplingParams(**kind), seed, 3, mask_row=seed if masked and kind else None)
        for kind in KINDS
        for seed in range(2)
    ]
    logits = torch.randn(len(draws), VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    bitmask = make_bitmask(3, 0.02) if masked else None
    expected = Sampler(VOCAB).sample(logits.clone(), draws, bitmask)
    found, legal = run(logits, draws, bitmask)
    assert found == [drawn.token_id for drawn in expected]
    assert legal == [1] * len(draws)


@pytest.mark.parametrize("kind", [{"top_k": 5}, {"top_p": 0.31}, {"min_p": 1.0}, {"top_p": 0.999}])
def test_ties_are_kept_in_the_order_of_ids(kind: dict[str, Any]) -> None:
    logits = torch.randint(0, 3, (6, 50), generator=torch.Generator().manual_seed(2)).float()
    draws = [Draw(SamplingParams(**kind), seed, 1) for seed in range(6)]
    expected = Sampler(50).sample(logits.clone(), draws)
    found, _ = run(logits, draws, None)
    assert found == [drawn.token_id for drawn in expected]


def test_a_row_that_allows_nothing_says_so() -> None:
    draws = [Draw(SamplingParams(), 1, 1, mask_row=0), Draw(SamplingParams(), 1, 1)]
    _, legal = run(torch.zeros(2, 64), draws, torch.zeros(1, 2, dtype=torch.int32))
    assert legal == [0, 1]


def test_columns_of_another_length_are_refused() -> None:
    empty = torch.zeros(0)
    with pytest.raises(KernelError, match="mask_rows"):
        sample(torch.zeros(2, 5), None, *[empty] * 6, filtered=False)
