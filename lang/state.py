"""What a program holds as `s`: it adds nodes and reads values.

    ProgramState        for `def` programs: reading a value blocks the thread
    AsyncProgramState   for `async def` programs: values and joins are awaited

Both are faces of one `Executor`. A state belongs to one thread or task. Knows no backend beyond
what it checks.
"""

import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, Literal, Self, TypeVar

from radixgen.errors import InvalidRequest
from radixgen.lang.executor import Executor
from radixgen.lang.ir import (
    Node,
)
from radixgen.lang.speaker import Speaker
from radixgen.lang.variables import Awaited, Variable, wait_for

JoinMode = Literal["gather_variable", "concate_and_append"]  # SGLang's names

T = TypeVar("T")


class ProgramState(Speaker):
    """The `s` of a `def` program, and what `run` returns.

    `follows`: the program is still running elsewhere (`stream=True`), so reading a variable that it
    has not named yet waits until it has, or has ended.
    """

    def __init__(self, executor: Executor, *, follows: bool = False) -> None:
        super().__init__(executor)
        self._follows = follows

    def _variable(self, name: str) -> Variable:
        if self._follows:
            self.executor.await_name(name)
        return super()._variable(name)

    def _wait(self, future: Future[Any], what: str) -> Any:
        try:
            return wait_for(future, what=what)
        except BaseException as error:
            self._saw(error)
            raise

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; blocks until the model has written it.

        Raises KeyError for a name that the program has not set, and the program's own error.
        """
        return self._wait(self._variable(name).value, f"s[{name!r}]")

    def get_var(self, name: str) -> Any:
        return self[name]

    def get(self, name: str, kind: type[T]) -> T:
        """`s[name]` with its type: `s.get("x", Person)`. Raises InvalidRequest if it is another."""
        return _of_kind(self[name], name, kind)

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """How a variable was made: token counts, finish reason, log-probabilities, cache hint."""
        self[name]
        return self._variable(name).meta

    def sync(self) -> None:
        """Block until everything added so far is done; of a program that is followed, until it has
        ended. Raises the state's error."""
        if self._follows:
            self.executor.await_name(None)
        self._wait(self._reached(), "the end of the state")

    def text(self, name: str | None = None) -> str:
        """The whole text so far, or the text that a variable was read from."""
        if name is not None:
            self[name]
            return self._variable(name).stream.text
        self.sync()
        return self.executor.conversation.text

    def messages(self) -> list[dict[str, str]]:
        """The closed messages so far."""
        self.sync()
        return [dict(message) for message in self.executor.conversation.messages]

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Pieces of the whole text, or of one variable's, as they come."""
        return iter(self._iter_of(var_name))

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """The same for an event loop. `return_meta_data`: (piece, meta info so far)."""
        return self._aiter(var_name, return_meta_data)

    def fork(self, size: int = 1, position_ids_offset: object = None) -> "ProgramStateGroup":
        """`size` states that share this one's past and each have a future of their own.

        `position_ids_offset` has no effect, here as in SGLang.
        """
        return ProgramStateGroup([ProgramState(child) for child in self._split(size)], self)

    @contextmanager
    def copy(self) -> Iterator["ProgramState"]:
        """One fork, which ends with the block."""
        child = self.fork(1)[0]
        try:
            yield child
        finally:
            child._end()


class AsyncProgramState(Speaker):
    """The `s` of an `async def` program: `await s["x"]`."""

    def __getitem__(self, name: str) -> Awaitable[Any]:
        """`await s[name]`: the value of a variable, any number of times."""
        return Awaited(self._variable(name).value, self._saw, f"s[{name!r}]")

    async def get_var(self, name: str) -> Any:
        return await self[name]

    async def get(self, name: str, kind: type[T]) -> T:
        """`await s[name]` with its type. Raises InvalidRequest if it is another."""
        return _of_kind(await self[name], name, kind)

    async def get_meta_info(self, name: str) -> dict[str, Any]:
        await self[name]
        return self._variable(name).meta

    async def sync(self) -> None:
        await Awaited(self._reached(), self._saw)

    async def text(self, name: str | None = None) -> str:
        if name is not None:
            await self[name]
            return self._variable(name).stream.text
        await self.sync()
        return self.executor.conversation.text

    async def messages(self) -> list[dict[str, str]]:
        await self.sync()
        return [dict(message) for message in self.executor.conversation.messages]

    def text_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Pieces of the whole text, or of one variable's, as they come."""
        return self._aiter(var_name, return_meta_data)

    text_async_iter = text_iter

    def fork(self, size: int = 1, position_ids_offset: object = None) -> "AsyncProgramStateGroup":
        """`size` states that share this one's past and each have a future of their own."""
        return AsyncProgramStateGroup([AsyncProgramState(c) for c in self._split(size)], self)

    @contextmanager
    def copy(self) -> Iterator["AsyncProgramState"]:
        """One fork, which ends with the block."""
        child = self.fork(1)[0]
        try:
            yield child
        finally:
            child._end()


def _of_kind(value: Any, name: str, kind: type[T]) -> T:
    """A value that was promised to be a `kind`. Of list[T] and the like the list is looked at."""
    wanted: Any = typing.get_origin(kind) or kind
    if typing.is_typeddict(kind):
        wanted = dict
    if isinstance(wanted, type) and not isinstance(value, wanted):
        raise InvalidRequest(
            f"s[{name!r}] is a {type(value).__name__}, not a {wanted.__name__}: "
            "was it made with gen(schema=…)?",
            name,
        )
    return typing.cast(T, value)


S = TypeVar("S", bound=Speaker)


class _Group(Generic[S]):
    """The children of a fork, in order."""

    def __init__(self, states: Sequence[S], parent: S) -> None:
        self.states: list[S] = list(states)
        self.parent: S = parent
        self._joined = False

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> S:
        return self.states[index]

    def __setitem__(self, index: int, state: S) -> None:
        """For `forks[0] += …`, which puts back what it has added to. Raises InvalidRequest for any
        other state."""
        if state is not self.states[index]:
            raise InvalidRequest(
                "a forked state cannot be replaced by another: add to it (forks[0] += …) or set a "
                "variable of it (forks[0]['name'] = …)"
            )

    def __iter__(self) -> Iterator[S]:
        return iter(self.states)

    def __iadd__(self, other: Any) -> Self:
        """Add the same to every child, or one item of a list, or a function's of the index."""
        if isinstance(other, list | tuple) and len(other) != len(self.states):
            raise InvalidRequest(f"{len(other)} items for {len(self.states)} forked states")
        for index, state in enumerate(self.states):
            state.__iadd__(_share(other, index))
        return self

    def _begin_join(self, mode: str) -> list[Future[None]]:
        if mode not in ("gather_variable", "concate_and_append"):
            raise InvalidRequest(
                f"join mode {mode!r}: 'gather_variable' or 'concate_and_append'", "mode"
            )
        if self._joined:
            raise InvalidRequest("these forks are joined already: a join ends them")
        self._joined = True
        last = mode == "gather_variable"  # else the parent goes on with what they said
        return [state.executor.barrier(last=last) for state in self.states]

    def _saw(self) -> None:
        for state in self.states:
            state.executor.error_seen = True

    def _finish_join(self, mode: str) -> None:
        parent = self.parent.executor
        for state in self.states:
            if mode == "concate_and_append":
                state.executor.goes_on()
            state._end()
            state.executor.leave()
        if mode == "concate_and_append":
            grown = (s.executor.conversation.text[s.executor.begin_text :] for s in self.states)
            self.parent.__iadd__("".join(grown))
            return
        names = dict.fromkeys(
            name
            for state in self.states
            for name, variable in state.executor.variables.items()
            if variable is not parent.variables.get(name)
        )
        for name in names:
            found = [state.executor.variables.get(name) for state in self.states]
            values = [variable.value.result() for variable in found if variable is not None]
            self.parent.set_var(name, values)


def _share(other: Any, index: int) -> Any:
    if isinstance(other, list | tuple):
        return other[index]
    if callable(other) and not isinstance(other, Node):
        function: Callable[[int], Any] = other
        return function(index)
    return other


class ProgramStateGroup(_Group[ProgramState]):
    """What `fork` gives to a `def` program."""

    def join(self, mode: JoinMode = "gather_variable") -> None:
        """Wait for the children and take over what they made; they end.

        `gather_variable`: each variable set in a child becomes the parent's list of values, in the
        order of the children. `concate_and_append`: what the children said is added to the
        parent's text, one after the other. Raises the first child's error.
        """
        try:
            for reached in self._begin_join(mode):
                wait_for(reached, what="a forked state")
        except Exception:
            self._saw()
            raise
        self._finish_join(mode)


class AsyncProgramStateGroup(_Group[AsyncProgramState]):
    """What `fork` gives to an `async def` program."""

    async def join(self, mode: JoinMode = "gather_variable") -> None:
        """As `ProgramStateGroup.join`."""
        try:
            for reached in self._begin_join(mode):
                await Awaited(reached)
        except Exception:
            self._saw()
            raise
        self._finish_join(mode)
