"""Starts, watches and ends the runtime process. Knows pipes and signals; no tokens.

    Runtime        with Runtime() as rt: rt.generate("Once upon a time")
    AsyncRuntime   async with AsyncRuntime() as rt: await rt.generate("Once upon a time")

The process is a fresh interpreter (a fork of one that has run torch or threads is unsafe). It gets
its orders on stdin, says `Ready` or why not on stdout, and listens in a folder that only this user
can enter. No orphan is left: our end of its stdin closes when we die, by whatever signal.
"""

import asyncio
import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pydantic_core import to_json

from radixgen import env
from radixgen.blocking import BlockingClient
from radixgen.client import EngineClient
from radixgen.config import RuntimeConfig, from_settings
from radixgen.errors import ConfigError, RadixgenError, RuntimeUnavailable, from_code
from radixgen.messages import DecodeError, Ready, RequestFailed, decode_to_frontend
from radixgen.model.hub import resolve
from radixgen.tokenizer import Tokenizer

START_SECONDS = 300.0  # a large model on a slow disk
STOP_SECONDS = 30.0  # between asking and killing
MAX_SOCKET_PATH = 100  # bytes; the system's limit is 108, less on some
TAIL_LINES = 30

# A folder on the path before the libraries would hide the distribution `kernels` behind ours, so
# the child starts without the working directory (-P) and looks for the package here last.
_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)
_BOOT = (
    "import sys, runpy; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('radixgen.runtime', run_name='__main__', alter_sys=True)"
)


_VARIABLES = {
    "adapters": "RADIXGEN_ADAPTERS",
    "check": "RADIXGEN_CHECK",
    "threads": "RADIXGEN_THREADS",
}


def make_config(model: str | os.PathLike[str] = "", **settings: Any) -> RuntimeConfig:
    """Settings by their flat names, with the environment's where none is given.

    `model_path`, SGLang's name, is another one for `model`. Raises ConfigError for a wrong name,
    with the nearest right one, or value.
    """
    model = _model_of(model, settings.pop("model_path", ""))
    for name, variable in _VARIABLES.items():
        if settings.get(name) is None:
            settings[name] = env.read(variable)
    settings["adapters"] = settings["adapters"] or {}
    env.read("RADIXGEN_LOG")  # the process reads it; a wrong one is told here
    return from_settings(model=model or env.read("RADIXGEN_MODEL"), **settings)


def _model_of(model: str | os.PathLike[str], path: str | os.PathLike[str]) -> str:
    if path and os.fspath(model):
        raise ConfigError("model and model_path are two names of one setting: give one")
    return os.fspath(model) or os.fspath(path)


class RuntimeProcess:
    """One child process. `start` it, `stop` it; `describe_end` says why it is gone."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._config = config
        self._folder = _private_folder()
        self.address = str(self._folder / "runtime")
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log_thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._ended = False
        atexit.register(self.kill)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self, timeout: float) -> Ready:
        """Spawn the child and wait until it serves.

        Raises what kept it from starting (ModelError, ConfigError ...), or RuntimeUnavailable.
        """
        try:
            self._child = self._spawn()
            if self._ended:  # by another thread, which found no child yet
                raise RuntimeUnavailable("the runtime was stopped while it started")
            return self._handshake(self._child, timeout)
        except BaseException:
            self.kill()
            raise

    def _spawn(self) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, _PACKAGE_PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stderr is not None
        log_thread = threading.Thread(
            target=self._copy_log, args=(child.stderr,), name="radixgen runtime log", daemon=True
        )
        log_thread.start()
        self._log_thread = log_thread  # now that whoever ends us meanwhile can wait for it
        orders = {
            "socket_path": self.address,
            "parent_pid": os.getpid(),
            "config": self._config,
        }
        with contextlib.suppress(BrokenPipeError):  # it died at once; the handshake says how
            child.stdin.write(to_json(orders) + b"\n")
            child.stdin.flush()  # and stays open for as long as we live
        return child

    def _handshake(self, child: "subprocess.Popen[bytes]", timeout: float) -> Ready:
        said: list[bytes] = []
        assert child.stdout is not None
        reader = threading.Thread(
            target=lambda out: said.append(out.readline()), args=(child.stdout,), daemon=True
        )
        reader.start()
        reader.join(timeout)
        if not said:
            raise RuntimeUnavailable(
                f"the runtime was not ready within {timeout:g} s; give start_timeout more, or see "
                f"what it said:\n{self._tail_text()}"
            )
        with contextlib.suppress(DecodeError):
            message, _ = decode_to_frontend([said[0].strip()])
            if isinstance(message, Ready):
                return message
            if isinstance(message, RequestFailed):
                raise self._start_error(message)
        raise RuntimeUnavailable(f"the runtime did not start: {self.describe_end()}")

    def _start_error(self, message: RequestFailed) -> RadixgenError:
        """Our own errors explain themselves; for any other the log is added."""
        if message.code != RadixgenError.code:
            return from_code(message.code, message.message)
        return RuntimeUnavailable(
            f"the runtime did not start: {message.message}\n{self._tail_text()}"
        )

    def _copy_log(self, source: IO[bytes]) -> None:
        """The child's log goes to our stderr; its last lines are kept for error messages."""
        for line in source:
            text = line.decode("utf-8", "replace")
            self._tail.append(text)
            with contextlib.suppress(OSError, ValueError):  # a closed stderr is no matter
                sys.stderr.write(text)

    def _tail_text(self) -> str:
        if self._log_thread is not None and self._child and self._child.poll() is not None:
            self._log_thread.join(1)
        return "".join(self._tail).strip() or "(it logged nothing)"

    def describe_end(self) -> str:
        """Why the child is gone: its status or signal, and the last lines of its log."""
        if self._child is None:
            return "the runtime has been shut down"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(2)  # its socket closes a moment before it is gone
        status = self._child.returncode
        if status is None:
            return "the runtime has closed the connection"
        if status == 0:
            return "the runtime has been shut down"
        what = f"by signal {-status}" if status < 0 else f"with status {status}"
        if self._log_thread is not None:
            self._log_thread.join(2)  # its last words may still be in the pipe
        log = "".join(self._tail).strip()
        return f"the runtime ended {what}" + (f"; it said last:\n{log}" if log else "")

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Wait for a child that was told to end, and kill it if it does not."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the child now, if it still runs, and clean up. Twice is the same as once."""
        atexit.unregister(self.kill)
        child, owned = self._child, self._owner == os.getpid()
        if not owned:  # a fork of the owner has no say
            return
        self._ended = True
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
        if self._log_thread is not None:
            self._log_thread.join(2)
        for pipe in (child.stdin, child.stdout, child.stderr) if child else ():
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _private_folder() -> Path:
    """A new folder, mode 0700, whose path is short enough for a socket in it."""
    for place in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(place)) + 32 <= MAX_SOCKET_PATH and os.access(place, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="radixgen-", dir=place))
    raise ConfigError(
        f"no folder for the runtime's socket: {tempfile.gettempdir()} is too long a path or not "
        "writable; set TMPDIR to a short one"
    )


class AsyncRuntime(EngineClient):
    """A runtime process and its client, for asyncio.

    `model`: a directory, a .gguf file, a hub id, or "" for the embedded default. `settings`: the
    fields of `radixgen.config` by name (`page_size`, `num_pages`, `policy`, `max_context` ...).
    Nothing happens before `start`, which `async with` calls.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "",
        *,
        start_timeout: float = START_SECONDS,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.config = make_config(model, **settings)
        self._start_timeout = start_timeout
        self._process: RuntimeProcess | None = None

    @property
    def process(self) -> RuntimeProcess:
        if self._process is None:
            raise RuntimeUnavailable("the runtime is not started; use `with` or start() first")
        return self._process

    @property
    def address(self) -> str:
        """Where other clients of this user can connect: `EngineClient.connect(address)`."""
        return self.process.address

    async def start(self) -> Self:
        """Spawn the runtime, wait until it serves, connect."""
        config = self.config.model
        files = await asyncio.to_thread(resolve, config.model, config.revision)
        self._process = process = RuntimeProcess(self.config)
        try:
            loading = asyncio.to_thread(Tokenizer.load, files.path)
            starting = asyncio.to_thread(process.start, self._start_timeout)
            tokenizer, _ = await asyncio.gather(loading, starting)
            await self.open(process.address, tokenizer=tokenizer, explain_loss=process.describe_end)
        except BaseException:
            process.kill()
            raise
        return self

    async def shutdown(self, *, drain: bool = False, timeout: float = STOP_SECONDS) -> None:
        """End the runtime. `drain`: let open requests finish, else they end as aborted.

        What has not ended after `timeout` seconds is killed. Twice is the same as once.
        """
        if self._process is None:
            return
        with contextlib.suppress(RadixgenError, asyncio.TimeoutError):
            await asyncio.wait_for(self.stop_runtime(drain=drain), timeout)
        self.close()
        patience = timeout if drain else 5.0
        try:
            await asyncio.to_thread(self._process.stop, patience)
        except RuntimeError:  # the interpreter ends: it starts no threads, and nothing else waits
            self._process.stop(patience)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.shutdown()


class Runtime(BlockingClient):
    """A runtime process and its client, for code without an event loop; any thread may call it.

    `model`: a directory, a .gguf file, a hub id, or "" for the embedded default. `settings`: the
    fields of `radixgen.config` by name (`page_size`, `num_pages`, `policy`, `max_context` ...).
    Nothing happens before `start`, which `with` calls.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "",
        *,
        start_timeout: float = START_SECONDS,
        **settings: Any,
    ) -> None:
        self._runtime = AsyncRuntime(model, start_timeout=start_timeout, **settings)
        super().__init__(self._runtime)

    @property
    def config(self) -> RuntimeConfig:
        return self._runtime.config

    @property
    def process(self) -> RuntimeProcess:
        return self._runtime.process

    @property
    def address(self) -> str:
        """Where other clients of this user can connect: `BlockingClient.connect(address)`."""
        return self._runtime.address

    def start(self) -> Self:
        """Spawn the runtime, wait until it serves, connect."""
        try:
            self._thread.run(self._runtime.start())
        except BaseException:
            self._thread.stop()
            raise
        atexit.register(self.shutdown)
        return self

    def shutdown(self, *, drain: bool = False, timeout: float = STOP_SECONDS) -> None:
        """End the runtime. `drain`: let open requests finish, else they end as aborted.

        What has not ended after `timeout` seconds is killed. Twice is the same as once.
        """
        atexit.unregister(self.shutdown)
        with contextlib.suppress(RuntimeUnavailable):
            self._thread.run(self._runtime.shutdown(drain=drain, timeout=timeout))
        self._thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.shutdown()
