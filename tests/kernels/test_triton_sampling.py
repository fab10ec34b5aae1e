"""Sampling on a GPU, interpreted: the draws are those of the sampler, for every filter."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels import sampling as native
from radixgen.kernels.sampling import Edits, Outcome
from radixgen.kernels.triton.edits import edit_logits_
from radixgen.kernels.triton.sampling import sample
from radixgen.model.sampler import Draw, Sampler, uniform
from radixgen.model.triton_sampler import TritonChooser
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
            logprobs=1 if i % 7 == 0 else None,
        )
        prompt, output = ([rng.randrange(40) for _ in range(rng.randrange(9))] for _ in range(2))
        weights = ((3, 0.5), (5, -1.0)) if i % 9 == 0 else ()
        draws.append(Draw(sampling, i, 9, prompt, output, weights=weights))
    return draws


def cells(rows: int, vocab: int) -> Edits:
    """One of every third logit."""
    place = np.arange(0, rows * vocab, 3)
    numbers = np.random.default_rng(2).normal(size=(4, len(place))).astype(np.float32)
    numbers[0, ::9] = -np.inf
    numbers[1] = np.exp(numbers[1])
    return Edits((place // vocab).astype(np.int32), (place % vocab).astype(np.int32), numbers)


def test_edits_are_those_of_torch() -> None:
    logits = torch.randn(6, 150, generator=torch.Generator().manual_seed(8)) * 3
    wanted = native.edit_logits_(logits.clone(), cells(6, 150))
    assert int((wanted != logits).sum()) == 300
    found = TritonChooser(torch.device("cpu")).edit_logits_(logits.clone(), cells(6, 150))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("masked", [False, True])
def test_draws_after_edits_are_those_of_torch(masked: bool) -> None:
    """In one pass of the kernels; beside rows whose log-probabilities are asked for."""
    vocab = 50
    draws = [replace(draw, mask_row=i % 3) for i, draw in enumerate(random_draws(60))]
    mask = make_bitmask(3, 0.5, vocab) if masked else None
    logits = torch.randn(60, vocab, generator=torch.Generator().manual_seed(8)) * 3
    wanted = Sampler(vocab, (0, 1), ByTorch()).sample(logits.clone(), draws, mask)
    chooser = TritonChooser(torch.device("cpu"))
    assert Sampler(vocab, (0, 1), chooser).sample(logits.clone(), draws, mask) == wanted
    plain = [replace(draw, sampling=SamplingParams(temperature=0)) for draw in draws]
    assert wanted != Sampler(vocab, (0, 1), ByTorch()).sample(logits.clone(), plain, mask)


class ByTorch:
    """Chooses nothing, so that torch does."""

    choose_ = staticmethod(native.choose_)
    edit_logits_ = staticmethod(native.edit_logits_)

    def can_choose(self, logits: Tensor, bitmask: Tensor | None) -> bool:
        return False


def test_edits_outside_the_logits_change_nothing_and_none_is_fine() -> None:
    logits, numbers = torch.randn(2, 5), torch.ones(4, 4)
    rows, ids = (torch.tensor(i, dtype=torch.int32) for i in ([0, 2, -1, 0], [5, 0, 0, -1]))
    assert torch.equal(edit_logits_(logits.clone(), rows, ids, numbers), logits)
    none = rows[:0], ids[:0], torch.ones(4, 0)
    assert torch.equal(edit_logits_(logits.clone(), *none), logits)
    with pytest.raises(KernelError, match="expected float32"):
        edit_logits_(logits.double(), rows, ids, numbers)
    with pytest.raises(KernelError, match="numbers has shape"):
        edit_logits_(logits, rows, ids, numbers[:3])


def test_columns_of_another_length_are_refused() -> None:
    empty = torch.zeros(0)
    with pytest.raises(KernelError, match="mask_rows"):
        sample(torch.zeros(2, 5), None, *[empty] * 6, filtered=False)
