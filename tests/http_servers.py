"""HTTP servers for tests, in place of a network: a function from requests to answers."""

import json
from collections.abc import Callable
from typing import Any

import httpx2

Handler = Callable[[str, Any], Any]


def sse(*events: Any, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


class Server:
    """A transport that records requests and answers by `handle(path, body)`."""

    def __init__(self, handle: Handler) -> None:
        self.handle = handle
        self.requests: list[tuple[str, Any]] = []
        self.transport = httpx2.MockTransport(self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content) if request.content else None
        self.requests.append((request.url.path, body))
        found = self.handle(request.url.path, body)
        if isinstance(found, httpx2.Response):
            return found
        if isinstance(found, bytes):
            return httpx2.Response(
                200, content=found, headers={"content-type": "text/event-stream"}
            )
        return httpx2.Response(200, json=found)

    def bodies(self, path: str) -> list[Any]:
        return [body for at, body in self.requests if at == path]
