"""Between the socket and the engine: reads messages, lets the engine step, sends what came of it.

Knows frames and clients; of a request it knows its name and whether it is open. Nothing a client
sends can end the loop: what is no message is answered if it names a request, else dropped and
counted. An idle loop sleeps in `poll`.

    serving ── Shutdown(drain=True), SIGTERM ──▶ draining ── nothing open ──▶ over
       └────── Shutdown(drain=False), second SIGTERM: all aborted ─────────────▲
"""

import contextlib
import logging
import socket as sockets
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import zmq

from radixgen.errors import InvalidRequest, RadixgenError, RuntimeDraining
from radixgen.messages import (
    MAX_IDS_BYTES,
    AbortRequest,
    Ack,
    CacheNode,
    CacheTree,
    Control,
    DecodeError,
    FlushCache,
    GenerateRequest,
    GetCacheTree,
    GetStats,
    Hello,
    Ready,
    RequestFailed,
    ScoreRequest,
    Shutdown,
    Stats,
    StepOutput,
    Terminal,
    ToRuntime,
    decode_to_runtime,
    encode,
)
from radixgen.runtime.departures import Departures
from radixgen.runtime.replies import Frames, pack, scoped, unscoped
from radixgen.schedule.request import Event, SequenceOutput

logger = logging.getLogger(__name__)

_RING, _WAKE = b"x", b"w"  # what the bell carries
_NOTHING_NEW = StepOutput((), (), (), (), ())
LINGER_MS = 2000  # to hand the last messages to the clients at the end
MAX_MESSAGES_PER_TURN = 256  # read between two steps, so that arrivals cannot stall decoding


def listen(context: "zmq.Context[zmq.Socket[bytes]]", path: str) -> "zmq.Socket[bytes]":
    """A router bound to `path`, as `Loop` needs it."""
    socket = context.socket(zmq.ROUTER)
    # No limit: what is over it cannot be sent, and a lost message breaks the protocol's law.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, 2 * MAX_IDS_BYTES)
    socket.set(zmq.LINGER, LINGER_MS)
    socket.set(zmq.ROUTER_MANDATORY, 1)  # tell us of clients that are gone
    socket.bind(f"ipc://{path}")
    return socket


class EngineLike(Protocol):
    """What the loop needs of an engine. No method raises for what a request did."""

    @property
    def has_work(self) -> bool: ...
    def on_ready(self, wake: Callable[[], None]) -> None: ...
    def add(
        self, message: GenerateRequest | ScoreRequest, ids: "array[int]"
    ) -> Iterable[Event]: ...
    def abort(self, rid: str) -> Iterable[Event]: ...
    def flush(self) -> None: ...
    def step(self) -> Iterable[Event]: ...
    def stats(self) -> dict[str, float]: ...
    def cache_tree(self, max_nodes: int, max_preview: int) -> tuple[CacheNode, ...]: ...


@dataclass(slots=True)
class _Client:
    identity: bytes
    open: set[str] = field(default_factory=set)  # rids without their terminal message


class Loop:
    """Serves every client of `socket`, made by `listen`, with one engine.

    `ready`: what a `Hello` is answered with. `run` returns when the runtime is over.
    """

    def __init__(self, engine: EngineLike, socket: "zmq.Socket[bytes]", ready: Ready) -> None:
        self.engine = engine
        self.socket = socket
        self.ready = ready
        self.num_dropped = 0  # frames that were no message and named no request
        self._numbers: dict[bytes, int] = {}
        self._clients: dict[int, _Client] = {}
        self._next_number = 0
        self._draining = False
        self._stopping: list[tuple[_Client, str]] = []  # Shutdown messages to acknowledge
        self._waker, self._bell = sockets.socketpair()
        self._waker.setblocking(False)
        self._bell.setblocking(False)
        self._departures = Departures(socket)
        engine.on_ready(self._wake)

    def run(self) -> None:
        """Serve until a shutdown has drained; every open request has its terminal message then."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        poller.register(self._departures.monitor, zmq.POLLIN)
        while not (self._draining and self.num_open == 0):
            poller.poll(0 if self.engine.has_work else self._departures.wait_ms())
            self._hear_bell()
            if self._departures.hear():
                self._look_who_is_gone()
            self._receive()
            if self.engine.has_work:
                self._deliver(self.engine.step())
        for client, rid in self._stopping:
            self._send(client, [encode(Ack(rid))])

    @property
    def num_open(self) -> int:
        return sum(len(client.open) for client in self._clients.values())

    def ring(self) -> None:
        """Drain; a second ring aborts what is left. Safe in a signal handler and in a thread."""
        self._bell.send(_RING)

    def _wake(self) -> None:
        """The engine has work again. From any thread; a full bell wakes as well."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell.send(_WAKE)

    def close(self) -> None:
        self._waker.close()
        self._bell.close()
        self._departures.close()

    def _hear_bell(self) -> None:
        try:
            rings = self._waker.recv(4096).count(_RING)
        except BlockingIOError:
            return
        for _ in range(rings):
            if self._draining:
                self._abort_all()
            self._draining = True

    def _receive(self) -> None:
        for _ in range(MAX_MESSAGES_PER_TURN):
            try:
                identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(self._client(identity), frames)

    def _client(self, identity: bytes) -> int:
        number = self._numbers.get(identity)
        if number is None:
            number = self._numbers[identity] = self._next_number
            self._next_number += 1
            self._clients[number] = _Client(identity)
        return number

    def _take(self, number: int, frames: Frames) -> None:
        client = self._clients[number]
        try:
            message, ids = decode_to_runtime(frames)
        except DecodeError as error:
            self._refuse(client, error.rid, error.error)
            return
        if message.rid in client.open:
            reason = f"rid {message.rid!r} is already in use; choose another, or wait for its end"
            self._refuse(client, message.rid, InvalidRequest(reason, "rid"))
            return
        try:
            self._handle(number, message, ids)
        except RadixgenError as error:
            self._refuse(client, message.rid, error)
        except Exception as error:
            logger.exception("the %s request %r failed", message.kind, message.rid)
            client.open.discard(message.rid)
            self._refuse(client, message.rid, RadixgenError(repr(error)))

    def _handle(self, number: int, message: ToRuntime, ids: "array[int]") -> None:
        client = self._clients[number]
        if isinstance(message, GenerateRequest | ScoreRequest):
            if self._draining:
                raise RuntimeDraining("the runtime is shutting down and takes no new requests")
            client.open.add(message.rid)
            name, who = scoped(number, message.rid), message.client or str(number)
            self._deliver(self.engine.add(replace(message, rid=name, client=who), ids))
        elif isinstance(message, Shutdown):
            self._draining = True
            self._stopping.append((client, message.rid))
            if not message.drain:
                self._abort_all()
        else:
            self._send(client, [encode(self._answer(number, message))])

    def _answer(self, number: int, message: Control) -> Terminal:
        match message:
            case Hello(rid):
                return replace(self.ready, rid=rid)
            case GetStats(rid):
                own = {
                    "dropped_messages": self.num_dropped,
                    "clients": len(self._clients),
                    "draining": float(self._draining),
                }
                return Stats(rid, self.engine.stats() | own)
            case GetCacheTree(rid, max_nodes, max_preview):
                return CacheTree(rid, self.engine.cache_tree(max_nodes, max_preview))
            case AbortRequest(_, target):
                if target in self._clients[number].open:
                    self._deliver(self.engine.abort(scoped(number, target)))
            case FlushCache():
                self.engine.flush()
        return Ack(message.rid)

    def _abort_all(self) -> None:
        for number, client in list(self._clients.items()):
            for rid in list(client.open):
                self._deliver(self.engine.abort(scoped(number, rid)))

    def _deliver(self, events: Iterable[Event]) -> None:
        events = list(events)
        for event in events:
            if not isinstance(event, SequenceOutput):
                number, rid = unscoped(event.rid)
                if number in self._clients:
                    self._clients[number].open.discard(rid)
        for number, messages in pack(events).items():
            if number in self._clients:
                self._send(self._clients[number], messages)

    def _refuse(self, client: _Client, rid: str | None, error: RadixgenError) -> None:
        if rid is None:
            self.num_dropped += 1
            logger.warning("dropped a message: %s", error)
            return
        param = error.param if isinstance(error, InvalidRequest) else None
        self._send(client, [encode(RequestFailed(rid, error.code, str(error), param))])

    def _send(self, client: _Client, messages: list[Frames]) -> None:
        try:
            for frames in messages:
                self.socket.send_multipart([client.identity, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(client)

    def _look_who_is_gone(self) -> None:
        """A client may wait long until it is told anything: one that is gone waits for nothing."""
        for client in list(self._clients.values()):
            self._send(client, [encode(_NOTHING_NEW)])

    def _forget(self, client: _Client) -> None:
        """The client is gone: nobody waits for its requests any more."""
        number = self._numbers.pop(client.identity, None)
        if number is None:
            return
        del self._clients[number]
        for rid in client.open:
            self._deliver(self.engine.abort(scoped(number, rid)))
