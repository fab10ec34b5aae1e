"""The C operations of `cpu/`: builds them at first use and runs programs of them on threads.

Owns the calling convention: an operation is a kind and up to ARGUMENTS 64-bit words, a program is
an array of them, run by one call. What an operation means is told in the files of `cpu/`.

One team of threads serves the process. It sleeps between programs, so that it does not compete
with torch's own threads; `set_num_threads` sets its size, torch.set_num_threads the other's.
"""

import ctypes
import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import psutil
import torch
from torch import Tensor

from radixgen import env, native
from radixgen.errors import KernelError

ARGUMENTS = 31
_FOLDER = Path(__file__).parent / "cpu"
SOURCES = tuple(sorted(_FOLDER.glob("*.c")))
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_Operation = ctypes.c_int64 * (ARGUMENTS + 1)


class Kind(IntEnum):
    """The operations, numbered as in cpu/ops.h."""

    NORM = 0
    ROPE = 1
    KV_WRITE = 2
    SILU_MUL = 3
    BITMASK = 4
    QUANTIZE = 5
    LINEAR_PACKED = 6
    LINEAR_FLOAT = 7
    ATTENTION = 8
    GATHER = 9
    QUANTIZE_WIDE = 10
    LINEAR_WIDE = 11
    EMBED = 12
    SAMPLE = 13
    STORE_PAGES = 14
    STAGE_TILES = 15
    LINEAR_TILES = 16


def load(*flags: str) -> ctypes.CDLL | None:
    """The library with its signatures set, built with further compiler flags; None: unavailable."""
    library = native.load("kernels", SOURCES, flags)
    if library is None:
        return None
    library.rk_run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.rk_run.restype = ctypes.c_int64
    library.rk_plan_new.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 8
    library.rk_plan_new.restype = ctypes.c_void_p
    library.rk_tables_fit.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 5
    library.rk_tables_fit.restype = ctypes.c_int64
    library.rk_plan_free.argtypes = [ctypes.c_void_p]
    library.rk_plan_free.restype = None
    for repack, made in ((library.rk_repack, 2), (library.rk_repack_tiles, 3)):
        repack.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4, *[ctypes.c_void_p] * made]
        repack.restype = None
    library.rk_huge_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.rk_huge_pages.restype = None
    return library


def ask_for_huge_pages(tensor: Tensor) -> None:
    """Back a large new tensor by huge pages where the system offers them; before it is written."""
    loaded = library()
    if loaded is not None and tensor.device.type == "cpu":
        loaded.rk_huge_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())


class _State:
    """The library in use and its number of threads."""

    library: ctypes.CDLL | None = None
    resolved = False
    num_threads = 0


def library() -> ctypes.CDLL | None:
    """The C operations, or None where the references run instead. Decided once a process."""
    if not _State.resolved:
        use(load())
    return _State.library


def use(chosen: ctypes.CDLL | None) -> None:
    """Run on this library from now on, None: on the references. For tests and comparisons."""
    _State.library = chosen
    _State.resolved = True


def num_threads() -> int:
    """Threads that a program runs on: RADIXGEN_THREADS, or one a physical core of this process."""
    if not _State.num_threads:
        _State.num_threads = env.read("RADIXGEN_THREADS") or default_threads()
    return _State.num_threads


def set_num_threads(count: int) -> None:
    """Raises KernelError below 1. Results do not depend on it."""
    if count < 1:
        raise KernelError(f"num_threads={count} must be at least 1")
    _State.num_threads = count


@lru_cache
def default_threads() -> int:
    """One a physical core, but no more than the cores and the time this process may use."""
    logical = psutil.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return max(1, min(physical, allowed, cores_of_quota(_QUOTA) or allowed))


def cores_of_quota(file: Path) -> int | None:
    """How many cores' time a container's cpu.max grants, rounded up; None: no limit is known."""
    try:
        quota, period = map(int, file.read_text().split())
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return max(1, -(-quota // period))


def float_bits(value: float) -> int:
    """A number as the 64-bit word that an operation reads it from."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def run(kind: Kind, arguments: Sequence[int]) -> None:
    """Run one operation now. The caller keeps every tensor named by a pointer alive."""
    operation = _Operation(kind, *arguments)
    loaded = _State.library
    if loaded is None:
        raise KernelError("the C kernels are not loaded")
    loaded.rk_run(operation, 1, num_threads())


def supported(*tensors: Tensor) -> bool:
    """Whether the C operations are there and take these: on the CPU, float32 or bfloat16."""
    return library() is not None and all(
        t.is_cpu and t.dtype in (torch.float32, torch.bfloat16) for t in tensors
    )


def multiplies_by_tiles() -> bool:
    """Whether this CPU has a matrix unit for products of bfloat16 (AMX)."""
    loaded = library()
    return loaded is not None and bool(loaded.rk_amx())


def attends_by_tiles(head_dim: int) -> bool:
    """Whether this CPU's matrix unit computes attention over bfloat16 pages of such heads."""
    return head_dim % 64 == 0 and multiplies_by_tiles()


def is_half(tensor: Tensor) -> int:
    """The `half` argument: 1 for bfloat16, 0 for float32."""
    return int(tensor.dtype == torch.bfloat16)
