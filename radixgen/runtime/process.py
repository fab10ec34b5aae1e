"""The runtime process: reads its orders, watches its parent, builds the engine, runs the loop.

stdin    one line of JSON (`Orders`), then nothing: its end means that the parent is gone
stdout   one line, `Ready` or `RequestFailed`; whatever libraries print goes to stderr
stderr   the log
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import zmq
from pydantic import TypeAdapter

from radixgen import env
from radixgen.config import RuntimeConfig
from radixgen.errors import RadixgenError
from radixgen.messages import Ready, RequestFailed, encode
from radixgen.runtime.loop import Loop, listen

if TYPE_CHECKING:
    from radixgen.runtime.build import Built

logger = logging.getLogger(__name__)

PARENT_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Orders:
    """What the parent tells the process: where to listen, for whom, with which settings."""

    socket_path: str
    parent_pid: int
    config: RuntimeConfig


ORDERS = TypeAdapter(Orders)


def main() -> NoReturn:
    """Run to the end and leave; the exit status is 0 after a drain, 1 after a failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    report = _take_stdout()
    logging.basicConfig(
        level=env.read("RADIXGEN_LOG"), format="radixgen runtime: %(levelname)s %(message)s"
    )
    orders = ORDERS.validate_json(sys.stdin.buffer.readline())
    folder = Path(orders.socket_path).parent
    threading.Thread(target=_watch_parent, args=(orders.parent_pid, folder), daemon=True).start()
    status = 1
    try:
        status = _serve(orders, report)
    finally:
        logging.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)  # no library's exit handler or idle thread may keep an orphan alive


def _serve(orders: Orders, report: BinaryIO) -> int:
    context = zmq.Context(io_threads=1)
    try:
        socket = listen(context, orders.socket_path)
        built = _build(orders)
    except Exception as error:
        known = error if isinstance(error, RadixgenError) else RadixgenError(repr(error))
        logger.log(logging.DEBUG if known is error else logging.ERROR, "", exc_info=True)
        _say(report, RequestFailed("start", known.code, str(known)))
        return 1
    loop = Loop(built.engine, socket, _ready(built))
    signal.signal(signal.SIGTERM, lambda *_: loop.ring())
    _say(report, loop.ready)
    built.engine.prepare()
    with _computing():
        loop.run()
    loop.close()
    built.close()
    socket.close()
    context.term()
    return 0


def _build(orders: Orders) -> "Built":
    # The model's libraries, seconds to load.
    from radixgen.runtime.build import build_engine, settle

    folder = Path(orders.socket_path).parent
    built = build_engine(orders.config, folder=folder, on_loss=partial(_lose, folder))
    settle()
    return built


def _computing() -> contextlib.AbstractContextManager[object]:
    """Entered once here, for a step that enters it spends a part of its time on that."""
    from radixgen.model.device import inference  # there by now, with the model's libraries

    return inference()


def _lose(folder: Path, cause: str) -> None:
    """Leave at once: what was computed so far is of no use, and clients are told by the log."""
    logger.error("%s", cause)
    logging.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _ready(built: "Built") -> Ready:
    return Ready(
        rid="start",
        model=built.model,
        vocab_size=built.vocab_size,
        max_context=built.max_context,
        num_pages=built.num_pages,
        page_size=built.page_size,
        pid=os.getpid(),
        forms=built.forms,
        adapters=built.adapters,
    )


def _take_stdout() -> BinaryIO:
    """The pipe to the parent, for our one line alone; file descriptor 1 becomes stderr."""
    report = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return report


def _say(report: BinaryIO, message: Ready | RequestFailed) -> None:
    with contextlib.suppress(BrokenPipeError):  # the watch will notice
        report.write(encode(message)[0] + b"\n")
        report.close()


def _watch_parent(parent_pid: int, folder: Path) -> None:
    """Leave at once when the parent is gone.

    Its end of our stdin closes with it, by kill -9 too. A grandchild that holds a copy of that end
    would hide this, so the parent's pid is compared as well. PR_SET_PDEATHSIG would not do: it
    follows the thread that started us, not the process.
    """
    stdin = sys.stdin.fileno()
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([stdin], [], [], PARENT_POLL_SECONDS)
        if readable and not os.read(stdin, 4096):
            break
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
