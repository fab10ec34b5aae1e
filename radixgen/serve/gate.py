"""What every request passes before its route: id, key, size, type; and the log line behind it.

Decides on the raw path of the request line and denies by default: a route that is not listed here
as open needs a key. Plain ASGI, so that a refused body is never read. Knows no routes but by path.
"""

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixgen.serve.errors import ApiError, api_error
from radixgen.serve.settings import ServeConfig

logger = logging.getLogger("radixgen.serve.access")

OPEN_PATHS = frozenset({b"/health", b"/ping", b"/ready", b"/version"})
ADMIN_PATHS = frozenset({b"/flush_cache", b"/abort_request", b"/cache_tree"})
ANTHROPIC_PREFIX = b"/v1/messages"
UNREAD_PREFIXES = (b"/v1/audio/", b"/v1/files", b"/v1/images/", b"/v1/uploads")  # not served
BODY_SECONDS = 60.0  # of waiting for the next part of a body
_ID = re.compile(rb"[A-Za-z0-9_.:\-]{1,128}")

OnDone = Callable[[Scope, int, float], None]


class Gate:
    """ASGI middleware. `on_done(scope, status, seconds)` hears of every request's end."""

    def __init__(self, app: ASGIApp, config: ServeConfig, on_done: OnDone) -> None:
        self._app = app
        self._config = config
        self._on_done = on_done
        self._keys = [key.encode() for key in config.api_keys]
        self._admin = config.admin_key.encode() if config.admin_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:  # websockets: there are none
            await send({"type": "websocket.close", "code": 1008})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        state = scope.setdefault("state", {})
        state["request_id"], state["log"] = request_id, {}
        begun, answer = time.monotonic(), _Answer(send, request_id)
        try:
            try:
                state["namespace"] = self._check(scope, headers)
            except ApiError as error:
                await _refuse(scope, answer.send, error, request_id)
                return
            # A HEAD is answered as a GET is; what writes to the connection leaves the body out.
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            try:
                await self._app(asked, _limited(receive, self._config.max_body_bytes), answer.send)
            except Exception:
                if answer.status != 500:
                    raise
                # It is answered and logged: the connection may go on to serve others.
        finally:
            seconds = time.monotonic() - begun
            self._on_done(scope, answer.status, seconds)
            if logger.isEnabledFor(logging.INFO):
                logger.info("%s", _line(scope, request_id, answer.status, seconds))

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """The namespace of the caller's prefixes. Raises ApiError for one who is turned away."""
        if headers.get(b"sec-fetch-site") == b"cross-site":
            # A browser says that another site's page asks. There is no CORS, so nothing may.
            raise ApiError(403, "requests from other sites' pages are refused")
        path = scope.get("raw_path") or scope["path"].encode()
        namespace = self._authenticate(path, headers)
        if scope["method"] in ("POST", "PUT"):
            self._check_size(headers)
            if not path.startswith(UNREAD_PREFIXES):
                self._check_type(headers)
        return namespace

    def _authenticate(self, path: bytes, headers: dict[bytes, bytes]) -> str:
        if path in OPEN_PATHS or (path == b"/metrics" and self._config.open_metrics):
            return ""
        admin = path in ADMIN_PATHS and self._admin is not None
        wanted = [self._admin] if admin and self._admin else self._keys
        if not wanted:
            return ""
        given = _given_key(headers)
        # Every key is compared, so that the time says nothing of which one was nearest.
        matches = [hmac.compare_digest(given, key) for key in wanted]
        if not any(matches):
            raise ApiError(
                401,
                "a valid API key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return sha256(given).hexdigest()[:16] if self._config.key_namespaces else ""

    def _check_size(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._config.max_body_bytes:
            raise _too_large(self._config.max_body_bytes)

    def _check_type(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"")
        if length == b"0" or (not length and b"transfer-encoding" not in headers):
            return
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json" and not (
            kind.startswith(b"application/") and kind.endswith(b"+json")
        ):
            raise ApiError(415, "the body must be JSON: send `Content-Type: application/json`")


class _Answer:
    """Passes an answer on, with the request's id, and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status = 499  # none was sent: the client went away
        self._send = send
        self._id = request_id.encode()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id)]
        await self._send(message)


def _request_id(given: bytes) -> str:
    return given.decode() if _ID.fullmatch(given) else uuid.uuid4().hex


def _given_key(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and token:
        return token.strip()
    return headers.get(b"x-api-key", b"")


def _too_large(limit: int) -> ApiError:
    message = f"the body has more than {limit} bytes, which is what --max-body-mib allows"
    return ApiError(413, message, headers={"Connection": "close"})


def _limited(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    """`receive` for bodies that do not tell their length, or do not come."""
    seen, is_whole = 0, False

    async def limited() -> Message:
        nonlocal seen, is_whole
        if is_whole:
            return await receive()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            raise ApiError(408, "the body did not come", headers={"Connection": "close"}) from None
        is_whole = not message.get("more_body", False)
        seen += len(message.get("body", b""))
        if seen > limit:
            raise _too_large(limit)
        return message

    return limited


async def _refuse(scope: Scope, send: Send, error: ApiError, request_id: str) -> None:
    body = error_body(scope, api_error(error), request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items()]
    start = {"type": "http.response.start", "status": error.status_code, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def error_body(scope: Scope, error: ApiError, request_id: str) -> bytes:
    """The body of an error in the shape that the path's clients read, as ASCII."""
    anthropic = scope["path"].encode().startswith(ANTHROPIC_PREFIX)
    body = error.anthropic_body(request_id) if anthropic else error.body()
    return json.dumps(body).encode()


def _line(scope: Scope, request_id: str, status: int, seconds: float) -> str:
    """One JSON object a request; what was asked or answered is not in it."""
    client = scope.get("client") or ("", 0)
    entry: dict[str, Any] = {
        "request_id": request_id,
        "client": client[0],
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": round(seconds, 4),
        **scope["state"]["log"],
    }
    return json.dumps(entry)
