"""Ways to run programs: streaming, in batches, as coroutines, cancelled, traced."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_backend import ScriptedBackend, generating, wait_until

from radixgen.errors import RequestAborted, UnsetVariable
from radixgen.lang.api import (
    function,
    gen,
    user,
)
from radixgen.lang.many import FIRST_THREADS
from radixgen.lang.state import AsyncProgramState, ProgramState


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    scripted = ScriptedBackend()
    yield scripted
    scripted.close()


def test_streams(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "abc" + gen("a") + "d"

    state = program.run(stream=True, backend=backend)
    pieces = list(state.text_iter())
    assert "".join(pieces) == "abc(3)d"
    assert list(state.text_iter("a")) == ["(", "3", ")"]

    async def read() -> list[str]:
        return [piece async for piece in state.text_async_iter("a")]

    assert asyncio.run(read()) == ["(", "3", ")"]


def test_readers_of_a_running_program_wait_for_its_variables(backend: ScriptedBackend) -> None:
    go = threading.Event()

    @function
    def program(s: Any) -> None:
        go.wait()
        s += "abc" + gen("a")

    state = program.run(stream=True, backend=backend)
    threading.Timer(0.1, go.set).start()
    assert list(state.text_iter("a")) == ["(", "3", ")"]
    assert state.get_meta_info("a")["completion_tokens"] == 3
    assert state.text() == "abc(3)"
    with pytest.raises(UnsetVariable, match="has set no variable 'b'"):
        state["b"]
    go.clear()
    state = program.run(stream=True, backend=backend)
    threading.Timer(0.1, go.set).start()

    async def read() -> list[Any]:
        return [p async for p in state.text_async_iter("a", return_meta_data=True)]

    pieces = asyncio.run(read())
    assert [piece for piece, _ in pieces] == ["(", "3", ")"]
    state.sync()


def test_stream_ends_with_the_programs_error(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "abc"
        raise ValueError("mine")

    state = program.run(stream=True, backend=backend)
    with pytest.raises(ValueError, match="mine"):
        list(state.text_iter())
    assert isinstance(state.error(), ValueError)


def test_run_batch_orders_and_isolates(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any, i: int) -> None:
        s += "p" * 100
        s += str(i) + gen("a")
        if i == 2:
            raise RuntimeError("two")

    states = program.run_batch([{"i": i} for i in range(5)], backend=backend, num_threads=3)
    assert [state.text()[100] for state in states if state.error() is None] == ["0", "1", "3", "4"]
    assert str(states[2].error()) == "two"
    assert ("warm", "p" * 100) in backend.calls
    assert program.run_batch([], backend=backend) == []
    assert program.bind(i=7).run_batch([()], backend=backend)[0]["a"] == "(101)"
    lazily = program.run_batch([(7,), (8,)], backend=backend, generator_style=True)
    assert [state["a"] for state in lazily] == ["(101)", "(101)"]


def test_programs_that_block_run_side_by_side(backend: ScriptedBackend) -> None:
    running: list[int] = []
    most: list[int] = []
    together = threading.Event()  # as many as there may be

    @function
    def program(s: Any, i: int) -> None:
        s += str(i)  # a trace ends here
        running.append(i)
        most.append(len(running))
        if len(running) == 20:
            together.set()
        assert together.wait(60)
        running.remove(i)
        s += gen("a")

    states = program.run_batch([(i,) for i in range(60)], backend=backend, num_threads=20)
    assert [state.text() for state in states] == [f"{i}({len(str(i))})" for i in range(60)]
    assert max(most) == 20


def test_quick_programs_need_few_threads(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that waits for the model alone holds no thread."""
    monkeypatch.setattr("radixgen.lang.many.GROWTH_SECONDS", 3600.0)
    threads: set[int] = set()

    @function
    def program(s: Any, i: int) -> None:
        s += str(i)  # a trace ends here, in a thread of its own
        threads.add(threading.get_ident())
        s += gen("a")

    backend.delay = 0.01
    states = program.run_batch([(i,) for i in range(50)], backend=backend)
    assert [state["a"] for state in states] == [f"({len(str(i))})" for i in range(50)]
    assert len(threads) <= FIRST_THREADS


def test_async_programs(backend: ScriptedBackend) -> None:
    @function
    async def program(s: AsyncProgramState, q: str) -> str:
        s += q + gen("a")
        forks = s.fork(2)
        forks += gen("x")
        await forks.join()
        return str(await s["a"]) + "".join(await s["x"])

    async def many() -> list[Any]:
        return await asyncio.gather(*(program.arun(q="q" * i, backend=backend) for i in range(50)))

    states = asyncio.run(many())
    assert [state.ret_value for state in states][:2] == ["(0)(3)(3)", "(1)(4)(4)"]
    assert program.run(q="hey", backend=backend).ret_value == "(3)(6)(6)"


def test_blocking_reads_inside_a_loop_say_so(backend: ScriptedBackend) -> None:
    go = threading.Event()

    def answer(_: str) -> str:
        assert go.wait(60)
        return "x"

    backend.answer = answer

    @function
    def program(s: ProgramState) -> None:
        s += gen("a")

    async def main() -> None:
        state = program.run(stream=True, backend=backend)
        while "a" not in state:
            await asyncio.sleep(0.001)
        with pytest.raises(Exception, match="async def"):
            state["a"]
        go.set()
        async for _ in state.text_async_iter():
            pass

    asyncio.run(main())


def test_cancelled_programs_leave_nothing_running(backend: ScriptedBackend) -> None:
    backend.delay = 0.05
    backend.answer = lambda _: "x" * 1000

    @function
    async def program(s: AsyncProgramState) -> None:
        forks = s.fork(3)
        forks += gen("a")
        await forks.join()

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        await asyncio.to_thread(wait_until, lambda: len(generating(backend)) == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: backend.num_cancelled == 3)


def test_a_cancelled_program_logs_nothing(
    backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.delay = 0.05
    backend.answer = lambda _: "x" * 1000
    states: list[Any] = []

    @function
    async def program(s: AsyncProgramState) -> None:
        states.append(s)
        s += gen("a")
        await s["a"]

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        await asyncio.to_thread(wait_until, lambda: bool(generating(backend)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: backend.num_cancelled == 1)
        assert isinstance(states.pop().error(), RequestAborted)
        del task
        gc.collect()

    asyncio.run(main())
    gc.collect()
    assert caplog.records == []


def test_a_raising_program_aborts_its_generation(backend: ScriptedBackend) -> None:
    backend.delay = 0.05
    backend.answer = lambda _: "x" * 1000

    @function
    def program(s: Any) -> None:
        s += gen("a")
        wait_until(lambda: bool(generating(backend)))
        raise LookupError("mine")

    with pytest.raises(LookupError):
        program.run(backend=backend)
    wait_until(lambda: backend.num_cancelled == 1)


def test_cancel_gives_waiters_an_error(backend: ScriptedBackend) -> None:
    backend.delay = 0.05
    backend.answer = lambda _: "x" * 1000

    @function
    def program(s: Any) -> None:
        s += gen("a")

    state = program.run(stream=True, backend=backend)
    wait_until(lambda: bool(generating(backend)))
    state.cancel()
    with pytest.raises(RequestAborted):
        state["a"]


def test_trace_finds_the_constant_prefix() -> None:
    @function
    def program(s: Any, x: str) -> None:
        s += "constant "
        s += user("both")
        s += f"depends on {x}"

    trace = program.trace()
    assert trace.text == "constant both"
    assert not trace.complete
    assert program.bind(x="1").trace().text == "constant bothdepends on 1"
