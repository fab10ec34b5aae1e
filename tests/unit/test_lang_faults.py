"""Programs that go wrong: a clear error at the user's line, others go on, nothing runs on."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_backend import ScriptedBackend, wait_until

from radixgen.errors import InvalidRequest, RequestAborted, UnsetVariable
from radixgen.lang.api import assistant_end, function, gen, separate_reasoning, user, user_begin
from radixgen.lang.executor import MAX_QUEUED
from radixgen.lang.state import AsyncProgramState


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    scripted = ScriptedBackend()
    yield scripted
    scripted.close()


@pytest.fixture
def slow(backend: ScriptedBackend) -> ScriptedBackend:
    backend.delay = 0.02
    backend.answer = lambda _: "x" * 10_000
    return backend


def line_of(error: BaseException) -> str:
    """The innermost line of this file that the error tells of, by traceback or note."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line or "" for frame in frames if frame.filename == __file__]
    return "\n".join([*lines, *getattr(error, "__notes__", ())])


def idle(backend: ScriptedBackend) -> bool:
    return not asyncio.run_coroutine_threadsafe(_others(), backend.loop).result()


async def _others() -> list[Any]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_a_program_that_raises(slow: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a")
        forks = s.fork(2)
        forks += gen("b")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as caught:
        program.run(backend=slow)
    assert 'raise LookupError("mine")' in line_of(caught.value)
    wait_until(lambda: idle(slow))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_program_that_never_ends_is_cancelled_in_time(
    slow: ScriptedBackend, is_async: bool
) -> None:
    @function
    def program(s: Any) -> None:
        while True:
            s += gen("a")
            s["a"]

    @function
    async def async_program(s: AsyncProgramState) -> None:
        await asyncio.sleep(3600)

    with pytest.raises(RequestAborted, match=r"time_limit of 0\.2s"):
        (async_program if is_async else program).run(backend=slow, time_limit=0.2)
    wait_until(lambda: idle(slow))


def test_a_busy_program_learns_of_its_time_at_the_next_step(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        wait_until(s.error)
        s += "late"

    with pytest.raises(RequestAborted, match="time_limit") as caught:
        program.run(backend=backend, time_limit=0.1)
    assert 's += "late"' in line_of(caught.value)


def test_a_program_that_runs_ahead_without_end(
    slow: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixgen.lang.executor.MAX_QUEUED", 500)

    @function
    def program(s: Any) -> None:
        while True:
            s += gen("a")

    assert MAX_QUEUED == 100_000
    with pytest.raises(InvalidRequest, match="500 steps ahead of the model: an endless loop"):
        program.run(backend=slow)
    wait_until(lambda: idle(slow))


def test_a_state_with_an_error_takes_nothing_more(backend: ScriptedBackend) -> None:
    def broken(_: str) -> str:
        raise ZeroDivisionError("in the backend")

    backend.answer = broken
    turns: list[int] = []

    @function
    def program(s: Any) -> None:
        while True:
            turns.append(1)
            s += gen("a")
            wait_until(s.error)

    with pytest.raises(ZeroDivisionError) as caught:
        program.run(backend=backend)
    assert len(turns) == 2
    assert 's += gen("a")' in line_of(caught.value)


def test_ten_thousand_forks(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "shared "
        forks = s.fork(10_000)
        forks += gen("x")
        forks.join()

    state = program.run(backend=backend)
    assert len(state["x"]) == 10_000
    assert backend.calls.count(("warm", "shared ")) == 1
    assert threading.active_count() < 20
    with pytest.raises(InvalidRequest, match="between 1 and"):
        state.fork(0)


DEEP = 1_200  # beyond the depth of Python's own stack


@pytest.mark.parametrize("is_async", [False, True])
def test_forks_of_forks_beyond_the_depth_of_the_stack(
    backend: ScriptedBackend, is_async: bool
) -> None:
    @function
    def program(s: Any) -> None:
        child = s
        for _ in range(DEEP):
            child = child.fork(1)[0]
            child += "a"
        child += gen("x")

    @function
    async def async_program(s: AsyncProgramState) -> None:
        program.function(s)

    state = (async_program if is_async else program).run(backend=backend)
    assert backend.calls == [("generate", "a" * DEEP)]
    assert state.executor.family() == [state.executor], "the others have ended"
    assert len(state.executor.all_asked()) == 1


def test_forks_of_forks_end_with_their_program(slow: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        child = s
        for _ in range(DEEP):
            child = child.fork(1)[0]
        child += gen("x")
        wait_until(lambda: bool(slow.calls))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        program.run(backend=slow)
    wait_until(lambda: slow.num_cancelled == 1)


def test_a_fault_of_the_clean_up_ends_the_program_too(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, reason: str) -> None:
        raise RecursionError("too deep")

    @function
    def program(s: Any) -> None:
        s += "text"
        raise LookupError("mine")

    monkeypatch.setattr("radixgen.lang.executor.Executor._cancel", broken)
    with pytest.raises(LookupError, match="mine") as caught:
        program.run(backend=backend)
    assert "being ended: RecursionError('too deep')" in "".join(caught.value.__notes__)


def test_reading_what_is_not_set(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("answer")
        s["anwser"]

    with pytest.raises(UnsetVariable, match="no variable 'anwser'; it has: 'answer'") as caught:
        program.run(backend=backend)
    assert 's["anwser"]' in line_of(caught.value)
    assert 's["anwser"]' in "".join(caught.value.__notes__)


def test_joining_twice_and_adding_to_the_joined(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any, twice: bool) -> None:
        forks = s.fork(2)
        forks += gen("x")
        forks.join()
        if twice:
            forks.join()
        forks += "more"

    with pytest.raises(InvalidRequest, match="joined already"):
        program.run(backend=backend, twice=True)
    with pytest.raises(InvalidRequest, match="this state has ended"):
        program.run(backend=backend, twice=False)


def test_roles_out_of_order_are_refused_before_anything_is_sent(backend: ScriptedBackend) -> None:
    @function
    def nested(s: Any) -> None:
        s += gen("a") + user_begin() + user("b")

    @function
    def closed(s: Any) -> None:
        s += gen("a") + assistant_end()

    with pytest.raises(InvalidRequest, match="user begins inside user") as caught:
        nested.run(backend=backend)
    assert "s += gen" in line_of(caught.value)
    with pytest.raises(InvalidRequest, match="assistant ends, but no role is open"):
        closed.run(backend=backend)
    assert backend.calls == []


def test_a_refused_order_of_roles_can_be_mended(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        with pytest.raises(InvalidRequest):
            s += user_begin() + user("b")
        s += user("b")

    assert program.run(backend=backend).messages() == [{"role": "user", "content": "b"}]


def test_two_constraints_are_refused_where_they_are_written(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a", regex="x+", choices=["a"])

    with pytest.raises(InvalidRequest, match="one constraint, not regex and choices") as caught:
        program.run(backend=backend)
    assert "s += gen" in line_of(caught.value)


def test_run_options_are_checked_before_the_program_starts(backend: ScriptedBackend) -> None:
    ran = []

    @function
    def program(s: Any) -> None:
        ran.append(1)

    with pytest.raises(InvalidRequest, match="temperature"):
        program.run(backend=backend, temperature=-1)
    with pytest.raises(InvalidRequest, match="top_p"):
        program.run_batch([{}], backend=backend, top_p=3)
    assert not ran


def test_a_variable_made_twice_has_its_last_value(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "1" + gen("a") + "22" + gen("a")

    assert program.run(backend=backend)["a"] == "(6)"


def test_forks_that_nobody_joins_are_waited_for(backend: ScriptedBackend) -> None:
    backend.delay = 0.01

    @function
    def program(s: Any) -> Any:
        forks = s.fork(3)
        forks += gen("x")
        return forks

    forks = program.run(backend=backend).ret_value
    assert all(fork.executor.variables["x"].value.done() for fork in forks)


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_of_forks_that_nobody_joins_reach_run(
    backend: ScriptedBackend, is_async: bool
) -> None:
    def sometimes(text: str) -> str:
        if text == "1":
            raise OSError("one")
        return "ok"

    backend.answer = sometimes

    @function
    def program(s: Any, look: bool) -> None:
        forks = s.fork(2)
        forks += ["0", "1"]
        forks += gen("x")
        if look:
            with pytest.raises(OSError, match="one"):
                forks[1]["x"]

    @function
    async def async_program(s: AsyncProgramState, look: bool) -> None:
        forks = s.fork(2)
        forks += ["0", "1"]
        forks += gen("x")
        if look:
            with pytest.raises(OSError, match="one"):
                await forks[1]["x"]

    chosen = async_program if is_async else program
    assert chosen.run(look=True, backend=backend).error() is None
    with pytest.raises(OSError, match="one") as caught:
        chosen.run(look=False, backend=backend)
    assert 'forks += gen("x")' in line_of(caught.value)


def test_values_that_never_come_fail_instead_of_blocking(backend: ScriptedBackend) -> None:
    def broken(text: str) -> str:
        raise ZeroDivisionError

    backend.answer = broken

    @function
    def program(s: Any) -> None:
        s += [gen("a"), separate_reasoning(gen("b")), gen("c")]

    state = program.run(backend=backend, stream=True)
    wait_until(lambda: state.error() is not None)
    for name in ("a", "b", "b_reasoning_content", "c"):
        with pytest.raises(ZeroDivisionError):
            state[name]


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_a_batch_cancels_what_runs(slow: ScriptedBackend, is_async: bool) -> None:
    @function
    def program(s: Any, i: int) -> None:
        s += gen("a") if i else "quick"

    @function
    async def async_program(s: AsyncProgramState, i: int) -> None:
        s += gen("a") if i else "quick"

    chosen = async_program if is_async else program
    before = threading.active_count()
    items = [{"i": i} for i in range(20)]
    states = chosen.run_batch(items, backend=slow, generator_style=True, num_threads=4)
    assert next(states).text() == "quick"
    wait_until(lambda: not idle(slow))
    states.close()
    wait_until(lambda: idle(slow))
    wait_until(lambda: threading.active_count() <= before)


class HeldTimers:
    """In place of a loop's `call_later`: timers of `seconds` go off when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._later, self._seconds = loop, loop.call_later, seconds
        self._held: list[tuple[asyncio.TimerHandle, Callable[[], None]]] = []

    def __call__(self, delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        handle = self._later(delay, callback, *args)
        if delay == self._seconds:
            self._held.append((handle, lambda: callback(*args)))
        return handle

    def go_off(self) -> None:
        for handle, call in self._held:
            if not handle.cancelled():
                self._loop.call_soon_threadsafe(call)


def test_a_batch_has_a_time_limit_for_each(
    slow: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    @function
    def program(s: Any, i: int) -> None:
        s += gen("a") if i else "quick"

    timers = HeldTimers(slow.loop, 3600.0)
    monkeypatch.setattr(slow.loop, "call_later", timers)
    items = [(0,), (1,)]
    states = program.run_batch(items, backend=slow, time_limit=3600.0, generator_style=True)
    assert next(states).error() is None
    wait_until(lambda: bool(slow.calls))
    timers.go_off()
    assert "time_limit" in str(next(states).error())
    assert list(states) == []


def test_programs_run_inside_a_running_loop_as_in_notebooks(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> str:
        s += gen("a")
        return str(s["a"])

    @function
    async def async_program(s: AsyncProgramState) -> str:
        s += gen("a")
        return str(await s["a"])

    async def cell() -> list[str]:
        return [p.run(backend=backend).ret_value for p in (program, async_program)]

    assert asyncio.run(cell()) == ["(0)", "(0)"]

    async def inside() -> None:
        program.run(backend=backend)

    with pytest.raises(InvalidRequest, match=r"await program\.arun"):
        asyncio.run_coroutine_threadsafe(inside(), backend.loop).result()


def test_async_copies(backend: ScriptedBackend) -> None:
    @function
    async def program(s: AsyncProgramState) -> str:
        s += "base"
        with s.copy() as t:
            t += gen("x")
            value = str(await t["x"])
        with pytest.raises(InvalidRequest, match="has ended"):
            t += "more"
        return value

    assert program.run(backend=backend).ret_value == "(4)"
