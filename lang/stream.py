"""Text that is still being written, read from any thread or event loop, any number of times."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from radixgen.lang.ir import Node

Written = tuple[Node | None, str]
"""A piece and the node for which the model wrote it; None: the program or a chat template did."""


class Stream:
    """Pieces in order, then an end or an error. One writer, any number of readers.

    Readers get every piece from the first on, whenever they come.
    """

    __slots__ = ("_before", "_changed", "_done", "_error", "_pieces", "_wakers")

    def __init__(self) -> None:
        self._before: Callable[[], str] | None = None  # a first piece that nobody has read yet
        self._pieces: list[Written] = []
        self._done = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []

    @property
    def text(self) -> str:
        """What has been written so far."""
        return "".join(text for _, text in self.pieces)

    @property
    def pieces(self) -> list[Written]:
        """What has been written so far, and by whom."""
        self._put_together()
        return list(self._pieces)

    @property
    def is_closed(self) -> bool:
        """Whether no more will be written."""
        return self._done

    def begin(self, before: Callable[[], str]) -> None:
        """Text that comes first, told by whoever is asked for it: not before somebody reads."""
        with self._changed:
            self._before = before
            self._wake()

    def _put_together(self) -> None:
        with self._changed:
            if self._before is not None:
                text, self._before = self._before(), None
                if text:
                    self._pieces.insert(0, (None, text))

    def push(self, piece: str, origin: Node | None = None) -> None:
        if piece:
            with self._changed:
                self._pieces.append((origin, piece))
                self._wake()

    def pause(self) -> None:
        """Nothing follows for a while: an empty piece, which `written` alone gives."""
        with self._changed:
            self._pieces.append((None, ""))
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """No more pieces; readers then see the error, if any. Closing twice changes nothing."""
        with self._changed:
            if not self._done:
                self._done, self._error = True, error
                self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        for waker in self._wakers:
            with contextlib.suppress(RuntimeError):  # that reader's event loop is closed
                waker()

    def __iter__(self) -> Iterator[str]:
        """Pieces as they come; blocks. Raises the error that ended the text."""
        return (text for _, text in self.written() if text)

    def written(self) -> Iterator[Written]:
        """As iterating, with who wrote each piece."""
        place = 0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._done or self._before or len(self._pieces) > place  # noqa: B023  # called at once
                )
                self._put_together()
                new, ended = self._pieces[place:], self._done
            place += len(new)
            yield from new
            if ended and place == len(self._pieces):
                break
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[str]:
        """Pieces as they come, on the running event loop."""
        loop, ready, place = asyncio.get_running_loop(), asyncio.Event(), 0

        def waker() -> None:
            loop.call_soon_threadsafe(ready.set)

        with self._changed:
            self._wakers.append(waker)
        try:
            while True:
                ready.clear()
                self._put_together()
                new, ended = self._pieces[place:], self._done
                place += len(new)
                for _, piece in new:
                    if piece:
                        yield piece
                if ended and place == len(self._pieces):
                    break
                if not new:
                    await ready.wait()
        finally:
            with self._changed:
                self._wakers.remove(waker)
        if self._error is not None:
            raise self._error
