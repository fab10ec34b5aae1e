"""`@function` programs: a Python function of a state, run once, in batches, streaming or traced.

Owns a program's arguments and options and the ways to start it. Knows states; the backend only as
what it hands to them.
"""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.lang.backends.default import resolve_backend
from radixgen.lang.backends.protocol import Backend, is_worth_warming
from radixgen.lang.executor import Executor
from radixgen.lang.habits import Habits
from radixgen.lang.ir import GenOptions
from radixgen.lang.many import as_blocking, batch_width, in_tasks, in_threads, with_progress
from radixgen.lang.options import run_options
from radixgen.lang.play import AnyState, apart, aplay, check_time_limit, play, play_quietly
from radixgen.lang.state import AsyncProgramState, ProgramState
from radixgen.lang.trace import Trace, constant_prefix, trace_program
from radixgen.lang.transcript import program_html
from radixgen.lang.variables import running_loop
from radixgen.types import shown


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
        self._signature = inspect.signature(function)
        names = list(self._signature.parameters)
        if not names or names[0] != "s":
            raise InvalidRequest(f"program {self.name!r}: its first parameter must be named s", "s")
        self.arg_names = names[1:]
        taken = next((name for name in self.arg_names if name in _NAMES_OF_RUN), None)
        if taken is not None:
            raise InvalidRequest(
                f"program {self.name!r}: a parameter cannot be named {taken}, which run() takes "
                "itself; choose another name",
                taken,
            )
        self._habits = Habits()

    def __repr__(self) -> str:
        return f"<program {self.name}({', '.join(('s', *self.arg_names))})>"

    def _repr_html_(self) -> str:
        """For notebooks: the program and its constant beginning."""
        return program_html(repr(self), self.trace().text)

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
        time_limit: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run once and return the state, all of it done; `stream=True`: at once, still running.

        Sampling parameters (`max_new_tokens, temperature, stop, …`) are defaults for every `gen`.
        Raises what the program raises, with the line of the program. `time_limit`: seconds after
        which the program is cancelled. `use_thread` is accepted for SGLang's sake: a state needs no
        thread of its own.
        """
        check_time_limit(time_limit)
        options, arguments = self._split(args, kwargs)
        where = resolve_backend(backend)
        self._refuse_own_loop(where)
        state = self._state(where, options)
        if stream:
            context = contextvars.copy_context()
            run = functools.partial(
                context.run, play_quietly, self.function, state, arguments, time_limit
            )
            threading.Thread(target=run, name=self.name, daemon=True).start()
            return ProgramState(state.executor, follows=True)
        apart(functools.partial(play, self.function, state, arguments, time_limit))
        return as_blocking(state)

    def _refuse_own_loop(self, backend: Backend) -> None:
        if running_loop() is backend.loop:
            raise InvalidRequest(
                f"program {self.name!r} is run on the event loop that its backend needs: "
                "use `await program.arun(…)`"
            )

    async def arun(
        self, *args: Any, backend: Any = None, time_limit: float | None = None, **kwargs: Any
    ) -> Any:
        """`run` for an event loop. Cancelling it aborts what the model is doing for the program.

        An `async def` program runs as a coroutine, a `def` program in a thread.
        """
        check_time_limit(time_limit)
        options, arguments = self._split(args, kwargs)
        if backend is None:  # the default one may have to be started, which blocks
            backend = await asyncio.to_thread(resolve_backend)
        state = self._state(resolve_backend(backend), options)
        try:
            if isinstance(state, AsyncProgramState):
                await aplay(self.function, state, arguments, time_limit)
            else:
                await asyncio.to_thread(play, self.function, state, arguments, time_limit)
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
        time_limit: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run once for each item; the states in order. A failed one holds its error.

        Items are dicts of arguments or tuples in order. What all have in common is found by tracing
        and put into the cache first. `num_threads`: programs at a time. `generator_style`: an
        iterator instead of a list. `time_limit`: seconds for each.
        """
        check_time_limit(time_limit)
        if isinstance(batch_kwargs, str | Mapping) or not isinstance(batch_kwargs, Iterable):
            raise InvalidRequest(
                f"run_batch is given {shown(batch_kwargs)}, not a list of dicts or tuples", "batch"
            )
        for name in kwargs:
            if name in self.arg_names:
                message = f"{name} is an argument of program {self.name!r}: put it into each item, "
                raise InvalidRequest(f"{message}or bind it with {self.name}.bind({name}=…)", name)
        items = [self._item(item, index) for index, item in enumerate(batch_kwargs)]
        options, _ = self._split((), kwargs, need_all=False)
        width = batch_width(num_threads, is_async=self.is_async)
        if not items:
            return iter(()) if generator_style else []
        where = resolve_backend(backend)
        self._refuse_own_loop(where)
        if len(items) > 1:
            self._warm(where, options, len(items))
        start = functools.partial(self._state, where, options)
        many = in_tasks if self.is_async else in_threads
        states = many(self.function, start, items, width, time_limit)
        outcomes = with_progress(states, len(items), self.name) if progress_bar else states
        return outcomes if generator_style else list(outcomes)

    def trace(self, *, backend: Any = None, **kwargs: Any) -> Trace:
        """What the program says up to the first thing that depends on an argument or the model."""
        return trace_program(self.function, self.arg_names, self.bound | kwargs)

    def cache(self, backend: Any = None) -> None:
        """Put the program's constant prefix into the backend's cache, when it is worth it."""
        self._warm(resolve_backend(backend), GenOptions(), 2)

    # ---- arguments and options ----

    def _split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, need_all: bool = True
    ) -> tuple[GenOptions, dict[str, Any]]:
        """Sampling defaults apart from the program's own arguments, which win a shared name."""
        own = {name: value for name, value in kwargs.items() if name in self.arg_names}
        options = run_options({k: v for k, v in kwargs.items() if k not in own}, self.name)
        options.sampling()  # values out of range
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
            self._signature.bind(None, **arguments)
        except TypeError as error:
            raise InvalidRequest(f"program {self.name!r}: {error}") from None

    def _item(self, item: Mapping[str, Any] | Sequence[Any], index: int) -> dict[str, Any]:
        if isinstance(item, Mapping):
            unknown = bool(item.keys() - set(self.arg_names))
            arguments = dict(item)
        elif isinstance(item, Sequence) and not isinstance(item, str):
            free = [name for name in self.arg_names if name not in self.bound]
            unknown = bool(item[len(free) :])
            arguments = dict(zip(free, item, strict=False))
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

    def _state(self, backend: Backend, options: GenOptions) -> AnyState:
        executor = Executor(backend, options, self.name, habits=self._habits)
        return AsyncProgramState(executor) if self.is_async else ProgramState(executor)

    def _warm(self, backend: Backend, options: GenOptions, num_runs: int) -> None:
        trace = trace_program(self.function, self.arg_names, self.bound)
        if not is_worth_warming(len(trace.text), num_runs):
            return
        work = constant_prefix(backend, trace, options, num_runs)
        asyncio.run_coroutine_threadsafe(work, backend.loop).result()


# A program's parameter of such a name could not be given a value.
_NAMES_OF_RUN = frozenset(
    name
    for name, parameter in inspect.signature(Program.run).parameters.items()
    if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
)
