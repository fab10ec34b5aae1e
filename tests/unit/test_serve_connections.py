"""Sockets, TLS, and clients that speak HTTP badly, slowly or not at all."""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from radixgen.errors import ConfigError
from radixgen.messages import Ready
from radixgen.serve import protocol
from radixgen.serve.http import DONE, PING, open_stream, openai_error_event
from radixgen.serve.server import Listen, serve
from radixgen.serve.settings import ServeConfig

CONFIG = ServeConfig(model_names=("m",), max_body_bytes=1 << 20, drain_seconds=0)


class Client:
    """A runtime's client that answers heartbeats and nothing else."""

    ready = Ready("r", "m", 256, 128, 8, 16, 1)
    connection = SimpleNamespace(is_lost=False)
    tokenizer = SimpleNamespace(warm_chat=lambda: None)

    async def stats(self) -> dict[str, float]:
        return {}


class Launcher:
    async def start(self) -> Any:
        return Client()

    async def stop(self, client: Any, *, drain: bool, timeout: float) -> None:
        pass


@contextlib.asynccontextmanager
async def served(listen: Listen) -> AsyncIterator[str]:
    """The server's URL while it runs."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(Launcher(), CONFIG, listen, found.set_result))
    try:
        both: set[asyncio.Future[Any]] = {task, found}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield await found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConfigError):
            await task


async def exchange(url: str, *parts: bytes) -> bytes:
    """What a server says to raw bytes until it closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := await asyncio.wait_for(reader.read(1 << 16), 60):
            said += data
    writer.close()
    return said


# ---- where it listens ----


def test_a_unix_socket_is_of_its_user_and_group(tmp_path: Path) -> None:
    path = tmp_path / "radixgen.sock"

    async def work() -> None:
        async with served(Listen(uds=str(path))) as url:
            assert url == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            transport = httpx2.AsyncHTTPTransport(uds=str(path))
            async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
                assert (await http.get("/health")).json() == {"status": "ok"}
            with pytest.raises(ConfigError, match=r"cannot listen .*; choose another by --uds"):
                async with served(Listen(uds=str(path))):
                    pass
        assert not path.exists()

    asyncio.run(work())


def test_a_port_in_use_is_told() -> None:
    with Listen(port=0).bind() as held:
        held.listen()
        with pytest.raises(ConfigError, match=r"cannot listen on .*; choose another by --port"):
            Listen(port=held.getsockname()[1]).bind()


def test_a_socket_that_a_dead_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    Listen(uds=str(path)).bind().close()
    path.unlink()
    path.write_text("no socket")
    with pytest.raises(ConfigError, match="cannot listen"):
        Listen(uds=str(path)).bind()
    assert path.read_text() == "no socket"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of its own for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    paths = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return paths


@pytest.mark.parametrize("mutual", [False, True])
def test_tls_and_certificates_of_clients(certificate: tuple[str, str], mutual: bool) -> None:
    cert, key = certificate
    listen = Listen(port=0, certificate=cert, key=key, client_ca=cert if mutual else None)

    async def work() -> None:
        async with served(listen) as url:
            assert url.startswith("https://127.0.0.1:")
            for shows in (False, True):
                context = ssl.create_default_context(cafile=cert)
                if shows:
                    context.load_cert_chain(cert, key)
                async with httpx2.AsyncClient(verify=context, base_url=url) as http:
                    if mutual and not shows:
                        with pytest.raises(httpx2.HTTPError):
                            await http.get("/health")
                    else:
                        assert (await http.get("/health")).status_code == 200
            async with httpx2.AsyncClient(base_url=url.replace("https", "http")) as http:
                with pytest.raises(httpx2.HTTPError):
                    await http.get("/health")

    asyncio.run(work())


# ---- what comes in ----

GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /abort_request HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([GET, b"connection: close\r\n\r\n"], b"200"),
        ([GET + b"x: " + b"y" * 100_000], b"431"),
        ([GET, *[b"x: " + b"y" * 1000 + b"\r\n"] * 200], b"431"),
        ([GET + b"".join(b"x%d: y\r\n" % i for i in range(20_000)) + b"\r\n"], b"431"),
        ([b"GET /" + b"a" * 100_000], b"431"),
        ([b"\x16\x03\x01\x02\x00\x01\x00"], b"400"),
        ([b"\xff" * 100 + b"\r\n\r\n"], b"400"),
        ([POST + b"connection: close\r\ncontent-length: 4\r\n\r\n\xff\xfe{}"], b"400"),
        ([POST + b"connection: close\r\ncontent-length: 104857600\r\n\r\n{"], b"413"),
        ([POST + b"content-length: -1\r\n\r\n{}"], b"400"),
        ([POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"], b"400"),
        ([POST + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n{}"], b"400"),
        ([b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n"], b"400"),
    ],
)
def test_bad_http_is_refused_and_the_connection_closed(parts: list[bytes], status: bytes) -> None:
    async def work() -> None:
        async with served(Listen(port=0)) as url:
            said = await exchange(url, *parts)
            assert said.startswith(b"HTTP/1.1 " + status), said[:200]
            head, _, body = said.partition(b"\r\n\r\n")
            assert head.count(b"HTTP/1.1") == 1
            assert status == b"200" or json.loads(body)["error"]["type"] == "invalid_request_error"
            good = await exchange(url, GET + b"connection: close\r\n\r\n")
            assert good.startswith(b"HTTP/1.1 200")

    asyncio.run(work())


@pytest.mark.parametrize("wish", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_costs_no_body(wish: bytes) -> None:
    """As some clients send it with every request over plain TCP."""
    wishes = (
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\nhttp2-settings: AAMA\r\n" % wish
    )
    whole = b'content-length: 15\r\n\r\n{"rid": "gone"}'
    chunked = b'transfer-encoding: chunked\r\n\r\nf\r\n{"rid": "gone"}\r\n0\r\n\r\n'
    last = GET + b"connection: close\r\n\r\n"

    async def work() -> None:
        async with served(Listen(port=0)) as url:
            for body in (whole, chunked):
                for cut in (0, len(body), len(body) - 5):
                    parts = [POST + wishes + body[:cut], body[cut:], GET + wishes + b"\r\n", last]
                    said = await exchange(url, *parts)
                    assert said.count(b"HTTP/1.1 200") == 3, said
                    assert b'{"success":false}' in said

    asyncio.run(work())


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)

    async def work() -> None:
        async with served(Listen(port=0)) as url:
            for parts in ([], [b"GET /he"], [GET]):
                assert await exchange(url, *parts) == b""

    asyncio.run(work())


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixgen.serve.gate.BODY_SECONDS", 0.1)

    async def work() -> None:
        async with served(Listen(port=0)) as url:
            said = await exchange(url, POST + b"connection: close\r\ncontent-length: 9\r\n\r\n{")
            assert said.startswith(b"HTTP/1.1 408")

    asyncio.run(work())


def test_requests_of_one_connection_are_answered_in_turn() -> None:
    async def work() -> None:
        async with served(Listen(port=0)) as url:
            said = await exchange(url, (GET + b"\r\n") * 40 + GET + b"connection: close\r\n\r\n")
            assert said.count(b"HTTP/1.1 200 OK") == 41

    asyncio.run(work())


# ---- what goes out ----


def test_silence_is_broken_by_comments_and_an_error_is_told() -> None:
    """A generator that says nothing for a while, and then fails."""
    goes_on = asyncio.Event()

    async def events() -> AsyncGenerator[bytes]:
        await goes_on.wait()
        yield b"data: 1\n\n"
        raise ConfigError("no more")

    sent: list[bytes] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(PING) == 3:
            goes_on.set()

    async def work() -> None:
        request = Request({"type": "http", "headers": []}, receive)
        response = await open_stream(
            request, events(), openai_error_event,
            seconds=None, ping_seconds=0.01, on_open=lambda _: None,
        )  # fmt: skip
        await asyncio.wait_for(response(request.scope, receive, send), 60)

    asyncio.run(work())
    said = [part for part in sent if part and part != PING]
    assert said[0] == b"data: 1\n\n"
    assert said[1].startswith(b'data: {"error"')
    assert said[1].endswith(DONE)
