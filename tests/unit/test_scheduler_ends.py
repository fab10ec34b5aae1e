"""How sequences end: stops, limits, grammars, drafts, refusals, aborts and failures."""

from collections.abc import Sequence
from typing import Any

import pytest
from scheduling import (
    VOCAB,
    ask,
    drive,
    expect_empty,
    expect_tokens,
    make,
    prompt_of,
    score,
    take_step,
    terminals_of,
    tokens_of,
)

from radixgen.batch import RowResult, StepResult
from radixgen.config import ScheduleConfig
from radixgen.errors import InvalidRequest, Overloaded, PromptTooLong, RadixgenError
from radixgen.messages import (
    GenerateRequest,
    RequestFailed,
    RequestFinished,
)
from radixgen.schedule.request import Request, SequenceOutput
from radixgen.types import FinishReason, GrammarSpec, SamplingParams


def test_end_tokens_stop_tokens_and_min_tokens() -> None:
    prompt = prompt_of(6)
    drawn = expect_tokens(prompt, 7, 10, VOCAB)

    def run(end_ids: Sequence[int] = (), **options: Any) -> tuple[list[int], Any]:
        scheduler, model = make(end_token_ids=end_ids)
        scheduler.add(ask("a", prompt, 10, **options))
        events = drive(scheduler, model)
        last = [event for event in events if isinstance(event, SequenceOutput)][-1]
        return tokens_of(events)["a", 0], (last.finish_reason, last.stop_reason)

    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert run([drawn[3]]) == (drawn[:4], (stop, drawn[3]))
    assert run([drawn[3]], ignore_eos=True) == (drawn, (length, None))
    assert run([drawn[3]], min_tokens=5) == (drawn, (length, None))
    assert run(stop_token_ids=(drawn[2],)) == (drawn[:3], (stop, drawn[2]))


def test_stop_strings_through_a_watch() -> None:
    prompt = prompt_of(6)
    drawn = expect_tokens(prompt, 7, 10, VOCAB)
    watched: list[tuple[str, ...]] = []

    def factory(sampling: SamplingParams, num_skipped: int) -> Any:
        assert num_skipped == 0
        watched.append(sampling.stop)
        return lambda token_id, _: sampling.stop[0] if token_id == drawn[4] else None

    scheduler, model = make(stop_factory=factory)
    scheduler.add(ask("a", prompt, 10, stop=("END",)))
    events = drive(scheduler, model)
    last = [event for event in events if isinstance(event, SequenceOutput)][-1]
    assert tokens_of(events)["a", 0] == drawn[:5]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "END")
    assert watched == [("END",)]


def test_the_context_is_a_limit_without_max_tokens() -> None:
    scheduler, model = make(max_context=20)
    scheduler.add(ask("a", prompt_of(12), None))
    events = drive(scheduler, model)
    assert len(tokens_of(events)["a", 0]) == 8


def test_no_tokens_wanted() -> None:
    scheduler, model = make(max_context=12)
    scheduler.add(ask("a", prompt_of(12), 0))
    events = drive(scheduler, model)
    assert [type(event) for event in events] == [SequenceOutput, RequestFinished]
    assert tokens_of(events)["a", 0] == []


class CountingMatcher:
    """Accepts `length` tokens, none of which is `refused`."""

    def __init__(self, length: int, refused: int = -1, error: str | None = None) -> None:
        self.left, self.refused, self.error = length, refused, error

    def accept_token(self, token_id: int) -> bool:
        self.left -= 1
        return token_id != self.refused

    def fill_bitmask(self, bitmask: Any, row: int, budget: int | None = None) -> None:
        bitmask.append(row)

    def fork(self) -> "CountingMatcher":
        return CountingMatcher(self.left, self.refused)

    def is_finished(self) -> bool:
        return self.left == 0


def test_a_grammar_comes_later_masks_its_rows_and_ends_the_choice() -> None:
    scheduler, model = make()
    message = GenerateRequest(
        "g", SamplingParams(max_tokens=9, seed=7, n=2), grammar=GrammarSpec("regex", "a+")
    )
    prompt = prompt_of(6)
    scheduler.add(Request.from_generate(message, prompt))
    assert not scheduler.has_work
    assert scheduler.schedule() is None
    scheduler.add(ask("free", prompt_of(5, 9), 3))
    scheduler.grammar_ready("g", lambda: CountingMatcher(4))
    batch = scheduler.schedule()
    assert batch is not None
    masked = {row.rid: row.mask_row for row in batch.rows}
    assert masked == {"g": 0, "free": None}
    assert [(mask.rid, mask.row) for mask in scheduler.masks] == [("g", 0)]
    events = scheduler.update(batch, model.run(batch)) + drive(scheduler, model)
    for index in range(2):
        assert tokens_of(events)["g", index] == expect_tokens(prompt, 7 + index, 4, VOCAB)
    scheduler.grammar_ready("gone", lambda: CountingMatcher(1))
    expect_empty(scheduler)


@pytest.mark.parametrize("limit", [None, "it needs more memory"])
def test_a_grammar_that_breaks_ends_its_request_alone(limit: str | None) -> None:
    scheduler, model = make()
    prompt = prompt_of(6)
    request = ask("bad", prompt, 9)
    refused = expect_tokens(prompt, 7, 3, VOCAB)[2]
    request.make_matcher = lambda: CountingMatcher(9, refused, limit)
    scheduler.add(request)
    scheduler.add(ask("good", prompt_of(5), 4))
    waiting = ask("late", prompt_of(4), 4)
    waiting.waiting_for_grammar = True
    scheduler.add(waiting)

    def fails() -> Any:
        raise RadixgenError("no such grammar")

    scheduler.grammar_ready("late", fails)
    ends = terminals_of(drive(scheduler, model))
    assert isinstance(ends["bad"], RequestFailed)
    assert (limit or "breaks the request's grammar") in ends["bad"].message
    assert ends["bad"].code == ("invalid_grammar" if limit else "internal")
    assert isinstance(ends["late"], RequestFailed)
    assert isinstance(ends["good"], RequestFinished)
    expect_empty(scheduler)


@pytest.mark.parametrize("right", [0, 1, 3, 8])
@pytest.mark.parametrize("max_tokens", [2, 9, 30])
def test_drafts_change_nothing_but_the_number_of_steps(right: int, max_tokens: int) -> None:
    prompt = prompt_of(9)
    expected = expect_tokens(prompt, 7, max_tokens, VOCAB)

    def propose(known: Sequence[int], limit: int) -> list[int]:
        ahead = expected[len(known) - 9 :]
        return [*ahead[:right], 4999, 4999][:limit]

    scheduler, model = make()
    request = ask("a", prompt, max_tokens)
    request.propose = propose
    scheduler.add(request)
    assert tokens_of(drive(scheduler, model))["a", 0] == expected
    steps = scheduler.stats()["steps"]
    assert steps == -(-max_tokens // (right + 1)) or steps <= max_tokens
    assert right == 0 or steps < max_tokens
    expect_empty(scheduler)


def test_drafts_past_the_end_are_dropped() -> None:
    prompt = prompt_of(9)
    expected = expect_tokens(prompt, 7, 20, VOCAB)
    scheduler, model = make()
    request = ask("a", prompt, 20, stop_token_ids=(expected[4],))
    request.propose = lambda known, limit: expected[len(known) - 9 :][: min(limit, 8)]
    scheduler.add(request)
    events = drive(scheduler, model)
    assert tokens_of(events)["a", 0] == expected[:5]
    end = terminals_of(events)["a"]
    assert isinstance(end, RequestFinished)
    assert end.usage.completion_tokens == 5
    assert scheduler.stats()["steps"] == 1, "all five were verified at once, and no more taken"
    expect_empty(scheduler)


def test_a_proposer_that_raises_ends_its_request_alone() -> None:
    def propose(known: Sequence[int], limit: int) -> list[int]:
        raise RuntimeError("no idea")

    scheduler, model = make()
    request = ask("bad", prompt_of(5), 5)
    request.propose = propose
    scheduler.add(request)
    scheduler.add(ask("good", prompt_of(6), 5))
    ends = terminals_of(drive(scheduler, model))
    assert isinstance(ends["bad"], RequestFailed)
    assert isinstance(ends["good"], RequestFinished)
    expect_empty(scheduler)


# ---- refusals, aborts, failures ----


def test_what_can_never_run_is_refused_at_once() -> None:
    scheduler, _ = make(num_pages=8, max_context=100)
    for request, error, words in (
        (ask("a", []), InvalidRequest, "prompt is empty"),
        (ask("a", [1, VOCAB]), InvalidRequest, f"token id {VOCAB} is not in the vocabulary"),
        (ask("a", [-1]), InvalidRequest, "token id -1"),
        (ask("a", prompt_of(32)), PromptTooLong, "exceeds the 32"),
        (ask("a", [1], stop=("x",)), InvalidRequest, "stop strings need a tokenizer"),
        (ask("a", [1], stop_token_ids=(VOCAB,)), InvalidRequest, "not in the vocabulary"),
        (ask("a", [1], logit_bias=((VOCAB, 1.0),)), InvalidRequest, "not in the vocabulary"),
        (score([1], []), InvalidRequest, "no continuations"),
        (score([], [[1]]), InvalidRequest, "prompt is empty"),
        (score([1], [[]]), InvalidRequest, "continuation is empty"),
        (score([1] * 30, [[1], [1, 1, 1]]), PromptTooLong, "3 of its longest continuation"),
    ):
        with pytest.raises(error, match=words):
            scheduler.add(request)
    expect_empty(scheduler)


def test_duplicate_ids_and_a_full_queue() -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fcfs", max_queue=2))
    scheduler.add(ask("a", [1]))
    with pytest.raises(InvalidRequest, match="'a' is already open"):
        scheduler.add(ask("a", [2]))
    scheduler.add(ask("b", [1]))
    with pytest.raises(Overloaded, match="2 requests are waiting") as caught:
        scheduler.add(ask("c", [1]))
    assert caught.value.retry_after >= 1
    drive(scheduler, model)
    scheduler.add(ask("a", [1]))  # an id may be used again after its end
    drive(scheduler, model)
    expect_empty(scheduler)


@pytest.mark.parametrize("policy", ["fcfs", "fair", "dfs"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
def test_abort_in_every_state(steps: int, policy: Any) -> None:
    scheduler, model = make(config=ScheduleConfig(policy=policy, max_step_tokens=40))
    shared = prompt_of(60)
    scheduler.add(ask("a", shared, 5, n=3))
    scheduler.add(ask("twin", [*shared[:50], 1, 2], 5))
    events = []
    for _ in range(steps):
        if batch := scheduler.schedule():
            events += scheduler.update(batch, model.run(batch))
    open_before = set(scheduler.requests)
    for rid in ("a", "twin", "unknown"):
        events += scheduler.abort(rid)
    assert not scheduler.has_work
    ends = terminals_of(events)
    assert set(ends) == {"a", "twin"}
    aborted = {
        event.rid
        for event in events
        if isinstance(event, SequenceOutput) and event.finish_reason is FinishReason.ABORT
    }
    assert aborted == open_before
    expect_empty(scheduler)


def test_abort_while_the_step_runs_frees_pages_after_it() -> None:
    scheduler, model = make()
    scheduler.add(ask("a", prompt_of(9), 5))
    scheduler.add(ask("b", prompt_of(8, 1), 5))
    batch = scheduler.schedule()
    assert batch is not None
    ends = terminals_of(scheduler.abort("a"))
    assert set(ends) == {"a"}
    assert scheduler.cache.pool.num_held == 5, "the device still writes there"
    events = scheduler.update(batch, model.run(batch))
    assert scheduler.cache.pool.num_held + scheduler.cache.pool.num_tree == 2
    assert set(tokens_of(events)) == {("b", 0)}
    drive(scheduler, model)
    expect_empty(scheduler)


def test_an_aborted_score_fails_as_aborted() -> None:
    scheduler, _ = make()
    scheduler.add(score([1, 2], [[3]]))
    (end,) = scheduler.abort("s")
    assert isinstance(end, RequestFailed)
    assert end.code == "aborted"


def test_a_row_that_fails_takes_only_its_request() -> None:
    scheduler, model = make()
    for rid in ("a", "b", "c"):
        scheduler.add(ask(rid, prompt_of(6, ord(rid)), 3, n=2))
    scheduler.update(*take_step(scheduler, model))
    batch, result = take_step(scheduler, model)
    rows = [
        RowResult(error="logits are not finite") if row.rid == "b" else answer
        for row, answer in zip(batch.rows, result.rows, strict=True)
    ]
    events = scheduler.update(batch, StepResult(rows)) + drive(scheduler, model)
    ends = terminals_of(events)
    assert isinstance(ends["b"], RequestFailed)
    assert "not finite" in ends["b"].message
    assert isinstance(ends["a"], RequestFinished)
    assert isinstance(ends["c"], RequestFinished)
    expect_empty(scheduler)


def test_results_that_do_not_fit_the_batch_fail_their_requests() -> None:
    scheduler, model = make()
    scheduler.add(ask("a", prompt_of(6), 3))
    batch, _ = take_step(scheduler, model)
    end = terminals_of(scheduler.update(batch, StepResult([])))["a"]
    assert isinstance(end, RequestFailed)
    assert "0 results for 1 rows" in end.message
    scheduler.add(ask("b", prompt_of(6), 3))
    batch, _ = take_step(scheduler, model)
    end = terminals_of(scheduler.update(batch, StepResult([RowResult([1, 2])])))["b"]
    assert isinstance(end, RequestFailed)
    assert "drew 2 tokens" in end.message
    scheduler.add(score([1, 2], [[3]]))
    batch, _ = take_step(scheduler, model)
    end = terminals_of(scheduler.update(batch, StepResult([RowResult()])))["s"]
    assert isinstance(end, RequestFailed)
    assert "0 log-probabilities" in end.message
    expect_empty(scheduler)


def test_a_step_that_raises_ends_those_in_it() -> None:
    config = ScheduleConfig(policy="fcfs", max_step_tokens=8)
    scheduler, model = make(config=config)
    scheduler.add(ask("a", prompt_of(20), 3))
    scheduler.add(ask("b", prompt_of(6, 1), 3))
    assert scheduler.schedule() is not None
    with pytest.raises(RuntimeError, match="not over"):
        scheduler.schedule()
    assert set(terminals_of(scheduler.fail_step(ValueError("boom")))) == {"a"}
    assert set(terminals_of(drive(scheduler, model))) == {"b"}
    with pytest.raises(RuntimeError, match="no step"):
        scheduler.update(_nothing(), StepResult([]))
    expect_empty(scheduler)


def _nothing() -> Any:
    return None


def test_fail_all_ends_everything_even_in_mid_step() -> None:
    scheduler, _ = make()
    for i in range(5):
        scheduler.add(ask(str(i), prompt_of(20, i), 3))
    scheduler.schedule()
    ends = terminals_of(scheduler.fail_all(RadixgenError("shutting down")))
    assert len(ends) == 5
    assert not scheduler.has_work
    assert scheduler.fail("0", ValueError()) == []
    expect_empty(scheduler)


def test_flush_keeps_what_is_in_use() -> None:
    scheduler, model = make()
    scheduler.add(ask("a", prompt_of(16), 2))
    drive(scheduler, model)
    scheduler.add(ask("b", prompt_of(16, 1), 9))
    scheduler.update(*take_step(scheduler, model))
    assert scheduler.flush_cache() == 4
    scheduler.check()
    drive(scheduler, model)
    expect_empty(scheduler)


def test_stats_add_up() -> None:
    scheduler, model = make()
    scheduler.add(ask("a", prompt_of(10), 4))
    scheduler.add(ask("b", prompt_of(10, 1), 4))
    scheduler.update(*take_step(scheduler, model))
    stats = scheduler.stats()
    assert stats["running_sequences"] == 2
    assert stats["free_pages"] + stats["held_pages"] + stats["tree_pages"] == 64
    drive(scheduler, model)
    assert scheduler.stats()["generated_tokens"] == 8
    assert scheduler.stats()["finished_requests"] == 2
