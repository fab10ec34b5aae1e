"""The loop and the connection over a real socket, with an engine that follows a script."""

import asyncio
import itertools
import threading
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from radixgen.connection import Connection
from radixgen.errors import InvalidRequest, RadixgenError, RuntimeUnavailable
from radixgen.messages import (
    AbortRequest,
    Ack,
    CacheNode,
    CacheTree,
    FlushCache,
    GenerateRequest,
    GetCacheTree,
    GetStats,
    Hello,
    Ready,
    RequestFailed,
    RequestFinished,
    ScoreRequest,
    Shutdown,
    Stats,
    Terminal,
    decode_to_frontend,
    encode,
)
from radixgen.runtime.loop import Loop, listen
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.streams import Row
from radixgen.types import FinishReason, SamplingParams, Usage

READY = Ready("start", "scripted", 256, 128, 8, 16, 1)
Work = Callable[[], Coroutine[Any, Any, None]]


class ScriptedEngine:
    """Echoes prompts, one token a step; a prompt that begins with 0 goes on for ever."""

    def __init__(self) -> None:
        self.open: dict[str, list[int]] = {}
        self.clients: set[str] = set()
        self.num_flushes = 0
        self.num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self.open)

    def on_ready(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def add(self, message: GenerateRequest | ScoreRequest, ids: "array[int]") -> list[Event]:
        if not ids:
            return [RequestFailed(message.rid, "invalid_request", "empty", "prompt")]
        if ids[0] == 13:
            raise ZeroDivisionError("a bug")
        self.open[message.rid] = list(ids)
        self.clients.add(message.client)
        return []

    def abort(self, rid: str) -> list[Event]:
        if self.open.pop(rid, None) is None:
            return []
        return [
            SequenceOutput(rid, 0, (), (), FinishReason.ABORT),
            RequestFinished(rid, Usage(1, 0, 0)),
        ]

    def flush(self) -> None:
        self.num_flushes += 1

    def stats(self) -> dict[str, float]:
        return {"steps": self.num_steps}

    def cache_tree(self, max_nodes: int, max_preview: int) -> tuple[CacheNode, ...]:
        return (CacheNode(-1, "", max_nodes, 0, 1, 0, 0, 0, (max_preview,)),)

    def step(self) -> list[Event]:
        self.num_steps += 1
        events: list[Event] = []
        for rid, ids in list(self.open.items()):
            if ids[0] == 0:
                events.append(SequenceOutput(rid, 0, (7,)))
                continue
            token, over = ids.pop(0), not ids[0:]
            events.append(SequenceOutput(rid, 0, (token,), (), FinishReason.STOP if over else None))
            if over:
                del self.open[rid]
                events.append(RequestFinished(rid, Usage(1, 0, 1)))
        return events


class Served:
    """A loop in a thread, on a socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "s")
        self.engine = ScriptedEngine()
        self._context = zmq.Context()
        self.socket = listen(self._context, self.path)
        self.loop = Loop(self.engine, self.socket, READY)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.loop.run()
        self.socket.close()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.ring()
            self.loop.ring()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.loop.close()
        self._context.destroy(0)


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("s"))
    yield served
    served.stop()


class Log:
    """A receiver that writes down what it hears."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.reasons: list[FinishReason | None] = []
        self.ends: list[Terminal | RadixgenError] = []
        self.over = asyncio.Event()
        self.begun = asyncio.Event()

    def row(self, row: Row) -> None:
        self.token_ids += row.token_ids
        self.reasons.append(row.finish_reason)
        self.begun.set()

    def end(self, message: Terminal) -> None:
        self.ends.append(message)
        self.over.set()

    def fail(self, error: RadixgenError) -> None:
        self.ends.append(error)
        self.over.set()


names = map(str, itertools.count())


async def connect(served: Served) -> Connection:
    connection = Connection(served.path, lambda: next(names), lambda: "the runtime is gone")
    assert (await connection.open(5)).model == "scripted"
    return connection


def generate(rid: str) -> GenerateRequest:
    return GenerateRequest(rid, SamplingParams())


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 200))


def test_tokens_come_in_order_and_end_once(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        logs = [Log() for _ in range(50)]
        for number, log in enumerate(logs):
            connection.send(generate(f"r{number}"), log, [number + 14, 5, 6])
        for number, log in enumerate(logs):
            await log.over.wait()
            assert log.token_ids == [number + 14, 5, 6]
            assert log.reasons == [None, None, FinishReason.STOP]
        await connection.call(GetStats("last"))
        assert [len(log.ends) for log in logs] == [1] * 50
        connection.close()

    run(work())


def test_control_messages_are_answered(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        assert await connection.call(FlushCache("a")) == Ack("a")
        stats = await connection.call(GetStats("b"))
        assert isinstance(stats, Stats)
        assert stats.values["clients"] == 1
        assert await connection.call(AbortRequest("c", "nobody")) == Ack("c")
        tree = await connection.call(GetCacheTree("d", 5, 7))
        assert tree == CacheTree("d", served.engine.cache_tree(5, 7))
        connection.close()

    run(work())
    assert served.engine.num_flushes == 1


def test_refusals_reach_the_request(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        with pytest.raises(InvalidRequest, match="empty") as caught:
            await connection.call(generate("r"), [])
        assert caught.value.param == "prompt"
        with pytest.raises(RadixgenError, match="a bug"):
            await connection.call(generate("r"), [13])
        assert isinstance(await connection.call(GetStats("s")), Stats)
        connection.close()

    run(work())


def test_abort_ends_the_target_and_is_answered(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        log = Log()
        connection.send(generate("long"), log, [0])
        await log.begun.wait()
        await connection.call(AbortRequest("a", "long"))
        await log.over.wait()
        assert log.reasons[-1] is FinishReason.ABORT
        assert len(log.ends) == 1
        connection.close()

    run(work())


def test_a_cancelled_call_is_aborted_in_the_runtime(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        task = asyncio.create_task(connection.call(generate("long"), [0]))
        while not served.engine.open:
            await asyncio.sleep(0.005)
        task.cancel()
        while served.engine.open:
            await asyncio.sleep(0.005)
        connection.close()

    run(work())


def test_two_clients_may_use_the_same_names(served: Served) -> None:
    async def work() -> None:
        one, two = await connect(served), await connect(served)
        logs = [Log(), Log()]
        one.send(generate("same"), logs[0], [0])
        two.send(generate("same"), logs[1], [20, 21])
        await logs[1].over.wait()
        assert logs[1].token_ids == [20, 21]
        await two.call(AbortRequest("a", "same"))  # its own is over; the other's is not its to end
        assert not logs[0].ends
        await one.call(AbortRequest("a", "same"))
        assert len(served.engine.clients) == 2
        one.close()
        two.close()

    run(work())


def test_requests_of_a_client_that_left_are_aborted(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        connection.send(generate("long"), Log(), [0])
        while not served.engine.open:
            await asyncio.sleep(0.005)
        connection.close()
        while served.engine.open:
            await asyncio.sleep(0.005)

    run(work())


def test_draining_finishes_what_is_open_and_refuses_what_is_new(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        log = Log()
        connection.send(generate("open"), log, [0])
        await log.begun.wait()
        over = asyncio.create_task(connection.call(Shutdown("end")))
        await asyncio.sleep(0.05)
        with pytest.raises(RuntimeUnavailable, match="shutting down"):
            await connection.call(generate("new"), [20])
        assert not over.done()
        await connection.call(AbortRequest("a", "open"))
        assert await over == Ack("end")
        assert len(log.ends) == 1
        connection.close()

    run(work())
    served.thread.join(60)
    assert not served.thread.is_alive()


def test_shutdown_without_draining_aborts_and_then_answers(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        logs = [Log() for _ in range(20)]
        for number, log in enumerate(logs):
            connection.send(generate(f"r{number}"), log, [0])
        await logs[-1].begun.wait()
        assert await connection.call(Shutdown("end", drain=False)) == Ack("end")
        assert all(len(log.ends) == 1 for log in logs)
        connection.close()

    run(work())


def test_a_runtime_that_vanishes_fails_everything_once(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        log = Log()
        connection.send(generate("long"), log, [0])
        await log.begun.wait()
        served.engine.open.clear()
        served.loop._clients.clear()  # so that the loop ends without a word
        served.loop.ring()
        await asyncio.wait_for(log.over.wait(), 200)
        assert len(log.ends) == 1
        assert isinstance(log.ends[0], RuntimeUnavailable)
        with pytest.raises(RuntimeUnavailable, match="gone"):
            await connection.call(GetStats("s"))
        connection.close()

    run(work())


def test_a_receiver_that_raises_ends_its_own_request(served: Served) -> None:
    class Broken(Log):
        def row(self, row: Row) -> None:
            raise ZeroDivisionError("a bug")

    async def work() -> None:
        connection = await connect(served)
        broken, fine = Broken(), Log()
        connection.send(generate("broken"), broken, [0])
        connection.send(generate("fine"), fine, [20, 21])
        await broken.over.wait()
        await fine.over.wait()
        assert fine.token_ids == [20, 21]
        while served.engine.open:
            await asyncio.sleep(0.005)
        assert len(broken.ends) == 1
        connection.close()

    run(work())


def test_no_listener_and_a_silent_one_are_told_apart(tmp_path: Path) -> None:
    async def work() -> None:
        nobody = Connection(str(tmp_path / "no"), lambda: "1", lambda: "")
        with pytest.raises(RuntimeUnavailable, match="no runtime listens"):
            await nobody.open(1)
        context = zmq.Context()
        silent = context.socket(zmq.ROUTER)
        silent.bind(f"ipc://{tmp_path}/s")
        with pytest.raises(RuntimeUnavailable, match=r"did not answer within 0.1 s"):
            await Connection(f"{tmp_path}/s", lambda: "1", lambda: "").open(0.1)
        context.destroy(0)

    run(work())


GARBAGE = [
    ([b"\xff\xfe"], None),
    ([b""], None),
    ([b"null"], None),
    ([b"[" * 100_000], None),
    ([b'{"kind":"hello","rid":"\\ud800"}'], None),
    ([b'{"kind":"hello","rid":"a","colour":1}'], "a"),
    ([b'{"kind":"nothing","rid":"b"}'], "b"),
    ([encode(generate("c"))[0], b"abc"], "c"),
    ([encode(generate("d"))[0]], "d"),
    ([encode(Hello("e"))[0], b"", b""], None),
    ([encode(generate("f"))[0].replace(b'"temperature":1.0', b'"temperature":NaN'), b""], "f"),
    ([b"x" * (33 << 20)], None),
]


def test_garbage_is_answered_or_counted_and_nobody_else_is_hurt(served: Served) -> None:
    """Raw frames, as a broken or hostile client would send them."""
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.set(zmq.RCVTIMEO, 60_000)
    raw.set(zmq.LINGER, 0)
    raw.connect(f"ipc://{served.path}")
    for frames, _ in GARBAGE:
        raw.send_multipart(frames)
    raw.send_multipart(encode(generate("dup"), [0]))
    raw.send_multipart(encode(generate("dup"), [0]))
    answers = [decode_to_frontend(raw.recv_multipart())[0] for _ in range(6)]
    failed = [message for message in answers if isinstance(message, RequestFailed)]
    wanted = {rid for _, rid in GARBAGE if rid}
    assert wanted <= {message.rid for message in failed} <= wanted | {"dup"}
    assert all(message.code == "invalid_request" for message in failed)

    async def work() -> None:
        connection = await connect(served)
        stats = await connection.call(GetStats("s"))
        assert isinstance(stats, Stats)
        assert stats.values["dropped_messages"] == sum(rid is None for _, rid in GARBAGE)
        log = Log()
        connection.send(generate("fine"), log, [20])
        await log.over.wait()
        assert log.token_ids == [20]
        connection.close()

    run(work())
    raw.close()
    context.destroy(0)


def test_an_idle_loop_sleeps(served: Served) -> None:
    async def work() -> None:
        connection = await connect(served)
        await asyncio.sleep(0.3)
        connection.close()

    before = served.engine.num_steps
    run(work())
    assert served.engine.num_steps == before


def test_what_was_said_before_the_end_is_heard(served: Served) -> None:
    """The runtime speaks and leaves while the client is busy with something else."""

    async def work() -> None:
        connection = await connect(served)
        logs = [Log() for _ in range(200)]
        for number, log in enumerate(logs):
            connection.send(generate(f"r{number}"), log, [number + 14, 5, 6])
        connection.send(Shutdown("end"), Log())
        served.thread.join(10)  # blocks this loop: all of it waits in our socket,
        time.sleep(0.2)  # and so does the news that the connection is closed
        await asyncio.gather(*(log.over.wait() for log in logs))
        assert all(log.token_ids[1:] == [5, 6] for log in logs)
        assert not any(isinstance(log.ends[0], RadixgenError) for log in logs)
        connection.close()

    run(work())
