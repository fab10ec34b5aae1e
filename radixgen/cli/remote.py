"""A running server as commands see it: where it is, its key, and its faults in plain words.

Knows HTTP and the shape of OpenAI's answers; no command.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from radixgen import env
from radixgen.cli import common
from radixgen.errors import (
    ConfigError,
    InvalidRequest,
    Overloaded,
    RadixgenError,
    RuntimeUnavailable,
)

if TYPE_CHECKING:  # loaded by the commands that need it only
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_SECONDS = 10.0
UNIX = "unix:"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_SHOWN = 300  # characters of an answer that is no API's

Url = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        help=f"The server, or unix:PATH. Default: RADIXGEN_URL, else {DEFAULT_URL}.",
        show_default=False,
        rich_help_panel="Server",
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        help="The key that it asks for. Or RADIXGEN_API_KEY, which other users cannot see.",
        show_default=False,
        rich_help_panel="Server",
    ),
]
ServedModel = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="One of the server's models. Default: its first.",
        callback=common.check_utf8,
        show_default=False,
        rich_help_panel="Server",
    ),
]


def base_url(given: str) -> str:
    """The address of a server without a path. Raises ConfigError for what is none."""
    url = (given or env.read("RADIXGEN_URL") or DEFAULT_URL).strip()
    if url.startswith(UNIX):
        return url
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    try:
        known = parts.scheme in ("http", "https") and parts.port != 0
        usable = known and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:  # the port
        usable = False
    if not usable:
        raise ConfigError(f"--url {given or url}: expected an address such as {DEFAULT_URL}")
    return url.rstrip("/").removesuffix("/v1")


def client_options(url: str, api_key: str) -> dict[str, Any]:
    """What a client of the server at `url` is made with, but for its transport."""
    import httpx2

    key = api_key or env.read("RADIXGEN_API_KEY")
    if not key.isascii() or not key.isprintable():
        raise ConfigError("--api-key holds a character that no key has")
    local = url.startswith(UNIX) or urlsplit(url).hostname in LOOPBACK
    return {
        "base_url": DEFAULT_URL if url.startswith(UNIX) else url,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": httpx2.Timeout(None, connect=CONNECT_SECONDS),
        "trust_env": not local,  # no proxy stands between a machine and itself
    }


def connect(url: str, api_key: str) -> "httpx2.Client":
    """A client of the server; nothing is sent yet."""
    import httpx2

    uds = _socket_path(url)
    transport = httpx2.HTTPTransport(uds=uds) if uds else None
    return httpx2.Client(**client_options(url, api_key), transport=transport)


def connect_async(
    url: str, api_key: str, transport: "httpx2.AsyncBaseTransport | None" = None
) -> "httpx2.AsyncClient":
    """A client with as many connections as it has requests; nothing is sent yet."""
    import httpx2

    uds = _socket_path(url)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    if transport is None and uds:
        transport = httpx2.AsyncHTTPTransport(uds=uds, limits=limits)
    return httpx2.AsyncClient(**client_options(url, api_key), transport=transport, limits=limits)


def _socket_path(url: str) -> str | None:
    """The path of a Unix socket, None for another address. Raises RuntimeUnavailable."""
    if not url.startswith(UNIX):
        return None
    path = url.removeprefix(UNIX)
    if not Path(path).is_socket():
        raise RuntimeUnavailable(f"no server answers at {url}: there is no such socket")
    return path


@contextmanager
def explained(url: str) -> Iterator[None]:
    """What goes wrong between us and the server, as one of radixgen's errors."""
    import httpx2

    try:
        yield
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise unreachable(url, error) from None


def unreachable(url: str, error: Exception) -> RuntimeUnavailable:
    """Nobody answers, or not to the end."""
    import httpx2

    said = str(error) or type(error).__name__
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return RuntimeUnavailable(
            f"no server answers at {url} ({said}): start one with `radixgen serve`, or name "
            "another with --url"
        )
    return RuntimeUnavailable(f"the connection to {url} broke: {said}")


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> RadixgenError | None:
    """The error of an answer; None for one that succeeded."""
    if 200 <= status < 300:
        return None
    message = message_of(body) or f"the server answered with status {status}"
    if status == 401:
        return ConfigError(f"{message} (give --api-key, or set RADIXGEN_API_KEY)")
    if status == 429:
        return Overloaded(message, retry_after(headers))
    if status in (408, 502, 503, 504):
        return RuntimeUnavailable(message)
    return InvalidRequest(message) if 400 <= status < 500 else RadixgenError(message)


def retry_after(headers: Mapping[str, str], otherwise: float = 1.0) -> float:
    """Seconds that a server asks to be left alone; a date or nonsense gives `otherwise`."""
    try:
        return max(float(headers.get("retry-after", otherwise)), 0.0)
    except ValueError:
        return otherwise


def message_of(body: bytes) -> str:
    """What an error's body says, in any of the shapes that servers use."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return " ".join(body.decode("utf-8", "replace").split())[:MAX_SHOWN]
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    return value if isinstance(value, str) else json.dumps(value)[:MAX_SHOWN]


def get_json(client: "httpx2.Client", path: str, url: str, **params: Any) -> Any:
    """The JSON at a path. Raises what `explained` and `refusal` make of a fault."""
    with explained(url):
        answer = client.get(path, params=params)
    error = refusal(answer.status_code, answer.content, answer.headers)
    if error is not None:
        raise error
    return parsed(answer.content, url)


def post_json(client: "httpx2.Client", path: str, url: str, body: Any) -> Any:
    """The answer to a body, as `get_json`."""
    with explained(url):
        answer = client.post(path, json=body)
    error = refusal(answer.status_code, answer.content, answer.headers)
    if error is not None:
        raise error
    return parsed(answer.content, url)


def parsed(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise RadixgenError(f"what answers at {url} does not speak JSON: is it a server?") from None


def need(answer: Any, url: str, *names: str) -> None:
    """Raises RadixgenError unless an answer is an object with these fields."""
    if not isinstance(answer, dict) or not answer.keys() >= set(names):
        raise RadixgenError(
            f"what answers at {url} is no radixgen server, or one of another version"
        )


def first_model(listed: Any, url: str) -> str:
    """The first name in the answer of `/v1/models`."""
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise RadixgenError(f"{url}/v1/models names no model; give --model") from None


def stream_events(response: "httpx2.Response") -> Iterator[dict[str, Any]]:
    """The JSON of each event up to `[DONE]`. Raises RadixgenError for an error among them."""
    import httpx2

    for event in httpx2.EventSource(response, max_event_size=None):
        if event.data == "[DONE]":
            return
        yield _checked(event.data)


async def stream_events_async(response: "httpx2.Response") -> AsyncIterator[dict[str, Any]]:
    """`stream_events` for asyncio."""
    import httpx2

    async for event in httpx2.EventSource(response, max_event_size=None):
        if event.data == "[DONE]":
            return
        yield _checked(event.data)


def _checked(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        raise RadixgenError(f"an event of the stream is no JSON: {data[:MAX_SHOWN]}") from None
    if not isinstance(value, dict):
        raise RadixgenError(f"an event of the stream is no object: {data[:MAX_SHOWN]}")
    if "error" in value:
        raise RadixgenError(f"the stream ended in an error: {message_of(data.encode())}")
    return value
