"""Text that is still being written, read from any thread or event loop, any number of times."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from radixgen.lang.bell import Bell
from radixgen.lang.ir import Node

Written = tuple[Node | None, str]
"""A piece and the node for which the model wrote it; None: the program or a chat template did."""


class Stream:
    """Pieces in order, then an end or an error. One writer, any number of readers.

    Readers get every piece from the first on, whenever they come.
    """

    __slots__ = ("_before", "_bell", "_done", "_error", "_pieces")

    def __init__(self) -> None:
        self._before: Callable[[], str] | None = None  # a first piece that nobody has read yet
        self._pieces: list[Written] = []
        self._done = False
        self._error: BaseException | None = None
        self._bell = Bell()

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
        self._before = before
        self._bell.ring()

    def _put_together(self) -> None:
        if self._before is None:
            return
        with _beginning:
            if self._before is not None:
                text, self._before = self._before(), None
                if text:
                    self._pieces.insert(0, (None, text))

    def push(self, piece: str, origin: Node | None = None) -> None:
        if piece:
            self._pieces.append((origin, piece))
            self._bell.ring()

    def pause(self) -> None:
        """Nothing follows for a while: an empty piece, which `written` alone gives."""
        self._pieces.append((None, ""))
        self._bell.ring()

    def close(self, error: BaseException | None = None) -> None:
        """No more pieces; readers then see the error, if any. Closing twice changes nothing."""
        if not self._done:
            self._error, self._done = error, True
            self._bell.ring()

    def _since(self, place: int) -> tuple[list[Written], bool]:
        """Pieces from that one on, and whether they are the last."""
        ended = self._done  # before the pieces: whatever was written before the end is among them
        self._put_together()
        return self._pieces[place:], ended

    def __iter__(self) -> Iterator[str]:
        """Pieces as they come; blocks. Raises the error that ended the text."""
        return (text for _, text in self.written() if text)

    def written(self) -> Iterator[Written]:
        """As iterating, with who wrote each piece."""
        place, ended, rung = 0, False, threading.Event()
        with self._bell.heard(rung.set):
            while not ended:
                rung.clear()
                new, ended = self._since(place)
                place += len(new)
                yield from new
                if not new and not ended:
                    rung.wait()
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[str]:
        """Pieces as they come, on the running event loop."""
        place, ended, rung = 0, False, asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._bell.heard(lambda: loop.call_soon_threadsafe(rung.set)):
            while not ended:
                rung.clear()
                new, ended = self._since(place)
                place += len(new)
                for _, piece in new:
                    if piece:
                        yield piece
                if not new and not ended:
                    await rung.wait()
        if self._error is not None:
            raise self._error


_beginning = threading.RLock()  # of all streams: it is held for one text, once in a stream's life
