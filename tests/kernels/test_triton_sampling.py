"""Sampling on a GPU, interpreted: the draws are those of the sampler, for every filter."""

import math
import random
from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.sampling import Outcome
from radixgen.kernels.triton.edits import Cell, Edits, edit_logits_
from radixgen.kernels.triton.sampling import sample
from radixgen.model.sampler import Draw, Sampler, uniform
from radixgen.types import SamplingParams

VOCAB = 5000  # more than one block


def run(logits: Tensor, draws: list[Draw], bitmask: Tensor | None) -> tuple[list[int], list[int]]:
    def column(values: list[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    params = [draw.sampling for draw in draws]
    vocab = logits.shape[1]
    ids, outcomes = sample(
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
    return ids.tolist(), outcomes.tolist()


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
    found, outcomes = run(logits, draws, bitmask)
    assert found == [drawn.token_id for drawn in expected]
    assert outcomes == [Outcome.CHOSEN] * len(draws)


@pytest.mark.parametrize("kind", [{"top_k": 5}, {"top_p": 0.31}, {"min_p": 1.0}, {"top_p": 0.999}])
def test_ties_are_kept_in_the_order_of_ids(kind: dict[str, Any]) -> None:
    logits = torch.randint(0, 3, (6, 50), generator=torch.Generator().manual_seed(2)).float()
    draws = [Draw(SamplingParams(**kind), seed, 1) for seed in range(6)]
    expected = Sampler(50).sample(logits.clone(), draws)
    found, _ = run(logits, draws, None)
    assert found == [drawn.token_id for drawn in expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_nothing_can_be_chosen_says_so(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    logits = torch.zeros(6, 64)
    logits[2, 40], logits[3, 1], logits[4], logits[5, :3] = (
        torch.nan,
        torch.inf,
        -torch.inf,
        -torch.inf,
    )
    draws = [Draw(sampling, 1, 1, mask_row=0), *[Draw(sampling, 1, 1)] * 5]
    ids, outcomes = run(logits, draws, torch.zeros(1, 2, dtype=torch.int32))
    broken = [Outcome.NOT_FINITE] * 3
    assert outcomes == [Outcome.NONE_ALLOWED, Outcome.CHOSEN, *broken, Outcome.CHOSEN]
    assert [ids[i] for i in (0, 2, 3, 4)] == [0] * 4


def test_a_row_depends_on_itself_alone() -> None:
    draws = [Draw(SamplingParams(**kind), 5, 2) for kind in KINDS]
    logits = torch.randn(len(draws), 300, generator=torch.Generator().manual_seed(6)) * 3
    whole, _ = run(logits, draws, None)
    for i, draw in enumerate(draws):
        assert run(logits[i : i + 1], [draw], None)[0] == [whole[i]]


def random_draws(count: int) -> list[Draw]:
    """Of every kind of bias and penalty, some with tokens before them."""
    rng = random.Random(3)
    draws = []
    for i in range(count):
        sampling = SamplingParams(
            temperature=rng.choice((0.0, 0.8)),
            repetition_penalty=rng.choice((1.0, 0.7, 1.3)),
            frequency_penalty=rng.choice((0.0, 0.5, -0.5)),
            presence_penalty=rng.choice((0.0, 0.9)),
            logit_bias=tuple(
                (rng.randrange(40), rng.uniform(-9, 9)) for _ in range(rng.randrange(3))
            ),
            min_tokens=rng.choice((0, 4)),
            stop_token_ids=(7,),
        )
        prompt, output = ([rng.randrange(40) for _ in range(rng.randrange(9))] for _ in range(2))
        weights = ((3, 0.5), (5, -1.0)) if i % 3 == 0 else ()
        draws.append(Draw(sampling, i, 9, prompt, output, weights=weights))
    return draws


def edits_of(draws: list[Draw], ends: tuple[int, ...]) -> Edits:
    """As cells, what the sampler does to logits before a choice."""
    cells: list[Cell] = []
    for row, draw in enumerate(draws):
        params = draw.sampling
        bias: dict[int, float] = defaultdict(float)
        for token, number in params.logit_bias:
            bias[token] += number
        if len(draw.output_ids) < params.min_tokens:
            bias |= dict.fromkeys((*ends, *params.stop_token_ids), -math.inf)
        counts = Counter(draw.output_ids)
        seen = (
            counts | dict.fromkeys(draw.prompt_ids, 0) if params.repetition_penalty != 1 else counts
        )
        after = {token: params.temperature * weight for token, weight in draw.weights}
        cells += [
            Cell(
                row,
                token,
                bias.get(token, 0.0),
                params.repetition_penalty if token in {*draw.prompt_ids, *draw.output_ids} else 1.0,
                params.frequency_penalty * counts[token],
                params.presence_penalty if counts[token] else 0.0,
                after.get(token, 0.0),
            )
            for token in sorted({*bias, *seen, *after})
        ]
    return Edits.of(cells)


def test_edits_are_those_of_the_sampler() -> None:
    draws = random_draws(60)
    logits = torch.randn(60, 50, generator=torch.Generator().manual_seed(8)) * 3
    edited = edit_logits_(logits.clone(), edits_of(draws, (0, 1)))
    changed = int((edited != logits).sum())
    assert changed > 300
    expected = Sampler(50, (0, 1)).sample(logits.clone(), draws)
    found, _ = run(edited, draws, None)
    assert found == [drawn.token_id for drawn in expected]


def test_edits_outside_the_logits_change_nothing_and_none_is_fine() -> None:
    logits = torch.randn(2, 5)
    edits = Edits.of([Cell(0, 5, 1.0), Cell(2, 0, 1.0), Cell(-1, 0, 1.0), Cell(0, -1, 1.0)])
    assert torch.equal(edit_logits_(logits.clone(), edits), logits)
    assert torch.equal(edit_logits_(logits.clone(), Edits.of([])), logits)
    with pytest.raises(KernelError, match="expected float32"):
        edit_logits_(logits.double(), edits)


def test_columns_of_another_length_are_refused() -> None:
    empty = torch.zeros(0)
    with pytest.raises(KernelError, match="mask_rows"):
        sample(torch.zeros(2, 5), None, *[empty] * 6, filtered=False)
