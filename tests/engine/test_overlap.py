"""Steps launched before the last tokens are known give what steps in turn give, whatever is asked
for and whoever comes, goes or is cut off meanwhile. The device is a thread of its own."""

import random
import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import write_adapter, write_tiny_model
from scheduling import (
    HashedStep,
    HashModel,
    Queued,
    drive_engine,
    expect_empty,
    expect_tokens,
    overlapped,
    terminals_of,
    tokens_of,
)

from radixgen.batch import ScheduledBatch
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig, from_settings
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished
from radixgen.runtime.build import build_engine
from radixgen.runtime.engine import Engine
from radixgen.runtime.overlap import OverlappedEngine
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import FinishReason, GrammarSpec, SamplingParams, Thinking

VOCAB, PAGE_SIZE = 97, 4
STEM = list(b"A stem that all share. ")
REGEX = GrammarSpec("regex", r"(yes|no), (it is|never was)( so)*[.!]")
SCHEMA = GrammarSpec(
    "json_schema",
    '{"type":"object","properties":{"name":{"enum":["ann","bob"]},"odd":{"type":"boolean"}},'
    '"required":["name","odd"]}',
)


# ---- anything at once ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = write_tiny_model(folder / "model", num_hidden_layers=1)
    write_adapter(folder / "a", model, ["q_proj", "v_proj", "down_proj"], seed=2)
    return folder


def make(folder: Path, **more: Any) -> Engine:
    given: dict[str, Any] = {"num_pages": 400, "page_size": 4, "threads": 1, "check": True}
    adapters = {"a": str(folder / "a")}
    settings = from_settings(**{**given, **more}, model=str(folder / "model"), adapters=adapters)
    return build_engine(settings).engine


@dataclass(frozen=True)
class Ask:
    message: GenerateRequest
    prompt: Sequence[int]

    @property
    def ids(self) -> "array[int]":
        return array("i", list(self.prompt))


def some_asks(rng: random.Random, count: int) -> list[Ask]:
    return [_some_ask(rng, f"r{number}") for number in range(count)]


def _some_ask(rng: random.Random, rid: str) -> Ask:
    fields: dict[str, Any] = {
        "max_tokens": rng.choice([1, 4, 9, 20]),
        "temperature": rng.choice([0, 0.7, 1.0]),
        "seed": rng.randrange(100),
        "n": rng.choice([1, 1, 1, 3]),
        "ignore_eos": rng.random() < 0.3,
    }
    for options, chance in (
        ({"stop": ("e", "ab")}, 0.3),
        ({"stop_token_ids": tuple(range(40))}, 0.3),
        ({"logprobs": 2}, 0.15),
        ({"prompt_logprobs": 1}, 0.05),
        ({"repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 1}, 0.2),
        ({"top_p": 0.8, "top_k": 20}, 0.3),
    ):
        fields |= options if rng.random() < chance else {}
    spec = thinking = None
    if rng.random() < 0.4:
        spec = rng.choice([REGEX, SCHEMA])
        fields |= {"max_tokens": 60, "min_tokens": 0, "stop": (), "stop_token_ids": ()}
        fields["grammar_mass"] = rng.random() < 0.2
        thinking = Thinking(8, begin="<t>", end="</") if rng.random() < 0.3 else None
        if thinking is None and rng.random() < 0.4:
            # Alone: choices of one request learn of each other, in the order of their draws.
            fields |= {"constrained_law": "faithful", "temperature": 1.0, "n": 1}
    lora = rng.choice(["", "", "a"])
    tail = [rng.randrange(256) for _ in range(rng.randrange(1, 12))]
    message = GenerateRequest(rid, SamplingParams(**fields), spec, thinking=thinking, lora=lora)
    return Ask(message, [*STEM[: rng.choice([0, 9, 23])], *tail])


def said(events: Iterable[Event]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """All that is told of each choice, put together."""
    found: dict[tuple[str, int], tuple[Any, ...]] = {}
    for event in events:
        if isinstance(event, SequenceOutput):
            key = event.rid, event.index
            tokens, logprobs, masses, thoughts, *_ = found.get(key, ((), (), (), 0))
            found[key] = (
                tokens + event.token_ids,
                logprobs + event.logprobs,
                masses + event.grammar_masses,
                thoughts + event.num_thoughts,
                event.finish_reason,
                event.stop_reason,
            )
    return found


def live(engine: Engine, asks: Sequence[Ask], rng: random.Random) -> list[Event]:
    """Requests that come between steps, some of which are cut off."""
    events: list[Event] = []
    waiting, started = list(asks), list[str]()
    while waiting:
        if rng.random() < 0.3:
            ask = waiting.pop(0)
            events += engine.add(ask.message, ask.ids)
            started.append(ask.message.rid)
        if started and rng.random() < 0.03:
            events += engine.abort(rng.choice(started))
        if engine.has_work:
            events += engine.step()
    return events + drive_engine(engine)


Told = dict[tuple[str, int], tuple[Any, ...]]


@pytest.fixture(scope="module")
def asked(folder: Path) -> tuple[list[Ask], Told]:
    """Requests, and what each is told alone, of steps in turn and without guesses."""
    asks = some_asks(random.Random(0), 24)
    alone = make(folder, jump_forward="off", prompt_lookup=False, suffix_drafts=False)
    wanted: Told = {}
    for ask in asks:
        assert not alone.add(ask.message, ask.ids)
        wanted |= said(drive_engine(alone))
    return asks, wanted


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt_lookup": False, "suffix_drafts": False},
        {"num_pages": 60, "max_step_tokens": 24, "policy": "priority"},
        {"num_pages": 45, "max_step_tokens": 9, "jump_forward": "off", "suffix_drafts": False},
    ],
    ids=str,
)
def test_anything_at_once_is_as_alone_and_in_turn(
    folder: Path, asked: tuple[list[Ask], Told], settings: dict[str, Any]
) -> None:
    asks, wanted = asked
    engine = overlapped(make(folder, **settings))
    events = live(engine, asks, random.Random(1))
    for key, (*told, reason, why) in said(events).items():
        if reason is FinishReason.ABORT:
            assert wanted[key][0][: len(told[0])] == told[0], key
        else:
            assert (*told, reason, why) == wanted[key], key
    ends = terminals_of(events)
    assert set(ends) == {ask.message.rid for ask in asks}
    assert all(isinstance(end, RequestFinished) for end in ends.values())
    assert engine.stats()["failed_steps"] == 0
    expect_empty(engine.scheduler)


# ---- what is launched when ----


def make_hashed(model: HashModel, num_pages: int = 64, **config: Any) -> OverlappedEngine:
    scheduler = Scheduler(
        ScheduleConfig(policy="fcfs", max_step_tokens=8, max_running=8, **config),
        RadixCache(PagePool(num_pages), PAGE_SIZE),
        max_context=64,
        vocab_size=VOCAB,
        rng=random.Random(0),
        check=True,
    )
    return OverlappedEngine(scheduler, Queued(model))


def ask_hashed(engine: Engine, rid: str, prompt: Sequence[int], **sampling: Any) -> None:
    fields: dict[str, Any] = {"max_tokens": 9, "seed": 7, **sampling}
    assert not engine.add(GenerateRequest(rid, SamplingParams(**fields)), array("i", list(prompt)))


class Slow(HashModel):
    """Computes nothing before it is let."""

    def __init__(self) -> None:
        super().__init__(PAGE_SIZE, VOCAB)
        self.may_go = threading.Event()

    def launch(self, batch: ScheduledBatch) -> HashedStep:
        assert self.may_go.wait(60)
        return super().launch(batch)


def test_a_step_is_launched_before_the_one_before_has_begun() -> None:
    model = Slow()
    engine = make_hashed(model)
    queue = engine.runner
    assert isinstance(queue, Queued)
    ask_hashed(engine, "a", [1, 2, 3])
    queue.when_launched[2] = model.may_go.set
    events = engine.step()  # would wait for ever if it did not launch a second
    assert tokens_of(events) == {("a", 0): expect_tokens([1, 2, 3], 7, 1, VOCAB)}
    events += drive_engine(engine)
    assert tokens_of(events) == {("a", 0): expect_tokens([1, 2, 3], 7, 9, VOCAB)}
    stats = engine.stats()
    assert stats["steps"] == queue.num_launched == 9, "the last token is known to be the last"
    assert stats["overlapped_steps"] == 8
    assert stats["device_idle_seconds"] == 0
    expect_empty(engine.scheduler)


def test_an_end_found_late_costs_a_row_and_no_page() -> None:
    engine = make_hashed(HashModel(PAGE_SIZE, VOCAB))
    drawn = expect_tokens([5, 6], 7, 9, VOCAB)
    ask_hashed(engine, "a", [5, 6], stop_token_ids=(drawn[4],))
    ask_hashed(engine, "b", [9, 8, 7])
    events = drive_engine(engine)
    assert tokens_of(events)["a", 0] == drawn[:5]
    assert tokens_of(events)["b", 0] == expect_tokens([9, 8, 7], 7, 9, VOCAB)
    stats = engine.stats()
    assert stats["computed_tokens"] == 2 + 3 + 4 + 8 + 1
    assert stats["overlapped_steps"] == 8
    expect_empty(engine.scheduler)
    ask_hashed(engine, "c", [5, 6, *drawn[:5], 1, 2])  # what was kept is right
    assert tokens_of(drive_engine(engine))["c", 0] == expect_tokens(
        [5, 6, *drawn[:5], 1, 2], 7, 9, VOCAB
    )


def test_the_last_of_all_leaves_nothing_in_the_queue() -> None:
    engine = make_hashed(HashModel(PAGE_SIZE, VOCAB))
    drawn = expect_tokens([5, 6], 7, 9, VOCAB)
    ask_hashed(engine, "a", [5, 6], stop_token_ids=(drawn[2],))
    drive_engine(engine)
    assert not engine.has_work
    expect_empty(engine.scheduler)


def test_who_waits_enters_before_a_step_is_launched_ahead() -> None:
    engine = make_hashed(HashModel(PAGE_SIZE, VOCAB))
    ask_hashed(engine, "a", [1, 2, 3])
    events = [*engine.step(), *engine.step()]
    assert engine.stats()["overlapped_steps"] == 1
    ask_hashed(engine, "b", [4, 5, 6, 7])
    events += engine.step()  # the one that was launched before b came
    events += engine.step()
    assert ("b", 0) in tokens_of(events)
    events += drive_engine(engine)
    assert engine.stats()["overlapped_steps"] > 8
    for rid, prompt in (("a", [1, 2, 3]), ("b", [4, 5, 6, 7])):
        assert tokens_of(events)[rid, 0] == expect_tokens(prompt, 7, 9, VOCAB)


def test_an_abort_with_two_steps_under_way() -> None:
    engine = make_hashed(HashModel(PAGE_SIZE, VOCAB))
    for rid, prompt in (("a", [1, 2, 3]), ("b", [4, 5])):
        ask_hashed(engine, rid, prompt, max_tokens=20)
    events = [*engine.step(), *engine.step(), *engine.abort("a")]
    assert engine.scheduler.cache.pool.num_held >= 2, "the device still writes there"
    events += drive_engine(engine)
    assert tokens_of(events)["b", 0] == expect_tokens([4, 5], 7, 20, VOCAB)
    found = tokens_of(events)["a", 0]
    assert found == expect_tokens([1, 2, 3], 7, len(found), VOCAB)
    expect_empty(engine.scheduler)
    ask_hashed(engine, "c", [1], max_tokens=20)
    engine.step()
    engine.abort("c")
    while engine.has_work:
        engine.step()
    expect_empty(engine.scheduler)


class Fragile(HashModel):
    """Breaks in the forward pass, or in the draws, of the steps of these numbers."""

    def __init__(self, at_launch: Sequence[int] = (), at_draw: Sequence[int] = ()) -> None:
        super().__init__(PAGE_SIZE, VOCAB)
        self.at_launch, self.at_draw = at_launch, at_draw
        self.num_launched = self.num_drawn = 0

    def launch(self, batch: ScheduledBatch) -> HashedStep:
        self.num_launched += 1
        if self.num_launched in self.at_launch:
            raise MemoryError("out of luck")
        return super().launch(batch)

    def draw(self, launched: HashedStep, rows: Any, bitmask: Any = None) -> None:
        self.num_drawn += 1
        if self.num_drawn in self.at_draw:
            raise MemoryError("out of luck")
        super().draw(launched, rows, bitmask)


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("where", ["at_launch", "at_draw"])
def test_a_step_that_fails_ends_its_requests_and_no_others(number: int, where: str) -> None:
    engine = make_hashed(Fragile(**{where: [number]}))
    ask_hashed(engine, "a", [1, 2, 3])
    ask_hashed(engine, "b", [4, 5])
    ends = terminals_of(drive_engine(engine))
    assert {type(end) for end in ends.values()} == {RequestFailed}
    expect_empty(engine.scheduler)
    ask_hashed(engine, "c", [1, 2, 3])
    events = drive_engine(engine)
    assert tokens_of(events)["c", 0] == expect_tokens([1, 2, 3], 7, 9, VOCAB)
    assert engine.stats()["failed_steps"] == 1
    expect_empty(engine.scheduler)


def test_a_step_that_cannot_be_launched_ahead_is_tried_in_its_turn() -> None:
    model = Fragile(at_launch=[3])
    engine = make_hashed(model)
    engine._device = model  # at once, so that it raises at once
    ask_hashed(engine, "a", [1, 2, 3])
    events = drive_engine(engine)
    assert tokens_of(events)["a", 0] == expect_tokens([1, 2, 3], 7, 9, VOCAB)
    assert model.num_launched == 10
    assert engine.stats()["failed_steps"] == 0
    expect_empty(engine.scheduler)


def test_without_pages_for_all_nothing_is_launched_ahead_and_someone_gives_way() -> None:
    engine = make_hashed(HashModel(PAGE_SIZE, VOCAB), num_pages=7)
    prompts = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}
    for rid, prompt in prompts.items():
        ask_hashed(engine, rid, prompt, max_tokens=12)
    events = drive_engine(engine)
    for rid, prompt in prompts.items():
        assert tokens_of(events)[rid, 0] == expect_tokens(prompt, 7, 12, VOCAB)
    stats = engine.stats()
    assert stats["preemptions"] > 0
    assert stats["overlapped_steps"] > 0
    expect_empty(engine.scheduler)
