"""Load for `radixgen bench`: prompts with shared beginnings, arrivals, and streams that are timed.

Knows OpenAI's streaming API; no tables.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from radixgen.cli import remote
from radixgen.cli.complete import text_of
from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.options import Prompt

if TYPE_CHECKING:
    import httpx2

ASSUMED_VOCABULARY = 30_000  # of a server that does not tell; every usual one is larger

# About a token each in the usual vocabularies, for APIs that take text only.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city name team minute idea body back parent face others level office door health person "
    "art war history party result change morning reason research girl guy moment air teacher force"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked for. Lengths in tokens; `rate` in requests a second, inf: all at once."""

    num_requests: int
    prompt_tokens: int  # of each request alone
    output_tokens: int
    prefix_tokens: int = 0  # that requests share, before these
    num_prefixes: int = 1
    rate: float = math.inf
    concurrency: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        lowest = {"num_requests": 1, "prompt_tokens": 0, "output_tokens": 1, "prefix_tokens": 0,
                  "num_prefixes": 1}  # fmt: skip
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise InvalidRequest(f"{name}={getattr(self, name)} must be at least {least}", name)
        if self.prompt_tokens + self.prefix_tokens < 1:
            raise InvalidRequest("a prompt has at least one token", "prompt_tokens")
        if not self.rate > 0:
            raise InvalidRequest(f"rate={self.rate} must be above 0", "rate")
        if self.concurrency is not None and self.concurrency < 1:
            raise InvalidRequest(
                f"concurrency={self.concurrency} must be at least 1", "concurrency"
            )

    @property
    def best_hit_rate(self) -> float:
        """The share of prompt tokens that a cache can know: all but the first use of a prefix."""
        reused = self.num_requests - min(self.num_prefixes, self.num_requests)
        total = self.num_requests * (self.prefix_tokens + self.prompt_tokens)
        return reused * self.prefix_tokens / total

    def prompts(self, vocab_size: int | None) -> list[Prompt]:
        """Random token ids below `vocab_size`, or words if that is None. Prefixes take turns."""
        draw = np.random.default_rng(self.seed)
        size = len(WORDS) if vocab_size is None else vocab_size
        prefixes = draw.integers(0, size, (self.num_prefixes, self.prefix_tokens))
        own = draw.integers(0, size, (self.num_requests, self.prompt_tokens))
        whole = [
            [*prefixes[i % self.num_prefixes].tolist(), *row.tolist()] for i, row in enumerate(own)
        ]
        return list(map(_words, whole)) if vocab_size is None else list(whole)

    def arrivals(self) -> list[float]:
        """Seconds from the start on: a Poisson process, or all at once."""
        if math.isinf(self.rate):
            return [0.0] * self.num_requests
        gaps = np.random.default_rng(self.seed + 1).exponential(1 / self.rate, self.num_requests)
        times: list[float] = (np.cumsum(gaps) - gaps[0]).tolist()
        return times


def _words(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


@dataclass(slots=True)
class Sample:
    """What came of one request. Times in seconds; from its arrival if those were spread."""

    first_token: float = 0.0
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between pieces of the answer
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def per_token(self) -> float | None:
        """Of each token after the first; None where there is no other."""
        if self.output_tokens < 2:
            return None
        return (self.total - self.first_token) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is put under load. `chat`: by messages, else by prompts."""

    client: "httpx2.AsyncClient"
    model: str
    chat: bool
    ignore_eos: bool

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        )
        asked |= {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        asked["stream_options"] = {"include_usage": True}
        return asked | ({"ignore_eos": True} if self.ignore_eos else {})

    async def time(self, prompt: Prompt, max_tokens: int, begun: float | None = None) -> Sample:
        """Stream an answer. Raises RadixgenError and httpx2's errors.

        `begun`: when the request arrived, by `time.perf_counter`; None: now.
        """
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        sample, last = Sample(), 0.0
        begun = time.perf_counter() if begun is None else begun
        async with self.client.stream("POST", path, json=self.body(prompt, max_tokens)) as response:
            if response.status_code != 200:
                content = await response.aread()
                error = remote.refusal(response.status_code, content, response.headers)
                raise error or RadixgenError(f"status {response.status_code} is no answer")
            async for event in remote.stream_events_async(response):
                now = time.perf_counter()
                if text_of(event):
                    if last:
                        sample.gaps.append(now - last)
                    else:
                        sample.first_token = now - begun
                    last = now
                _take_usage(sample, event.get("usage") or {})
        sample.total = time.perf_counter() - begun
        sample.first_token = sample.first_token or sample.total
        return sample


def _take_usage(sample: Sample, usage: dict[str, Any]) -> None:
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        sample.prompt_tokens = usage.get("prompt_tokens", 0)
        sample.output_tokens = usage.get("completion_tokens", 0)
        sample.cached_tokens = details.get("cached_tokens") or 0


async def put_under_load(
    target: Target, workload: Workload, prompts: Sequence[Prompt], advance: Callable[[], object]
) -> tuple[list[Sample], float]:
    """Send everything as it is due; a sample of each, and the seconds that all took.

    With a finite rate a request counts from its arrival, so that waiting for a place among
    `concurrency` is seen; with all at once it counts from when it is sent.
    """
    import httpx2

    slots = asyncio.Semaphore(workload.concurrency or workload.num_requests)
    begun = time.perf_counter()

    async def one(prompt: Prompt, at: float) -> Sample:
        await asyncio.sleep(max(begun + at - time.perf_counter(), 0))
        async with slots:
            arrived = None if math.isinf(workload.rate) else begun + at
            try:
                return await target.time(prompt, workload.output_tokens, arrived)
            except (RadixgenError, httpx2.HTTPError) as error:
                return Sample(error=str(error) or type(error).__name__)
            finally:
                advance()

    work = [one(*pair) for pair in zip(prompts, workload.arrivals(), strict=True)]
    samples = await asyncio.gather(*work)
    return list(samples), time.perf_counter() - begun
