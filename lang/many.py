"""Batches of programs: so many at a time, outcomes in order, nothing left behind.

def programs        a pool of threads
async def programs  one thread with an event loop, a task each
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.lang.play import AnyState, aplay, play_quietly
from radixgen.lang.state import AsyncProgramState, ProgramState

BATCH_CHUNK = 200  # programs that are kept ahead of whoever reads their outcomes
ASYNC_WIDTH = 1024  # `async def` programs at a time, when not said otherwise

Start = Callable[[], AnyState]


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
    alive: set[AnyState] = set()
    stopped = threading.Event()

    def one(arguments: dict[str, Any]) -> AnyState:
        state = start()
        alive.add(state)
        if stopped.is_set():
            state.cancel()
        play_quietly(function, state, arguments, time_limit)
        alive.discard(state)
        return state

    ahead = max(width, BATCH_CHUNK)
    pool = ThreadPoolExecutor(min(width, len(items)))
    try:
        running: list[Future[AnyState]] = [pool.submit(one, item) for item in items[:ahead]]
        for index in range(len(items)):
            if index + ahead < len(items):
                running.append(pool.submit(one, items[index + ahead]))
            yield as_blocking(running[index].result())
    except BaseException:
        stopped.set()
        for state in list(alive):
            state.cancel()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_tasks(
    function: Callable[..., Any],
    start: Start,
    items: Sequence[dict[str, Any]],
    width: int,
    time_limit: float | None,
) -> Iterator[ProgramState]:
    """The same for `async def` programs."""
    outcomes: list[Future[AnyState]] = [Future() for _ in items]
    loop = asyncio.new_event_loop()
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
        loop.run_until_complete(everything())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        for outcome in outcomes:
            yield as_blocking(outcome.result())
    except BaseException:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        raise
    finally:
        thread.join()


def with_progress(states: Iterator[Any], total: int, name: str) -> Iterator[Any]:
    """The same states, with a bar on the terminal."""
    from rich.progress import track

    yield from track(states, description=name, total=total)
