"""Prompts of one HTTP request on their way through the runtime: run, streamed, aborted, counted.

Knows the supervisor's client and no HTTP. A job that is closed or cancelled is aborted.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from radixgen.client import EngineClient
from radixgen.errors import InvalidRequest, RadixgenError, RuntimeUnavailable
from radixgen.options import GenerateOptions, Prompt
from radixgen.serve.metrics import Metrics
from radixgen.serve.supervisor import Supervisor
from radixgen.types import (
    CacheHint,
    GenerateResult,
    GrammarSpec,
    Piece,
    SamplingParams,
    ScoreResult,
    Thinking,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """What a request asks of the runtime. `rid` names it for `abort`."""

    rid: str
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    priority: int = 0
    namespace: str = ""
    lora: str = ""
    thinking: Thinking | None = None
    hint: CacheHint | None = None

    def rid_of(self, number: int) -> str:
        """What the runtime knows the prompt by."""
        return self.rid if len(self.prompts) == 1 else f"{self.rid}-{number}"

    def options(self, number: int) -> GenerateOptions:
        return {
            "grammar": self.grammar,
            "priority": self.priority,
            "namespace": self.namespace,
            "lora": self.lora,
            "thinking": self.thinking,
            "hint": self.hint,
            "rid": self.rid_of(number),
        }


class Jobs:
    """All jobs of a server."""

    def __init__(self, supervisor: Supervisor, metrics: Metrics) -> None:
        self._supervisor = supervisor
        self._metrics = metrics
        self._open: dict[str, Job] = {}

    async def run(self, job: Job) -> list[GenerateResult]:
        """The results, one a prompt, in order. Raises what the first that fails raises."""
        results = await self._whole(job, self._results)
        for result in results:
            self._metrics.finished(result)
        return results

    async def score(self, job: Job, continuations: Sequence[Sequence[Prompt]]) -> list[ScoreResult]:
        """The log-probabilities of each prompt's continuations. The first prompt goes alone: what
        it shares with the others is computed once."""

        async def scores(client: EngineClient, job: Job) -> list[ScoreResult]:
            first = await self._score(client, job, 0, continuations[0])
            others = [
                self._score(client, job, number, continuations[number])
                for number in range(1, len(job.prompts))
            ]
            return [first, *await _all_of(others)]

        return await self._whole(job, scores)

    async def _whole(self, job: Job, work: Callable[[EngineClient, Job], Awaitable[T]]) -> T:
        """What `work` gives; once more if the runtime is gone, or going, and has not begun it."""
        async with self._admitted(job) as client:
            num_heard = client.connection.num_heard
            try:
                return await work(client, job)
            except RuntimeUnavailable as error:
                other = await self._supervisor.replacement(client, num_heard, error)
                if other is None:
                    raise
            return await work(other, job)

    async def _results(self, client: EngineClient, job: Job) -> list[GenerateResult]:
        return await _all_of(
            client.generate(prompt, job.sampling, **job.options(number))
            for number, prompt in enumerate(job.prompts)
        )

    async def _score(
        self, client: EngineClient, job: Job, number: int, continuations: Sequence[Prompt]
    ) -> ScoreResult:
        result = await client.score(
            job.prompts[number],
            continuations,
            priority=job.priority,
            namespace=job.namespace,
            lora=job.lora,
            rid=job.rid_of(number),
        )
        self._metrics.scored(result.usage)
        return result

    async def stream(self, job: Job) -> AsyncGenerator[Piece]:
        """Pieces of all prompts as they come; `piece.prompt` says whose."""
        async with self._admitted(job) as client:
            num_heard, is_begun = client.connection.num_heard, False
            try:
                async with contextlib.aclosing(self._pieces(client, job)) as pieces:
                    async for piece in pieces:
                        is_begun = True
                        yield piece
                return
            except RuntimeUnavailable as error:
                if is_begun:
                    raise
                other = await self._supervisor.replacement(client, num_heard, error)
                if other is None:
                    raise
            async with contextlib.aclosing(self._pieces(other, job)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _pieces(self, client: EngineClient, job: Job) -> AsyncGenerator[Piece]:
        pieces = self._one(client, job, 0) if len(job.prompts) == 1 else self._all(client, job)
        last = 0.0
        try:
            async for piece in pieces:
                if piece.result is not None:
                    self._metrics.finished(piece.result)
                elif last:
                    now = time.monotonic()
                    self._metrics.piece(now - last)
                    last = now
                else:
                    last = time.monotonic()
                yield piece
        finally:
            await pieces.aclose()

    async def abort(self, rid: str) -> bool:
        """Abort a job by its name; says whether it was open."""
        job = self._open.get(rid)
        if job is None:
            return False
        for number in range(len(job.prompts)):
            await self._supervisor.client.abort(job.rid_of(number))
        return True

    async def abort_all(self) -> None:
        for rid in list(self._open):
            await self.abort(rid)

    @contextlib.asynccontextmanager
    async def _admitted(self, job: Job) -> AsyncGenerator[EngineClient]:
        if job.rid in self._open:
            raise InvalidRequest(f"rid {job.rid!r} is already in use; choose another", "rid")
        self._open[job.rid] = job
        try:
            async with self._supervisor.admit(len(job.prompts)) as client:
                yield client
        except RadixgenError as error:
            self._metrics.failed(error.code)
            raise
        finally:
            del self._open[job.rid]

    def _one(self, client: EngineClient, job: Job, number: int) -> AsyncGenerator[Piece]:
        prompt = job.prompts[number]
        return client.generate(prompt, job.sampling, stream=True, **job.options(number))

    async def _all(self, client: EngineClient, job: Job) -> AsyncGenerator[Piece]:
        queue: asyncio.Queue[Piece | BaseException] = asyncio.Queue()

        async def feed(number: int) -> None:
            try:
                async for piece in self._one(client, job, number):
                    queue.put_nowait(replace(piece, prompt=number))
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(feed(number)) for number in range(len(job.prompts))]
        num_open = len(tasks)
        try:
            while num_open:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                num_open -= item.result is not None
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _all_of(works: Iterable[Awaitable[T]]) -> list[T]:
    """What they give, in order; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
