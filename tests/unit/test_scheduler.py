"""The one rule, driven step by step over a model of hashes: any page that is wrong, stale or
overwritten changes the output, and every test compares with what is drawn without a cache."""

import random

import pytest
from scheduling import (
    PAGE,
    VOCAB,
    FakeClock,
    ask,
    drive,
    expect_empty,
    expect_tokens,
    hash_kv,
    hash_logprob,
    make,
    prompt_of,
    score,
    take_step,
    terminals_of,
    tokens_of,
)

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.messages import (
    RequestFinished,
    ScoreOutput,
)
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.types import FinishReason


def test_one_request_from_prompt_to_end() -> None:
    clock = FakeClock()
    scheduler, model = make(clock=clock)
    prompt = prompt_of(10)
    scheduler.add(ask("a", prompt, 6))
    clock.now = 2.0
    events = drive(scheduler, model)
    assert tokens_of(events)["a", 0] == expect_tokens(prompt, 7, 6, VOCAB)
    outputs = [event for event in events if isinstance(event, SequenceOutput)]
    assert [event.finish_reason for event in outputs] == [None] * 5 + [FinishReason.LENGTH]
    end = terminals_of(events)["a"]
    assert isinstance(end, RequestFinished)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (10, 6)
    assert (end.usage.queue_seconds, end.usage.cached_tokens) == (2.0, 0)
    assert scheduler.schedule() is None
    expect_empty(scheduler)


def test_a_long_prompt_enters_in_chunks_and_nobody_waits_for_it() -> None:
    scheduler, model = make()
    short, long = prompt_of(5, 1), prompt_of(150, 2)
    scheduler.add(ask("short", short, 40))
    events = list(scheduler.update(*take_step(scheduler, model)))
    scheduler.add(ask("long", long, 4))
    for _ in range(5):
        batch, result = take_step(scheduler, model)
        rows = {row.rid: len(row.token_ids) for row in batch.rows}
        assert rows["short"] == 1, "a decode was stalled by a prefill"
        assert batch.num_tokens <= 32
        events += scheduler.update(batch, result)
    events += drive(scheduler, model)
    tokens = tokens_of(events)
    assert tokens["short", 0] == expect_tokens(short, 7, 40, VOCAB)
    assert tokens["long", 0] == expect_tokens(long, 7, 4, VOCAB)
    expect_empty(scheduler)


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 64])
def test_any_chunk_size_gives_the_same_tokens(budget: int) -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fcfs", max_step_tokens=budget))
    prompts = [prompt_of(n, n) for n in (3, 17, 40)]
    for i, prompt in enumerate(prompts):
        scheduler.add(ask(str(i), prompt, 5))
    tokens = tokens_of(drive(scheduler, model))
    for i, prompt in enumerate(prompts):
        assert tokens[str(i), 0] == expect_tokens(prompt, 7, 5, VOCAB)


def test_a_second_turn_reuses_the_first_with_its_outputs() -> None:
    scheduler, model = make()
    prompt = prompt_of(10)
    scheduler.add(ask("a", prompt, 7))
    tokens = tokens_of(drive(scheduler, model))["a", 0]
    scheduler.add(ask("b", [*prompt, *tokens, 1, 2, 3], 2))
    end = terminals_of(drive(scheduler, model))["b"]
    assert isinstance(end, RequestFinished)
    assert end.usage.cached_tokens == 16, "16 of 17 known tokens were computed, in whole pages"
    assert end.usage.prompt_tokens == 20


def test_part_of_a_page_is_copied_not_computed() -> None:
    scheduler, model = make()
    prompt = prompt_of(16)
    scheduler.add(ask("a", prompt, 1))
    drive(scheduler, model)
    other = [*prompt[:11], 1, 2, 3]
    scheduler.add(ask("b", other, 3))
    batch, result = take_step(scheduler, model)
    assert [copy.num_tokens for copy in batch.copies] == [3]
    assert batch.rows[0].start == 11
    events = scheduler.update(batch, result) + drive(scheduler, model)
    assert tokens_of(events)["b", 0] == expect_tokens(other, 7, 3, VOCAB)
    expect_empty(scheduler)


def test_the_same_prompt_again_computes_one_token() -> None:
    scheduler, model = make()
    prompt = prompt_of(16)
    for rid in ("a", "b"):
        scheduler.add(ask(rid, prompt, 3))
        batch, result = take_step(scheduler, model)
        events = scheduler.update(batch, result) + drive(scheduler, model)
        assert tokens_of(events)[rid, 0] == expect_tokens(prompt, 7, 3, VOCAB)
    assert batch.num_tokens == 1


def test_twins_in_one_step_end_with_one_copy() -> None:
    scheduler, model = make()
    prompt = prompt_of(14)
    for rid in ("a", "b", "c"):
        scheduler.add(ask(rid, prompt, 4))
    events = scheduler.update(*take_step(scheduler, model))
    assert scheduler.cache.pool.num_tree == 3
    tokens = tokens_of(events + drive(scheduler, model))
    assert all(tokens[rid, 0] == expect_tokens(prompt, 7, 4, VOCAB) for rid in ("b", "c"))
    expect_empty(scheduler)


def test_namespaces_do_not_meet() -> None:
    scheduler, model = make()
    prompt = prompt_of(12)
    for name in ("x", "y"):
        request = ask(name, prompt, 1)
        request.namespace = name
        scheduler.add(request)
        end = terminals_of(drive(scheduler, model))[name]
        assert isinstance(end, RequestFinished)
        assert end.usage.cached_tokens == 0
    expect_empty(scheduler)


@pytest.mark.parametrize("options", [{"enabled": False}, {"force_miss": True}])
def test_without_the_cache_the_tokens_are_the_same(options: dict[str, bool]) -> None:
    cache = RadixCache(PagePool(64), PAGE, "lru", **options)
    scheduler, model = make(cache=cache)
    prompt = prompt_of(13)
    for rid in ("a", "b"):
        scheduler.add(ask(rid, prompt, 4, n=3))
        events = drive(scheduler, model)
        end = terminals_of(events)[rid]
        assert isinstance(end, RequestFinished)
        assert end.usage.cached_tokens == 0
        for index in range(3):
            expected = expect_tokens(prompt, 7 + index, 4, VOCAB)
            assert tokens_of(events)[rid, index] == expected
    expect_empty(scheduler)


# ---- forks and scores ----


def test_eight_choices_keep_the_prompt_once() -> None:
    scheduler, model = make()
    prompt = prompt_of(30)  # 7 pages and a tail of 2
    scheduler.add(ask("a", prompt, 3, n=8))
    events = scheduler.update(*take_step(scheduler, model))
    batch, result = take_step(scheduler, model)
    assert len(batch.rows) == 8
    assert [copy.num_tokens for copy in batch.copies] == [1] * 7, "token 30 is computed again"
    pool = scheduler.cache.pool
    assert pool.num_tree == 7
    assert pool.num_held == 8, "one tail page a choice"
    events += scheduler.update(batch, result) + drive(scheduler, model)
    for index in range(8):
        assert tokens_of(events)["a", index] == expect_tokens(prompt, 7 + index, 3, VOCAB)
    assert isinstance(terminals_of(events)["a"], RequestFinished)
    expect_empty(scheduler)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("max_tokens", [1, 5])
def test_choices_equal_separate_requests(length: int, max_tokens: int) -> None:
    prompt = prompt_of(length, length)
    scheduler, model = make()
    scheduler.add(ask("a", prompt, max_tokens, n=5))
    tokens = tokens_of(drive(scheduler, model))
    for index in range(5):
        assert tokens["a", index] == expect_tokens(prompt, 7 + index, max_tokens, VOCAB)
    expect_empty(scheduler)


def test_choices_that_do_not_fit_together_take_turns() -> None:
    scheduler, model = make(num_pages=8)
    prompt = prompt_of(14)
    scheduler.add(ask("a", prompt, 12, n=6))
    tokens = tokens_of(drive(scheduler, model))
    for index in range(6):
        assert tokens["a", index] == expect_tokens(prompt, 7 + index, 12, VOCAB)
    expect_empty(scheduler)


def test_a_first_choice_that_ends_at_once_leaves_its_tail_to_the_others() -> None:
    scheduler, model = make()
    scheduler.add(ask("a", prompt_of(15), 1, n=4))
    scheduler.update(*take_step(scheduler, model))
    batch, result = take_step(scheduler, model)
    assert batch.num_tokens == 3
    assert [copy.num_tokens for copy in batch.copies] == [2] * 3
    scheduler.update(batch, result)
    expect_empty(scheduler)


@pytest.mark.parametrize("budget", [1, 3, 5, 64])
@pytest.mark.parametrize("length", [1, 2, 8, 13])
def test_scores_of_continuations(budget: int, length: int) -> None:
    prefix, rng = prompt_of(length, 3), random.Random(4)
    continuations = [[rng.randrange(VOCAB) for _ in range(n)] for n in (1, 4, 9)]
    scheduler, model = make(config=ScheduleConfig(policy="fcfs", max_step_tokens=budget))
    for _ in range(2):  # cold, then warm
        scheduler.add(score(prefix, continuations))
        end = terminals_of(drive(scheduler, model))["s"]
        assert isinstance(end, ScoreOutput)
        for given, logprobs in zip(continuations, end.logprobs, strict=True):
            kv = hash_kv([*prefix, *given])
            expected = [hash_logprob(kv[: length + i], t) for i, t in enumerate(given)]
            assert list(logprobs) == expected
    expect_empty(scheduler)


def test_scoring_computes_the_prefix_once() -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fcfs", max_step_tokens=100))
    scheduler.add(score(prompt_of(50), [[1, 2, 3], [4, 5], [6]]))
    drive(scheduler, model)
    computed = scheduler.stats()["computed_tokens"]
    assert computed == (50 + 2) + (1 + 1) + 1, "a last token predicts nothing"


@pytest.mark.parametrize(
    "config",
    [
        ScheduleConfig(policy="fcfs", max_running=8),
        ScheduleConfig(policy="fcfs", max_step_tokens=16),
    ],
)
def test_many_continuations_hold_up_nobody(config: ScheduleConfig) -> None:
    scheduler, model = make(config=config)
    scheduler.add(score(prompt_of(8), [[i % 90, 1, 2, 3] for i in range(200)]))
    scheduler.update(*take_step(scheduler, model))
    scheduler.add(ask("b", prompt_of(20, seed=5), 1))
    events, steps = list[Event](), 0
    while "b" not in terminals_of(events):
        events += scheduler.update(*take_step(scheduler, model))
        steps += 1
    assert steps <= 4
    assert "s" not in terminals_of(events), "of 200, few were scored meanwhile"
    assert isinstance(terminals_of(events + drive(scheduler, model))["s"], ScoreOutput)
    expect_empty(scheduler)


@pytest.mark.parametrize("budget", [1, 4, 64])
def test_prompt_logprobs_even_when_the_prompt_is_cached(budget: int) -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fcfs", max_step_tokens=budget))
    prompt = prompt_of(11)
    for max_tokens in (0, 3, 3):
        scheduler.add(ask("a", prompt, max_tokens, prompt_logprobs=2))
        events = drive(scheduler, model)
        end = terminals_of(events)["a"]
        assert isinstance(end, RequestFinished)
        kv = hash_kv(prompt)
        assert end.prompt_logprobs[0] is None
        given = [token.logprob for token in end.prompt_logprobs if token]
        assert given == [hash_logprob(kv[:p], prompt[p]) for p in range(1, 11)]
        assert tokens_of(events)["a", 0] == expect_tokens(prompt, 7, max_tokens, VOCAB)
    expect_empty(scheduler)
