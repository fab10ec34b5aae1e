"""uvicorn around the application: sockets, signals, and the order in which things end.

SIGTERM, SIGINT ─▶ 503 for new requests ─▶ open ones finish, up to drain_seconds
                ─▶ what is left is aborted ─▶ runtime gone ─▶ sockets closed
the second signal ends at once
"""

import asyncio
import logging
import signal
import socket
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from radixgen.errors import ConfigError
from radixgen.serve.app import create_app
from radixgen.serve.settings import ServeConfig
from radixgen.serve.supervisor import Launcher, Supervisor

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 64 << 10
BACKLOG = 2048
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

    def bind(self) -> "socket.socket | None":
        """The socket, taken before the model is loaded. Raises ConfigError when it cannot be."""
        if self.uds is not None:
            return None
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.host, self.port))
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot listen on {self.host}:{self.port}: {reason}") from None
        return sock

    def url(self, sock: "socket.socket | None") -> str:
        if sock is None:
            return f"unix:{self.uds}"
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificate else 'http'}://{shown}:{port}"


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
    sock = listen.bind()
    supervisor = Supervisor(launcher, config.max_open)
    try:
        await supervisor.start()
        server = _Server(
            _uvicorn_config(supervisor, config, listen), supervisor, config.drain_seconds
        )
        if sock is not None:
            sock.listen(BACKLOG)  # from now on nobody is turned away
        ready(listen.url(sock))
        await server.serve([sock] if sock is not None else None)
    finally:
        await supervisor.stop()
        if sock is not None:
            sock.close()


def _uvicorn_config(supervisor: Supervisor, config: ServeConfig, listen: Listen) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if listen.certificate is not None:
        tls = {"ssl_certfile": listen.certificate, "ssl_keyfile": listen.key}
    if listen.client_ca is not None:
        import ssl

        tls |= {"ssl_ca_certs": listen.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return uvicorn.Config(
        create_app(supervisor, config),
        uds=listen.uds,
        # h11 bounds the headers of a request; httptools takes any number.
        http="h11",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
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
