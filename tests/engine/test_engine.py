"""An engine's faults stay where they belong, and every request has one end."""

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from scheduling import HashModel, terminals_of

from radixgen.batch import ScheduledBatch, StepResult
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished, ScoreRequest
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import FinishReason, GrammarSpec, SamplingParams

VOCAB, PAGE_SIZE = 97, 4


class FaultyModel(HashModel):
    """Raises whenever a row starts with one of `poison`'s tokens at position 0."""

    def __init__(self, poison: Sequence[int] = (), rate: float = 0.0) -> None:
        super().__init__(PAGE_SIZE, VOCAB)
        self.poison = poison
        self.rate = rate
        self.rng = random.Random(1)

    def run(self, batch: ScheduledBatch, bitmask: Any = None, fill_mask: Any = None) -> StepResult:
        result = super().run(batch, bitmask, fill_mask)
        if any(row.start == 0 and row.token_ids[0] in self.poison for row in batch.rows):
            raise ZeroDivisionError("a poisoned row")
        if self.rng.random() < self.rate:
            raise MemoryError("out of luck")
        return result


def make(model: HashModel, num_pages: int = 64, max_step_tokens: int = 8) -> Engine:
    scheduler = Scheduler(
        ScheduleConfig(policy="fcfs", max_step_tokens=max_step_tokens, max_running=8),
        RadixCache(PagePool(num_pages), PAGE_SIZE),
        max_context=64,
        vocab_size=VOCAB,
        rng=random.Random(0),
        check=True,
    )
    return Engine(scheduler, model)


def ask(rid: str, max_tokens: int = 4, n: int = 1) -> GenerateRequest:
    return GenerateRequest(rid, SamplingParams(max_tokens=max_tokens, n=n, seed=7))


def drive(engine: Engine) -> list[Event]:
    events: list[Event] = []
    for _ in range(10_000):
        if not engine.has_work:
            return events
        events += engine.step()
    raise AssertionError("still busy")


def test_requests_run_to_their_end() -> None:
    engine = make(FaultyModel())
    for number in range(5):
        assert engine.add(ask(f"r{number}"), array("i", range(number, number + 9))) == []
    ends = terminals_of(drive(engine))
    assert sorted(ends) == [f"r{number}" for number in range(5)]
    assert all(isinstance(end, RequestFinished) for end in ends.values())
    stats = engine.stats()
    assert stats["prompt_tokens"] == 45
    assert stats["cached_tokens"] == stats["hit_rate"] * 45
    assert stats["step_seconds"] > 0
    assert stats["failed_steps"] == 0


def test_a_failing_step_ends_the_requests_in_it_and_no_others() -> None:
    engine = make(FaultyModel(poison=[50]), max_step_tokens=8)
    engine.add(ask("bad"), array("i", [50, *range(7)]))  # fills a step by itself
    engine.add(ask("good"), array("i", range(8)))
    ends = terminals_of(drive(engine))
    assert isinstance(ends["good"], RequestFinished)
    bad = ends["bad"]
    assert isinstance(bad, RequestFailed)
    assert bad.code == "internal"
    assert "a poisoned row" in bad.message
    assert engine.stats()["failed_steps"] == 1
    engine.scheduler.check()


@pytest.mark.parametrize("seed", range(5))
def test_under_random_faults_and_aborts_each_request_ends_once(seed: int) -> None:
    engine = make(FaultyModel(rate=0.2), num_pages=24)
    rng = random.Random(seed)
    events: list[Event] = []
    rids = []
    for number in range(60):
        rid = f"r{number}"
        prompt = array("i", [rng.randrange(3) for _ in range(rng.randint(1, 20))])
        events += engine.add(ask(rid, rng.randint(0, 6), rng.randint(1, 3)), prompt)
        rids.append(rid)
        if rng.random() < 0.2:
            events += engine.abort(rng.choice(rids))
        for _ in range(rng.randrange(3)):
            events += engine.step()
    events += drive(engine)
    assert sorted(terminals_of(events)) == sorted(rids)
    engine.flush()
    stats = engine.stats()
    assert stats["free_pages"] == stats["total_pages"] == 24
    assert stats["failed_steps"] > 0


def test_a_scheduler_that_fails_gives_up_everything_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make(FaultyModel())
    engine.add(ask("a"), array("i", range(5)))
    engine.add(ask("b"), array("i", range(5)))

    def broken() -> None:
        raise AssertionError("an invariant does not hold")

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "check", broken)
        ends = terminals_of(engine.step())
    assert sorted(ends) == ["a", "b"]
    assert all(isinstance(end, RequestFailed) for end in ends.values())
    engine.add(ask("c"), array("i", range(5)))
    assert isinstance(terminals_of(drive(engine))["c"], RequestFinished)


@pytest.mark.parametrize(
    ("message", "ids", "code", "param"),
    [
        (ask("r"), [], "invalid_request", "prompt"),
        (ask("r"), [VOCAB], "invalid_request", "prompt"),
        (ask("r"), [-1], "invalid_request", "prompt"),
        (ask("r"), [1] * 64, "prompt_too_long", "prompt"),
        (ScoreRequest("r", 1, ()), [1], "invalid_request", "lengths"),
        (ScoreRequest("r", 1, (0,)), [1], "invalid_request", "lengths"),
        (
            GenerateRequest("r", SamplingParams(stop_token_ids=(VOCAB,))),
            [1],
            "invalid_request",
            "stop_token_ids",
        ),
        (GenerateRequest("r", SamplingParams(stop=("x",))), [1], "invalid_request", "stop"),
        (
            GenerateRequest("r", SamplingParams(), GrammarSpec("regex", "a+")),
            [1],
            "invalid_grammar",
            "grammar",
        ),
    ],
)
def test_what_cannot_run_is_refused_at_once(
    message: GenerateRequest | ScoreRequest, ids: list[int], code: str, param: str
) -> None:
    engine = make(FaultyModel())
    (refusal,) = engine.add(message, array("i", ids))
    assert isinstance(refusal, RequestFailed)
    assert (refusal.rid, refusal.code, refusal.param) == ("r", code, param)
    assert not engine.has_work
    assert engine.stats()["refused_requests"] == 1


def test_a_request_that_is_open_cannot_be_asked_again() -> None:
    engine = make(FaultyModel())
    engine.add(ask("r"), array("i", [1, 2]))
    (refusal,) = engine.add(ask("r"), array("i", [3]))
    assert isinstance(refusal, RequestFailed)
    assert refusal.param == "rid"


def test_abort_gives_every_open_choice_an_end() -> None:
    engine = make(FaultyModel())
    engine.add(ask("r", 50, n=2), array("i", [1, 2]))
    engine.step()
    events = engine.abort("r")
    ended = [e.index for e in events if isinstance(e, SequenceOutput) and e.finish_reason]
    assert ended == [0, 1]
    assert all(
        e.finish_reason is FinishReason.ABORT for e in events if isinstance(e, SequenceOutput)
    )
    assert isinstance(events[-1], RequestFinished)
    assert engine.abort("r") == []
    assert not engine.has_work
