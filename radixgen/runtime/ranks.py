"""The processes of a split model's other ranks: started, told, watched and ended here.

    the runtime: rank 0, engine and scheduler            ranks 1 and up: a part of the model each
      Orders, as a line of JSON    ── stdin ──▶
                                   ◀── stdout ──   Report: loaded
                                   ◀─ exchange ─▶  all meet
                                   ◀── stdout ──   Report: pages that there is room for
      the number of pages          ── stdin ──▶
                                   ◀── stdout ──   Report: ready
      messages of the leader       ── stdin ──▶
                                   ◀─ exchange ─▶  parts of vectors

A rank ends when its stdin does. When one ends by itself, the others wait for what never comes: all
are ended, and `on_loss` is told why. Knows no tensors and no requests.
"""

import contextlib
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NoReturn

import torch
from pydantic import TypeAdapter
from pydantic_core import to_json

from radixgen import env
from radixgen.config import ModelConfig, RuntimeConfig
from radixgen.errors import RadixgenError, RuntimeUnavailable, from_code
from radixgen.kernels import library
from radixgen.model.compilations import Compilations
from radixgen.model.decoder import Decoder
from radixgen.model.hub import ModelFiles, resolve
from radixgen.model.kv_cache import KVCache, KVLayout, available_bytes, choose_num_pages
from radixgen.model.lead import LeadingDecoder, follow
from radixgen.model.load import load_decoder, pages_beside
from radixgen.model.memory import GpuMemory
from radixgen.model.runner import ModelRunner
from radixgen.model.split import Split
from radixgen.model.weights import load_config
from radixgen.runtime.parent import leave_with_parent

logger = logging.getLogger(__name__)

END_SECONDS = 5.0  # between the end of its stdin and killing a rank
CAUSE_SECONDS = 5.0  # for the death that a broken connection tells of to be seen
_LENGTH = struct.Struct("<q")

# Without the working directory on its path (-P), where a folder may be named as one of our modules.
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); from radixgen.runtime.ranks import main; main()"
)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is told first. `meeting`: a folder in which the ranks find each other."""

    rank: int
    parent_pid: int
    meeting: str
    config: RuntimeConfig


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank says: pages that it has room for or has, or the error that keeps it from them."""

    num_pages: int = 0
    code: str = ""
    message: str = ""


_ORDERS, _REPORT = TypeAdapter(Orders), TypeAdapter(Report)


def set_threads(model: ModelConfig) -> None:
    """Share the threads of a runtime out to its ranks."""
    threads = max(1, (model.threads or library.num_threads()) // model.tensor_parallel)
    library.set_num_threads(threads)
    torch.set_num_threads(threads)


class Ranks:
    """Ranks 1 and up of a model. `on_loss` is called once, from any thread, when one is lost."""

    def __init__(
        self, config: RuntimeConfig, meeting: Path, on_loss: Callable[[str], None]
    ) -> None:
        self._num_ranks = config.model.tensor_parallel
        self._on_loss = on_loss
        self._is_over = False
        self._cause = ""
        self._lost = threading.Event()
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, self._num_ranks):
            orders = Orders(rank, os.getpid(), str(meeting), config)
            self._processes.append(_spawn(orders))

    def hear(self) -> list[int]:
        """The pages of each rank. Raises the error of one that reports none."""
        found = []
        for rank, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeUnavailable(self._describe(rank, process.wait()))
            report = _REPORT.validate_json(line)
            if report.code:
                raise from_code(report.code, report.message)
            found.append(report.num_pages)
        return found

    def tell_pages(self, num_pages: int) -> None:
        self._write(b"%d\n" % num_pages)

    def send(self, message: bytes) -> None:
        """A message to every rank. Raises OSError when one is gone."""
        self._write(_LENGTH.pack(len(message)) + message)

    def _write(self, data: bytes) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(data)
            process.stdin.flush()

    def watch(self) -> None:
        """From now on, the end of a rank is the end of all."""
        for rank, process in enumerate(self._processes, 1):
            wait = threading.Thread(
                target=self._wait_for, args=(rank, process), name=f"rank {rank}", daemon=True
            )
            wait.start()

    def _wait_for(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        status = process.wait()
        self._lose(self._describe(rank, status))

    def give_up(self, error: Exception) -> Exception:
        """Rank 0 has failed in the midst of a computation. A rank that has died explains that."""
        self._lost.wait(CAUSE_SECONDS)
        self._lose(f"rank 0 of {self._num_ranks} failed: {error!r}")
        return RuntimeUnavailable(self._cause)

    def _lose(self, cause: str) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._cause = f"{cause}; the parts of a model cannot go on without each other"
        for process in self._processes:
            process.kill()
        self._on_loss(self._cause)
        self._lost.set()

    def _describe(self, rank: int, status: int) -> str:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"rank {rank} of {self._num_ranks} ended {how}"

    def close(self) -> None:
        """End all ranks. Twice is the same as once."""
        with self._lock:
            self._is_over = True
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _spawn(orders: Orders) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, _PACKAGE_PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it; it ends with its stdin
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; `hear` says how
        process.stdin.write(to_json(orders) + b"\n")
        process.stdin.flush()
    return process


def start_ranks(
    config: RuntimeConfig, files: ModelFiles, folder: Path | None, on_loss: Callable[[str], None]
) -> tuple[ModelRunner, Ranks]:
    """The runner of rank 0, whose steps all ranks compute, and the others.

    `folder`: one that only this user can enter; None: a new one. Raises as `load_runner`, for any
    rank.
    """
    split = _split(config.model, files, 0)
    with TemporaryDirectory(prefix="r-", dir=folder) as place:  # short: paths of sockets are
        meeting = Path(place)
        ranks = Ranks(config, meeting, on_loss)
        try:
            return _begin(ranks, config, files, split, meeting), ranks
        except BaseException:
            ranks.close()
            raise


def _begin(
    ranks: Ranks, config: RuntimeConfig, files: ModelFiles, split: Split, meeting: Path
) -> ModelRunner:
    decoder, layout = load_decoder(config.model, config.cache, files, split, config.schedule)
    ranks.hear()  # all have loaded their parts
    on_gpus = decoder.device.type == "cuda"
    if on_gpus:  # which wait for one that is gone, where a socket's end would be told
        ranks.watch()
    assert decoder.peers is not None
    decoder.peers.join(config.model.tensor_exchange, meeting)
    num_pages = min(_count_pages(decoder, layout, config), *ranks.hear())
    ranks.tell_pages(num_pages)
    pages = KVCache.allocate(layout, num_pages, decoder.device)
    ranks.hear()
    if not on_gpus:
        ranks.watch()
    return ModelRunner(LeadingDecoder(decoder, ranks), pages, split.config.eos_ids)


def _count_pages(decoder: Decoder, layout: KVLayout, config: RuntimeConfig) -> int:
    """How many pages the settings ask for, or a rank has room for.

    On GPUs the largest step is run to see, by all ranks at once; on a CPU ranks share its memory.
    """
    if decoder.device.type == "cuda":
        memory = GpuMemory(decoder.device)
        with Compilations() as kernels:
            found = pages_beside(decoder, layout, config.cache, config.schedule, memory)
        logger.info("%s", kernels)
        return found
    available = available_bytes(decoder.device) // config.model.tensor_parallel
    return choose_num_pages(layout, config.cache, available)


def _split(model: ModelConfig, files: ModelFiles, rank: int) -> Split:
    return Split(load_config(files), model.tensor_parallel, rank, model.tensor_split)


# ---- in the process of a rank ----


def main() -> NoReturn:
    """Be a rank, to the end of stdin."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the runtime's to handle: it drains first
    report = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    orders = _ORDERS.validate_json(sys.stdin.buffer.readline())
    logging.basicConfig(
        level=env.read("RADIXGEN_LOG"),
        format=f"radixgen runtime, rank {orders.rank}: %(levelname)s %(message)s",
    )
    leave_with_parent(orders.parent_pid)
    status = 1
    try:
        status = _work(orders, report)
    finally:
        logging.shutdown()
        os._exit(status)


def _work(orders: Orders, report: BinaryIO) -> int:
    model = orders.config.model
    set_threads(model)
    try:
        files = resolve(model.model, model.revision)
        split = _split(model, files, orders.rank)
        whole = orders.config
        decoder, layout = load_decoder(model, whole.cache, files, split, whole.schedule)
        _say(report, Report())
        assert decoder.peers is not None
        decoder.peers.join(model.tensor_exchange, Path(orders.meeting))
        _say(report, Report(_count_pages(decoder, layout, orders.config)))
        line = sys.stdin.buffer.readline()
        if not line:
            return 0
        pages = KVCache.allocate(layout, int(line), decoder.device)
        _say(report, Report(pages.num_pages))
    except Exception as error:
        known = error if isinstance(error, RadixgenError) else RadixgenError(repr(error))
        logger.error("%s", known)
        _say(report, Report(0, known.code, str(known)))
        return 1
    if library.library() is not None:
        torch.set_num_threads(1)  # its threads spin where those of the C kernels want to run
    try:
        follow(decoder, pages, _receive)
    except Exception:
        threading.Event().wait(1.0)  # if the runtime is gone the watch ends us, and nobody asks why
        logger.exception("rank %d failed", orders.rank)
        return 1
    return 0


def _receive() -> bytes | None:
    """The next message of the leader; None: no more will come."""
    head = sys.stdin.buffer.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = sys.stdin.buffer.read(length)
    return message if len(message) == length else None


def _say(report: BinaryIO, what: Report) -> None:
    with contextlib.suppress(BrokenPipeError):  # the watch will notice
        report.write(to_json(what) + b"\n")
        report.flush()
