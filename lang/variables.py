"""Values that come later: set on the backend's event loop, read from any thread or loop."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NoReturn

from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.lang.stream import Stream


class Variable:
    """A value that comes later, the text it is read from, and how it was made."""

    __slots__ = ("meta", "stream", "value")

    def __init__(self) -> None:
        self.value: Future[Any] = Future()
        self.stream = Stream()
        self.meta: dict[str, Any] = {}

    def settle(self, value: Any, meta: dict[str, Any] | None = None) -> None:
        self.meta = meta or {}
        if not self.value.done():
            self.value.set_result(value)
        self.stream.close()

    def fail(self, error: BaseException) -> None:
        if not self.value.done():
            self.value.set_exception(error)
        self.stream.close(error)


def constant(value: Any) -> Variable:
    """A variable that has its value already."""
    variable = Variable()
    variable.stream.push(value if isinstance(value, str) else str(value))
    variable.settle(value)
    return variable


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wait_for(future: Future[Any], *, what: str) -> Any:
    """Block for a value, on a thread that may be blocked."""
    running = running_loop()
    if running is None or future.done():
        return future.result()
    raise RadixgenError(
        f"{what} is not there yet, and waiting for it here would block the event loop {running!r}: "
        "make the program an `async def` and await it"
    )


class Awaited:
    """A value of another event loop, to be awaited in this one, any number of times.

    `saw` is told of an error that the awaiter gets. `what`: as a program writes it. Text, truth and
    equality of it are refused, as a program that forgot its `await` would go on with nonsense.
    """

    __slots__ = ("_future", "_saw", "_what")

    def __init__(
        self,
        future: Future[Any],
        saw: Callable[[BaseException], None] | None = None,
        what: str = "this",
    ) -> None:
        self._future = future
        self._saw = saw
        self._what = what

    def __repr__(self) -> str:
        return f"<{self._what}, to be awaited>"

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidRequest(f"{self._what} is not awaited: write `await {self._what}`")

    __str__ = __format__ = __bool__ = __add__ = __radd__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, Awaited) else self._refuse()

    __hash__ = object.__hash__

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            if not self._future.done():
                yield from arrival(self._future).__await__()
            return self._future.result()
        except BaseException as error:
            if self._saw is not None:
                self._saw(error)
            raise


def arrival(future: Future[Any]) -> asyncio.Future[None]:
    """Done in this event loop once `future` is. One step to the other loop and back, and whoever
    is cancelled while awaiting it cancels nothing else."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def tell(_: Future[Any]) -> None:
        if running_loop() is loop:
            arrive()
        else:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody awaits it any more
                loop.call_soon_threadsafe(arrive)

    future.add_done_callback(tell)
    return arrived
