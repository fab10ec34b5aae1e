"""How ranks hand each other what they have: every rank's numbers to every rank. Knows no model.

    sockets   Unix sockets in a folder that only this user can enter; a rank is woken once
    gloo      torch.distributed's, by TCP on the loopback interface; threads wake threads
    nccl      between GPUs (RCCL on AMD): in the order of each one's queue, the host does not wait

All only carry bytes: what is added is added by those who get them.
"""

import contextlib
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from radixgen.config import TensorExchange
from radixgen.errors import ConfigError, RuntimeUnavailable

JOIN_SECONDS = 120.0
LOOPBACK = "lo"
# Nobody waits for as long as this: a rank that dies closes its connections.
_PATIENCE = timedelta(days=30)
_CHUNK = 1 << 15  # bytes; a socket holds several, so that all may send before any receives


class Exchange(Protocol):
    """The other ranks, as one of them sees them."""

    def all(self, x: Tensor) -> Tensor:
        """x of every rank, in the order of ranks: [ranks, *x.shape]. All have one shape and type.

        Raises RuntimeError or OSError when a rank is gone.
        """
        ...


def join(
    kind: TensorExchange, folder: Path, rank: int, ranks: int, device: torch.device
) -> Exchange:
    """Wait for the others, who do the same, in a new folder that only this user can enter.

    `kind`: of those that tensors of `device` may take, as `ModelConfig` has checked; auto: nccl
    between GPUs, else sockets. Raises RuntimeUnavailable when the others do not come, ConfigError
    where torch was built without NCCL.
    """
    made: Exchange
    try:
        if device.type == "cuda":
            made = Group.of_nccl(folder, rank, ranks)
        elif kind == "gloo":
            made = Group.of_gloo(folder, rank, ranks)
        else:
            made = Sockets(folder, rank, ranks)
        made.all(torch.zeros(1, device=device))  # all have met, and need the folder no more
    except (RuntimeError, OSError) as error:
        raise RuntimeUnavailable(f"the ranks of the model did not meet: {error}") from None
    return made


class Sockets:
    """A connection to each other rank; a rank listens for those above it and calls those below."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._others: dict[int, socket.socket] = {}
        deadline = time.monotonic() + JOIN_SECONDS
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / str(rank)))
            listener.listen(ranks)
            for other in range(rank):
                self._others[other] = _call(folder / str(other), rank, deadline)
            for _ in range(rank + 1, ranks):
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                caller, _address = listener.accept()
                caller.settimeout(None)
                name = bytearray(1)
                _receive(caller, "that called", memoryview(name))
                self._others[name[0]] = caller

    def all(self, x: Tensor) -> Tensor:
        out = x.new_empty((self._ranks, *x.shape))
        if not x.numel():
            return out
        out[self._rank] = x
        views = [each.view(torch.uint8).numpy().data for each in out.view(self._ranks, -1)]
        for low in range(0, len(views[0]), _CHUNK):
            chunk = slice(low, low + _CHUNK)
            for other in self._others.values():
                other.sendall(views[self._rank][chunk])
            for rank, other in self._others.items():
                _receive(other, rank, views[rank][chunk])
        return out

    def __del__(self) -> None:
        for other in self._others.values():
            other.close()


def _call(path: Path, rank: int, deadline: float) -> socket.socket:
    """Connect to a rank that may not listen yet, and tell it who calls."""
    while True:
        caller = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            caller.connect(str(path))
            caller.sendall(bytes([rank]))
            return caller
        caller.close()
        if time.monotonic() > deadline:
            raise OSError(f"rank {path.name} does not answer")
        time.sleep(0.005)


def _receive(source: socket.socket, rank: int | str, target: memoryview) -> None:
    while target:
        count = source.recv_into(target)
        if not count:
            raise OSError(f"rank {rank} has closed its connection")
        target = target[count:]


class Group:
    """A process group of torch.distributed, of which nothing but gathering is used."""

    def __init__(self, group: Any, ranks: int) -> None:
        self._group, self._ranks = group, ranks

    @classmethod
    def of_gloo(cls, folder: Path, rank: int, ranks: int) -> "Group":
        """Between CPUs, held to the loopback interface."""
        c10d: Any = dist  # torch's types leave out what is used here
        options = c10d.ProcessGroupGloo._Options()
        options._devices = [c10d.ProcessGroupGloo.create_device(interface=LOOPBACK)]
        options._timeout = _PATIENCE
        return cls(c10d.ProcessGroupGloo(_store(folder, ranks), rank, ranks, options), ranks)

    @classmethod
    def of_nccl(cls, folder: Path, rank: int, ranks: int) -> "Group":
        """Between GPUs. Raises ConfigError where torch was built without NCCL."""
        c10d: Any = dist
        if not dist.is_nccl_available():
            raise ConfigError(
                f"tensor_parallel={ranks}: GPUs exchange by NCCL, which the installed torch "
                f"{torch.__version__} was built without; install its build for CUDA or ROCm"
            )
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = _PATIENCE
        return cls(c10d.ProcessGroupNCCL(_store(folder, ranks), rank, ranks, options), ranks)

    def all(self, x: Tensor) -> Tensor:
        out = x.new_empty((self._ranks, *x.shape))
        if x.numel():
            received = [each.view(torch.uint8) for each in out.view(self._ranks, -1).unbind()]
            self._group.allgather([received], [x.reshape(-1).view(torch.uint8)]).wait()
        return out


def _store(folder: Path, ranks: int) -> Any:
    """Where ranks leave each other word of how to be reached."""
    c10d: Any = dist
    store = c10d.FileStore(str(folder / "group"), ranks)
    store.set_timeout(timedelta(seconds=JOIN_SECONDS))
    return store
