"""Answers: JSON at once, or events as they come; both end when the client has gone.

A stream's answer begins with its first event, so that what is wrong with a request is told by the
status. If that takes long, it begins without, and comments keep the connection open; an error then
comes as an event, and the stream still ends with its last line.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixgen.serve.errors import ApiError, api_error

T = TypeVar("T")

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

FormatError = Callable[[ApiError], bytes]


def json_answer(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + to_json(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + to_json(value) + b"\n\n"


def openai_error_event(error: ApiError) -> bytes:
    """An error in the middle of a stream, as OpenAI's clients read it, and the end."""
    return event(error.body()) + DONE


async def unless_gone(
    request: Request, work: Coroutine[Any, Any, T], seconds: float | None = None
) -> T:
    """The result of `work`, which is cancelled when the client goes away or the time is over.

    Raises ApiError 499 and TimeoutError for these.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ApiError(499, "the client went away")
        raise TimeoutError
    finally:
        gone.cancel()
        await _cancelled(task)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(BaseException):
            await task


class EventStream(Response):
    """Server-sent events. Made by `open_stream`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: "asyncio.Task[bytes]",
        gone: "asyncio.Task[None]",
        events: AsyncGenerator[bytes],
        format_error: FormatError,
        deadline: float | None,
        ping_seconds: float,
        on_open: Callable[[int], None],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._gone = gone
        self._events = events
        self._format_error = format_error
        self._deadline = deadline
        self._ping_seconds = ping_seconds
        self._on_open = on_open
        self._sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._on_open(1)
        write = asyncio.create_task(self._write(send))
        pings = _Timer(self._ping_seconds, lambda: self._ping(send))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await asyncio.wait({write, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_open(-1)
            pings.stop()
            for task in (self._gone, write, self._first):
                await _cancelled(task)
            with contextlib.suppress(Exception):
                await self._events.aclose()

    async def _write(self, send: Send) -> None:
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._send(send, await self._first)
                async for data in self._events:
                    await self._send(send, data)
        except (ConnectionError, StopAsyncIteration):  # the client went away; nothing was to say
            pass
        except Exception as error:
            await self._send(send, self._format_error(api_error(error)))
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent = time.monotonic()

    async def _ping(self, send: Send) -> None:
        if time.monotonic() - self._sent >= self._ping_seconds:
            await self._send(send, PING)


class _Timer:
    """Runs `action` in a task every so many seconds: most streams end before the first."""

    def __init__(self, seconds: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._seconds = seconds
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._handle = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        if self._task is None or self._task.done():  # a client that does not read holds it up
            self._task = self._loop.create_task(self._action())
        self._handle = self._loop.call_later(self._seconds, self._fire)

    def stop(self) -> None:
        self._handle.cancel()
        if self._task is not None:
            self._task.cancel()


async def open_stream(
    request: Request,
    events: AsyncGenerator[bytes],
    format_error: FormatError,
    *,
    seconds: float | None,
    ping_seconds: float,
    on_open: Callable[[int], None],
) -> Response:
    """The answer of a stream, once its first event is there or `ping_seconds` have passed.

    Raises what the generator raises before its first event.
    """
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    first: asyncio.Task[bytes] = asyncio.create_task(_next(events))
    gone = asyncio.create_task(_gone(request.receive))
    wait = ping_seconds if seconds is None else min(seconds, ping_seconds)
    try:
        await asyncio.wait({first, gone}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            first.result()
        elif gone.done():
            raise ApiError(499, "the client went away")
    except BaseException:
        await _cancelled(first)
        await _cancelled(gone)
        await events.aclose()
        raise
    return EventStream(first, gone, events, format_error, deadline, ping_seconds, on_open)


async def _next(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)
