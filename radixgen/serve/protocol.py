"""HTTP/1.1 of a connection: a fast parser, and bounds on the heads of requests.

The parser takes any number of headers of any size, for as long as they may take; so both are
bounded here, before anything of a request exists. Knows no routes.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers
HEAD_SECONDS = 30.0  # in which they must be there

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's, with limits. A connection that passes one is closed."""

    _num_bytes = 0  # of the head that is being read
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a body in the same packet count as of the head, but only once."""
        if self._in_head:
            self._num_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._num_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._wait_for_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if num_bytes > MAX_HEAD_BYTES:
            self._refuse()
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_bytes = 0
        if self.cycle is not None:
            super().on_message_complete()

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
        self._close()

    def _close(self) -> None:
        transport: Any = self.transport
        if not transport.is_closing():
            transport.close()
