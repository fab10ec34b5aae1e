"""The backend that is used where none is named."""

import asyncio
import pkgutil
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from radixgen.blocking import BlockingClient
from radixgen.lang.backends.local import LocalBackend
from radixgen.lang.backends.protocol import Backend

_lock = threading.Lock()
_chosen: list[Any] = []  # at most one: what `set_default_backend` was given, or the local runtime

_of_client: WeakKeyDictionary[BlockingClient, LocalBackend] = WeakKeyDictionary()

# By name, because starting a process is above this layer.
_START_LOCAL = "radixgen.launch:Runtime"


def set_default_backend(backend: Any) -> None:
    """Programs talk to this from now on: a Runtime, or one of the backends. None: forget it."""
    with _lock:
        _chosen[:] = [] if backend is None else [backend]


def resolve_backend(backend: Any = None) -> Backend:
    """The given one, else the default, else a local runtime with the embedded model."""
    if backend is None:
        with _lock:
            if not _chosen:
                _chosen.append(pkgutil.resolve_name(_START_LOCAL)().start())
            backend = _chosen[0]
    if not isinstance(backend, BlockingClient):
        found: Backend = backend
        return found
    with _lock:
        if backend not in _of_client:
            _of_client[backend] = LocalBackend(backend.engine_client, backend.loop)
        return _of_client[backend]


def flush_cache(backend: Any = None) -> None:
    """Forget every cached prefix that no running request uses."""
    found = resolve_backend(backend)
    asyncio.run_coroutine_threadsafe(found.flush_cache(), found.loop).result()


def get_server_info(backend: Any = None) -> Mapping[str, Any]:
    """What the backend serves and its counters."""
    found = resolve_backend(backend)
    return asyncio.run_coroutine_threadsafe(found.server_info(), found.loop).result()
