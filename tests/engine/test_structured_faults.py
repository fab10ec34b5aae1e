"""What is wrong with a constrained request, or happens to it, is told and leaves nothing behind."""

import json
import random
import threading
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SPECIAL_TOKENS, write_tiny_model
from scheduling import HashModel, drive_engine, expect_empty, score, terminals_of, tokens_of

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig, from_settings
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished, ScoreOutput
from radixgen.runtime.build import build_engine
from radixgen.runtime.costs import StepCosts
from radixgen.runtime.drafts import Drafter
from radixgen.runtime.engine import Engine
from radixgen.runtime.grammar_pool import GrammarPool
from radixgen.runtime.masks import fill_masks
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import FinishReason, GrammarSpec, SamplingParams

END = 256
EXTRA = [b'{"', b'":', b'", "', b"true", b"name"]
TOKENS: list[bytes | None] = [*(bytes([b]) for b in range(256)), None, *EXTRA]


class LongestFirst:
    """A tokenizer that takes the longest token each time."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data, found = text.encode(), []
        while data:
            piece = next(data[:n] for n in range(5, 0, -1) if data[:n] in TOKENS)
            found.append(TOKENS.index(piece))
            data = data[len(piece) :]
        return found

    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes:
        return TOKENS[token_id] or b""


def make_engine(tokens: list[bytes | None] = TOKENS, num_pages: int = 256) -> Engine:
    scheduler = Scheduler(
        ScheduleConfig(max_step_tokens=64, max_running=8),
        RadixCache(PagePool(num_pages), 4),
        max_context=160,
        vocab_size=len(TOKENS),
        end_token_ids=[END],
        rng=random.Random(0),
        check=True,
    )
    pool = GrammarPool(lambda: GrammarCompiler(Vocabulary.from_tokens(tokens, [END])))
    return Engine(scheduler, HashModel(4, len(TOKENS)), pool, Drafter(LongestFirst()))


def await_work(engine: Engine) -> None:
    deadline = time.monotonic() + 60
    while not engine.has_work:
        assert time.monotonic() < deadline, "no grammar came"
        time.sleep(0.001)


FORCED = GrammarSpec("regex", r"(name is true, ){2,5}true")


def test_text_that_the_tokenizer_cannot_spell_is_refused() -> None:
    tokens: list[bytes | None] = [None if t == b"q" else t for t in TOKENS]
    engine = make_engine(tokens)
    engine.add(GenerateRequest("r", SamplingParams(seed=1), GrammarSpec("regex", "q+")), ids(3))
    (event,) = drive_engine(engine)
    assert isinstance(event, RequestFailed)
    assert event.code == "invalid_grammar"
    assert "token" in event.message
    expect_empty(engine.scheduler)
    found = engine.add(
        GenerateRequest("s", SamplingParams(seed=1), GrammarSpec("regex", "q+|abc")), ids(3)
    )
    assert not found
    events = drive_engine(engine)
    assert text_of(tokens_of(events)["s", 0]) == b"abc", "what it can spell is left"


def ids(*tokens: int) -> "array[int]":
    return array("i", tokens)


def text_of(token_ids: list[int]) -> bytes:
    return b"".join(TOKENS[token] or b"" for token in token_ids)


@pytest.mark.parametrize(
    ("spec", "max_tokens", "text"),
    [
        (GrammarSpec("choice", '["name"]'), 1, b"name"),
        (GrammarSpec("choice", '["name"]'), 0, None),
        (GrammarSpec("regex", "(name)?"), 0, b""),
        (FORCED, 1, None),
        (FORCED, 0, None),
    ],
)
def test_the_least_that_max_tokens_may_be(
    spec: GrammarSpec, max_tokens: int, text: bytes | None
) -> None:
    engine = make_engine()
    sampling = SamplingParams(max_tokens=max_tokens, seed=1)
    assert not engine.add(GenerateRequest("r", sampling, spec), ids(1, 2, 3))
    events = drive_engine(engine)
    end = terminals_of(events)["r"]
    if text is None:
        assert isinstance(end, RequestFailed)
        assert end.param == "max_tokens"
        assert f"max_tokens={max_tokens} is too few" in end.message
    else:
        assert isinstance(end, RequestFinished)
        assert text_of(tokens_of(events).get(("r", 0), [])) == text
    expect_empty(engine.scheduler)


@pytest.fixture
def always_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft whatever it costs."""
    monkeypatch.setattr(StepCosts, "least_chance", lambda costs, num_sequences: 0.0)
    monkeypatch.setattr(StepCosts, "pays", lambda costs, *counts: True)


@pytest.mark.usefixtures("always_worth")
def test_an_abort_while_drafts_are_verified_leaves_nothing() -> None:
    engine = make_engine()
    for number in range(3):
        sampling = SamplingParams(max_tokens=80, seed=number, n=1 + number)
        engine.add(GenerateRequest(f"r{number}", sampling, FORCED), ids(number, 1, 2, 3))
    scheduler, model, aborted = engine.scheduler, engine.runner, list[str]()
    events: list[Event] = []
    while scheduler.requests:
        await_work(engine)
        events += engine.step()
        batch = scheduler.schedule()  # the next step, by hand
        if batch is None:
            continue
        masks = scheduler.masks
        bitmask = np.empty((max(m.row + 1 + len(m.drafts) for m in masks), 16), np.int32)
        result = model.run(batch, bitmask, partial(fill_masks, masks, bitmask))
        for row in batch.rows:
            if row.num_drafts and row.rid not in aborted:
                events += scheduler.abort(row.rid)
                aborted.append(row.rid)
        events += scheduler.update(batch, result)
    assert sorted(aborted) == ["r0", "r1", "r2"]
    assert len(terminals_of(events)) == 3
    expect_empty(scheduler)


@pytest.mark.usefixtures("always_worth")
def test_a_text_that_gave_way_goes_on_where_it_was() -> None:
    found, long = [], GrammarSpec("regex", r"(name is true, ){9}true")
    for num_pages in (400, 50):
        engine = make_engine(num_pages=num_pages)
        ready = threading.Semaphore(0)
        engine.on_ready(ready.release)
        for number in range(4):
            sampling = SamplingParams(max_tokens=140, seed=number)
            engine.add(GenerateRequest(f"r{number}", sampling, long), ids(number, 1, 2, 3))
        for _ in range(4):  # all begin together
            assert ready.acquire(timeout=60)
        events = drive_engine(engine)
        assert all(isinstance(end, RequestFinished) for end in terminals_of(events).values())
        found.append(tokens_of(events))
        assert (engine.stats()["preemptions"] > 0) == (num_pages == 50)
        expect_empty(engine.scheduler)
    assert found[0] == found[1]


def test_options_are_scored_in_two_passes_with_one_prefix() -> None:
    engine = make_engine()
    options = [[5, 6, 7], [5, 6, 8, 9], [1]]
    engine.scheduler.add(score(list(range(40)), options))
    events = drive_engine(engine)
    end = terminals_of(events)["s"]
    assert isinstance(end, ScoreOutput)
    stats = engine.stats()
    assert stats["steps"] <= 2
    # An option's last token predicts nothing; for its first one the prefix's last token is computed
    # again, but for the option that computed the prefix.
    assert stats["computed_tokens"] == (40 + 2) + (1 + 3) + (1 + 0)


# ---- with a tokenizer that has special tokens, and stop strings ----


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    model: Path = write_tiny_model(tmp_path_factory.mktemp("model"))
    settings = from_settings(model=str(model), num_pages=200, threads=1, check=True)
    return build_engine(settings).engine


def write(engine: Engine, spec: GrammarSpec, **params: Any) -> tuple[list[int], SequenceOutput]:
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 60, **params})
    assert not engine.add(GenerateRequest("r", sampling, spec), array("i", list(b"Say it: ")))
    events = drive_engine(engine)
    last = [event for event in events if isinstance(event, SequenceOutput)][-1]
    expect_empty(engine.scheduler)
    return tokens_of(events)["r", 0], last


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_a_grammar_spells_the_text_of_a_special_token_by_its_letters(
    tiny: Engine, special: str
) -> None:
    for kind, source, text in (
        ("choice", json.dumps([f"a{special}b"]), f"a{special}b"),
        ("json_schema", json.dumps({"const": special}), json.dumps(special)),
    ):
        tokens, last = write(tiny, GrammarSpec(kind, source))  # type: ignore[arg-type]  # both are
        assert bytes(tokens).decode() == text, "tokens of one byte each, none of them special"
        assert last.finish_reason is FinishReason.STOP
        assert last.stop_reason is None


def test_a_stop_string_ends_a_constrained_text_before_it_is_complete(tiny: Engine) -> None:
    """Whoever asks for both wants it cut there: the output is the beginning of one that obeys."""
    spec = GrammarSpec("choice", '["one, two, three"]')
    tokens, last = write(tiny, spec, stop=["two"])
    assert bytes(tokens) == b"one, two"
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "two")
    tokens, last = write(tiny, spec, stop=["four"])
    assert bytes(tokens) == b"one, two, three"
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, None)
    tokens, last = write(tiny, spec, stop=["one"], min_tokens=5)
    assert bytes(tokens) == b"one, two, three", "not before min_tokens"
