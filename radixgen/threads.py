"""An event loop in a thread of its own, called from any other. Knows nothing of what it runs."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from radixgen.errors import RuntimeUnavailable

MAX_ROUNDS = 100  # of tasks that begin others as they end

Result = TypeVar("Result")
Item = TypeVar("Item")


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that there is here."""
    try:
        import uvloop
    except ImportError:  # no build for this platform; the standard loop does the same, slower
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """`run` and `iterate` block their caller alone. After `stop` they raise RuntimeUnavailable.

    The thread begins with the first call, and belongs to that process: a fork has no part in it.
    """

    def __init__(self, name: str) -> None:
        self._loop = new_loop()
        self._gate = threading.RLock()  # a finalizer may run while its own thread holds it
        self._stopped = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._run()
        finally:
            self._loop.run_until_complete(self._settle())
            self._loop.close()

    def _run(self) -> None:
        """Until `stop`. asyncio also leaves when a task raises SystemExit or KeyboardInterrupt;
        that task has told whoever awaits it, and the others go on.
        """
        while not self._stopped:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    async def _settle(self) -> None:
        """Cancel what runs, and what that begins as it ends: a task that never ran would leave
        whoever waits for it waiting. A task begins before it is cancelled, so that it hears of it.
        """
        for _ in range(MAX_ROUNDS):
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            if not rest:
                break
            await asyncio.sleep(0)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The outcome of a coroutine. An exception here (Ctrl-C, say) cancels it there."""
        if self._owner != os.getpid():  # before the gate, which may have been held at the fork
            work.close()
            raise RuntimeUnavailable(
                "this runtime was made before the process forked; make another here, or connect "
                "to its address"
            )
        with self._gate:
            if self._stopped:
                work.close()
                raise RuntimeUnavailable("the runtime has been shut down")
            if not self._thread.is_alive():
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeUnavailable("the runtime was shut down during the call") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncGenerator[Item]) -> Generator[Item]:
        """The items of an async generator, which is closed when this one is closed or dropped."""
        try:
            while True:
                item = self.run(_next(source))
                if item is _END:
                    return
                yield item  # type: ignore[misc]
        finally:
            self._close_soon(source)

    def _close_soon(self, source: AsyncGenerator[Any]) -> None:
        """Without waiting: a dropped generator may be finalised in the loop's own thread."""
        if self._owner != os.getpid():
            return
        with self._gate:
            if not self._stopped:
                self._loop.call_soon_threadsafe(lambda: self._loop.create_task(_close(source)))

    def call_last(self, work: Callable[[], None]) -> None:
        """Call `work` in the loop, then stop. Does nothing when it is stopped already."""
        with contextlib.suppress(RuntimeUnavailable):
            self.run(_call(work))
        self.stop()

    def stop(self) -> None:
        """End the loop and its thread; what still runs there is cancelled."""
        if self._owner != os.getpid():
            return
        with self._gate:
            if self._stopped:
                return
            self._stopped = True
            if not self._thread.is_alive():
                self._loop.close()
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


_END = object()


async def _call(work: Callable[[], None]) -> None:
    work()


async def _next(source: AsyncGenerator[Item]) -> Item | object:
    return await anext(source, _END)


async def _close(source: AsyncGenerator[Any]) -> None:
    """A generator whose reader was just cancelled may still be running for a turn or two."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):
            await source.aclose()
            return
        await asyncio.sleep(0.01)
