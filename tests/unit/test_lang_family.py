"""Forks that nobody holds any more are let go, and nothing of theirs is lost."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from scripted_backend import ScriptedBackend, wait_until

from radixgen.errors import InvalidRequest
from radixgen.lang import family
from radixgen.lang.api import function, gen
from radixgen.lang.executor import Executor
from radixgen.lang.state import AsyncProgramState, ProgramState

LINKS = 300
FEW = 8  # states that may be alive at a time, of which all but two are about to go


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    scripted = ScriptedBackend()
    yield scripted
    scripted.close()


class Alive:
    """How many executors there are, without waiting for a garbage collection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: weakref.WeakSet[Executor] = weakref.WeakSet()
        begin = Executor.begin

        def note(executor: Executor, conversation: object) -> None:
            self.seen.add(executor)
            begin(executor, conversation)  # type: ignore[arg-type]  # handed on as it is

        monkeypatch.setattr(Executor, "begin", note)

    @property
    def few(self) -> bool:
        return len(self.seen) <= FEW


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Alive]:
    gc.collect()
    gc.disable()
    yield Alive(monkeypatch)
    gc.enable()


def test_a_chain_of_forks_holds_its_last(backend: ScriptedBackend, alive: Alive) -> None:
    @function
    def program(s: ProgramState) -> str:
        for _ in range(LINKS):
            s = s.fork(1)[0]
            s += "a" + gen("x", max_tokens=1)
            s["x"]
            wait_until(lambda: alive.few)
        return s.text()

    state = program.run(backend=backend)
    assert state.ret_value.count("a") == LINKS
    assert len(state.executor.all_asked()) == LINKS
    assert state.executor.children == set()


def test_programs_on_a_loop_do_so_as_well(backend: ScriptedBackend, alive: Alive) -> None:
    @function
    async def program(s: AsyncProgramState) -> str:
        for _ in range(LINKS):
            s = s.fork(1)[0]
            s += "a"
            await s.sync()
        return await s.text()

    state = asyncio.run(program.arun(backend=backend))
    assert state.ret_value == "a" * LINKS
    wait_until(lambda: alive.few)


def test_forks_beside_each_other_go_when_they_have_ended(
    backend: ScriptedBackend, alive: Alive
) -> None:
    @function
    def program(s: ProgramState) -> None:
        for _ in range(LINKS):
            s.fork(1)[0].__iadd__(gen("x"))
        s.sync()
        wait_until(lambda: alive.few)

    state = program.run(backend=backend)
    assert len(backend.calls) == len(state.executor.all_asked()) == LINKS


def test_forks_of_a_joined_fork_end_with_the_program(backend: ScriptedBackend) -> None:
    go, held = threading.Event(), list[ProgramState]()
    backend.answer = lambda text: str(go.wait(60))

    @function
    def program(s: ProgramState) -> None:
        forks = s.fork(2)
        held.append(forks[0].fork(1)[0])
        forks.join()
        held[0].__iadd__(gen("x"))
        assert s.executor.family()[1:] == [held[0].executor]
        go.set()

    state = program.run(backend=backend)
    assert held[0].executor.variables["x"].value.done()
    assert state.executor.children == set()


def test_an_error_of_a_fork_that_nobody_holds_is_not_lost(backend: ScriptedBackend) -> None:
    def broken(text: str) -> str:
        raise OSError("gone wrong")

    backend.answer = broken

    @function
    def program(s: ProgramState) -> None:
        s.fork(1)[0].fork(1)[0].__iadd__(gen("x"))
        s += "more"
        s.sync()
        wait_until(lambda: bool(backend.calls))

    with pytest.raises(OSError, match="gone wrong"):
        program.run(backend=backend)


def test_readers_of_a_fork_that_nobody_holds_reach_its_end(backend: ScriptedBackend) -> None:
    @function
    def program(s: ProgramState) -> str:
        child = s.fork(1)[0]
        child += "abc" + gen("x")
        pieces = child.text_iter()
        del child
        return "".join(pieces)

    assert program.run(backend=backend).ret_value == "abc(3)"


@pytest.fixture
def stop(backend: ScriptedBackend) -> Iterator[Callable[[], None]]:
    """Lets the backend's loop do nothing until it is called."""
    go = threading.Event()
    backend.loop.call_soon_threadsafe(go.wait, 60)
    yield go.set
    go.set()


def test_a_chain_too_far_ahead_of_the_model_is_refused(
    backend: ScriptedBackend, stop: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "MAX_GENERATIONS", 10)
    depths = list[int]()

    @function
    def program(s: ProgramState) -> None:
        first = s
        try:
            while True:
                s = s.fork(1)[0]
                depths.append(len(depths))
        finally:
            stop()
            first.sync()

    with pytest.raises(InvalidRequest, match="10 times from one fork to the next"):
        program.run(backend=backend)
    assert len(depths) == 10


def test_a_chain_that_waits_for_the_model_may_be_endless(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "MAX_GENERATIONS", 10)

    @function
    def program(s: ProgramState) -> str:
        for turn in range(100):
            s = s.fork(1)[0]
            s += "a"
            if turn % 7 == 0:
                s.sync()
        return s.text()

    assert program.run(backend=backend).ret_value == "a" * 100
