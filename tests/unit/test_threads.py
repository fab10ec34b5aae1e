"""A loop in a thread: outcomes, cancellation and the end reach the caller, from any thread."""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import AsyncGenerator, Iterator

import pytest

from radixgen.errors import RuntimeUnavailable
from radixgen.threads import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test loop")
    yield thread
    thread.stop()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_outcomes_and_exceptions_come_back(thread: LoopThread) -> None:
    async def fail() -> None:
        raise KeyError("x")

    assert thread.run(double(4)) == 8
    with pytest.raises(KeyError):
        thread.run(fail())


def test_many_threads_at_once(thread: LoopThread) -> None:
    results: list[int] = []

    def work(number: int) -> None:
        results.extend(thread.run(double(number)) for _ in range(20))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(results) == sorted(2 * n for n in range(8) for _ in range(20))


class Source:
    """Counts up, and tells when it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def count(self) -> AsyncGenerator[int]:
        try:
            for number in range(1000):
                yield number
                await asyncio.sleep(0)
        finally:
            self.closed.set()


def test_iterating_to_the_end(thread: LoopThread) -> None:
    assert list(thread.iterate(Source().count())) == list(range(1000))


def test_leaving_early_closes_the_source(thread: LoopThread) -> None:
    source = Source()
    items = thread.iterate(source.count())
    assert next(items) == 0
    items.close()
    assert source.closed.wait(60)


def test_dropping_the_generator_closes_the_source(thread: LoopThread) -> None:
    source = Source()
    items = thread.iterate(source.count())
    assert next(items) == 0
    del items
    gc.collect()
    assert source.closed.wait(60)


def test_after_the_end_calls_are_refused(thread: LoopThread) -> None:
    started = threading.Event()
    caught: list[BaseException] = []

    async def wait_for_ever() -> None:
        started.set()
        await asyncio.sleep(1000)

    def work() -> None:
        try:
            thread.run(wait_for_ever())
        except BaseException as error:
            caught.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert started.wait(60)
    thread.stop()
    worker.join(60)
    assert isinstance(caught[0], RuntimeUnavailable)
    with pytest.raises(RuntimeUnavailable, match="shut down"):
        thread.run(double(1))
    thread.stop()


def test_what_begins_at_the_end_ends_too(thread: LoopThread) -> None:
    ended = list[str]()

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(name)

    def begin(name: str, then: str) -> None:
        task = thread.loop.create_task(work(name))
        if then:
            task.add_done_callback(lambda _: begin(then, ""))

    async def main() -> None:
        begin("first", "second")

    thread.run(main())
    thread.stop()
    assert ended == ["first", "second"]


def test_a_fork_is_told_and_leaves_the_owner_alone(thread: LoopThread) -> None:
    assert thread.run(double(1)) == 2
    work = double(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork among threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            thread.run(work)
        except RuntimeUnavailable as error:
            thread.stop()
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.run(work) == 4


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_task_that_ends_the_process_ends_only_itself(
    thread: LoopThread, end: type[BaseException]
) -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        raise end(4)

    waiting = threading.Event()
    others: list[int] = []

    async def other() -> int:
        waiting.set()
        await asyncio.sleep(0.05)
        return await double(3)

    beside = threading.Thread(target=lambda: others.append(thread.run(other())))
    beside.start()
    assert waiting.wait(60)
    with pytest.raises(end):
        thread.run(leave())
    assert thread.run(double(2)) == 4
    beside.join(60)
    assert others == [6]
