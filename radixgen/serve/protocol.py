"""HTTP/1.1 of a connection: a fast parser, and bounds on the heads of requests.

The parser takes any number of headers of any size, for as long as they may take; so both are
bounded here, before anything of a request exists. It also takes what follows a wish for another
protocol for that protocol's, be it the request's body: such wishes, with which some clients begin,
are passed over here. Knows no routes.
"""

import asyncio
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers
HEAD_SECONDS = 30.0  # in which they must be there

_UPGRADES = (b"upgrade", b"http2-settings")


def _last_answer(status: str, message: str) -> bytes:
    """An answer to what is no request that could have one from the application."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    body = json.dumps({"error": error})
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


_MALFORMED = _last_answer("400 Bad Request", "this is not HTTP/1.1 as it is written")
_TOO_LARGE = _last_answer(
    "431 Request Header Fields Too Large", f"the head has more than {MAX_HEAD_BYTES} bytes"
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
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(_MALFORMED)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(data[upgrade.args[0] :])
        if self._in_head and self._num_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def _stay(self, rest: bytes) -> None:
        """Read a request again that wished for another protocol, without that wish."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(_MALFORMED)
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = [word for word in value.split(b",") if word.strip().lower() not in _UPGRADES]
                value = b",".join(kept)
            if name not in _UPGRADES:
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._num_bytes = 0
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._wait_for_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        if self.parser.should_upgrade():
            return  # read again
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if num_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_bytes = 0
        if self.cycle is not None and not self.parser.should_upgrade():
            super().on_message_complete()

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
        self._close()

    def _close(self) -> None:
        transport: Any = self.transport
        if not transport.is_closing():
            transport.close()
