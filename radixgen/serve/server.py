"""uvicorn around the application: sockets, signals, and the order in which things end.

SIGTERM, SIGINT ─▶ 503 for new requests ─▶ open ones finish, up to drain_seconds
                ─▶ what is left is aborted ─▶ runtime gone ─▶ sockets closed
the second signal ends at once
"""

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from radixgen.errors import ConfigError
from radixgen.serve.app import create_app
from radixgen.serve.protocol import BoundedProtocol
from radixgen.serve.settings import ServeConfig
from radixgen.serve.supervisor import Launcher, Supervisor
from radixgen.serve.tracing import Tracing, tracing_to

logger = logging.getLogger(__name__)

BACKLOG = 2048
MAX_FILES = 65_536
KEEP_ALIVE_SECONDS = 30
LAST_SECONDS = 5  # for answers to leave, when all is over


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the server listens. `uds`: a Unix socket's path, in place of host and port."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None  # clients must show a certificate that it signed

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} is not within 0 and 65535")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs both a certificate and its key")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigError("checking clients' certificates needs TLS: give a certificate")

    def bind(self) -> socket.socket:
        """The socket, taken before the model is loaded. Raises ConfigError when it cannot be."""
        if self.uds is not None:
            return _unix_socket(self.uds)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.host, self.port))
        except OSError as error:
            sock.close()
            raise _cannot_listen(f"{self.host}:{self.port}", error, "--port") from None
        return sock

    def url(self, sock: socket.socket) -> str:
        if self.uds is not None:
            return f"unix:{self.uds}"
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificate else 'http'}://{shown}:{port}"


def _unix_socket(path: str) -> socket.socket:
    """A socket for this user and group; one that a dead server left behind is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o117)
    try:
        if _is_abandoned(path):
            os.unlink(path)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise _cannot_listen(path, error, "--uds") from None
    finally:
        os.umask(mask)
    return sock


def _cannot_listen(place: str, error: OSError, flag: str) -> ConfigError:
    hint = f"; choose another by {flag}" if error.errno == errno.EADDRINUSE else ""
    return ConfigError(f"cannot listen on {place}: {error.strerror or error}{hint}")


def _is_abandoned(path: str) -> bool:
    """Whether there is a socket that nobody listens at."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


class _Server(uvicorn.Server):
    """Signals begin the drain instead of ending the server."""

    def __init__(self, config: uvicorn.Config, supervisor: Supervisor, seconds: float) -> None:
        super().__init__(config)
        self._supervisor = supervisor
        self._seconds = seconds
        self._draining: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._begin_end, sig)

    def _begin_end(self, sig: int) -> None:
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        logger.warning("%s: finishing what is open", signal.Signals(sig).name)
        self._draining = asyncio.create_task(self._end())

    async def _end(self) -> None:
        if not await self._supervisor.drain(self._seconds):
            logger.warning("%d prompts are aborted", self._supervisor.num_open)
        await self._supervisor.stop()
        self.should_exit = True


async def serve(launcher: Launcher, config: ServeConfig, listen: Listen, ready: Any) -> None:
    """Start the runtime, serve until a signal, end both. `ready(url)` is called in between.

    Raises ConfigError when the address is taken, and what kept the runtime from starting.
    """
    tracing = None
    if config.traces_endpoint is not None:
        tracing = tracing_to(config.traces_endpoint, config.model_names[0])
    _allow_connections()
    sock = listen.bind()
    supervisor = Supervisor(launcher, config.max_open)
    try:
        await supervisor.start()
        # In a thread: the first conversation would hold up every other request meanwhile.
        warming = asyncio.create_task(asyncio.to_thread(supervisor.client.tokenizer.warm_chat))
        server = _Server(
            _uvicorn_config(supervisor, config, listen, tracing), supervisor, config.drain_seconds
        )
        sock.listen(BACKLOG)  # from now on nobody is turned away
        ready(listen.url(sock))
        await server.serve([sock])
        await warming
    finally:
        await supervisor.stop()
        sock.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        if listen.uds is not None:
            Path(listen.uds).unlink(missing_ok=True)


def _allow_connections() -> None:
    """As many open files as the system lets us have: each connection is one of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _uvicorn_config(
    supervisor: Supervisor, config: ServeConfig, listen: Listen, tracing: Tracing | None
) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if listen.certificate is not None:
        tls = {"ssl_certfile": listen.certificate, "ssl_keyfile": listen.key}
    if listen.client_ca is not None:
        import ssl

        tls |= {"ssl_ca_certs": listen.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return uvicorn.Config(
        create_app(supervisor, config, tracing),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
        **tls,
    )
