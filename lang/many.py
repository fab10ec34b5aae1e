"""Batches of programs: so many at a time, outcomes in order, nothing left behind.

def programs        threads, for as long as their own code runs
async def programs  one thread with an event loop, a task each
"""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.lang.place import note_line
from radixgen.lang.play import AnyState, aplay, await_forks, play_quietly, speak
from radixgen.lang.state import AsyncProgramState, ProgramState
from radixgen.threads import new_loop

BATCH_CHUNK = 200  # programs that are kept ahead of whoever reads their outcomes
FIRST_THREADS = 4
GROWTH_SECONDS = 0.005  # without any progress, before there are more threads
ASYNC_WIDTH = 1024  # `async def` programs at a time, when not said otherwise

Start = Callable[[], AnyState]
_Work = tuple[dict[str, Any], Future[AnyState]]


def as_blocking(state: AnyState) -> ProgramState:
    """The state for a caller without an event loop."""
    return state if isinstance(state, ProgramState) else ProgramState(state.executor)


def batch_width(num_threads: int | str, *, is_async: bool) -> int:
    """Programs at a time. Raises InvalidRequest."""
    if num_threads == "auto":
        return ASYNC_WIDTH if is_async else max(96, 16 * (os.cpu_count() or 1))
    if not isinstance(num_threads, int) or num_threads < 1:
        raise InvalidRequest(f"num_threads={num_threads!r}: 'auto' or at least 1", "num_threads")
    return num_threads


def in_threads(
    function: Callable[..., Any],
    start: Start,
    items: Sequence[dict[str, Any]],
    width: int,
    time_limit: float | None,
) -> Iterator[ProgramState]:
    """States in order, `width` at a time. Closing the iterator cancels what runs."""
    loop = start().executor.backend.loop
    crew = _Crew(function, start, min(width, len(items)), time_limit, loop)
    ahead = max(width, BATCH_CHUNK)
    try:
        running = [crew.send(item) for item in items[:ahead]]
        for index in range(len(items)):
            if index + ahead < len(items):
                running.append(crew.send(items[index + ahead]))
            yield as_blocking(running[index].result())
    except BaseException:
        crew.cancel()
        raise
    finally:
        crew.disband()


class _Crew:
    """Threads that run programs. A thread is only needed while a program's own code runs: what it
    has said goes on by itself, and the thread takes the next one.

    There are few at first, since threads that all want to run keep the event loop from doing so;
    while none gets on, because their programs wait, there are more, up to `width`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        start: Start,
        width: int,
        time_limit: float | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._function = function
        self._start = start
        self._width = width
        self._time_limit = time_limit
        self._loop = loop
        self._places = threading.Semaphore(width)  # one for each program under way
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_taken = 0  # of the work, by any thread
        self._alive: set[AnyState] = set()
        self._stopped = threading.Event()
        self._done = False  # nothing more will be sent
        for _ in range(min(FIRST_THREADS, width)):
            self._add_thread()
        self._look_soon(0)

    def send(self, arguments: dict[str, Any]) -> Future[AnyState]:
        """Run a program when there is a place; its state, when it has ended."""
        outcome: Future[AnyState] = Future()
        self._waiting.put((arguments, outcome))
        return outcome

    def cancel(self) -> None:
        """Nothing more begins, and what runs is cancelled."""
        self._stopped.set()
        for state in list(self._alive):
            state.cancel()

    def disband(self) -> None:
        """Wait for whatever still runs."""
        self._done = True
        for _ in range(self._width):
            self._waiting.put(None)
        for thread in list(self._threads):
            thread.join()
        for _ in range(self._width):
            self._places.acquire()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            self._num_taken += 1
            self._run(*work)

    def _look_soon(self, num_taken: int) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(
                self._loop.call_later, GROWTH_SECONDS, self._grow, num_taken
            )

    def _grow(self, num_taken: int) -> None:
        """On the loop, now and then: as many threads again, when none has taken up anything."""
        if self._done or len(self._threads) >= self._width:
            return
        if self._num_taken == num_taken and not self._waiting.empty():
            for _ in range(min(len(self._threads), self._width - len(self._threads))):
                self._add_thread()
        self._look_soon(self._num_taken)

    def _run(self, arguments: dict[str, Any], outcome: Future[AnyState]) -> None:
        self._places.acquire()
        if self._stopped.is_set():
            self._places.release()
            return
        state = self._start()
        self._alive.add(state)
        if self._stopped.is_set():  # in the meantime
            state.cancel()
        if self._time_limit is not None or not isinstance(state, ProgramState):
            play_quietly(self._function, state, arguments, self._time_limit)
            self._conclude(state, outcome)
            return
        try:
            reached = speak(self._function, state, arguments)
        except BaseException as error:
            note_line(error, state.executor.program)
            state.executor.end(error)
            self._conclude(state, outcome)
        else:
            reached.add_done_callback(lambda _: self._ended(state, outcome))

    def _ended(self, state: ProgramState, outcome: Future[AnyState]) -> None:
        """All that the program said is done. Forks that it did not join may not be, and waiting for
        them needs a thread that may wait."""
        if state.executor.error is not None:
            state.executor.end(state.executor.error)
        if state.executor.error is None and state.executor.children:
            threading.Thread(target=self._await_forks, args=(state, outcome)).start()
        else:
            self._conclude(state, outcome)

    def _await_forks(self, state: ProgramState, outcome: Future[AnyState]) -> None:
        try:
            await_forks(state.executor)
        except Exception as error:
            state.executor.end(error)
        self._conclude(state, outcome)

    def _conclude(self, state: AnyState, outcome: Future[AnyState]) -> None:
        state._owner = None
        self._alive.discard(state)
        self._places.release()
        outcome.set_result(state)


def in_tasks(
    function: Callable[..., Any],
    start: Start,
    items: Sequence[dict[str, Any]],
    width: int,
    time_limit: float | None,
) -> Iterator[ProgramState]:
    """The same for `async def` programs."""
    outcomes: list[Future[AnyState]] = [Future() for _ in items]
    runner = asyncio.Runner(loop_factory=new_loop)
    loop = runner.get_loop()
    tasks: list[asyncio.Task[None]] = []

    async def one(arguments: dict[str, Any], places: asyncio.Semaphore, at: int) -> None:
        async with places:
            state = start()
            assert isinstance(state, AsyncProgramState)
            try:
                await aplay(function, state, arguments, time_limit)
            except Exception as error:
                state.executor.end(error)
            outcomes[at].set_result(state)

    async def everything() -> None:
        places = asyncio.Semaphore(width)
        tasks.extend(loop.create_task(one(item, places, at)) for at, item in enumerate(items))
        await asyncio.wait(tasks)

    def serve() -> None:
        with runner:
            runner.run(everything())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        for outcome in outcomes:
            yield as_blocking(outcome.result())
    except BaseException:
        with contextlib.suppress(RuntimeError):  # its loop is closed: they have all ended
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        raise
    finally:
        thread.join()


def with_progress(states: Iterator[Any], total: int, name: str) -> Iterator[Any]:
    """The same states, with a bar on the terminal."""
    from rich.progress import track

    yield from track(states, description=name, total=total)
