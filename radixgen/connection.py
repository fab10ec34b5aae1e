"""A client's end of the wire: a socket in an event loop, and who waits for what.

The law seen from here: `Receiver.row` any number of times, then exactly one of `end` and `fail`,
also when the runtime dies (the kernel closes its socket, which is heard at once). Knows messages;
no text, no processes. Everything runs in the event loop's thread.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import zmq

from radixgen.errors import InvalidRequest, RadixgenError, RuntimeUnavailable, from_code
from radixgen.messages import (
    AbortRequest,
    DecodeError,
    GenerateRequest,
    Hello,
    Ready,
    RequestFailed,
    ScoreRequest,
    StepOutput,
    Terminal,
    ToRuntime,
    decode_to_frontend,
    encode,
)
from radixgen.streams import Row

logger = logging.getLogger(__name__)

_NEVER_MS = 24 * 3600 * 1000
MAX_MESSAGES_PER_TURN = 128  # then other tasks of the loop have their turn


class Receiver(Protocol):
    """Hears of one request. What it raises ends that request, not the connection."""

    def row(self, row: Row) -> None: ...
    def end(self, message: Terminal) -> None: ...
    def fail(self, error: RadixgenError) -> None: ...


class _Deaf:
    """Stands for a receiver that went away, until the runtime's terminal message comes."""

    def row(self, row: Row) -> None: ...
    def end(self, message: Terminal) -> None: ...
    def fail(self, error: RadixgenError) -> None: ...


class _Answer:
    """The one answer to a message without tokens."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Terminal] = asyncio.get_running_loop().create_future()

    def row(self, row: Row) -> None: ...

    def end(self, message: Terminal) -> None:
        if not self.future.done():
            self.future.set_result(message)

    def fail(self, error: RadixgenError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Connection:
    """Open it with `open`, close it with `close`. `new_rid` names the messages of its own.

    `explain_loss`: what to tell waiters when the runtime is gone; it may look at the process.
    """

    def __init__(
        self, path: str, new_rid: Callable[[], str], explain_loss: Callable[[], str]
    ) -> None:
        self._path = path
        self._new_rid = new_rid
        self._explain_loss = explain_loss
        self._open: dict[str, Receiver] = {}
        self._lost: str | None = "the connection to the runtime is not open"
        self.num_heard = 0  # messages of the runtime: it was alive when one more came

    async def open(self, timeout: float) -> Ready:
        """Connect and shake hands. Raises RuntimeUnavailable after `timeout` seconds."""
        if not Path(self._path).is_socket():
            raise RuntimeUnavailable(f"no runtime listens at {self._path}")
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.set(option, 0)  # no limits, and no waiting at the end
        # A runtime that died does not come back. Not -1: that would drop what it said last.
        self._socket.set(zmq.RECONNECT_IVL, _NEVER_MS)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(f"ipc://{self._path}")
        self._lost = None
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._loop.add_reader(self._monitor.fileno(), self._hear_monitor)
        self._hear_monitor()  # the descriptor speaks only to those who have found nothing
        try:
            ready = await asyncio.wait_for(self.call(Hello(self._new_rid())), timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, asyncio.TimeoutError):
                message = f"the runtime at {self._path} did not answer within {timeout:g} s"
                raise RuntimeUnavailable(message) from None
            raise
        assert isinstance(ready, Ready)
        return ready

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be asked any more: the runtime is gone, or this has been closed."""
        return self._lost is not None

    def close(self, reason: str = "the connection to the runtime is closed") -> None:
        """Fail what is open, then let go of the socket. Twice is the same as once."""
        if self._lost is None:
            self._lose(reason)
        if not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
            self._context.term()

    def send(self, message: ToRuntime, receiver: Receiver, ids: Sequence[int] = ()) -> None:
        """Send a message whose outcome `receiver` hears of.

        Raises RuntimeUnavailable when the runtime is gone, InvalidRequest when the rid is in use.
        """
        if self._lost is not None:
            raise RuntimeUnavailable(self._lost)
        if message.rid in self._open:
            raise InvalidRequest(f"rid {message.rid!r} is already in use; choose another", "rid")
        frames = encode(message, ids)
        self._open[message.rid] = receiver
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        self._loop.call_soon(self._drain)  # the descriptor is silent about what came meanwhile

    async def call(self, message: ToRuntime, ids: Sequence[int] = ()) -> Terminal:
        """Send a message and wait for its answer; raises what the runtime refused it with.

        A caller that is cancelled meanwhile has the runtime abort what it asked for.
        """
        answer = _Answer()
        self.send(message, answer, ids)
        try:
            return await answer.future
        except asyncio.CancelledError:
            if isinstance(message, GenerateRequest | ScoreRequest):
                self.abandon([message.rid])
            self.forget(message.rid)
            raise

    def forget(self, rid: str) -> bool:
        """Nobody listens to `rid` any more; says whether it was open."""
        if rid not in self._open:
            return False
        self._open[rid] = _Deaf()
        return True

    def abandon(self, rids: Sequence[str]) -> None:
        """Forget the requests and have the runtime abort those that are open."""
        for rid in rids:
            if self.forget(rid) and self._lost is None:
                self.send(AbortRequest(self._new_rid(), rid), _Deaf())

    def _drain(self) -> None:
        for _ in range(MAX_MESSAGES_PER_TURN):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.num_heard += 1
            self._dispatch(frames)
        self._loop.call_soon(self._drain)

    def _dispatch(self, frames: list[bytes]) -> None:
        try:
            message, ids = decode_to_frontend(frames)
        except DecodeError as error:
            logger.error("a message of the runtime is malformed: %s", error)
            receiver = self._open.pop(error.rid, None) if error.rid else None
            if receiver is not None:
                receiver.fail(error.error)
            return
        if isinstance(message, StepOutput):
            self._spread(message, ids)
            return
        receiver = self._open.pop(message.rid, None)
        if receiver is None:
            return
        if isinstance(message, RequestFailed):
            receiver.fail(from_code(message.code, message.message, message.param))
            return
        try:
            receiver.end(message)
        except Exception as error:
            receiver.fail(_internal(error))

    def _spread(self, step: StepOutput, ids: "array[int]") -> None:
        start = 0
        for number, rid in enumerate(step.rids):
            stop = start + step.counts[number]
            receiver = self._open.get(rid)
            if receiver is not None:
                row = Row(
                    step.indices[number],
                    ids[start:stop],
                    step.finish_reasons[number],
                    step.stop_reasons[number],
                    step.logprobs[number] if step.logprobs else (),
                    step.grammar_masses[number] if step.grammar_masses else (),
                    step.cached_tokens[number] if step.cached_tokens else None,
                    step.num_thoughts[number] if step.num_thoughts else 0,
                )
                try:
                    receiver.row(row)
                except Exception as error:
                    self.abandon([rid])
                    receiver.fail(_internal(error))
            start = stop

    def _hear_monitor(self) -> None:
        """The runtime's end is closed. What it said before waits in our socket: read it first."""
        try:
            self._monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        while self._socket.poll(0):
            self._dispatch(self._socket.recv_multipart(zmq.NOBLOCK))
        self._lose(self._explain_loss())

    def _lose(self, reason: str) -> None:
        self._lost = reason
        receivers, self._open = list(self._open.values()), {}
        for receiver in receivers:
            receiver.fail(RuntimeUnavailable(reason))


def _internal(error: Exception) -> RadixgenError:
    if isinstance(error, RadixgenError):
        return error
    logger.error("a result could not be taken in", exc_info=error)
    return RadixgenError(f"a result could not be taken in: {error!r}")
