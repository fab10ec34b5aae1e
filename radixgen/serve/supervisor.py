"""Keeps a runtime behind the server: starts it, hears of its death, starts it again, drains it.

Knows a client and how to get a new one; no processes, no HTTP.

    starting ─▶ serving ─▶ restarting ─▶ serving …      draining, from any of them, is the end

What was open when the runtime died fails. What comes while it is restarted waits for it, and so
does what comes while the runtime by itself finishes what is open, as one does that gets SIGTERM.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Literal, Protocol

from radixgen.client import EngineClient
from radixgen.errors import (
    InvalidRequest,
    Overloaded,
    RadixgenError,
    RuntimeDraining,
    RuntimeUnavailable,
)

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
STALL_SECONDS = 60.0  # without an answer to a heartbeat, after which health is bad
MAX_BACKOFF_SECONDS = 10.0
RESTART_SECONDS = 30.0  # that a new request waits for a runtime that is being restarted


class Launcher(Protocol):
    """Makes runtimes. `stop` ends one; `drain`: after its open requests have finished."""

    async def start(self) -> EngineClient: ...
    async def stop(self, client: EngineClient, *, drain: bool, timeout: float) -> None: ...


class Supervisor:
    """The runtime that the routes use. Every method belongs to one event loop."""

    def __init__(self, launcher: Launcher, max_open: int) -> None:
        self._launcher = launcher
        self._max_open = max_open
        self._client: EngineClient | None = None
        self._known: EngineClient | None = None  # the last one, be it alive or not
        self._changed = asyncio.Event()  # set while there is nothing to wait for
        self._watcher: asyncio.Task[None] | None = None
        self._kick = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._heard = 0.0
        self.draining = False
        self.num_open = 0  # prompts that run or wait
        self.num_restarts = 0
        self.stats: dict[str, float] = {"up": 0}  # of the last heartbeat; of no runtime, only this

    async def start(self) -> None:
        """The first runtime. Raises what kept it from starting."""
        self._take(await self._launcher.start())
        self._watcher = asyncio.create_task(self._watch(), name="radixgen supervisor")

    @property
    def client(self) -> EngineClient:
        """Raises RuntimeUnavailable while there is none."""
        if self._client is None:
            raise RuntimeUnavailable("the runtime is being restarted")
        return self._client

    @property
    def known(self) -> EngineClient:
        """The last client, for what it knows without a runtime: `ready` and the tokenizer.

        Raises RuntimeUnavailable before the first is there.
        """
        if self._known is None:
            raise RuntimeUnavailable("the runtime is being started")
        return self._known

    @property
    def state(self) -> Literal["serving", "restarting", "draining"]:
        if self.draining:
            return "draining"
        return "serving" if self._living is not None else "restarting"

    @property
    def _living(self) -> EngineClient | None:
        """The client, unless its runtime was told to end, or is lost: that is known at once, and
        acted on next."""
        client, is_leaving = self._client, self.stats.get("draining", 0) > 0
        if client is None or client.connection.is_lost or is_leaving:
            return None
        return client

    @property
    def healthy(self) -> bool:
        """Whether a request that comes now would be served."""
        fresh = time.monotonic() - self._heard < STALL_SECONDS
        return self.state == "serving" and fresh

    def report_loss(self) -> None:
        """A request found the runtime gone: look at once."""
        self._kick.set()

    @contextlib.asynccontextmanager
    async def admit(self, num_prompts: int) -> AsyncGenerator[EngineClient]:
        """The client, with room for so many prompts while the context lasts. A runtime that is
        being restarted is waited for, up to RESTART_SECONDS.

        Raises Overloaded or RuntimeUnavailable; InvalidRequest for more than there can be room for.
        """
        if self.draining:
            raise RuntimeUnavailable("the server is shutting down")
        if num_prompts > self._max_open:
            raise InvalidRequest(
                f"prompt holds {num_prompts} prompts, and this server takes {self._max_open} open "
                "ones at most; send fewer in a request",
                "prompt",
            )
        if self.num_open + num_prompts > self._max_open:
            raise Overloaded(
                f"the server has {self.num_open} open prompts, and takes {self._max_open} at most"
            )
        self.num_open += num_prompts
        self._idle.clear()
        try:
            yield await self._live()
        except RuntimeUnavailable:
            self.report_loss()
            raise
        finally:
            self.num_open -= num_prompts
            if not self.num_open:
                self._idle.set()

    async def replacement(
        self, client: EngineClient, num_heard: int, error: RuntimeUnavailable
    ) -> EngineClient | None:
        """The next client, for a request that `client` sent to a runtime that refused it to come
        to its end, or that may have been dead already: it has not said a word since `num_heard`.
        None for any other: it may be the request that kills runtimes."""
        is_refused = isinstance(error, RuntimeDraining)
        if self.draining or (client.connection.num_heard != num_heard and not is_refused):
            return None
        if is_refused and client is self._client:
            self.stats = self.stats | {"draining": 1}  # known before the next heartbeat
        return await self._live()

    async def _live(self) -> EngineClient:
        """The client of a living runtime: of this one, or of the next."""
        if self._living is not None:
            return self._living
        self._changed.clear()
        self.report_loss()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), RESTART_SECONDS)
        if self.draining:
            raise RuntimeUnavailable("the server is shutting down")
        return self.client

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, and wait for what is open; says whether all of it finished in time."""
        self.draining = True
        self._changed.set()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the runtime; what is still open ends as aborted. Twice is the same as once."""
        self.draining = True
        self._changed.set()
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        client, self._client = self._client, None
        if client is not None:
            await self._launcher.stop(client, drain=False, timeout=5.0)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._kick.wait(), HEARTBEAT_SECONDS)
            self._kick.clear()
            client = self._client
            if client is None:
                await self._restart()
                continue
            try:
                self.stats = await client.stats() | {"page_size": client.ready.page_size, "up": 1}
                self._heard = time.monotonic()
            except RuntimeUnavailable as error:
                logger.error("the runtime is lost: %s", error)
                self._client, self.stats = None, {"up": 0}
                with contextlib.suppress(RadixgenError):
                    await self._launcher.stop(client, drain=False, timeout=1.0)
                await self._restart()
            except RadixgenError:
                logger.exception("the runtime did not give its counters")

    async def _restart(self) -> None:
        """Start anew until it works, with growing pauses."""
        pause = 0.5
        while True:
            try:
                self._take(await self._launcher.start())
            except RadixgenError as error:
                logger.error("the runtime does not start again: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_BACKOFF_SECONDS)
                continue
            self.num_restarts += 1
            logger.warning("the runtime serves again")
            return

    def _take(self, client: EngineClient) -> None:
        self._client = self._known = client
        self._heard = time.monotonic()
        self._changed.set()


async def aclose(events: AsyncGenerator[object]) -> None:
    """Close a generator whose faults do not matter any more."""
    with contextlib.suppress(Exception):
        await events.aclose()
