"""Constraints in the step: every output is in its language, whatever budget and neighbours."""

import json
import random
import re
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scheduling import HashModel, drive_engine, terminals_of

from radixgen.batch import ScheduledBatch, StepResult
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished
from radixgen.runtime.engine import Engine
from radixgen.runtime.grammar_pool import (
    MAX_REMEMBERED,
    REMEMBERED,
    GrammarPool,
    Outcome,
    _Endless,
)
from radixgen.runtime.grammar_screen import Screen, TakesLong
from radixgen.runtime.pace import Pace
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import FinishReason, GrammarSpec, SamplingParams

END = 256
EXTRA = [b'{"', b'":', b'", "', b"true", b"12", b"name", b"\xc3\xa9", b"]}"]
TOKENS: list[bytes | None] = [*(bytes([b]) for b in range(256)), None, *EXTRA]


def make_engine(num_pages: int = 256) -> Engine:
    scheduler = Scheduler(
        ScheduleConfig(max_step_tokens=64, max_running=8),
        RadixCache(PagePool(num_pages), 4),
        max_context=256,
        vocab_size=len(TOKENS),
        end_token_ids=[END],
        rng=random.Random(0),
        check=True,
    )
    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    pool = GrammarPool(lambda: GrammarCompiler(vocabulary))
    return Engine(scheduler, HashModel(4, len(TOKENS)), pool)


def texts_of(events: list[Event]) -> dict[tuple[str, int], tuple[str, FinishReason | None]]:
    """Text and finish reason of each choice, by (rid, index)."""
    found: dict[tuple[str, int], tuple[bytes, FinishReason | None]] = {}
    for event in events:
        if isinstance(event, SequenceOutput):
            text, _ = found.get((event.rid, event.index), (b"", None))
            more = b"".join(TOKENS[token] or b"" for token in event.token_ids)
            found[event.rid, event.index] = (text + more, event.finish_reason)
    return {key: (text.decode(), reason) for key, (text, reason) in found.items()}


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "next": {"$ref": "#"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("max_tokens", [8, 9, 12, 30, 90])
def test_every_output_parses_also_when_the_budget_is_small(max_tokens: int) -> None:
    engine = make_engine()
    spec = GrammarSpec("json_schema", json.dumps(SCHEMA))
    for number in range(10):
        sampling = SamplingParams(max_tokens=max_tokens, seed=number, n=1 + number % 2)
        engine.add(GenerateRequest(f"r{number}", sampling, spec), array("i", [number, 1, 2]))
    events = drive_engine(engine)
    assert all(isinstance(end, RequestFinished) for end in terminals_of(events).values())
    found = texts_of(events)
    assert len(found) == 15
    for text, reason in found.values():
        assert set(json.loads(text)) <= {"name", "flags", "next"}
        assert reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_constrained_and_free_requests_share_steps() -> None:
    engine = make_engine(num_pages=24)  # so few that they push each other out
    sampling = SamplingParams(max_tokens=40, seed=3)
    for number in range(6):
        spec = GrammarSpec("regex", r"(ab|cd){5,15}") if number % 2 else None
        engine.add(GenerateRequest(f"r{number}", sampling, spec), array("i", [number] * 5))
    events = drive_engine(engine)
    assert all(isinstance(end, RequestFinished) for end in terminals_of(events).values())
    for (rid, _), (text, _) in texts_of([e for e in events if e.rid in ("r1", "r3", "r5")]).items():
        assert re.fullmatch(r"(ab|cd){5,15}", text), rid


def failure(engine: Engine, spec: GrammarSpec, **sampling: Any) -> RequestFailed:
    message = GenerateRequest("bad", SamplingParams(seed=1, **sampling), spec)
    engine.add(message, array("i", [1, 2, 3]))
    engine.add(GenerateRequest("good", SamplingParams(max_tokens=3, seed=1)), array("i", [5, 6]))
    ends = terminals_of(drive_engine(engine))
    assert isinstance(ends["good"], RequestFinished)
    end = ends["bad"]
    assert isinstance(end, RequestFailed)
    return end


def test_a_bad_constraint_fails_alone() -> None:
    end = failure(make_engine(), GrammarSpec("regex", "(unclosed"))
    assert end.code == "invalid_grammar"
    end = failure(
        make_engine(), GrammarSpec("json_schema", '{"allOf": [{"const": 1}, {"const": 2}]}')
    )
    assert end.code == "invalid_grammar"


def test_a_budget_below_the_shortest_text_is_refused_with_the_number() -> None:
    end = failure(make_engine(), GrammarSpec("regex", "[ab]{7}"), max_tokens=6)
    assert end.code == "invalid_request"
    assert "7 tokens" in end.message


def test_an_aborted_request_leaves_no_compile_behind() -> None:
    engine = make_engine()
    spec = GrammarSpec("regex", "a+")
    engine.add(GenerateRequest("gone", SamplingParams(), spec), array("i", [1]))
    events = engine.abort("gone")
    assert list(terminals_of(events)) == ["gone"]
    engine.add(GenerateRequest("r", SamplingParams(max_tokens=2, seed=1), spec), array("i", [1]))
    assert list(terminals_of(drive_engine(engine))) == ["r"]
    assert engine.grammars is not None
    assert engine.grammars.num_waiting == 0


class Verdict(Screen):
    """Says that the constraints in `slow` take long."""

    def __init__(self, *slow: str) -> None:
        super().__init__()
        self.slow = slow

    def start(self) -> None:
        """No process."""

    def check(self, spec: GrammarSpec) -> None:
        if spec.source in self.slow:
            raise TakesLong


def outcome_of(pool: GrammarPool, pattern: str) -> Outcome:
    ready = threading.Semaphore(0)
    pool.wake = ready.release
    pool.submit("r", GrammarSpec("regex", pattern))
    assert ready.acquire(timeout=60)
    (outcome,) = pool.take()
    return outcome


def test_a_heavy_grammar_gets_an_engine_of_its_own() -> None:
    """While an engine works, whoever needs it waits."""
    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    pool = GrammarPool(lambda: GrammarCompiler(vocabulary), Verdict("c+", "d+"), Verdict())
    pool.pace = Pace(lambda: 0.0)  # nobody is disturbed, so no rests
    engines = []
    for pattern in ("a+", "b+", "c+", "d+", "c+", "a+"):
        (grammar,) = outcome_of(pool, pattern).grammars
        assert grammar is not None
        engines.append(grammar.engine)
    shared, same, heavy, other, again, known = engines
    assert shared is same is known
    assert heavy is again
    assert len({id(shared), id(heavy), id(other)}) == 3
    assert (pool.num_compiled, pool.num_cached) == (4, 2)


def test_what_takes_long_delays_no_other_constraint() -> None:
    """It is tried in a lane of its own, and refused there when it takes too long for that."""

    class Stuck(Verdict):
        def check(self, spec: GrammarSpec) -> None:
            assert let_go.wait(timeout=60)
            raise TakesLong

    let_go = threading.Event()
    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    pool = GrammarPool(lambda: GrammarCompiler(vocabulary), Verdict("slow"), Stuck())
    pool.submit("hostile", GrammarSpec("regex", "slow"))
    assert outcome_of(pool, "a+").rid == "r", "while the other is on trial"
    assert pool.num_waiting == 1
    let_go.set()
    while not pool.has_ready:
        let_go.wait(0.001)
    (outcome,) = pool.take()
    assert outcome.rid == "hostile"
    assert "over 10 s to compile" in str(outcome.error)
    let_go.clear()
    again = outcome_of(pool, "slow")
    assert str(again.error) == str(outcome.error), "without a trial, which would be stuck"


def test_what_took_too_long_is_remembered_for_a_while() -> None:
    now = [0.0]
    endless = _Endless(lambda: now[0])
    specs = [GrammarSpec("regex", f"a{{{number}}}") for number in range(MAX_REMEMBERED + 1)]
    endless.add(specs[0])
    assert specs[0] in endless
    assert GrammarSpec("lark", specs[0].source) not in endless
    now[0] = REMEMBERED
    assert specs[0] not in endless
    for spec in specs:
        endless.add(spec)
    assert [spec in endless for spec in (specs[0], specs[1], specs[-1])] == [False, True, True]


def test_a_trial_counts_as_work_of_its_lane_whatever_comes_of_it() -> None:
    class Busy(Verdict):
        def check(self, spec: GrammarSpec) -> None:
            self.seconds = 2.0
            super().check(spec)
            if spec.source == "wrong":
                raise InvalidGrammar("wrong")

    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    for source, lanes in ("a+", [True, False]), ("wrong", [True, False]), ("slow", [True, False]):
        pool = GrammarPool(
            lambda: GrammarCompiler(vocabulary), Busy("slow"), Verdict(), share=1 / 1000
        )
        outcome_of(pool, source)
        await_idle(pool)
        rests = [lane.duty.rest() > 1000 for lane in (pool._light, pool._slow)]
        assert rests == lanes, source


def test_what_is_known_waits_for_no_trial() -> None:
    class Stuck(Verdict):
        def check(self, spec: GrammarSpec) -> None:
            if spec.source == "slow":
                assert let_go.wait(timeout=60)

    let_go = threading.Event()
    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    pool = GrammarPool(lambda: GrammarCompiler(vocabulary), Stuck())
    known, slow = GrammarSpec("regex", "a+"), GrammarSpec("regex", "slow")
    first = outcome_of(pool, known.source)
    pool.submit("hostile", slow)
    pool.submit("both", known, slow)
    pool.submit("thoughts", None, known)
    assert pool.take() == [Outcome("thoughts", (None, *first.grammars))], "at once"
    let_go.set()
    await_idle(pool)
    assert [outcome.rid for outcome in pool.take()] == ["hostile", "both"]
    assert (pool.num_compiled, pool.num_cached) == (2, 3)


def test_a_name_that_is_used_again_gets_no_grammar_of_before() -> None:
    class Stuck(Verdict):
        def check(self, spec: GrammarSpec) -> None:
            if spec.source == "slow":
                begun.set()
                assert let_go.wait(timeout=60)

    begun, let_go = threading.Event(), threading.Event()
    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    pool = GrammarPool(lambda: GrammarCompiler(vocabulary), Stuck())
    outcome_of(pool, "b+")
    pool.submit("r", GrammarSpec("regex", "slow"))
    assert begun.wait(timeout=60)
    pool.forget("r")
    pool.submit("r", GrammarSpec("regex", "c+"))
    let_go.set()
    await_idle(pool)
    (outcome,) = pool.take()
    assert [grammar and grammar.spec.source for grammar in outcome.grammars] == ["c+"]
    pool.submit("r", GrammarSpec("regex", "b+"))  # known, so ready at once
    pool.forget("r")
    assert pool.take() == []
    assert pool.num_waiting == 0


def await_idle(pool: GrammarPool) -> None:
    deadline = time.monotonic() + 60
    while not pool.is_idle:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("spec", [None, GrammarSpec("regex", "[ab]{3}")])
def test_others_may_have_the_interpreter_while_a_step_computes(spec: GrammarSpec | None) -> None:
    engine = make_engine()
    assert engine.grammars is not None
    pace, run, held = engine.grammars.pace, engine.runner.run, list[tuple[bool, bool]]()

    def watched(
        batch: ScheduledBatch,
        bitmask: "NDArray[np.int32] | None" = None,
        fill_mask: Callable[[], None] | None = None,
    ) -> StepResult:
        before = pace.is_held
        assert fill_mask is not None
        fill_mask()
        held.append((before, pace.is_held))
        return run(batch, bitmask, fill_mask)

    engine.runner.run = watched  # type: ignore[method-assign]
    engine.add(GenerateRequest("r", SamplingParams(max_tokens=3, seed=1), spec), array("i", [1]))
    assert isinstance(terminals_of(drive_engine(engine))["r"], RequestFinished)
    assert set(held) == {(False, True)}, "until the logits are there"
    assert not pace.is_held, "nor between steps"
