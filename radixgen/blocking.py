"""EngineClient for code without an event loop: the same calls, from any number of threads.

The client itself lives in a thread with a loop of its own; a call waits for its outcome there.
"""

import asyncio
from collections.abc import Generator, Sequence
from typing import Any, Literal, Unpack, overload

from radixgen.client import CONNECT_SECONDS, ChatMessages, EngineClient
from radixgen.messages import CacheNode, Ready
from radixgen.options import GenerateOptions, Prompt, Prompts, RequestOptions, split_options
from radixgen.threads import LoopThread
from radixgen.tokenizer import Tokenizer
from radixgen.types import GenerateResult, Piece, SamplingParams, ScoreResult


class BlockingClient:
    """EngineClient for code without an event loop. Its methods may be called from any thread."""

    def __init__(self, client: EngineClient | None = None) -> None:
        self._client = client or EngineClient()
        self._thread = LoopThread("radixgen client")

    @classmethod
    def connect(cls, path: str, *, timeout: float = CONNECT_SECONDS) -> "BlockingClient":
        """A client of the runtime that listens at `path` (`Runtime.address`)."""
        client = BlockingClient()
        try:
            client._thread.run(client._client.open(path, timeout=timeout))
        except BaseException:
            client._thread.stop()
            raise
        return client

    @property
    def engine_client(self) -> EngineClient:
        """The client itself; its coroutines run on `loop` and nowhere else."""
        return self._client

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the client's thread."""
        return self._thread.loop

    @property
    def ready(self) -> Ready:
        """What the runtime serves: model, vocabulary size, context, pages."""
        return self._client.ready

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back, as the runtime's model has it."""
        return self._client.tokenizer

    def close(self) -> None:
        """Leave; the runtime goes on. Open requests fail with RuntimeUnavailable."""
        self._thread.call_last(self._client.close)

    @overload
    def generate(
        self,
        prompts: Prompt,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> GenerateResult: ...
    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[GenerateResult]: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Prompts,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Generator[Piece]: ...
    def generate(
        self,
        prompts: Prompt | Prompts,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """As `EngineClient.generate`: a result, a list of results, or a generator of pieces."""
        params, request = split_options(sampling, options)
        if stream:
            return self._thread.iterate(self._client.stream_prepared(prompts, params, request))
        return self._thread.run(self._client.collect_prepared(prompts, params, request))

    @overload
    def chat(
        self,
        messages: ChatMessages,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> GenerateResult: ...
    @overload
    def chat(
        self,
        messages: ChatMessages,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Generator[Piece]: ...
    def chat(
        self,
        messages: ChatMessages,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """As `EngineClient.chat`: the next turn as a result, or as a generator of pieces."""
        ids = self._client.chat_ids(messages)
        if stream:
            return self.generate(ids, sampling, stream=True, **options)
        return self.generate(ids, sampling, stream=False, **options)

    def score(
        self, prefix: Prompt, continuations: Sequence[Prompt], **options: Unpack[RequestOptions]
    ) -> ScoreResult:
        """As `EngineClient.score`."""
        return self._thread.run(self._client.score(prefix, continuations, **options))

    def abort(self, rid: str) -> None:
        """As `EngineClient.abort`."""
        self._thread.run(self._client.abort(rid))

    def stats(self) -> dict[str, float]:
        """As `EngineClient.stats`."""
        return self._thread.run(self._client.stats())

    def cache_tree(self, max_nodes: int = 200, max_preview: int = 24) -> list[CacheNode]:
        """As `EngineClient.cache_tree`."""
        return self._thread.run(self._client.cache_tree(max_nodes, max_preview))

    def flush_cache(self) -> None:
        """As `EngineClient.flush_cache`."""
        self._thread.run(self._client.flush_cache())

    def stop_runtime(self, *, drain: bool = True) -> None:
        """As `EngineClient.stop_runtime`."""
        self._thread.run(self._client.stop_runtime(drain=drain))
