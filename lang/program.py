"""`@function` programs: a Python function of a state, run once, in batches, streaming or traced.

Owns how a program is started, in which thread or task it runs, and how it ends. Knows states; the
backend only as what it hands to them.
"""

import asyncio
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.lang.backends.default import resolve_backend
from radixgen.lang.backends.protocol import Backend
from radixgen.lang.executor import Executor, wait_for
from radixgen.lang.ir import GenOptions
from radixgen.lang.options import run_options
from radixgen.lang.state import AsyncProgramState, Awaited, ProgramState
from radixgen.lang.trace import Trace, constant_prefix, trace_program

MIN_CACHED_CHARACTERS = 64  # a shorter constant prefix is not worth a request of its own
BATCH_CHUNK = 200  # programs that `generator_style` keeps ahead of its reader


class Program:
    """A function of a state `s`, made by `@function`."""

    def __init__(
        self, function: Callable[..., Any], bound: Mapping[str, Any] | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", "program")
        self.bound = dict(bound or {})
        self.is_async = inspect.iscoroutinefunction(function)
        names = list(inspect.signature(function).parameters)
        if not names or names[0] != "s":
            raise InvalidRequest(f"program {self.name!r}: its first parameter must be named s", "s")
        self.arg_names = names[1:]

    def __repr__(self) -> str:
        return f"<program {self.name}({', '.join(('s', *self.arg_names))})>"

    def bind(self, **kwargs: Any) -> "Program":
        """The same program with some arguments given."""
        unknown = kwargs.keys() - set(self.arg_names)
        if unknown:
            raise InvalidRequest(f"program {self.name!r} has no argument {min(unknown)!r}")
        return Program(self.function, self.bound | kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`run`; or, with a state as the first argument, a call of one program by another."""
        if args and isinstance(args[0], ProgramState | AsyncProgramState):
            return self.function(*args, **self.bound | kwargs)
        return self.run(*args, **kwargs)

    def run(
        self,
        *args: Any,
        backend: Any = None,
        stream: bool = False,
        use_thread: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Run once and return the state, all of it done; `stream=True`: at once, still running.

        Sampling parameters (`max_new_tokens, temperature, stop, …`) are defaults for every `gen`.
        Raises what the program raises, with the line of the program. `use_thread` is accepted for
        SGLang's sake: a state needs no thread of its own.
        """
        options, arguments = self._split(args, kwargs)
        state = self._state(resolve_backend(backend), options)
        if stream:
            context = contextvars.copy_context()
            run = functools.partial(context.run, self._play_quietly, state, arguments)
            threading.Thread(target=run, name=self.name, daemon=True).start()
        else:
            self._play(state, arguments)
        return state

    async def arun(self, *args: Any, backend: Any = None, **kwargs: Any) -> Any:
        """`run` for an event loop. Cancelling it aborts what the model is doing for the program.

        An `async def` program runs as a coroutine, a `def` program in a thread.
        """
        options, arguments = self._split(args, kwargs)
        state = self._state(resolve_backend(backend), options)
        try:
            if isinstance(state, AsyncProgramState):
                await self._aplay(state, arguments)
            else:
                await asyncio.to_thread(self._play, state, arguments)
        except asyncio.CancelledError:
            state.cancel()
            raise
        return state

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run once for each item; the states in order. A failed one holds its error.

        Items are dicts of arguments or tuples in order. What all have in common is found by tracing
        and put into the cache first. `generator_style`: an iterator instead of a list.
        """
        items = [self._item(item, index) for index, item in enumerate(batch_kwargs)]
        options, _ = self._split((), kwargs, need_all=False)
        where = resolve_backend(backend)
        if len(items) > 1:
            self._warm(where)
        width = min(_threads(num_threads), max(len(items), 1))
        states = self._batch(where, options, items, width)
        shown = _with_progress(states, len(items), self.name) if progress_bar else states
        return shown if generator_style else list(shown)

    def trace(self, *, backend: Any = None, **kwargs: Any) -> Trace:
        """What the program says up to the first thing that depends on an argument or the model."""
        return trace_program(self.function, self.arg_names, self.bound | kwargs)

    def cache(self, backend: Any = None) -> None:
        """Put the program's constant prefix into the backend's cache, when it is worth it."""
        self._warm(resolve_backend(backend))

    # ---- one run ----

    def _split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, need_all: bool = True
    ) -> tuple[GenOptions, dict[str, Any]]:
        """Sampling defaults apart from the program's own arguments, which win a shared name."""
        own = {name: value for name, value in kwargs.items() if name in self.arg_names}
        options = run_options({k: v for k, v in kwargs.items() if k not in own}, self.name)
        free = [name for name in self.arg_names if name not in self.bound]
        if len(args) > len(free):
            raise InvalidRequest(
                f"program {self.name!r} takes {len(free)} arguments ({', '.join(free)}), "
                f"{len(args)} given"
            )
        arguments = self.bound | dict(zip(free, args, strict=False)) | own
        if need_all:
            self._bind_check(arguments)
        return options, arguments

    def _bind_check(self, arguments: Mapping[str, Any]) -> None:
        try:
            inspect.signature(self.function).bind(None, **arguments)
        except TypeError as error:
            raise InvalidRequest(f"program {self.name!r}: {error}") from None

    def _item(self, item: Mapping[str, Any] | Sequence[Any], index: int) -> dict[str, Any]:
        if isinstance(item, Mapping):
            unknown = item.keys() - set(self.arg_names)
            arguments = dict(item)
        elif isinstance(item, Sequence) and not isinstance(item, str):
            unknown = set(item[len(self.arg_names) :])
            arguments = dict(zip(self.arg_names, item, strict=False))
        else:
            raise InvalidRequest(
                f"item {index} is {type(item).__name__}: a dict or a tuple", "batch"
            )
        if unknown:
            raise InvalidRequest(
                f"item {index} gives more than program {self.name!r} takes "
                f"({', '.join(self.arg_names)})",
                "batch",
            )
        arguments = self.bound | arguments
        self._bind_check(arguments)
        return arguments

    def _state(self, backend: Backend, options: GenOptions) -> ProgramState | AsyncProgramState:
        executor = Executor(backend, options, self.name)
        return AsyncProgramState(executor) if self.is_async else ProgramState(executor)

    def _play(self, state: ProgramState | AsyncProgramState, arguments: dict[str, Any]) -> None:
        """Run to the end in this thread."""
        if isinstance(state, AsyncProgramState):
            asyncio.run(self._aplay(state, arguments))
            return
        executor = state.executor
        try:
            state.ret_value = self.function(state, **arguments)
            if inspect.iscoroutine(state.ret_value):
                state.ret_value.close()
                raise InvalidRequest(
                    f"program {self.name!r} returned a coroutine: write it as `async def`"
                )
            reached = executor.finish()
            wait_for(reached, what="the end of the program")
        except BaseException as error:
            executor.end(error)
            raise
        finally:
            state._owner = None

    def _play_quietly(self, state: ProgramState | AsyncProgramState, arguments: Any) -> None:
        """For a thread of its own: the error is the state's, its readers see it."""
        try:
            self._play(state, arguments)
        except Exception as error:
            state.executor.end(error)

    async def _aplay(self, state: AsyncProgramState, arguments: dict[str, Any]) -> None:
        executor = state.executor
        try:
            state.ret_value = await self.function(state, **arguments)
            await Awaited(executor.finish())
        except BaseException as error:
            executor.end(error)
            raise
        finally:
            state._owner = None

    # ---- many ----

    def _warm(self, backend: Backend) -> None:
        trace = trace_program(self.function, self.arg_names, self.bound)
        if len(trace.text) < MIN_CACHED_CHARACTERS:
            return
        work = asyncio.run_coroutine_threadsafe(constant_prefix(backend, trace), backend.loop)
        work.result()

    def _batch(
        self, backend: Backend, options: GenOptions, items: Sequence[dict[str, Any]], width: int
    ) -> Iterator[ProgramState | AsyncProgramState]:
        """States in order, `width` at a time."""

        def play(arguments: dict[str, Any]) -> ProgramState | AsyncProgramState:
            state = self._state(backend, options)
            self._play_quietly(state, arguments)
            return state

        if not items:
            return
        ahead = max(width, BATCH_CHUNK)
        with ThreadPoolExecutor(width, thread_name_prefix=self.name) as pool:
            running: list[Future[Any]] = [pool.submit(play, item) for item in items[:ahead]]
            for index in range(len(items)):
                if index + ahead < len(items):
                    running.append(pool.submit(play, items[index + ahead]))
                yield running[index].result()


def _threads(num_threads: int | str) -> int:
    if num_threads == "auto":
        return max(96, 16 * (os.cpu_count() or 1))
    if not isinstance(num_threads, int) or num_threads < 1:
        raise InvalidRequest(f"num_threads={num_threads!r}: 'auto' or at least 1", "num_threads")
    return num_threads


def _with_progress(states: Iterator[Any], total: int, name: str) -> Iterator[Any]:
    from rich.progress import track

    yield from track(states, description=name, total=total)
