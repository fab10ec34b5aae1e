"""How a program runs from its first line to its end: in this thread, in a task, within a time.

    def program        its own thread blocks for values
    async def program  a coroutine awaits them

Owns the end: whatever happens, the state has its outcome and nothing runs on. Knows states; not
how programs are written or batched.
"""

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from radixgen.errors import InvalidRequest, RequestAborted
from radixgen.lang.executor import Executor
from radixgen.lang.place import note_line
from radixgen.lang.state import AsyncProgramState, ProgramState
from radixgen.lang.variables import Awaited, arrival, running_loop, wait_for

MAX_SECONDS = 1e9  # 31 years; timers take no arbitrary number

AnyState = ProgramState | AsyncProgramState


def check_time_limit(seconds: Any) -> None:
    """Raises InvalidRequest for what is no time that a program can be given."""
    if seconds is None:
        return
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= MAX_SECONDS:
        raise InvalidRequest(
            f"time_limit={seconds!r}: a number of seconds above 0 and at most {MAX_SECONDS:.0e}, "
            "or None for no limit",
            "time_limit",
        )


def apart(work: Callable[[], Any]) -> Any:
    """Call `work` here, or in another thread when this one runs an event loop, as notebooks do:
    there a program could not wait for its values."""
    if running_loop() is None:
        return work()
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, work).result()


def play(
    function: Callable[..., Any],
    state: AnyState,
    arguments: Mapping[str, Any],
    time_limit: float | None = None,
) -> None:
    """Run a program to its end in this thread. Raises what it raises."""
    if isinstance(state, AsyncProgramState):
        asyncio.run(aplay(function, state, arguments, time_limit))
        return
    executor = state.executor
    try:
        with _limited(executor, time_limit):
            wait_for(speak(function, state, arguments), what="the end of the program")
            await_forks(executor)
    except BaseException as error:
        note_line(error, executor.program)
        executor.end(error)
        raise
    finally:
        state._owner = None


def speak(
    function: Callable[..., Any], state: ProgramState, arguments: Mapping[str, Any]
) -> Future[None]:
    """Run a program's own code; returns the future of the end of all that it has said."""
    state.executor.ret_value = function(state, **arguments)
    _refuse_coroutine(state.executor.ret_value, state.executor.program)
    return state.executor.finish()


def play_quietly(
    function: Callable[..., Any],
    state: AnyState,
    arguments: Mapping[str, Any],
    time_limit: float | None = None,
) -> None:
    """For a thread of its own: the error is the state's, its readers see it."""
    try:
        play(function, state, arguments, time_limit)
    except Exception as error:
        state.executor.end(error)


async def aplay(
    function: Callable[..., Any],
    state: AsyncProgramState,
    arguments: Mapping[str, Any],
    time_limit: float | None = None,
) -> None:
    """Run an `async def` program to its end in this task. Raises what it raises."""
    executor = state.executor
    limit = asyncio.timeout(time_limit)
    try:
        # One limit for whatever is awaited; one for a state that is added to without an await.
        with _limited(executor, time_limit):
            async with limit:
                executor.ret_value = await function(state, **arguments)
                await Awaited(executor.finish())
                for child, reached in _forks(executor):
                    await arrival(reached)
                    _look(child)
    except TimeoutError as error:
        executor.end(_too_long(executor.program, time_limit) if limit.expired() else error)
        ended = executor.error
        if ended is not None and ended is not error:
            where = error.__cause__.__traceback__ if error.__cause__ else None
            note_line(ended.with_traceback(where), executor.program)
            raise ended from None
        raise
    except asyncio.CancelledError:
        executor.end(RequestAborted(f"program {executor.program!r} was cancelled"))
        raise
    except BaseException as error:
        note_line(error, executor.program)
        executor.end(error)
        raise
    finally:
        state._owner = None


def await_forks(executor: Executor) -> None:
    """Wait for forks that were never joined. Raises an error of theirs that nobody has met."""
    for child, reached in _forks(executor):
        reached.exception()
        _look(child)


def _refuse_coroutine(value: Any, program: str) -> None:
    if inspect.iscoroutine(value):
        value.close()
        raise InvalidRequest(
            f"program {program!r} returned a coroutine: write it as `async def`, or await it"
        )


def _forks(executor: Executor) -> Iterator[tuple[Executor, Future[None]]]:
    """Forks that were never joined, and theirs, with the future of their end.

    A fork's own are known once it has ended. Not recursive, since forks may be nested deeply.
    """
    waiting = _ends(executor)
    while waiting:
        child, reached = waiting.pop()
        yield child, reached
        waiting += _ends(child)


def _ends(executor: Executor) -> list[tuple[Executor, Future[None]]]:
    """Of its own forks; the last is to be looked at first."""
    return [(child, child.finish()) for child in list(executor.children)][::-1]


def _look(child: Executor) -> None:
    """An error that the program has not met anywhere else is met here."""
    if child.error is not None and not child.error_seen:
        raise child.error


def _too_long(program: str, time_limit: float | None) -> RequestAborted:
    return RequestAborted(f"program {program!r} did not end within its time_limit of {time_limit}s")


@contextlib.contextmanager
def _limited(executor: Executor, seconds: float | None) -> Iterator[None]:
    """End a state after some time. Its thread learns it at its next step with the state."""
    if seconds is None:
        yield
        return
    loop, reason = executor.backend.loop, str(_too_long(executor.program, seconds))
    timers: list[asyncio.TimerHandle] = []

    def begin() -> None:
        timers.append(loop.call_later(seconds, executor.cancel, reason))

    closed = contextlib.suppress(RuntimeError)  # the loop: nothing can take too long there
    with closed:
        loop.call_soon_threadsafe(begin)
    try:
        yield
    finally:
        with closed:
            loop.call_soon_threadsafe(lambda: timers[0].cancel())
