"""Whatever dies, nobody waits for ever and no process stays behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers import wait_for_end, write_tiny_model
from live_server import wait_until

from radixgen import (
    AsyncRuntime,
    BlockingClient,
    FinishReason,
    GrammarSpec,
    RadixgenError,
    Runtime,
    RuntimeDraining,
    RuntimeUnavailable,
    SamplingParams,
)

CONTEXT = 4096
LONG = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)  # takes seconds
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
SECONDS = 200.0  # after which a test gives up; a death is noticed in a fraction of a second


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=CONTEXT)


@pytest.fixture
def runtime(model: Path) -> Iterator[Runtime]:
    with Runtime(model, num_pages=1000, threads=1) as runtime:
        yield runtime


def test_killing_the_runtime_ends_every_open_request_once(runtime: Runtime) -> None:
    """In mid-stream, from several threads, streamed and not."""
    outcomes: list[tuple[int, Exception | None]] = []
    begun = threading.Semaphore(0)

    def stream(number: int) -> None:
        error: Exception | None = None
        try:
            for piece in runtime.generate(f"stream {number}", LONG, stream=True):
                begun.release()
                assert piece.result is None
        except RadixgenError as caught:
            error = caught
        outcomes.append((number, error))

    def collect(number: int) -> None:
        error: Exception | None = None
        begun.release()
        try:
            runtime.generate([f"collect {number}"] * 20, LONG)
        except RadixgenError as caught:
            error = caught
        outcomes.append((number, error))

    workers = [threading.Thread(target=stream, args=(n,)) for n in range(4)]
    workers += [threading.Thread(target=collect, args=(n,)) for n in range(4, 8)]
    for worker in workers:
        worker.start()
    for _ in range(20):
        assert begun.acquire(timeout=SECONDS)
    pid = runtime.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for worker in workers:
        worker.join(SECONDS)
    assert sorted(number for number, _ in outcomes) == list(range(8))
    for _, error in outcomes:
        assert isinstance(error, RuntimeUnavailable)
        assert "by signal 9" in str(error)
    for call in (runtime.stats, runtime.flush_cache, lambda: runtime.generate("x", GREEDY)):
        with pytest.raises(RuntimeUnavailable, match="signal 9"):
            call()


def test_every_client_hears_of_the_death(runtime: Runtime) -> None:
    other = BlockingClient.connect(runtime.address)
    pieces = other.generate("x", LONG, stream=True)
    next(pieces)
    assert runtime.process.pid
    os.kill(runtime.process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeUnavailable):
        list(pieces)
    other.close()


def test_async_requests_hear_of_the_death(model: Path) -> None:
    async def work() -> None:
        async with AsyncRuntime(model, num_pages=1000, threads=1) as rt:
            tasks = [asyncio.create_task(rt.generate(f"{n}", LONG)) for n in range(10)]
            async for _ in rt.generate("x", GREEDY, stream=True):
                pass
            assert rt.process.pid
            os.kill(rt.process.pid, signal.SIGKILL)
            results = await asyncio.wait_for(
                asyncio.gather(*tasks, return_exceptions=True), SECONDS
            )
            assert all(isinstance(result, RuntimeUnavailable) for result in results)

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_sigterm_drains(runtime: Runtime) -> None:
    open_still = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
    pieces = runtime.generate("drain", open_still, stream=True)
    next(pieces)
    assert runtime.process.pid
    os.kill(runtime.process.pid, signal.SIGTERM)
    wait_until(lambda: runtime.stats()["draining"])
    with pytest.raises(RuntimeDraining, match="shutting down"):
        runtime.generate("new", GREEDY)
    result = list(pieces)[-1].result
    assert result is not None
    assert result.finish_reason is FinishReason.LENGTH
    assert len(result.token_ids) == 1000
    wait_for_end(runtime.process.pid, SECONDS)


def test_sigint_is_the_parents(runtime: Runtime) -> None:
    """Ctrl-C goes to the whole foreground group; the runtime must outlive it."""
    assert runtime.process.pid
    os.kill(runtime.process.pid, signal.SIGINT)
    assert len(runtime.generate("x", GREEDY).token_ids) == 4


PARENT = """
import sys, time
from radixgen import Runtime
runtime = Runtime(sys.argv[1], num_pages=300, threads=1).start()
pieces = runtime.generate("x", max_tokens=3000, ignore_eos=True, stream=True)
next(pieces)
print(runtime.process.pid, runtime.address, flush=True)
if sys.argv[2] == "sleep":
    time.sleep(100)
elif sys.argv[2] == "fork":
    import os
    if os.fork() == 0:
        time.sleep(8)  # holds a copy of every pipe
        os._exit(0)
    time.sleep(100)
elif sys.argv[2] == "raise":
    raise SystemExit(3)
"""


def start_parent(model: Path, how: str) -> tuple["subprocess.Popen[str]", int, Path]:
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PARENT, str(model), how],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid, address = parent.stdout.readline().split()
    parent.stdout.close()
    return parent, int(pid), Path(address).parent


@pytest.mark.parametrize("how", ["sleep", "fork"])
def test_kill_9_of_the_parent_leaves_no_orphan(model: Path, how: str) -> None:
    parent, child, folder = start_parent(model, how)
    family = psutil.Process(parent.pid).children()
    assert child in {process.pid for process in family}
    parent.kill()
    parent.wait()
    wait_for_end(child, SECONDS)
    assert not folder.exists()
    for process in family:
        if process.pid != child:
            process.kill()


@pytest.mark.parametrize(("how", "status"), [("raise", 3), ("return", 0)])
def test_a_parent_that_forgets_to_shut_down_leaves_no_orphan(
    model: Path, how: str, status: int
) -> None:
    parent, child, folder = start_parent(model, how)
    assert parent.wait(SECONDS) == status
    wait_for_end(child, SECONDS)
    assert not folder.exists()


def test_kill_9_of_the_runtime_ends_a_compile_too(runtime: Runtime) -> None:
    pid = runtime.process.pid
    assert pid is not None
    inner = {"type": "object", "properties": {f"k{j}": {"type": "integer"} for j in range(10)}}
    hostile = json.dumps({"properties": {f"p{i}": inner | {"title": f"{i}"} for i in range(30000)}})
    failed = threading.Event()

    def ask() -> None:
        with pytest.raises(RuntimeUnavailable):
            runtime.generate("x", GREEDY, grammar=GrammarSpec("json_schema", hostile))
        failed.set()

    threading.Thread(target=ask).start()
    end = time.monotonic() + SECONDS
    while runtime.stats()["waiting_grammars"] == 0:
        assert time.monotonic() < end
    children = psutil.Process(pid).children()
    while not children:  # the process that tries it
        assert time.monotonic() < end
        children = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    for child in children:
        wait_for_end(child.pid, SECONDS)
    assert failed.wait(SECONDS)


def test_sigterm_of_the_parent_leaves_no_orphan(model: Path) -> None:
    parent, child, _ = start_parent(model, "sleep")
    parent.terminate()
    parent.wait()
    wait_for_end(child, SECONDS)


def test_a_child_that_dies_at_the_start_is_reported(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from radixgen import launch

    monkeypatch.setattr(launch, "_BOOT", "import sys; sys.exit('no such thing: cheese')")
    runtime = Runtime(model)
    with pytest.raises(RuntimeUnavailable, match=r"with status 1(.|\n)*no such thing: cheese"):
        runtime.start()


def test_a_script_that_ends_without_shutting_down_leaves_in_peace(model: Path) -> None:
    script = (
        "import sys; from radixgen import Runtime; "
        "rt = Runtime(sys.argv[1], num_pages=64, threads=1).start(); print(rt.process.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(model)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    wait_for_end(int(done.stdout), SECONDS)
