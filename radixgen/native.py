"""Builds and loads the C kernels. Knows compilers and files, nothing of tensors or models.

    sources + headers ┐
    flags             ├─ sha256 ─▶ <cache>/native/<name>-<hash>.so ─▶ ctypes.CDLL
    compiler, CPU     ┘            built when absent: to a temporary name, then moved into place;
                                   its own sha256 lies beside it, touched at each use

A build happens once for each content of the sources, compiler and CPU; any number of processes may
start at once. Each build removes those of its name that were used longest ago: whoever has loaded
one keeps it, and whoever is about to builds it anew. Where nothing can be built the caller gets
None, once with a warning that says why.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from radixgen import env

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-ffp-contract=off")
# A build takes seconds; this bounds a compiler that hangs.
BUILD_SECONDS = 300
KEPT = 16  # builds of a name, for checkouts, compilers and flags that are used by turns

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
        except OSError:  # damaged, or removed since: make it anew, once
            path.unlink(missing_ok=True)
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
    texts = _read(sources)
    target = folder / f"{name}-{_fingerprint(compiler, texts, options)}.so"
    if not _is_whole(target):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{name}.lock"):
            if not _is_whole(target):
                _compile(compiler, texts, options, target, scratch=folder / f"{name}.scratch")
                _remove_old(name, but=target)
    with contextlib.suppress(OSError):  # somebody else's folder, or removed since
        os.utime(_seal(target))
    return target


def _read(sources: Sequence[Path]) -> dict[str, bytes]:
    """The sources and the headers beside them, by file name. What is compiled is what was read
    here, so that an edit meanwhile does not end up under the name of what it has replaced."""
    headers = {header for source in sources for header in source.parent.glob("*.h")}
    paths = (*sources, *sorted(headers))
    texts = {path.name: path.read_bytes() for path in paths}
    if len(texts) < len(paths):
        raise BuildError(f"two files of one name among {', '.join(map(str, paths))}")
    return texts


def _compile(
    compiler: str,
    texts: Mapping[str, bytes],
    options: Sequence[str],
    target: Path,
    scratch: Path,
) -> None:
    """Compile in `scratch` and move to `target`: readers see a whole library or none."""
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed while it built
    scratch.mkdir()
    try:
        for name, text in texts.items():
            (scratch / name).write_bytes(text)
        sources = [name for name in texts if not name.endswith(".h")]
        command = [compiler, *options, "-o", target.name, *sources, "-lm"]
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"{compiler} did not end within {BUILD_SECONDS} s") from None
        if done.returncode != 0:
            raise BuildError(f"{compiler} failed: {done.stderr.strip()[-2000:]}")
        made = scratch / target.name
        _seal(made).write_text(_sha256(made))
        os.replace(_seal(made), _seal(target))
        os.replace(made, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_old(name: str, but: Path) -> None:
    """Keep the KEPT libraries of a name that were used last, this one among them."""

    def last_use(library: Path) -> float:
        try:
            return _seal(library).stat().st_mtime
        except OSError:
            return 0.0

    others = [path for path in but.parent.glob(f"{name}-*.so") if path != but]
    for library in sorted(others, key=last_use, reverse=True)[KEPT - 1 :]:
        for path in (library, *library.parent.glob(f"{library.stem}.*")):
            with contextlib.suppress(OSError):  # not ours to remove, or gone
                path.unlink()


def _seal(library: Path) -> Path:
    """The file that holds the library's sha256, and in its time of change the last use."""
    return library.with_suffix(".sha256")


def _is_whole(target: Path) -> bool:
    """Whether the library is there as it was built. A cut one loads, and kills by SIGBUS later."""
    try:
        return _sha256(target) == _seal(target).read_text()
    except (OSError, ValueError):
        return False


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_compiler() -> str:
    """The path of the first C compiler on PATH. Raises BuildError, naming the way out."""
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return str(Path(found).absolute())  # PATH may be relative, and sources lie elsewhere
    raise BuildError(f"no C compiler on PATH ({', '.join(COMPILERS)}): install gcc or clang")


def _fingerprint(compiler: str, texts: Mapping[str, bytes], options: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(name.encode() + b"\0" + text + b"\0")
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
