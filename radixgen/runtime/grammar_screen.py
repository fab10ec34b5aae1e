"""Compiles a constraint in a process of its own first, where it can be stopped.

    pool's thread ── spec, one line of JSON ──▶ this module as a process: compiles it for bytes
                  ◀── "ready" once, then ["" or what is wrong; null: it takes too long, seconds] ──

Nothing of that compile is kept: it tells whether the real one, in the runtime's process, ends soon
and within memory. So a constraint that is made to take long costs the other requests nothing. The
process ends with its parent. Knows specs and the compiler; no requests and no model.

Seconds that a constraint may take are the processor's, since those of a clock say as much of the
machine's other work; by the clock a constraint may take `PATIENCE` times as many.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO

from radixgen.errors import InvalidGrammar, Overloaded, RadixgenError
from radixgen.grammars.compiler import CompiledGrammar, GrammarCompiler
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.runtime.parent import leave_with_parent
from radixgen.types import GrammarSpec

logger = logging.getLogger(__name__)

START_SECONDS = 60.0  # for the process to be ready
MAX_SECONDS = 10.0  # of one compile
END_SECONDS = 5.0  # for a process that has closed its end to be gone
PATIENCE = 6.0
LEAST_WAIT = 3.0  # seconds by the clock, however few the constraint may take
MAX_BYTES = 2 << 30  # of the process's address space
AGAIN = 0.05  # seconds of the processor after which what did not end is told to again
NICE = 10  # of the process, unless it is told more; and of its start
AMPLE = 1 << 20  # tokens: a budget that no grammar is short of
# What a process dies of by its own doing, memory that a library was not given among it. Other
# signals are sent: by who ends processes, or by a system whose memory is short.
_OWN_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

# Without the working directory on its path (-P), where a folder may be named as one of our modules.
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from radixgen.runtime.grammar_screen import main; main()"
)


class TakesLong(Exception):
    """A constraint was stopped after a screen's seconds: whether it compiles is not known."""


class _LostError(Exception):
    """The process was killed by someone else, or has ended before it was ready."""


class Screen:
    """A process that compiles first. It is started when it is first needed, or by `start`, and
    again after it had to be killed; it goes with this object. For one thread at a time, but for
    `close`. `max_seconds` of a constraint, `max_bytes` and `nice`ness of the process."""

    def __init__(
        self,
        max_seconds: float = MAX_SECONDS,
        max_bytes: int = MAX_BYTES,
        nice: int = NICE,
    ) -> None:
        self.max_seconds = max_seconds
        self.max_bytes = max_bytes
        self.nice = nice
        self.num_killed = 0
        self.seconds = 0.0  # of the processor, that the last constraint took
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._is_closed = self._is_new = False

    def start(self) -> None:
        """Start the process, so that the first constraint need not wait for it.

        When it cannot be started, nothing is checked.
        """
        try:
            self._start()
        except OSError as error:
            logger.warning("constraints are compiled without a trial: %s", error)

    def _start(self) -> None:
        with self._lock:
            if self._process is None and not self._is_closed:
                orders = map(str, (os.getpid(), self.max_bytes, self.nice))
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _BOOT, _PACKAGE_PARENT, *orders],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # Ctrl-C is not for it. Nor a session of its own: to Linux (sched_autogroup)
                    # that is a user like any other, whatever the niceness of its processes.
                    process_group=0,
                )
                self._is_new = True
                self._process, self._end = process, weakref.finalize(self, _end, process)

    def check(self, spec: GrammarSpec) -> None:
        """Return if a constraint compiles and begins within the limits, or if nobody knows.

        Raises InvalidGrammar for what does not compile or takes too much memory, TakesLong for what
        takes too long, and Overloaded when the process is not ready in time, or is killed again
        and again: that says nothing of the constraint.
        """
        with contextlib.suppress(_LostError):
            return self._check(spec)
        try:
            self._check(spec)
        except _LostError:
            raise Overloaded(
                "the process that tries constraints was lost twice, so that this one could not be "
                "tried; try again, and see to this machine's memory, or to who ends its processes"
            ) from None

    def _check(self, spec: GrammarSpec) -> None:
        self.seconds = 0.0
        self.start()
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return
        wait = max(self.max_seconds * PATIENCE, LEAST_WAIT)
        order = {"seconds": self.max_seconds, "spec": asdict(spec)}
        try:
            self._hear_hello(process.stdout)
            self.seconds = self.max_seconds  # unless the process tells
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            reply = _read_line(process.stdout, wait)
        except OSError:
            reply = b""
        if reply is None:
            self._kill()
            raise TakesLong
        if not reply.endswith(b"\n"):
            raise self._explain_end(process)
        verdict, self.seconds = json.loads(reply)
        if verdict is None:
            raise TakesLong
        if verdict:
            raise InvalidGrammar(verdict)

    def _explain_end(self, process: "subprocess.Popen[bytes]") -> Exception:
        """Why a process has ended that was to compile a constraint."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        code = process.returncode or 0
        was_killed = code < 0 and -code not in _OWN_FAULTS and not self._is_closed
        self._kill()
        if was_killed:
            return _LostError()
        limit = f"{self.max_bytes >> 20} MiB"
        return InvalidGrammar(f"the constraint takes over {limit} to compile; simplify it")

    def _hear_hello(self, stream: IO[bytes]) -> None:
        """Wait until the process is ready, which is not the constraint's time. Raises Overloaded if
        that takes long: who comes next waits on, since a late hello is no answer to an order."""
        hello = _read_line(stream, START_SECONDS) if self._is_new else b"\n"
        if hello is None:
            raise Overloaded(
                f"the process that tries constraints was not ready within {START_SECONDS:g} s, as "
                "this machine is busy; try again, or see to what else it is at"
            )
        if not hello.endswith(b"\n"):
            self._kill()
            raise _LostError
        self._is_new = False

    def _kill(self) -> None:
        self._stop()
        self.num_killed += 1

    def _stop(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process = None
                self._end()

    def close(self) -> None:
        """End the process for good; a check under way fails."""
        self._is_closed = True
        self._stop()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was still to be written
                stream.close()


def _read_line(stream: IO[bytes], max_seconds: float) -> bytes | None:
    """A line, what there was of it when the stream ended, or None when time is over."""
    descriptor, line = stream.fileno(), b""
    deadline = time.monotonic() + max_seconds
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            return None
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return line
        line += piece
    return line


# ---- the process ----

# One of each family, so that what their front ends load is not the first constraint's time.
_FIRST = (
    GrammarSpec("regex", "a[b-z]*"),
    GrammarSpec("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    GrammarSpec("lark", 'start: "a" | /b/ start'),
)


class _OutOfTimeError(BaseException):
    """The timer rang; no handler of errors on the way is to take it for one."""


def main() -> None:
    """Compile each line of stdin, until it ends, and answer with a line each."""
    parent_pid, max_bytes, nice = map(int, sys.argv[1:])
    leave_with_parent(parent_pid)
    _limit_memory(max_bytes)
    os.nice(min(nice, NICE))
    answers, requests = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # whatever a library prints is no answer
    signal.signal(signal.SIGPROF, _ring)
    sys.unraisablehook = _tell_lost
    compiler = _compiler()
    warm_up(compiler)
    os.nice(max(nice - NICE, 0))  # not before: whoever comes first waits for what is above
    with contextlib.suppress(BrokenPipeError):
        answers.write(b"ready\n")
        answers.flush()
        while line := requests.readline():
            began = time.process_time()
            verdict = _timed_verdict(compiler, line)
            if verdict is None:
                compiler = _compiler()  # the other was stopped in the middle of its work
            answers.write(json.dumps([verdict, time.process_time() - began]).encode() + b"\n")
            answers.flush()


def _ring(_: int, frame: FrameType | None) -> None:
    """End the work on a constraint; again a little later where the error is lost, as it is in what
    is called when an object goes. What a finalizer has to do is done."""
    signal.setitimer(signal.ITIMER_PROF, AGAIN)
    if frame is None or frame.f_code.co_filename != weakref.__file__:
        raise _OutOfTimeError


def _tell_lost(lost: "sys.UnraisableHookArgs") -> None:
    """Tell of an error that nobody can handle; the timer's is none, as it rings again."""
    if not isinstance(lost.exc_value, _OutOfTimeError):
        sys.__unraisablehook__(lost)


def _compiler() -> GrammarCompiler:
    """For bytes: whether a constraint compiles does not depend on the vocabulary."""
    tokens: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), None]
    return GrammarCompiler(Vocabulary.from_tokens(tokens, [256]))


def _timed_verdict(compiler: GrammarCompiler, line: bytes) -> str | None:
    """`_verdict` on an order, or None when its seconds were over before."""
    try:
        order = json.loads(line)
        fields = order["spec"]
        options = tuple((name, value) for name, value in fields["options"])
        spec = GrammarSpec(fields["kind"], fields["source"], options)
        try:
            signal.setitimer(signal.ITIMER_PROF, order["seconds"])
            return _verdict(compiler, spec)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTimeError:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return None


def _verdict(compiler: GrammarCompiler, spec: GrammarSpec) -> str:
    """What is wrong with a constraint, or an empty text."""
    try:
        return fill_first(compiler.compile(spec)) or ""
    except RadixgenError as error:
        return str(error)
    except MemoryError:
        raise SystemExit(1) from None  # nothing here can be trusted any more
    except Exception as error:
        return f"the constraint failed: {error!r}"


def warm_up(compiler: GrammarCompiler) -> None:
    """Have all loaded that a compile needs."""
    for spec in _FIRST:
        fill_first(compiler.compile(spec))


def fill_first(grammar: CompiledGrammar) -> str | None:
    """Have what the first step needs of a grammar computed: its mask meets all states there for the
    first time, which may take longer than compiling. What is wrong, or None."""
    matcher = grammar.matcher()
    matcher.shortest_completion()
    bitmask = allocate_bitmask(1, grammar.engine.vocabulary.size)
    matcher.fill_bitmask(bitmask, 0, AMPLE)
    return matcher.error


def _limit_memory(max_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
