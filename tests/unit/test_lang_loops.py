"""Programs and event loops: several at once, closed ones, the backend's own, uvloop's."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from scripted_backend import ScriptedBackend, generating, wait_until

from radixgen.errors import InvalidRequest, RadixgenError, RequestAborted
from radixgen.lang.api import function, gen
from radixgen.lang.executor import TURN, Executor
from radixgen.lang.ir import GenOptions
from radixgen.lang.state import AsyncProgramState, ProgramState
from radixgen.threads import new_loop

LOOPS = {"asyncio": asyncio.new_event_loop, "best": new_loop}


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    scripted = ScriptedBackend()
    yield scripted
    scripted.close()


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """`asyncio.run` on a loop of each kind."""

    def run_once(work: Any) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(work)

    return run_once


@function
async def asks(s: AsyncProgramState, text: str) -> str:
    s += text + gen("a")
    return str(await s["a"])


def held(backend: ScriptedBackend) -> threading.Event:
    """The model answers once this is set."""
    go = threading.Event()
    answer = backend.answer

    def late(text: str) -> str:
        assert go.wait(60)
        return answer(text)

    backend.answer = late
    return go


def test_a_thousand_programs_at_once(backend: ScriptedBackend, run: Callable[[Any], Any]) -> None:
    async def main() -> list[str]:
        states = await asyncio.gather(*(asks.arun("x", backend=backend) for _ in range(1000)))
        return [state.ret_value for state in states]

    assert run(main()) == ["(1)"] * 1000


def test_a_thousand_tasks_await_one_value(
    backend: ScriptedBackend, run: Callable[[Any], Any]
) -> None:
    go = held(backend)

    @function
    async def program(s: AsyncProgramState) -> list[str]:
        s += gen("a")

        async def read() -> str:
            return str(await s["a"])

        tasks = [asyncio.create_task(read()) for _ in range(1000)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # takes nothing from the others
        go.set()
        return [str(value) for value in await asyncio.gather(*tasks, return_exceptions=True)]

    values = run(program.arun(backend=backend)).ret_value
    assert values == ["", *["(0)"] * 999]


def test_two_loops_at_the_same_time(backend: ScriptedBackend) -> None:
    go = held(backend)
    found: dict[str, str] = {}

    def serve(name: str) -> None:
        found[name] = asyncio.run(asks.arun(name, backend=backend)).ret_value

    threads = [threading.Thread(target=serve, args=(name,)) for name in ("a", "bc")]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert found == {"a": "(1)", "bc": "(2)"}


def test_a_state_read_in_another_loop_than_its_own(backend: ScriptedBackend) -> None:
    state = asyncio.run(asks.arun("x", backend=backend))

    async def read() -> str:
        return str(await state["a"])

    assert [asyncio.run(read()) for _ in range(2)] == ["(1)", "(1)"]


def test_a_loop_closed_while_a_value_is_awaited_disturbs_nobody(
    backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    go = held(backend)
    loop = asyncio.new_event_loop()
    state = AsyncProgramState(Executor(backend, GenOptions(), "program"))

    async def read() -> None:
        await state["a"]

    state += "x" + gen("a")
    reading = loop.create_task(read())
    loop.run_until_complete(asyncio.sleep(0))
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(reading)
    loop.close()
    go.set()
    assert asyncio.run(asks.arun("xy", backend=backend)).ret_value == "(2)"
    assert ProgramState(state.executor)["a"] == "(1)"
    assert caplog.records == []


def test_one_of_several_fails_and_the_others_go_on(
    backend: ScriptedBackend, run: Callable[[Any], Any]
) -> None:
    @function
    async def program(s: AsyncProgramState, i: int) -> str:
        s += "x" * i + gen("a")
        if i == 2:
            raise LookupError("mine")
        return str(await s["a"])

    async def main() -> list[Any]:
        runs = [program.arun(i, backend=backend) for i in range(4)]
        return await asyncio.gather(*runs, return_exceptions=True)

    first, second, failed, last = run(main())
    assert [state.ret_value for state in (first, second, last)] == ["(0)", "(1)", "(3)"]
    assert isinstance(failed, LookupError)


def test_programs_inside_programs(backend: ScriptedBackend, run: Callable[[Any], Any]) -> None:
    @function
    def blocking(s: ProgramState) -> str:
        s += "in" + gen("a")
        return str(s["a"])

    @function
    async def outer(s: AsyncProgramState) -> list[str]:
        s += gen("a")
        inner = await asks.arun("x", backend=backend)
        return [inner.ret_value, blocking.run(backend=backend).ret_value, str(await s["a"])]

    assert run(outer.arun(backend=backend)).ret_value == ["(1)", "(2)", "(0)"]
    assert outer.run(backend=backend).ret_value == ["(1)", "(2)", "(0)"]


def test_two_tasks_cannot_say_things_to_one_state(backend: ScriptedBackend) -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        async def add() -> None:
            nonlocal s
            s += "mine"

        s += "mine first"
        with pytest.raises(InvalidRequest, match="from two threads or tasks"):
            await asyncio.create_task(add())

    program.run(backend=backend)


@pytest.fixture
def here() -> Iterator[ScriptedBackend]:
    """A backend without a thread: its loop is that of whoever runs `here.loop`."""
    scripted = ScriptedBackend()
    scripted.close()
    scripted.loop = new_loop()
    yield scripted
    scripted.loop.close()


def test_on_the_backends_own_loop(here: ScriptedBackend) -> None:
    @function
    async def program(s: AsyncProgramState) -> str:
        forks = s.fork(3)
        forks += "abc" + gen("x")
        await forks.join()
        s += gen("a")
        pieces = [piece async for piece in s.text_iter("a")]
        return "".join(pieces) + "".join(await s["x"]) + str(await s["a"])

    async def main() -> list[Any]:
        return await asyncio.gather(*(program.arun(backend=here) for _ in range(50)))

    states = here.loop.run_until_complete(main())
    assert [state.ret_value for state in states] == ["(0)(3)(3)(3)(0)"] * 50


def test_cancelled_on_the_backends_own_loop(here: ScriptedBackend) -> None:
    here.delay = 3600.0

    async def main() -> None:
        running = asyncio.create_task(asks.arun("x", backend=here))
        while not generating(here):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while not here.num_cancelled:
            await asyncio.sleep(0)
        while len(asyncio.all_tasks()) > 1:  # all but this one end
            await asyncio.sleep(0)

    here.loop.run_until_complete(main())


def test_a_batch_closed_after_its_programs_have_ended(backend: ScriptedBackend) -> None:
    before = threading.active_count()
    states = asks.run_batch([("a",), ("b",)], backend=backend, generator_style=True)
    assert next(states).ret_value == "(1)"
    wait_until(lambda: threading.active_count() <= before)  # its loop is closed
    states.close()


def test_a_backend_that_has_ended(backend: ScriptedBackend) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    backend.loop, kept = loop, backend.loop
    with pytest.raises(RadixgenError, match="has been shut down"):
        asks.run("x", backend=backend)
    backend.loop = kept


def test_a_backend_that_ends_before_a_state_began(backend: ScriptedBackend) -> None:
    reached = list[Future[None]]()

    def end() -> None:
        state = Executor(backend, GenOptions(), "program")
        backend.close()
        backend.loop.call_soon(lambda: reached.append(state.barrier()))

    backend.loop.call_soon_threadsafe(end)
    wait_until(backend.loop.is_closed)
    reached[0].result(0)  # or whoever waits for the state would wait for ever


def test_much_text_leaves_others_of_the_loop_their_turn(here: ScriptedBackend) -> None:
    @function
    async def program(s: AsyncProgramState) -> int:
        s += ["x"] * (10 * TURN)
        done, num_turns = asyncio.ensure_future(s.sync()), 0
        while not done.done():
            await asyncio.sleep(0)
            num_turns += 1
        assert await s.text() == "x" * (10 * TURN)
        return num_turns

    state = here.loop.run_until_complete(program.arun(backend=here))
    assert state.ret_value >= 10


@pytest.mark.parametrize("num_turns", range(6))
def test_cancelled_at_any_moment(here: ScriptedBackend, num_turns: int) -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        s += "x"
        for _ in range(num_turns):
            await asyncio.sleep(0)
        s.cancel()
        for _ in range(6):
            await asyncio.sleep(0)
        s += "y"

    with pytest.raises(RequestAborted, match="was cancelled"):
        here.loop.run_until_complete(program.arun(backend=here))


def test_a_program_without_an_end_is_ended_by_its_time_limit(backend: ScriptedBackend) -> None:
    @function
    def blocking(s: ProgramState) -> None:
        while True:
            s += "more"

    @function
    async def without_await(s: AsyncProgramState) -> None:
        while True:
            s += "more"

    @function
    async def awaiting(s: AsyncProgramState) -> None:
        await asyncio.sleep(3600)

    lines = ('s += "more"', 's += "more"', "await asyncio.sleep(3600)")
    for program, line in zip((blocking, without_await, awaiting), lines, strict=True):
        with pytest.raises(RequestAborted, match="time_limit") as caught:
            program.run(backend=backend, time_limit=0.05)
        assert line in "".join(caught.value.__notes__)
    assert asks.run("x", backend=backend).ret_value == "(1)"


FORGOTTEN: list[Callable[[Any], object]] = [
    lambda value: f"{value}",
    lambda value: str(value),
    lambda value: value == "yes",
    lambda value: value in ("yes", "no"),
    lambda value: value or "no",
    lambda value: "the " + value,
    lambda value: value + " one",
    lambda value: value < 5,
]


@pytest.mark.parametrize("use", FORGOTTEN)
def test_a_forgotten_await_is_an_error(
    backend: ScriptedBackend, use: Callable[[Any], object]
) -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        s += gen("a")
        assert repr(s["a"]) == "<s['a'], to be awaited>"
        assert [*await asyncio.gather(s["a"], s["a"])] == ["(0)", "(0)"]
        use(s["a"])

    with pytest.raises(InvalidRequest, match=r"await s\['a'\]"):
        program.run(backend=backend)
