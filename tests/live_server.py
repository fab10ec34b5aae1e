"""A live server for tests: `radixgen serve` in a process of its own, on a free port."""

import atexit
import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx2
from helpers import write_tiny_model

START_SECONDS = 240.0
CONTEXT = 16384  # of the tiny model
NUM_PAGES = 2000  # of the shared server


class LiveServer:
    """`url`, `model` and the process. `stop` ends it as SIGTERM does."""

    def __init__(self, model: "str | Path", *args: str, **environment: str) -> None:
        self.model = Path(model).stem if model else "SmolLM2-135M-Instruct"
        command = [sys.executable, "-m", "radixgen", "serve", *([str(model)] if model else [])]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--set", "threads=1", *args],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "300", **environment},
        )
        atexit.register(self.kill)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.url = self._wait()
        self._reader.start()

    def _wait(self) -> str:
        assert self.process.stderr is not None
        end = time.monotonic() + START_SECONDS
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"is served at (\S+);", line)
            if found:
                return found[1]
            assert time.monotonic() < end
        raise AssertionError(f"the server did not start: {''.join(self.lines)}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError):
            self.lines += self.process.stderr

    def client(self, **options: object) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=200, **options)  # type: ignore[arg-type]

    def runtime_pid(self) -> int:
        """The pid of the runtime, which is the server's child."""
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        )
        return int(found.stdout.split()[0])

    def kill(self) -> None:
        atexit.unregister(self.kill)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._reader.ident is not None:  # it started
            self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


@functools.cache
def tiny_model() -> Path:
    """A random model with a byte tokenizer, and a context that takes longer to fill than a test."""
    parent = tempfile.mkdtemp(prefix="radixgen-test-")
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = Path(parent) / "tiny"
    return write_tiny_model(folder, max_position_embeddings=CONTEXT)


@functools.cache
def shared_server() -> LiveServer:
    """One server for every test that leaves it as it was; ends with the tests."""
    return LiveServer(tiny_model(), "--set", f"num_pages={NUM_PAGES}")


def wait_until(condition: "object", seconds: float = 200.0) -> None:
    """Poll until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def is_idle(client: httpx2.Client) -> bool:
    info = client.get("/server_info").json()
    return bool(info["open_prompts"] == 0 and info["runtime"].get("open_requests") == 0)
