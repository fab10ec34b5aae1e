"""A runtime behind the server that dies: who waits for the next one, and who is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from radixgen.errors import InvalidRequest, Overloaded, RuntimeDraining, RuntimeUnavailable
from radixgen.serve import supervisor
from radixgen.serve.supervisor import Supervisor

GONE = RuntimeUnavailable("gone")


class Client:
    """A runtime's client. `die`: the runtime is gone, and this knows it at once."""

    def __init__(self) -> None:
        self.connection = SimpleNamespace(is_lost=False, num_heard=0)
        self.ready = SimpleNamespace(page_size=8)
        self.draining = 0.0

    async def stats(self) -> dict[str, float]:
        if self.connection.is_lost:
            raise RuntimeUnavailable("gone")
        return {"draining": self.draining}

    def die(self) -> None:
        self.connection.is_lost = True


class Launcher:
    """Starts a client at once the first time, and later ones when it is `allowed` to."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.stopped: list[Any] = []
        self.allowed = asyncio.Event()

    async def start(self) -> Any:
        if self.started:
            await self.allowed.wait()
        self.started.append(Client())
        return self.started[-1]

    async def stop(self, client: Any, *, drain: bool, timeout: float) -> None:
        self.stopped.append(client)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[Supervisor, Launcher]]:
    launcher = Launcher()
    kept = Supervisor(launcher, max_open=4)
    await kept.start()
    try:
        yield kept, launcher
    finally:
        await kept.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def admitted(kept: Supervisor) -> Any:
    async with kept.admit(1) as client:
        return client


def states(kept: Supervisor) -> tuple[str, bool]:
    return kept.state, kept.healthy


async def restarting(kept: Supervisor) -> None:
    """Until the loss has been acted on."""
    while kept._client is not None:
        await asyncio.sleep(0)


def test_what_comes_while_there_is_no_runtime_waits_for_the_next() -> None:
    async def work() -> None:
        async with running() as (kept, launcher):
            first: Any = await admitted(kept)
            first.die()  # nobody has noticed
            assert states(kept) == ("restarting", False)
            waiting = [asyncio.create_task(admitted(kept)) for _ in range(2)]
            await restarting(kept)
            waiting.append(asyncio.create_task(admitted(kept)))
            assert kept.known is first
            with pytest.raises(RuntimeUnavailable):
                _ = kept.client
            launcher.allowed.set()
            for task in waiting:
                assert await task is launcher.started[1]
            assert launcher.stopped == [first]
            assert kept.num_restarts == 1
            assert states(kept) == ("serving", True)
            assert kept.num_open == 0

    run(work())


def test_a_wait_ends_with_the_server_and_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running() as (kept, launcher):
            launcher.started[0].die()
            with monkeypatch.context() as patch:
                patch.setattr(supervisor, "RESTART_SECONDS", 0.01)
                with pytest.raises(RuntimeUnavailable):
                    await admitted(kept)
            waiting = asyncio.create_task(admitted(kept))
            await restarting(kept)
            await kept.stop()
            with pytest.raises(RuntimeUnavailable, match="shutting down"):
                await waiting
            assert kept.num_open == 0

    run(work())


def test_only_what_a_dead_runtime_never_heard_is_sent_again() -> None:
    async def work() -> None:
        async with running() as (kept, launcher):
            launcher.allowed.set()
            first: Any = kept.client
            num_heard = first.connection.num_heard
            first.die()
            for _ in range(2):  # the second is late
                assert await kept.replacement(first, num_heard, GONE) is launcher.started[1]
            first.connection.num_heard += 1  # it lived when the request was there
            assert await kept.replacement(first, num_heard, GONE) is None
            kept.draining = True
            assert await kept.replacement(kept.known, 0, GONE) is None
            assert await kept.replacement(kept.known, 0, RuntimeDraining("")) is None

    run(work())


def test_more_prompts_than_there_is_ever_room_for_are_no_overload() -> None:
    async def work() -> None:
        async with running() as (kept, _):
            with pytest.raises(
                InvalidRequest, match="5 prompts, and this server takes 4"
            ) as caught:
                async with kept.admit(5):
                    pass
            assert caught.value.param == "prompt"
            async with kept.admit(3):
                with pytest.raises(Overloaded):
                    async with kept.admit(2):
                        pass
            assert kept.num_open == 0

    run(work())


def test_what_a_runtime_refuses_to_come_to_its_end_waits_for_the_next() -> None:
    async def work() -> None:
        async with running() as (kept, launcher):
            first: Any = kept.client
            num_heard = first.connection.num_heard
            first.draining = 1.0
            first.connection.num_heard += 1  # the refusal itself
            refused = kept.replacement(first, num_heard, RuntimeDraining("no"))
            waiting = [asyncio.create_task(refused), asyncio.create_task(admitted(kept))]
            while states(kept) != ("restarting", False):
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            launcher.allowed.set()
            first.die()
            kept.report_loss()
            assert await asyncio.gather(*waiting) == [launcher.started[1]] * 2
            assert kept.num_open == 0

    run(work())


def test_health_knows_of_a_runtime_that_drains() -> None:
    async def work() -> None:
        async with running() as (kept, launcher):
            first: Any = kept.client
            first.draining = 1.0
            kept.report_loss()  # as a request does that it has refused
            while states(kept) != ("restarting", False):
                await asyncio.sleep(0)
            launcher.allowed.set()
            first.die()
            kept.report_loss()
            while states(kept) != ("serving", True):
                await asyncio.sleep(0)
            assert kept.client is launcher.started[1]

    run(work())
