"""The sampler against slow, obvious references, and the independence of its rows."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.kernels import library, sampling
from radixgen.model.filters import keep_most_probable
from radixgen.model.sampler import Draw, Drawn, Sampler, token_logprobs, uniform
from radixgen.types import SamplingParams

VOCAB = 97
GREEDY = SamplingParams(temperature=0.0)


def logits_like(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def mask_of(*rows: set[int], vocab: int = VOCAB) -> Tensor:
    """A bitmask allowing those ids, a row each."""
    words = np.zeros((len(rows), (vocab + 31) // 32), dtype=np.uint32)
    for row, ids in enumerate(rows):
        for i in ids:
            words[row, i // 32] |= np.uint32(1 << (i % 32))
    return torch.from_numpy(words.view(np.int32))


def sample(logits: Tensor, draws: list[Draw], mask: Tensor | None = None) -> list[Drawn]:
    return Sampler(logits.shape[1], end_token_ids=(0,)).sample(logits.clone(), draws, mask)


def one(logits: Tensor, sampling: SamplingParams, **more: object) -> Drawn:
    return sample(logits[None], [Draw(sampling, 1, 5, **more)])[0]  # type: ignore[arg-type]


# ---- the random stream ----


def test_uniform_is_a_function_of_seed_and_position() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    values = [uniform(seed, position) for seed in range(300) for position in range(300)]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 1 for value in values)


@pytest.mark.parametrize("axis", ["seed", "position", "both"])
def test_uniform_is_uniform_and_neighbours_are_independent(axis: str) -> None:
    count, bins = 20_000, 16
    steps = {"seed": (1, 0), "position": (0, 1), "both": (1, 1)}[axis]
    values = [uniform(2**64 - 1 - i * steps[0], i * steps[1]) for i in range(count + 1)]
    cells = np.zeros((bins, bins))
    for a, b in pairwise(values):
        cells[int(a * bins), int(b * bins)] += 1
    expected = count / bins**2
    chi_square = ((cells - expected) ** 2 / expected).sum()
    freedom = bins**2 - 1
    assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom)


# ---- filters ----


def kept_reference(probs: list[float], params: SamplingParams) -> set[int]:
    """min_p, top_k, top_p one after the other over the sorted list."""
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    if params.min_p > 0:
        least = np.float32(params.min_p) * np.float32(probs[order[0]])
        order = [i for i in order if probs[i] >= least]
    if 0 < params.top_k < len(probs):
        order = order[: params.top_k]
    if params.top_p < 1:
        total = sum(probs[i] for i in order) if len(order) < len(probs) else 1.0
        mass, kept = 0.0, []
        for i in order:
            if mass >= params.top_p * total:
                break
            mass += probs[i]
            kept.append(i)
        order = kept
    return set(order)


@pytest.mark.parametrize("vocab", [5, 97, 700, 6000])
def test_filters_keep_what_the_reference_keeps(vocab: int) -> None:
    choose = random.Random(vocab)
    for round_ in range(60 if vocab < 1000 else 8):
        spread = choose.choice([0.0, 0.1, 1.0, 5.0])
        levels = torch.randint(0, choose.choice([2, 5, 60]), (4, vocab)).float()
        probs = torch.softmax(levels / 60 * spread + logits_like(4, round_, vocab) * spread, -1)
        if round_ % 2:
            probs = torch.softmax(levels, -1)  # many ties
        params = [
            SamplingParams(
                top_k=choose.choice([0, 0, 1, 3, 50, 10_000]),
                top_p=choose.choice([1.0, 1.0, 1e-9, 0.3, 0.95, 0.999]),
                min_p=choose.choice([0.0, 0.0, 0.05, 1.0]),
            )
            for _ in range(4)
        ]
        kept = keep_most_probable(probs, params)
        for row, param in enumerate(params):
            wanted = kept_reference(probs[row].tolist(), param)
            assert set(kept[row].nonzero().flatten().tolist()) == wanted, param
            assert torch.equal(kept[row][kept[row] > 0], probs[row][sorted(wanted)])


def test_top_k_of_one_is_greedy_even_with_ties() -> None:
    logits = torch.zeros(VOCAB)
    logits[[3, 40, 96]] = 2.0
    assert one(logits, SamplingParams(top_k=1)).token_id == 3
    assert one(logits, GREEDY).token_id == 3


# ---- the distribution ----


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, top_k=4),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    vocab, count = 12, 6000
    logits = logits_like(1, 3, vocab)[0]
    probs = torch.softmax(logits.double() / params.temperature, -1).tolist()
    kept = kept_reference(torch.softmax(logits / params.temperature, -1).tolist(), params)
    total = sum(probs[i] for i in kept)
    draws = [Draw(params, seed=9, position=i) for i in range(count)]
    drawn = sample(logits.expand(count, vocab), draws)
    found = np.bincount([d.token_id for d in drawn], minlength=vocab)
    assert found.sum() == found[sorted(kept)].sum(), "a token that was filtered out"
    expected = np.array([probs[i] / total * count for i in sorted(kept)])
    chi_square = ((found[sorted(kept)] - expected) ** 2 / expected).sum()
    freedom = max(len(kept) - 1, 1)
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


# ---- rows are independent ----


def random_draw(choose: random.Random, vocab: int) -> Draw:
    params = SamplingParams(
        temperature=choose.choice([0.0, 0.7, 1.0, 1.5]),
        top_k=choose.choice([0, 0, 5, 300]),
        top_p=choose.choice([1.0, 0.9, 0.99]),
        min_p=choose.choice([0.0, 0.0, 0.1]),
        repetition_penalty=choose.choice([1.0, 1.3]),
        frequency_penalty=choose.choice([0.0, 0.5]),
        presence_penalty=choose.choice([0.0, -0.5]),
        min_tokens=choose.choice([0, 4]),
        logprobs=choose.choice([None, 0, 3]),
        logit_bias=choose.choice([(), ((1, 5.0), (4, -7.5))]),
    )
    return Draw(
        params,
        choose.randrange(2**64),
        choose.randrange(8192),
        [choose.randrange(vocab) for _ in range(20)],
        [choose.randrange(vocab) for _ in range(choose.randrange(8))],
        choose.choice([None, 0, 1]),
    )


@pytest.mark.parametrize("vocab", [97, 1000])
def test_a_row_draws_the_same_alone_and_in_any_batch(vocab: int) -> None:
    choose = random.Random(11)
    count = 60
    logits = logits_like(count, 5, vocab)
    mask = mask_of(set(range(0, vocab, 2)), {1, 7, 90}, vocab=vocab)
    draws = [random_draw(choose, vocab) for _ in range(count)]
    alone = [sample(logits[i : i + 1], [draws[i]], mask)[0] for i in range(count)]
    assert sample(logits, draws, mask) == alone
    for size in (2, 3, 17, 41):
        order = choose.sample(range(count), size)
        found = sample(logits[order], [draws[i] for i in order], mask)
        assert found == [alone[i] for i in order]


def test_rows_that_want_more_leave_the_others_to_one_pass() -> None:
    seen: list[int] = []

    class Spy:
        can_choose = staticmethod(sampling.can_choose)
        edit_logits_ = staticmethod(sampling.edit_logits_)

        def choose_(
            self,
            logits: Tensor,
            choices: Sequence[sampling.Choice],
            bitmask: Tensor | None = None,
            edits: sampling.Edits | None = None,
        ) -> list[tuple[int, sampling.Outcome]]:
            seen.append(len(choices))
            return sampling.choose_(logits, choices, bitmask, edits)

    if library.library() is None:
        pytest.skip("no C compiler")
    logits, mask = logits_like(4), mask_of({5, 64, 96})
    wants = SamplingParams(logprobs=2, presence_penalty=0.5)
    draws = [Draw(wants if i == 2 else GREEDY, 0, 0, mask_row=0) for i in range(4)]
    found = Sampler(VOCAB, chooser=Spy()).sample(logits.clone(), draws, mask)
    assert seen == [4, 1]
    assert found == [sample(logits[i : i + 1], [draws[i]], mask)[0] for i in range(4)]
    assert [drawn.logprob is not None for drawn in found] == [False, False, True, False]


# ---- masks, bias, penalties, min_tokens ----


def test_mask_rules_the_choice_and_other_rows_are_free() -> None:
    logits = logits_like(3)
    allowed = {5, 64, 96}
    draws = [
        Draw(GREEDY, 0, 0, mask_row=1),
        Draw(GREEDY, 0, 0),
        Draw(SamplingParams(), 0, 0, mask_row=1),
    ]
    drawn = sample(logits, draws, mask_of({2}, allowed))
    assert drawn[0].token_id == max(allowed, key=lambda i: float(logits[0, i]))
    assert drawn[1].token_id == int(logits[1].argmax())
    assert drawn[2].token_id in allowed


@pytest.mark.parametrize(("words", "token_id"), [(2, 0), (4, 90), (9, 90)])
def test_a_mask_of_another_width_forbids_what_it_does_not_name(words: int, token_id: int) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 90] = 9.0
    mask = torch.full((1, words), -1, dtype=torch.int32)
    assert sample(logits, [Draw(GREEDY, 0, 0, mask_row=0)], mask)[0].token_id == token_id


def test_an_empty_mask_fails_its_row_alone() -> None:
    logits = logits_like(2)
    for params in (GREEDY, SamplingParams()):
        drawn = sample(logits, [Draw(params, 0, 0, mask_row=0), Draw(GREEDY, 0, 0)], mask_of(set()))
        assert "no token is allowed" in (drawn[0].error or "")
        assert drawn[1].error is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(logprobs=2)], ids=["greedy", "random"])
def test_broken_logits_fail_their_row_alone(value: float, params: SamplingParams) -> None:
    logits = logits_like(3)
    logits[1, 8] = value
    draws = [Draw(params, i, i) for i in range(3)]
    drawn = sample(logits, draws)
    good = sample(logits_like(3), draws)
    assert "not finite" in (drawn[1].error or "")
    assert (drawn[0], drawn[2]) == (good[0], good[2])


def test_min_tokens_masks_the_ends_until_reached() -> None:
    logits = torch.zeros(VOCAB)
    logits[0], logits[9], logits[4] = 9.0, 8.0, 7.0
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(9, 10_000))
    assert one(logits, params, output_ids=[1]).token_id == 4
    assert one(logits, params, output_ids=[1, 2]).token_id == 0
    assert one(logits, replace(params, ignore_eos=True), output_ids=[]).token_id == 0


def test_a_mask_that_leaves_only_an_end_beats_min_tokens() -> None:
    draw = Draw(replace(GREEDY, min_tokens=2), 0, 0, mask_row=0)
    drawn = sample(logits_like(1), [draw], mask_of({0}))
    assert (drawn[0].token_id, drawn[0].error) == (0, None)


@pytest.mark.parametrize("vocab", [VOCAB, 64])
def test_min_tokens_yields_to_a_mask_of_ends_alone_whatever_else_its_words_hold(vocab: int) -> None:
    """Bits beyond the vocabulary allow nothing, and the sign of a word is a bit like others."""
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(31, 63))
    words = mask_of({0, 31, 63}, vocab=128)
    words[:, -(-vocab // 32) - 1] |= 0 if vocab % 32 == 0 else -1 << vocab % 32
    logits, draw = torch.zeros(1, vocab), Draw(params, 0, 0, mask_row=0)
    assert Sampler(vocab, (0,)).sample(logits.clone(), [draw], words)[0] == Drawn(0)
    both = mask_of({0, 31, 63}, {0, 31, 62}, vocab=vocab)
    drawn = Sampler(vocab, (0,)).sample(logits, [replace(draw, mask_row=1)], both)
    assert drawn == [Drawn(62)]


def test_bias_is_added_and_ids_out_of_range_are_the_rows_error() -> None:
    logits = torch.zeros(VOCAB)
    logits[5] = 3.0
    assert one(logits, replace(GREEDY, logit_bias=((7, 4.0),))).token_id == 7
    assert one(logits, replace(GREEDY, logit_bias=((5, -4.0),))).token_id == 0
    assert "token 97" in (one(logits, replace(GREEDY, logit_bias=((97, 1.0),))).error or "")


def test_penalties_follow_their_formulas() -> None:
    choose = random.Random(0)
    logits = logits_like(1)[0]
    prompt = [choose.randrange(VOCAB) for _ in range(30)]
    output = [choose.randrange(VOCAB) for _ in range(40)]
    params = SamplingParams(
        temperature=0.0, repetition_penalty=1.7, frequency_penalty=0.8, presence_penalty=1.1
    )
    wanted = logits.clone()
    for i in range(VOCAB):
        if i in prompt or i in output:
            wanted[i] = wanted[i] / 1.7 if wanted[i] > 0 else wanted[i] * 1.7
        wanted[i] -= 0.8 * output.count(i)
        wanted[i] -= 1.1 * (i in output)
    edited = logits.clone()[None]
    draw = Draw(params, 0, 0, prompt, output)
    drawn = Sampler(VOCAB).sample(edited, [draw])[0]
    torch.testing.assert_close(edited[0], wanted)
    assert drawn.token_id == int(wanted.argmax())


# ---- log-probabilities ----


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = logits_like(1)
    raw = torch.log_softmax(logits[0].double(), -1)
    params = SamplingParams(temperature=0.3, logprobs=4, logit_bias=((50, 90.0),))
    drawn = sample(logits, [Draw(params, 0, 0, mask_row=0)], mask_of({50, 51}))[0]
    assert drawn.token_id == 50
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(float(raw[50]), abs=1e-5)
    best = raw.sort(descending=True)
    assert [i for i, _ in drawn.logprob.top] == best.indices[:4].tolist()
    assert [p for _, p in drawn.logprob.top] == pytest.approx(best.values[:4].tolist(), abs=1e-5)


def test_top_logprobs_break_ties_by_id_and_differ_in_number() -> None:
    logprobs = torch.log_softmax(torch.zeros(3, VOCAB), -1)
    found = token_logprobs(logprobs, [4, 5, 6], [0, 3, 500])
    assert [len(f.top) for f in found] == [0, 3, VOCAB]
    assert [i for i, _ in found[1].top] == [0, 1, 2]
    assert [f.token_id for f in found] == [4, 5, 6]


def test_top_p_near_one_and_flat_rows_look_at_the_whole_row() -> None:
    vocab = 5000
    flat = torch.full((1, vocab), 1 / vocab)
    for top_p in (0.5, 0.99, 0.99999):
        params = SamplingParams(top_p=top_p)
        kept = keep_most_probable(flat, [params])[0].nonzero().flatten().tolist()
        assert abs(len(kept) - top_p * vocab) <= 1
        assert set(kept) == kept_reference(flat[0].tolist(), params), "ties go by id"


@pytest.mark.parametrize("vocab", [1, 7, 97, 1000, 40_000])
def test_the_c_kernel_draws_what_torch_draws(vocab: int) -> None:
    """Same seeds, same tokens, with each filter, mask and temperature, and with ties."""
    if library.library() is None:
        pytest.skip("no C compiler")
    filters = [
        {}, {"top_k": 1}, {"top_k": 40}, {"top_p": 0.1}, {"top_p": 0.9}, {"top_p": 0.99999},
        {"min_p": 0.05}, {"top_k": 300, "top_p": 0.8}, {"top_k": 50, "min_p": 0.01, "top_p": 0.95},
    ]  # fmt: skip
    choose = random.Random(vocab)
    logits = logits_like(6, seed=vocab, vocab=vocab)
    logits[1] = logits[1].round()  # ties
    logits[2] = 0.0
    logits[3, : vocab // 2] = -torch.inf
    allowed = {i for i in range(vocab) if choose.random() < 0.3} | {vocab - 1}
    mask = mask_of(allowed, set(range(vocab)), vocab=vocab)
    draws = [
        Draw(
            SamplingParams(temperature=temperature, **options),  # type: ignore[arg-type]
            choose.getrandbits(60),
            choose.randrange(1000),
            mask_row=choose.choice([None, 0, 1]),
        )
        for options in filters
        for temperature in (0.0, 0.01, 0.7, 1.0, 1.8)
    ]
    rows = logits[torch.tensor([i % 6 for i in range(len(draws))])]
    found = sample(rows, draws, mask)
    loaded = library.library()
    library.use(None)
    expected = sample(rows, draws, mask)
    library.use(loaded)
    assert found == expected
    edited = [replace(d, sampling=replace(d.sampling, logit_bias=((0, 0.0),))) for d in draws]
    assert sample(rows, edited, mask) == found
