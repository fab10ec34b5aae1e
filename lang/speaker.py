"""What the states of `def` and of `async def` programs share: adding, forking, naming, owning.

A state belongs to one thread or task. Knows executors; not how values are waited for.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self

from radixgen.errors import InvalidRequest, UnsetVariable
from radixgen.lang.backends.protocol import Backend
from radixgen.lang.executor import Executor
from radixgen.lang.ir import Role, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, as_nodes
from radixgen.lang.place import caller
from radixgen.lang.steps import Fork
from radixgen.lang.transcript import as_html
from radixgen.lang.variables import Variable, constant

MAX_FORKS = 100_000


class Speaker:
    """The part of a state that only says things."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._owner: object | None = None
        self._ended = False

    @property
    def backend(self) -> Backend:
        return self.executor.backend

    @property
    def ret_value(self) -> Any:
        """What the program returned."""
        return self.executor.ret_value

    def __iadd__(self, other: Any) -> Self:
        """Add a str, a node, or a list of them. Returns at once; values come later.

        Raises InvalidRequest for what can be known to be wrong, and the error of a state that has
        one already.
        """
        nodes = as_nodes(other)
        self._claim()
        said = self.executor.check(nodes)
        place = caller(self.executor.program)
        for node in said:
            self.executor.submit(node, place)
        return self

    def _claim(self) -> None:
        """The first to add owns the state: two at once would mix their texts."""
        if self._ended:
            raise InvalidRequest("this state has ended; it was joined, or its `with` is over")
        if self.executor.error is not None:
            self.executor.error_seen = True
            raise self.executor.error
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

    def _repr_html_(self) -> str:
        """For notebooks: what was said, in the colours of its origin."""
        return as_html(self.executor)

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
        if found is None and self.executor.error is not None:
            self.executor.error_seen = True
            raise self.executor.error  # that is why it never came
        if found is None:
            raise UnsetVariable(name, self.executor.variables)
        return found

    def _saw(self, error: BaseException) -> None:
        if error is self.executor.error:
            self.executor.error_seen = True

    def _split(self, size: int) -> list[Executor]:
        if not isinstance(size, int) or not 1 <= size <= MAX_FORKS:
            raise InvalidRequest(f"fork({size!r}): between 1 and {MAX_FORKS} children", "size")
        self._claim()
        parent = self.executor
        parent.check_fork()
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

    def _end(self) -> None:
        """Nothing more may be added."""
        if not self._ended:
            self._ended = True
            self.executor.finish()

    def __del__(self) -> None:
        """A fork that nobody holds any more is done when all that it was told is. Of the state that
        a program begins with its run tells the end."""
        if not self._ended and self.executor.is_fork:
            self.executor.drop()

    def _iter_of(self, name: str | None) -> Any:
        return self.executor.stream if name is None else self._variable(name).stream

    async def _aiter(self, name: str | None, with_meta: bool) -> AsyncIterator[Any]:
        async for piece in await asyncio.to_thread(self._iter_of, name):
            if with_meta:
                yield piece, self._variable(name).meta if name is not None else {}
            else:
                yield piece


def _user() -> object:
    """The running task, else the running thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task if task is not None else threading.current_thread()
