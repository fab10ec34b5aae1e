"""The backend that is used where none is named."""

import asyncio
import pkgutil
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from radixgen.blocking import BlockingClient
from radixgen.client import EngineClient
from radixgen.errors import InvalidRequest, RuntimeUnavailable
from radixgen.lang.backends.local import LocalBackend
from radixgen.lang.backends.protocol import Backend
from radixgen.lang.variables import running_loop

_lock = threading.Lock()
_chosen: list[Any] = []  # at most one: what `set_default_backend` was given, or the local runtime
_started: list[Any] = []  # at most one: the local runtime, if it was started here

_of_client: WeakKeyDictionary[BlockingClient | EngineClient, LocalBackend] = WeakKeyDictionary()

# By name, because starting a process is above this layer.
_START_LOCAL = "radixgen.launch:Runtime"


def set_default_backend(backend: Any) -> None:
    """Programs talk to this from now on: a Runtime, or one of the backends. None: forget it."""
    if backend is not None:
        _check(backend)
    with _lock:
        _chosen[:] = [] if backend is None else [backend]


def resolve_backend(backend: Any = None) -> Backend:
    """The given one, else the default, else a local runtime with the embedded model.

    A local runtime that has ended, killed for its memory say, is followed by a new one.
    Raises InvalidRequest for what is no backend.
    """
    if backend is None:
        with _lock:
            backend = _default()
    _check(backend)
    if not isinstance(backend, BlockingClient | EngineClient):
        found: Backend = backend
        return found
    with _lock:
        if backend not in _of_client:
            _of_client[backend] = _local(backend)
        return _of_client[backend]


def _default() -> Any:
    """Whoever calls holds the lock."""
    ended = _chosen == _started != [] and _started[0].engine_client.connection.is_lost
    if not _chosen or ended:  # who still waits on the old one hears how it ended: it is left alone
        _started[:] = [pkgutil.resolve_name(_START_LOCAL)().start()]
        _chosen[:] = _started
    return _chosen[0]


def _check(backend: Any) -> None:
    known = isinstance(backend, BlockingClient | EngineClient)
    if isinstance(backend, type) or not (known or hasattr(backend, "generate")):
        raise InvalidRequest(
            f"backend={backend!r} is no backend: give a Runtime, RuntimeEndpoint(url), "
            "OpenAI(model), Anthropic(model) or LiteLLM(model)",
            "backend",
        )


def _local(client: BlockingClient | EngineClient) -> LocalBackend:
    if isinstance(client, BlockingClient):
        _ensure_started(client)
        return LocalBackend(client.engine_client, client.loop)
    loop = running_loop()
    if loop is None:
        raise InvalidRequest(
            "an asynchronous runtime belongs to its event loop: use `await program.arun(…)` there, "
            "or a Runtime",
            "backend",
        )
    return LocalBackend(client, loop)


def _ensure_started(client: BlockingClient) -> None:
    """Start a Runtime that was only made: SGLang's are started by making them."""
    try:
        client.ready  # noqa: B018  # raises when it has not been started
    except RuntimeUnavailable:
        start = getattr(client, "start", None)
        if start is None:
            raise
        start()


def flush_cache(backend: Any = None) -> None:
    """Forget every cached prefix that no running request uses."""
    found = resolve_backend(backend)
    asyncio.run_coroutine_threadsafe(found.flush_cache(), found.loop).result()


def get_server_info(backend: Any = None) -> Mapping[str, Any]:
    """What the backend serves and its counters."""
    found = resolve_backend(backend)
    return asyncio.run_coroutine_threadsafe(found.server_info(), found.loop).result()
