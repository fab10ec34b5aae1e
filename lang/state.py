"""What a program holds as `s`: it adds nodes and reads values.

    ProgramState        for `def` programs: reading a value blocks the thread
    AsyncProgramState   for `async def` programs: values and joins are awaited

Both are faces of one `Executor`. A state belongs to one thread or task. Knows no backend beyond
what it checks.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, Literal, Self, TypeVar

from radixgen.errors import InvalidRequest, UnsetVariable
from radixgen.lang.backends.protocol import Backend
from radixgen.lang.executor import Executor, Fork, Place, Variable, constant, wait_for
from radixgen.lang.ir import (
    Node,
    Role,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    as_nodes,
)

JoinMode = Literal["gather_variable", "concate_and_append"]  # SGLang's names
MAX_FORKS = 100_000
_PACKAGE = __name__.rpartition(".")[0]


def caller(program: str) -> Place | None:
    """The innermost line outside this package: the user's."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        if frame.f_globals["__name__"].startswith(_PACKAGE + ".programs"):
            break
        outer = frame.f_back
        if outer is None:
            return None
        frame = outer
    return Place(program, frame.f_code.co_filename, frame.f_lineno)


class _State:
    """What both faces share: adding, forking, naming."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.ret_value: Any = None
        self._owner: object | None = None
        self._ended = False

    @property
    def backend(self) -> Backend:
        return self.executor.backend

    def __iadd__(self, other: Any) -> Self:
        """Add a str, a node, or a list of them. Returns at once; values come later."""
        nodes = as_nodes(other)
        self._claim()
        for node in nodes:
            self.backend.check(node)
        place = caller(self.executor.program)
        for node in nodes:
            self.executor.submit(node, place)
        return self

    def _claim(self) -> None:
        """The first to add owns the state: two at once would mix their texts."""
        if self._ended:
            raise InvalidRequest("this state has ended; it was joined, or its `with` is over")
        user = _user()
        if self._owner is None:
            self._owner = user
        elif self._owner is not user:
            raise InvalidRequest(
                "one state is used from two threads or tasks, which would mix what they say: "
                "give each its own with s.fork(n) or s.copy()"
            )

    def system(self, content: Any = None) -> Any:
        """A system message; without content a `with` block that holds it."""
        return self._message("system", content)

    def user(self, content: Any = None) -> Any:
        """A user message; without content a `with` block that holds it."""
        return self._message("user", content)

    def assistant(self, content: Any = None) -> Any:
        """An assistant message; without content a `with` block that holds it."""
        return self._message("assistant", content)

    def _message(self, role: Role, content: Any) -> Any:
        if content is None:
            return self._role_block(role)
        return self.__iadd__([RoleBegin(role), *as_nodes(content), RoleEnd(role)])

    @contextmanager
    def _role_block(self, role: Role) -> Iterator[None]:
        self.__iadd__(RoleBegin(role))
        yield
        self.__iadd__(RoleEnd(role))

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The text added inside is the value of `name`."""
        self.__iadd__(ScopeBegin(name))
        yield
        self.__iadd__(ScopeEnd(name))

    def __contains__(self, name: str) -> bool:
        return name in self.executor.variables

    def set_var(self, name: str, value: Any) -> None:
        """Give a variable a value of the program's own."""
        self.executor.variables[name] = constant(value)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def error(self) -> BaseException | None:
        """What ended this state, or None. Complete once the state is synced."""
        return self.executor.error

    def cancel(self) -> None:
        """Abort what the model is doing for this state and its forks."""
        self.executor.cancel()

    def _variable(self, name: str) -> Variable:
        found = self.executor.variables.get(name)
        if found is None:
            raise UnsetVariable(name, self.executor.variables)
        return found

    def _split(self, size: int) -> list[Executor]:
        if not 1 <= size <= MAX_FORKS:
            raise InvalidRequest(f"fork({size}): between 1 and {MAX_FORKS} children", "size")
        self._claim()
        parent = self.executor
        children = [
            Executor(parent.backend, parent.options, parent.program, parent) for _ in range(size)
        ]
        parent.submit(Fork(tuple(children)), caller(parent.program))
        return children

    def _reached(self) -> Future[None]:
        """Everything added so far; of a state at rest also when its backend is gone."""
        if not self.executor.at_rest:
            return self.executor.barrier()
        reached: Future[None] = Future()
        if self.executor.error is None:
            reached.set_result(None)
        else:
            reached.set_exception(self.executor.error)
        return reached

    def _iter_of(self, name: str | None) -> Any:
        return self.executor.stream if name is None else self._variable(name).stream


def _user() -> object:
    """The running task, else the running thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task if task is not None else threading.current_thread()


class ProgramState(_State):
    """The `s` of a `def` program."""

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; blocks until the model has written it.

        Raises KeyError for a name that the program has not set, and the program's own error.
        """
        return wait_for(self._variable(name).value, what=f"s[{name!r}]")

    def get_var(self, name: str) -> Any:
        return self[name]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """How a variable was made: token counts, finish reason, log-probabilities."""
        variable = self._variable(name)
        wait_for(variable.value, what=f"the meta info of {name!r}")
        return variable.meta

    def sync(self) -> None:
        """Block until everything added so far is done. Raises the state's error."""
        wait_for(self._reached(), what="the end of the state")

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

    def text_async_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """The same for an event loop."""
        return aiter(self._iter_of(var_name))

    def fork(self, size: int = 1) -> "ProgramStateGroup":
        """`size` states that share this one's past and each have a future of their own."""
        return ProgramStateGroup([ProgramState(child) for child in self._split(size)], self)

    @contextmanager
    def copy(self) -> Iterator["ProgramState"]:
        """One fork, which ends with the block."""
        child = self.fork(1)[0]
        try:
            yield child
        finally:
            child._ended = True


class AsyncProgramState(_State):
    """The `s` of an `async def` program: `await s["x"]`."""

    def __getitem__(self, name: str) -> "Awaited":
        return Awaited(self._variable(name).value)

    async def get_var(self, name: str) -> Any:
        return await self[name]

    async def get_meta_info(self, name: str) -> dict[str, Any]:
        variable = self._variable(name)
        await Awaited(variable.value)
        return variable.meta

    async def sync(self) -> None:
        await Awaited(self._reached())

    async def text(self, name: str | None = None) -> str:
        if name is not None:
            await self[name]
            return self._variable(name).stream.text
        await self.sync()
        return self.executor.conversation.text

    async def messages(self) -> list[dict[str, str]]:
        await self.sync()
        return [dict(message) for message in self.executor.conversation.messages]

    def text_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        return aiter(self._iter_of(var_name))

    text_async_iter = text_iter

    def fork(self, size: int = 1) -> "AsyncProgramStateGroup":
        return AsyncProgramStateGroup([AsyncProgramState(c) for c in self._split(size)], self)


S = TypeVar("S", bound=_State)


class Awaited:
    """A value of another event loop, to be awaited in this one, any number of times."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


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
        return [state.executor.barrier() for state in self.states]

    def _finish_join(self, mode: str) -> None:
        for state in self.states:
            state._ended = True
        if mode == "concate_and_append":
            grown = (s.executor.conversation.text[s.executor.begin_text :] for s in self.states)
            self.parent.__iadd__("".join(grown))
            return
        names = dict.fromkeys(
            name
            for state in self.states
            for name, variable in state.executor.variables.items()
            if variable is not self.parent.executor.variables.get(name)
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
        for reached in self._begin_join(mode):
            wait_for(reached, what="a forked state")
        self._finish_join(mode)


class AsyncProgramStateGroup(_Group[AsyncProgramState]):
    """What `fork` gives to an `async def` program."""

    async def join(self, mode: JoinMode = "gather_variable") -> None:
        await asyncio.gather(*(Awaited(reached) for reached in self._begin_join(mode)))
        self._finish_join(mode)
