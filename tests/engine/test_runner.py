"""The model runner: draws, drafts, scores, masks and faults, each row by itself."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers
from helpers import tiny_decoder

from radixgen.batch import PageCopy, RowResult, ScheduledBatch, ScheduledRow
from radixgen.config import CacheConfig, Dtype, ModelConfig
from radixgen.errors import ConfigError, InvalidRequest
from radixgen.model.device import inference
from radixgen.model.kv_cache import KVCache, choose_num_pages
from radixgen.model.load import load_runner
from radixgen.model.runner import ModelRunner
from radixgen.types import SamplingParams, TokenLogprob

VOCAB = 259
GREEDY = SamplingParams(temperature=0.0)
RANDOM = SamplingParams(temperature=0.9, top_p=0.95, logprobs=2, frequency_penalty=0.3)
PROMPT = [(i * i + 3) % VOCAB for i in range(40)]


Kernels = Literal["c", "triton"]
Make = Callable[[], ModelRunner]


BOTH = pytest.mark.parametrize("kernels", ["c", "triton"])


@pytest.fixture
def kernels() -> Kernels:
    """Those of C; a test marked BOTH runs with Triton's, interpreted, too."""
    return "c"


@pytest.fixture
def prompt(kernels: Kernels) -> list[int]:
    """Few tokens where each takes the interpreter long."""
    return PROMPT if kernels == "c" else PROMPT[:9]


@pytest.fixture
def new(kernels: Kernels) -> Make:
    """Makes runners of one kind, each with its own pages."""
    return partial(runner_of, kernels)


def expect_same(found: RowResult, wanted: RowResult, kernels: Kernels) -> None:
    """Equal to the bit; interpreted, a product's bits tell the place in its tile."""
    assert list(found.token_ids) == list(wanted.token_ids)
    for ours, theirs in (
        (found.logprobs, wanted.logprobs),
        (found.given_logprobs, wanted.given_logprobs),
    ):
        assert [each.token_id for each in ours] == [each.token_id for each in theirs]
        tolerance = 0 if kernels == "c" else 1e-5
        assert [each.logprob for each in ours] == pytest.approx(
            [each.logprob for each in theirs], abs=tolerance, rel=tolerance
        )
    assert kernels == "triton" or found == wanted


@pytest.fixture
def runner(new: Make) -> ModelRunner:
    return new()


def runner_of(kernels: Kernels = "c", num_pages: int = 64, page_size: int = 8) -> ModelRunner:
    num_layers = 2 if kernels == "c" else 1
    decoder = tiny_decoder(1, head_dim=32, num_layers=num_layers, kernels=kernels)
    cache = KVCache.allocate(decoder.kv_layout(page_size), num_pages)
    for pages in (*cache.k_pages, *cache.v_pages):
        pages.fill_(float("nan"))
    return ModelRunner(decoder, cache, end_token_ids=(2,))


def row_of(tokens: Sequence[int], sampling: SamplingParams = GREEDY, **fields: Any) -> ScheduledRow:
    given = {"start": 0, "page_ids": list(range(16)), "sample": True, "seed": 5, **fields}
    return ScheduledRow("r", 0, tokens, sampling=sampling, **given)


def step(runner: ModelRunner, *rows: ScheduledRow) -> Sequence[RowResult]:
    return runner.run(ScheduledBatch(rows)).rows


def generate(
    runner: ModelRunner, sampling: SamplingParams, count: int, prompt: Sequence[int]
) -> RowResult:
    """Token by token, from the prompt."""
    tokens, start = list(prompt), 0
    logprobs: list[TokenLogprob] = []
    for _ in range(count):
        row = row_of(
            tokens[start:],
            sampling,
            start=start,
            prompt_ids=prompt,
            output_ids=tokens[len(prompt) :],
        )
        result = step(runner, row)[0]
        start = len(tokens)
        tokens += result.token_ids
        logprobs += result.logprobs
    return RowResult(tokens[len(prompt) :], logprobs)


# ---- drafts ----


def right_and_wrong(right: Sequence[int], choose: random.Random) -> list[int]:
    """Drafts of which some first ones are right."""
    drafts = list(right)
    if choose.random() < 0.7:
        at = choose.randrange(len(drafts))
        drafts[at:] = [(token + 1) % VOCAB for token in drafts[at:]]
    return drafts


@BOTH
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_drafts_change_nothing_but_the_number_of_steps(
    sampling: SamplingParams, new: Make, kernels: Kernels, prompt: list[int]
) -> None:
    count = 40 if kernels == "c" else 6
    wanted = generate(new(), sampling, count, prompt)
    assert len(set(wanted.token_ids)) > 3, "a model that repeats itself would hide mistakes"
    choose = random.Random(0)
    runner = new()
    tokens, start, steps = list(prompt), 0, 0
    logprobs: list[TokenLogprob] = []
    while len(tokens) < len(prompt) + count:
        done = len(tokens) - len(prompt)
        right = wanted.token_ids[done : done + choose.randint(0, 5)]
        drafts = right_and_wrong(right, choose) if right else []
        row = row_of(
            tokens[start:] + drafts,
            sampling,
            start=start,
            num_drafts=len(drafts),
            prompt_ids=prompt,
            output_ids=tokens[len(prompt) :],
        )
        result = step(runner, row)[0]
        assert len(result.token_ids) >= 1
        start = len(tokens) + len(result.token_ids) - 1  # the KV of accepted drafts stands
        tokens += result.token_ids
        logprobs += result.logprobs
        steps += 1
    found = RowResult(tokens[len(prompt) :][:count], logprobs[:count])
    expect_same(found, wanted, kernels)
    assert steps < count


@BOTH
def test_right_drafts_are_all_accepted_and_one_more_is_drawn(
    runner: ModelRunner, new: Make, prompt: list[int]
) -> None:
    wanted = list(generate(new(), GREEDY, 6, prompt).token_ids)
    found = step(runner, row_of(prompt + wanted[:5], num_drafts=5))[0]
    assert list(found.token_ids) == wanted
    other = (wanted[0] + 1) % VOCAB
    found = step(runner, row_of([*prompt, other, other], num_drafts=2))[0]
    assert list(found.token_ids) == wanted[:1]


@BOTH
def test_a_fault_behind_a_refused_draft_is_no_fault(
    runner: ModelRunner, new: Make, prompt: list[int]
) -> None:
    """Masks behind a wrong draft are meaningless, empty for instance."""
    wanted = list(generate(new(), GREEDY, 1, prompt).token_ids)
    mask = np.full((2, (VOCAB + 31) // 32), -1, dtype=np.int32)
    mask[1] = 0
    drafts = [(wanted[0] + 1) % VOCAB]
    row = row_of(prompt + drafts, num_drafts=1, mask_row=0)
    assert list(runner.run(ScheduledBatch([row]), mask).rows[0].token_ids) == wanted
    row = row_of(prompt + wanted, num_drafts=1, mask_row=0)
    assert "no token is allowed" in (runner.run(ScheduledBatch([row]), mask).rows[0].error or "")


# ---- batches ----


@BOTH
def test_mixed_batch_equals_rows_alone(new: Make, kernels: Kernels, prompt: list[int]) -> None:
    sizes = [(1, GREEDY), (40, RANDOM), (17, RANDOM), (8, GREEDY), (33, RANDOM)]
    sizes = sizes if kernels == "c" else [(1, GREEDY), (4, RANDOM)]
    rows = [
        row_of(prompt[:n], s, seed=n, page_ids=list(range(i * 6, i * 6 + 6)))
        for i, (n, s) in enumerate(sizes)
    ]
    rows.append(row_of(prompt, sample=False, page_ids=list(range(30, 36))))
    alone = [step(new(), row)[0] for row in rows]
    for found, wanted in zip(step(new(), *rows), alone, strict=True):
        expect_same(found, wanted, kernels)
    assert alone[-1] == RowResult([], [], [])


@BOTH
def test_no_rows_is_no_work_but_copies_are_done(
    runner: ModelRunner, new: Make, prompt: list[int]
) -> None:
    step(runner, row_of(prompt[:8], sample=False, page_ids=[3]))
    runner.run(ScheduledBatch([], [PageCopy(3, 9, 8)]))
    found = step(runner, row_of(prompt[8:], start=8, page_ids=[9, 10, 11, 12, 13]))
    assert found == step(new(), row_of(prompt))


# ---- log-probabilities of given tokens ----


def reference_logprobs(runner: ModelRunner, tokens: Sequence[int]) -> list[list[float]]:
    """For each position, the log-probabilities of the token after it, from one step a prefix."""
    sampling = replace(GREEDY, logprobs=100)
    tops = []
    for n in range(1, len(tokens)):
        logprobs = step(runner, row_of(tokens[:n], sampling))[0].logprobs[0]
        tops.append(dict(logprobs.top))
    return [[top.get(token, -np.inf)] for top, token in zip(tops, tokens[1:], strict=True)]


def test_given_logprobs_over_any_chunks_are_the_same(new: Make) -> None:
    whole = step(new(), row_of(PROMPT, sample=False, logprobs_from=0, num_top_logprobs=3))[0]
    assert [g.token_id for g in whole.given_logprobs] == PROMPT[1:]
    choose = random.Random(1)
    for _ in range(10):
        first = choose.randrange(len(PROMPT))
        cuts = sorted({0, len(PROMPT), *(choose.randrange(len(PROMPT)) for _ in range(4))})
        runner = new()
        found: list[TokenLogprob] = []
        for start, end in pairwise(cuts):
            row = row_of(
                PROMPT[start:end],
                start=start,
                sample=end == len(PROMPT),
                logprobs_from=first,
                num_top_logprobs=3,
                next_id=PROMPT[end] if end < len(PROMPT) else None,
            )
            found += step(runner, row)[0].given_logprobs
        assert found == whole.given_logprobs[max(first - 1, 0) :]


def test_given_logprobs_agree_with_those_of_draws(runner: ModelRunner) -> None:
    tokens = PROMPT[:12]
    whole = step(runner, row_of(tokens, sample=False, logprobs_from=1))[0].given_logprobs
    known = reference_logprobs(runner, tokens)
    compared = 0
    for given, (logprob,) in zip(whole, known, strict=True):
        if logprob > -np.inf:  # among the hundred best
            assert given.logprob == logprob
            compared += 1
    assert compared >= 4


def test_scores_in_small_tiles_equal_scores_at_once(new: Make) -> None:
    wide, narrow = new(), new()
    narrow._tile_rows = 3
    rows = [
        row_of(
            PROMPT,
            RANDOM,
            logprobs_from=2,
            num_top_logprobs=i,
            page_ids=list(range(5 * i, 5 * i + 5)),
        )
        for i in range(3)
    ]
    assert step(narrow, *rows) == step(wide, *rows)


# ---- masks ----


@BOTH
def test_fill_mask_is_called_before_the_draw(runner: ModelRunner, prompt: list[int]) -> None:
    mask = np.zeros((1, (VOCAB + 31) // 32), dtype=np.int32)

    def fill() -> None:
        mask[0, 3] = 1 << 7

    result = runner.run(ScheduledBatch([row_of(prompt, RANDOM, mask_row=0)]), mask, fill).rows[0]
    assert list(result.token_ids) == [3 * 32 + 7]


@BOTH
def test_min_tokens_holds_back_the_end(runner: ModelRunner, prompt: list[int]) -> None:
    only = SamplingParams(temperature=0.0, logit_bias=((2, 100.0),))
    assert step(runner, row_of(prompt, only))[0].token_ids == [2]
    assert step(runner, row_of(prompt, replace(only, min_tokens=1)))[0].token_ids != [2]


# ---- faults ----


@BOTH
def test_nan_in_one_rows_pages_fails_that_row_alone(
    runner: ModelRunner, new: Make, prompt: list[int]
) -> None:
    good = row_of(prompt, page_ids=[0, 1, 2, 3, 4])
    bad = row_of(prompt[8:], start=8, page_ids=[20, 11, 12, 13, 14], logprobs_from=9)
    found = step(runner, bad, good)
    assert "not finite" in (found[0].error or "")
    assert found[1] == step(new(), good)[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": [1, VOCAB]}, "r#0 has token id 259, not between 0 and 258"),
        ({"tokens": [-1]}, "token id -1"),
        ({"tokens": []}, "0 tokens"),
        ({"next_id": 300}, "token id 300"),
        ({"page_ids": [64]}, "has page 64, not between 0 and 63"),
        ({"page_ids": []}, "0 pages, which do not cover 1 tokens"),
        ({"start": 8}, "1 pages, which do not cover 9 tokens"),
        ({"start": 600, "page_ids": [0] * 80}, "context is 512 tokens"),
        ({"start": -1}, "from position -1"),
        ({"num_drafts": 1}, "1 drafts"),
        ({"tokens": [1, 2], "num_drafts": 1, "sample": False}, "1 drafts"),
    ],
)
def test_a_batch_that_reaches_outside_is_refused(
    runner: ModelRunner, fields: dict[str, Any], message: str
) -> None:
    base: dict[str, Any] = {"tokens": [1], "page_ids": [0]}
    with pytest.raises(InvalidRequest, match=message):
        step(runner, row_of(PROMPT[:1], page_ids=[5]), row_of(**(base | fields)))


# ---- memory ----


def test_pages_that_do_not_fit_are_refused_with_numbers() -> None:
    layout = tiny_decoder().kv_layout(16)
    assert layout.page_bytes == 2 * 2 * 2 * 16 * 16 * 4
    with pytest.raises(ConfigError, match=r"1000000000000 KV pages .* at most \d+ pages fit"):
        KVCache.allocate(layout, 10**12)
    assert choose_num_pages(layout, CacheConfig(memory_fraction=0.5), 2**20) == 2**19 // 8192
    assert choose_num_pages(layout, CacheConfig(num_pages=7), 2**20) == 7
    with pytest.raises(ConfigError, match="less than one KV page"):
        choose_num_pages(layout, CacheConfig(), 100)


def test_half_precision_pages_hold_half_the_bytes() -> None:
    decoder = tiny_decoder()
    small = KVCache.allocate(decoder.kv_layout(8, torch.bfloat16), 4)
    assert small.num_bytes * 2 == KVCache.allocate(decoder.kv_layout(8), 4).num_bytes


# ---- from settings ----


@pytest.fixture
def saved_model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        eos_token_id=[2, 7],
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16"])
def test_load_runner_runs_what_a_directory_holds(saved_model: Path, dtype: Dtype) -> None:
    model = ModelConfig(str(saved_model), dtype=dtype, max_context=100)
    runner = load_runner(model, CacheConfig(page_size=4, num_pages=16))
    assert runner.decoder.max_context == 100
    assert runner.decoder.config.eos_ids == (2, 7)
    assert runner.cache.num_pages == 16
    rows = [row_of(PROMPT[:9]), row_of(PROMPT[:12], RANDOM)]
    rows = [replace(r, page_ids=range(4 * i, 4 * i + 4)) for i, r in enumerate(rows)]
    for row, result in zip(rows, step(runner, *rows), strict=True):
        assert result == step(runner, row)[0]
        assert 0 <= result.token_ids[0] < VOCAB


def test_load_runner_refuses_what_does_not_fit(saved_model: Path) -> None:
    model = ModelConfig(str(saved_model))
    with pytest.raises(ConfigError, match="max_context=129 is above the 128 tokens"):
        load_runner(replace(model, max_context=129), CacheConfig(num_pages=1))
    with pytest.raises(ConfigError, match="device='tpu'"):
        load_runner(replace(model, device="tpu"), CacheConfig(num_pages=1))
    with pytest.raises(ConfigError, match="lower num_pages"):
        load_runner(model, CacheConfig(num_pages=10**9))


def test_inference_is_entered_once_and_left_where_it_was_entered() -> None:
    with inference():
        with inference():
            assert torch.is_inference_mode_enabled()
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
