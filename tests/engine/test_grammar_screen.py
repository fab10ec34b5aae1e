"""Constraints are tried in a process of their own, which bounds their time and memory."""

import json
import os
import random
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from scheduling import HashModel, drive_engine, terminals_of

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.errors import InvalidGrammar, Overloaded
from radixgen.grammars.compiler import CompiledGrammar, GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished
from radixgen.runtime import grammar_screen
from radixgen.runtime.engine import Engine
from radixgen.runtime.grammar_pool import GrammarPool
from radixgen.runtime.grammar_screen import Screen, TakesLong
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import GrammarSpec, SamplingParams

GOOD = GrammarSpec("regex", "a{2,3}")
BAD = GrammarSpec("regex", "(unclosed")


def large(number: int = 0) -> GrammarSpec:
    """A schema that takes a good part of a second."""
    inner = {"type": "object", "properties": {f"k{j}": {"type": "integer"} for j in range(10)}}
    properties = {f"p{number}_{i}": inner | {"minProperties": i % 3} for i in range(8000)}
    return GrammarSpec("json_schema", json.dumps({"type": "object", "properties": properties}))


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen()
    yield screen
    screen.close()


def pid_of(screen: Screen) -> int:
    assert screen._process is not None
    return screen._process.pid


def test_what_compiles_passes_and_what_does_not_is_told_why(screen: Screen) -> None:
    screen.check(GOOD)
    pid = pid_of(screen)
    with pytest.raises(InvalidGrammar, match="no '\\)' at its end"):
        screen.check(BAD)
    screen.check(GrammarSpec("json_schema", "{}", (("whitespace", "compact"),)))
    assert pid_of(screen) == pid, "one process for all"


def test_a_process_that_is_not_ready_in_time_answers_the_next_one_by_its_own_verdict(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(grammar_screen, "START_SECONDS", 0.0)
        for _ in range(2):
            with pytest.raises(Overloaded, match="not ready within 0 s"):
                screen.check(GOOD)
            assert screen.seconds == 0.0, "no constraint was tried"
    pid = pid_of(screen)
    for _ in range(2):
        screen.check(GOOD)
        with pytest.raises(InvalidGrammar, match="no '\\)' at its end"):
            screen.check(BAD)
    assert (pid_of(screen), screen.num_killed) == (pid, 0), "it was let start"


def test_what_takes_too_long_is_stopped_and_the_next_one_is_not(screen: Screen) -> None:
    screen.check(GOOD)
    pid = pid_of(screen)
    screen.max_seconds = 0.01
    with pytest.raises(TakesLong):
        screen.check(large())
    assert screen.seconds >= 0.01
    screen.max_seconds = 30.0
    screen.check(GOOD)
    assert 0 < screen.seconds < screen.max_seconds
    assert (pid_of(screen), screen.num_killed) == (pid, 0), "it goes on with the next one"


def test_a_constraint_is_stopped_again_where_that_was_lost() -> None:
    class Stubborn(GrammarCompiler):
        """As what is called when an object goes: its errors lead nowhere."""

        num_rings = 0

        def compile(self, spec: GrammarSpec) -> CompiledGrammar:
            end = time.process_time() + 20
            while time.process_time() < end:
                try:
                    while time.process_time() < end:
                        pass
                except BaseException:
                    self.num_rings += 1
                    if self.num_rings == 3:
                        raise
            raise AssertionError("nobody stopped it")

    compiler = Stubborn(_vocabulary())
    order = {"seconds": 0.01, "spec": asdict(GOOD)}
    before = signal.signal(signal.SIGPROF, grammar_screen._ring)
    try:
        assert grammar_screen._timed_verdict(compiler, json.dumps(order).encode()) is None
        assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert compiler.num_rings == 3


@pytest.mark.parametrize("error", [grammar_screen._OutOfTimeError(), ValueError("a fault")])
def test_a_lost_ring_is_no_error_to_tell(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "__unraisablehook__", lambda lost: told.append(lost.exc_value))
    grammar_screen._tell_lost(cast("Any", SimpleNamespace(exc_value=error)))
    assert told == ([error] if isinstance(error, ValueError) else [])


def test_what_cannot_be_stopped_is_killed(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.check(GOOD)
    monkeypatch.setattr(grammar_screen, "LEAST_WAIT", 0.01)
    monkeypatch.setattr(grammar_screen, "PATIENCE", 0.0)
    with pytest.raises(TakesLong):
        screen.check(large())
    assert screen.num_killed == 1
    monkeypatch.undo()
    screen.check(GOOD)


def test_its_process_gives_way_to_others_as_told() -> None:
    own = psutil.Process().nice()
    screen = Screen(nice=7)
    try:
        screen.check(GOOD)
        assert psutil.Process(pid_of(screen)).nice() == min(own + 7, 19)
        assert os.getsid(pid_of(screen)) == os.getsid(0), "where niceness counts, on Linux"
        assert os.getpgid(pid_of(screen)) != os.getpgid(0), "Ctrl-C is not for it"
    finally:
        screen.close()


def test_a_process_that_is_killed_fails_no_constraint(screen: Screen) -> None:
    screen.check(GOOD)
    pid = pid_of(screen)
    psutil.Process(pid).kill()
    screen.check(GOOD)
    assert pid_of(screen) != pid
    psutil.Process(pid_of(screen)).kill()
    with pytest.raises(InvalidGrammar, match="no '\\)' at its end"):
        screen.check(BAD)


class Hunted(Screen):
    """Its process is sent `signal_number` again and again, at its start or once it is ready."""

    signal_number = 0
    is_ready_first = False

    def _start(self) -> None:
        super()._start()
        self._hunt(not self.is_ready_first)

    def _hear_hello(self, stream: Any) -> None:
        super()._hear_hello(stream)
        self._hunt(self.is_ready_first)

    def _hunt(self, is_time: bool) -> None:
        if is_time and self.signal_number:
            os.kill(pid_of(self), self.signal_number)


@pytest.mark.parametrize("is_ready_first", [False, True])
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_again_and_again_says_nothing_of_a_constraint(
    signal_number: int, is_ready_first: bool
) -> None:
    screen = Hunted()
    screen.signal_number, screen.is_ready_first = signal_number, is_ready_first
    try:
        with pytest.raises(Overloaded, match="lost twice"):
            screen.check(GOOD)
        assert screen.num_killed == 2
        screen.signal_number = 0
        screen.check(GOOD)
    finally:
        screen.close()


def test_a_process_that_dies_of_a_constraint_is_its_fault() -> None:
    screen = Hunted()
    screen.signal_number, screen.is_ready_first = signal.SIGSEGV, True
    try:
        with pytest.raises(InvalidGrammar, match="takes over"):
            screen.check(GOOD)
    finally:
        screen.close()


def test_memory_is_bounded(screen: Screen) -> None:
    screen.check(GOOD)
    idle = psutil.Process(pid_of(screen)).memory_info().vms
    bounded = Screen(max_seconds=60.0, max_bytes=idle + (16 << 20))
    words = json.dumps([f"{number:064b}" for number in range(50_000)])
    try:
        bounded.check(GOOD)
        with pytest.raises(InvalidGrammar, match=f"over {bounded.max_bytes >> 20} MiB"):
            bounded.check(GrammarSpec("choice", words))
        bounded.check(GOOD)
    finally:
        bounded.close()


def test_a_process_without_the_memory_to_begin_says_nothing_of_a_constraint() -> None:
    screen = Screen(max_bytes=1 << 20)
    try:
        with pytest.raises(Overloaded, match="see to this machine's memory"):
            screen.check(GOOD)
    finally:
        screen.close()


def test_names_in_the_working_directory_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("radixgen.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    screen = Screen()
    try:
        screen.check(GrammarSpec("regex", "a+"))
    finally:
        screen.close()


def test_no_process_is_left_behind() -> None:
    closed, dropped = Screen(), Screen()
    pids = []
    for screen in (closed, dropped):
        screen.check(GOOD)
        pids.append(pid_of(screen))
    closed.close()
    closed.check(BAD)  # nothing is checked any more
    del dropped, screen
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_what_the_first_constraint_needs_is_made_in_a_quiet_moment(screen: Screen) -> None:
    pool, made = _pool(screen)
    pool.prepare()
    assert made.acquire(timeout=60)
    pid = pid_of(screen)
    pool.submit("r", GOOD)
    _wait_for(lambda: pool.has_ready)
    assert pid_of(screen) == pid
    assert [outcome.error for outcome in pool.take()] == [None]
    assert not made.acquire(blocking=False), "one compiler for all"
    assert pool.stats()["compiled_grammars"] == 1, "what was loaded by is not counted"


def test_a_constraint_waits_for_no_quiet_moment(screen: Screen) -> None:
    pool, made = _pool(screen)
    pool.pace.hold()  # a step that never ends
    pool.prepare()
    assert not made.acquire(timeout=0.01)
    pool.submit("r", GOOD)
    _wait_for(lambda: pool.has_ready)
    assert [outcome.error for outcome in pool.take()] == [None]


def test_what_cannot_be_prepared_fails_who_needs_it() -> None:
    def fail() -> GrammarCompiler:
        raise MemoryError("no room")

    pool = GrammarPool(fail)
    pool.prepare()
    pool.submit("r", GOOD)
    _wait_for(lambda: pool.has_ready)
    (outcome,) = pool.take()
    assert "no room" in str(outcome.error)
    _wait_for(lambda: pool.is_idle)


def _pool(screen: Screen) -> tuple[GrammarPool, threading.Semaphore]:
    """And what is released when it has made a compiler."""
    made = threading.Semaphore(0)

    def make() -> GrammarCompiler:
        compiler = GrammarCompiler(_vocabulary())
        made.release()
        return compiler

    return GrammarPool(make, screen), made


def _vocabulary() -> Vocabulary:
    return Vocabulary.from_tokens([*(bytes([b]) for b in range(256)), None], [256])


def _wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_steps_go_on_while_a_constraint_is_tried_and_only_it_fails(screen: Screen) -> None:
    screen.max_seconds = 0.05
    patient = Screen(0.1, nice=15)
    scheduler = Scheduler(
        ScheduleConfig(max_step_tokens=64, max_running=8),
        RadixCache(PagePool(256), 4),
        max_context=256,
        vocab_size=257,
        end_token_ids=[256],
        rng=random.Random(0),
        check=True,
    )
    pool = GrammarPool(lambda: GrammarCompiler(_vocabulary()), screen, patient)
    engine = Engine(scheduler, HashModel(4, 257), pool)
    screen.check(GOOD)
    for number in range(3):
        engine.add(GenerateRequest(f"bad{number}", SamplingParams(), large(number)), _prompt())
    plain = SamplingParams(max_tokens=30, seed=1, ignore_eos=True)
    engine.add(GenerateRequest("plain", plain), _prompt())
    engine.add(GenerateRequest("good", SamplingParams(max_tokens=5, seed=1), GOOD), _prompt())
    ends = terminals_of(drive_engine(engine))
    assert isinstance(ends["plain"], RequestFinished)
    assert isinstance(ends["good"], RequestFinished)
    for number in range(3):
        end = ends[f"bad{number}"]
        assert isinstance(end, RequestFailed)
        assert "over 0.1 s to compile" in end.message
    assert next(iter(ends)) == "plain", "it waited for nobody"
    patient.close()


def _prompt() -> "array[int]":
    return array("i", [1, 2, 3])


def test_a_first_mask_and_a_shortest_text_are_tried_too() -> None:
    kinds = [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}} for i in range(40)]
    screen = Screen(max_seconds=1)
    try:
        with pytest.raises(
            (InvalidGrammar, TakesLong)
        ):  # out of time or of memory, after a quick compile
            screen.check(GrammarSpec("json_schema", json.dumps({"oneOf": kinds})))
    finally:
        screen.close()
