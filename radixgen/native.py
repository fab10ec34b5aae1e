"""Builds and loads the C kernels. Knows compilers and files, nothing of tensors or models.

    sources + headers ┐
    flags             ├─ sha256 ─▶ <cache>/native/<name>-<hash>.so ─▶ ctypes.CDLL
    compiler, CPU     ┘            built when absent: to a temporary name, then moved into place;
                                   its own sha256 lies beside it

A build happens once for each content of the sources, compiler and CPU; any number of processes may
start at once. Where nothing can be built the caller gets None, once with a warning that says why.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from radixgen import env

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-ffp-contract=off")
# A build takes seconds; this bounds a compiler that hangs.
BUILD_SECONDS = 300

_log = logging.getLogger(__name__)
_loaded: dict[tuple[str, tuple[Path, ...], tuple[str, ...], Path], ctypes.CDLL | None] = {}


def load(name: str, sources: Sequence[Path], flags: Sequence[str] = ()) -> ctypes.CDLL | None:
    """The shared library of these C sources, built first when it is not in the cache.

    `flags` come after FLAGS, so that they win. Headers beside the sources (*.h) count as sources in
    the hash. None when RADIXGEN_NATIVE=0, when there is no compiler or when the build fails; the
    last two warn, once a process. The answer is kept for the life of the process.
    """
    if not env.read("RADIXGEN_NATIVE"):
        return None
    key = (name, tuple(sources), tuple(flags), cache_folder())
    if key not in _loaded:
        _loaded[key] = _load_or_warn(*key)
    return _loaded[key]


def cache_folder() -> Path:
    """Where built libraries are kept: `native` in RADIXGEN_CACHE or in the user's cache folder."""
    return env.cache_folder() / "native"


def _load_or_warn(
    name: str, sources: tuple[Path, ...], flags: tuple[str, ...], folder: Path
) -> ctypes.CDLL | None:
    try:
        path = build(name, sources, flags, folder)
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # a damaged file: make it anew, once
            path.unlink()
            return ctypes.CDLL(str(build(name, sources, flags, folder)))
    except (OSError, BuildError) as error:
        _log.warning("%s runs without its C kernels, slower but as exact: %s", name, error)
        return None


class BuildError(Exception):
    """No compiler, or it refused the sources; the message holds what it said."""


def build(name: str, sources: Sequence[Path], flags: Sequence[str], folder: Path) -> Path:
    """The path of the library in `folder`, compiling it unless it is there.

    Raises BuildError, or OSError when the folder cannot be written.
    """
    compiler = find_compiler()
    options = (*FLAGS, *flags)
    target = folder / f"{name}-{_fingerprint(compiler, sources, options)}.so"
    if _is_whole(target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not _is_whole(target):
            _compile(compiler, sources, options, target)
    return target


def _compile(compiler: str, sources: Sequence[Path], options: Sequence[str], target: Path) -> None:
    """Compile beside `target` and move it there: readers see a whole library or none."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *options, "-o", str(made), *map(str, sources), "-lm"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"{compiler} did not end within {BUILD_SECONDS} s") from None
        if done.returncode != 0:
            raise BuildError(f"{compiler} failed: {done.stderr.strip()[-2000:]}")
        sealed = made.with_suffix(".sha256")
        sealed.write_text(_sha256(made))
        os.replace(sealed, target.with_suffix(".sha256"))
        os.replace(made, target)


def _is_whole(target: Path) -> bool:
    """Whether the library is there as it was built. A cut one loads, and kills by SIGBUS later."""
    try:
        return _sha256(target) == target.with_suffix(".sha256").read_text()
    except (OSError, ValueError):
        return False


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_compiler() -> str:
    """The path of the first C compiler on PATH. Raises BuildError, naming the way out."""
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(f"no C compiler on PATH ({', '.join(COMPILERS)}): install gcc or clang")


def _fingerprint(compiler: str, sources: Sequence[Path], options: Sequence[str]) -> str:
    digest = hashlib.sha256()
    headers = {header for source in sources for header in source.parent.glob("*.h")}
    for path in (*sources, *sorted(headers)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for part in (*options, _version(compiler), cpu_model()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


@lru_cache
def _version(compiler: str) -> str:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout


@lru_cache
def cpu_model() -> str:
    """What -march=native depends on: the architecture, the model's name and its features."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    lines = dict.fromkeys(line for line in text.splitlines() if line.startswith(wanted))
    return "\n".join((platform.machine(), *lines))
