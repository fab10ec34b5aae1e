"""A client that is gone is noticed although it is told nothing: what it asked for is given up."""

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import zmq
from scheduling import FakeClock

from radixgen.messages import (
    CacheNode,
    GenerateRequest,
    Hello,
    Ready,
    ScoreRequest,
    decode_to_frontend,
    encode,
)
from radixgen.runtime.departures import DELAYS, Departures
from radixgen.runtime.loop import Loop, listen
from radixgen.schedule.request import Event
from radixgen.types import SamplingParams

SECONDS = 60.0


class SilentEngine:
    """Takes requests and tells nothing of them. With `works` it is never idle."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.works = False

    @property
    def has_work(self) -> bool:
        return self.works and bool(self.open)

    def on_ready(self, wake: Callable[[], None]) -> None: ...

    def add(self, message: GenerateRequest | ScoreRequest, ids: "array[int]") -> list[Event]:
        self.open.add(message.rid)
        return []

    def abort(self, rid: str) -> list[Event]:
        self.open.discard(rid)
        return []

    def flush(self) -> None: ...

    def step(self) -> list[Event]:
        time.sleep(0.001)
        return []

    def stats(self) -> dict[str, float]:
        return {}

    def cache_tree(self, max_nodes: int, max_preview: int) -> tuple[CacheNode, ...]:
        return ()


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context = zmq.Context[zmq.Socket[bytes]]()
    yield context
    context.destroy(0)


def connect(context: "zmq.Context[zmq.Socket[bytes]]", path: str) -> "zmq.Socket[bytes]":
    """A client of the loop at `path` that has shaken hands."""
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.RCVTIMEO, int(1000 * SECONDS))
    socket.connect(f"ipc://{path}")
    socket.send_multipart(encode(Hello("h")))
    assert decode_to_frontend(socket.recv_multipart())[0] == Ready(
        "h", "silent", 256, 128, 8, 16, 1
    )
    return socket


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("works", [False, True])
def test_requests_of_a_client_that_is_gone_are_given_up(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path, works: bool
) -> None:
    path, engine = str(tmp_path / "s"), SilentEngine()
    engine.works = works
    socket = listen(context, path)
    loop = Loop(engine, socket, Ready("start", "silent", 256, 128, 8, 16, 1))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    stays, goes = connect(context, path), connect(context, path)
    stays.send_multipart(encode(GenerateRequest("a", SamplingParams()), [1]))
    goes.send_multipart(encode(GenerateRequest("b", SamplingParams()), [1]))
    goes.send_multipart(encode(ScoreRequest("c", 1, (1,)), [1, 2]))
    wait_until(lambda: len(engine.open) == 3)
    goes.close(0)
    wait_until(lambda: len(engine.open) == 1)
    stays.send_multipart(encode(GenerateRequest("d", SamplingParams()), [1]))
    wait_until(lambda: len(engine.open) == 2)
    loop.ring()
    loop.ring()
    stays.close(0)
    wait_until(lambda: not engine.open)
    thread.join(SECONDS)
    assert not thread.is_alive()
    loop.close()
    socket.close()


def test_there_are_looks_further_and_further_apart(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    clock, path = FakeClock(), str(tmp_path / "s")
    router, client = listen(context, path), context.socket(zmq.DEALER)
    departures = Departures(router, clock)
    assert (departures.hear(), departures.wait_ms()) == (False, None)
    client.connect(f"ipc://{path}")
    client.send(b"x")
    router.recv_multipart()
    client.close(0)
    assert departures.monitor.poll(int(1000 * SECONDS))
    for delay, following in pairwise(DELAYS):
        clock.now = delay
        assert departures.hear()
        assert not departures.hear()
        assert departures.wait_ms() == pytest.approx(1000 * (following - delay), abs=1)
    clock.now = DELAYS[-1]
    assert departures.hear()
    assert (departures.hear(), departures.wait_ms()) == (False, None)
    departures.close()
    router.close()
