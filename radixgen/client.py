"""The frontend of the wire: prompts in, text out, for asyncio.

Text becomes tokens here and tokens become text here; the runtime sees ids alone. What can be known
to be wrong with a request is raised at the call, before anything leaves. Knows no runtime, no model
but its tokenizer.
"""

import asyncio
import itertools
import uuid
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Unpack, overload

from radixgen.connection import Connection
from radixgen.errors import InvalidRequest, RadixgenError, RuntimeUnavailable
from radixgen.healing import Healer
from radixgen.messages import (
    AbortRequest,
    CacheNode,
    CacheTree,
    FlushCache,
    GenerateRequest,
    GetCacheTree,
    GetStats,
    Ready,
    RequestFinished,
    ScoreOutput,
    ScoreRequest,
    Shutdown,
    Stats,
    Terminal,
)
from radixgen.options import (
    GenerateOptions,
    Prompt,
    Prompts,
    RequestOptions,
    check_adapter,
    check_in_vocabulary,
    check_length,
    check_prompt,
    check_request_options,
    split_options,
    token_ids,
)
from radixgen.streams import RequestStream, Row
from radixgen.thoughts import thought_decoder
from radixgen.tokenizer import IncrementalDecoder, Tokenizer
from radixgen.types import GenerateResult, Piece, SamplingParams, ScoreResult, check_text, shown

LONG_TEXT = 20_000  # characters; longer is tokenized in a thread, so that others go on
CONNECT_SECONDS = 10.0
MAX_CONTINUATIONS = 16_384  # of one score: each is a sequence, and others wait behind them

_NOT_CONNECTED = "the runtime is not started; use `with`, start() or connect() first"

ChatMessages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Sink:
    """A Receiver: rows become pieces, and `put` gets them and then a result piece or an error."""

    stream: RequestStream
    put: Callable[[Piece | RadixgenError], None]

    def row(self, row: Row) -> None:
        self.put(self.stream.push(row))

    def end(self, message: Terminal) -> None:
        assert isinstance(message, RequestFinished)
        self.put(self.stream.finish(message))

    def fail(self, error: RadixgenError) -> None:
        self.put(error)


class EngineClient:
    """Talks to one runtime. Made by `connect`; every method belongs to that event loop."""

    def __init__(self) -> None:
        self._names = itertools.count(1)
        self._prefix = uuid.uuid4().hex[:12]
        self._connection: Connection | None = None
        self._ready: Ready | None = None
        self._tokenizer: Tokenizer | None = None

    @classmethod
    async def connect(cls, path: str, *, timeout: float = CONNECT_SECONDS) -> "EngineClient":
        """A client of the runtime that listens at `path` (`Runtime.address`)."""
        client = EngineClient()
        await client.open(path, timeout=timeout)
        return client

    async def open(
        self,
        path: str,
        *,
        timeout: float = CONNECT_SECONDS,
        tokenizer: Tokenizer | None = None,
        explain_loss: Callable[[], str] = lambda: "the runtime has gone away",
    ) -> None:
        """What `connect` does, with a tokenizer that is already there."""
        connection = Connection(path, self._new_rid, explain_loss)
        self._ready = await connection.open(timeout)
        self._connection = connection
        self._tokenizer = tokenizer or await asyncio.to_thread(Tokenizer.load, self._ready.model)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise RuntimeUnavailable(_NOT_CONNECTED)
        return self._connection

    @property
    def ready(self) -> Ready:
        """What the runtime serves: model, vocabulary size, context, pages."""
        if self._ready is None:
            raise RuntimeUnavailable(_NOT_CONNECTED)
        return self._ready

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back, as the runtime's model has it."""
        if self._tokenizer is None:
            raise RuntimeUnavailable(_NOT_CONNECTED)
        return self._tokenizer

    def close(self) -> None:
        """Leave; the runtime goes on. Open requests fail with RuntimeUnavailable."""
        if self._connection is not None:
            self._connection.close("the client is closed")

    @overload
    def generate(
        self,
        prompts: Prompt,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Coroutine[Any, Any, GenerateResult]: ...
    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Coroutine[Any, Any, list[GenerateResult]]: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Prompts,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Piece]: ...
    def generate(
        self,
        prompts: Prompt | Prompts,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Continue a prompt (text or token ids), or each of a list of them.

        A list gives a list, in order, and an empty one an empty one; a request that fails fails
        the call, and the others are aborted. `stream=True` gives pieces of all prompts as they
        come. Closing the generator or cancelling the task aborts what is open. Keyword options are
        those of SamplingParams, which replace the ones of `sampling`, and `grammar, hint, priority,
        namespace, client, rid, lora`.

        Raises InvalidRequest, PromptTooLong, Overloaded, RuntimeUnavailable, RequestAborted.
        """
        params, request = split_options(sampling, options)
        return (self.stream_prepared if stream else self.collect_prepared)(prompts, params, request)

    @overload
    def chat(
        self,
        messages: ChatMessages,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Coroutine[Any, Any, GenerateResult]: ...
    @overload
    def chat(
        self,
        messages: ChatMessages,
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Piece]: ...
    def chat(
        self,
        messages: ChatMessages,
        sampling: SamplingParams | None = None,
        *,
        stream: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """`generate` the next turn of a conversation, laid out by the model's chat template.

        `messages`: mappings with `role` and `content`, oldest first.
        """
        params, request = split_options(sampling, options)
        ids = self.chat_ids(messages)
        return (self.stream_prepared if stream else self.collect_prepared)(ids, params, request)

    def chat_ids(self, messages: ChatMessages) -> list[int]:
        """The prompt of a conversation, as `chat` sends it. Raises InvalidRequest."""
        checked = _checked_messages(messages)
        for number, message in enumerate(checked):  # before a template and a tokenizer read it
            content = message.get("content")
            if isinstance(content, str):
                fewest = self.tokenizer.fewest_tokens(content)
                check_length(f"messages[{number}].content", fewest, self.ready)
        return self.tokenizer.chat(checked)

    async def score(
        self, prefix: Prompt, continuations: Sequence[Prompt], **options: Unpack[RequestOptions]
    ) -> ScoreResult:
        """The log-probability of each token of each continuation, given the prefix.

        Text is tokenized part by part: the boundary between the two is a boundary of tokens.
        """
        check_request_options(options)
        check_adapter(options.get("lora", ""), self.ready.adapters)
        _check_continuations(continuations)
        first = await self._encode("prefix", prefix)
        rest = [await self._encode("continuations", text, start=False) for text in continuations]
        check_prompt("prefix", first, self.ready, 0)
        for ids in rest:
            check_prompt("continuations", ids, self.ready, len(first))
        fields: dict[str, Any] = dict(options)
        rid = str(fields.pop("rid", None) or self._new_rid())
        message = ScoreRequest(rid, len(first), tuple(map(len, rest)), **fields)
        answer = await self.connection.call(message, list(itertools.chain(first, *rest)))
        assert isinstance(answer, ScoreOutput)
        return ScoreResult(rid, answer.logprobs, answer.usage)

    async def abort(self, rid: str) -> None:
        """Cancel a request of this client; its waiter gets what there is of the result."""
        check_request_options({"rid": rid})
        await self.connection.call(AbortRequest(self._new_rid(), rid))

    async def stats(self) -> dict[str, float]:
        """The runtime's counters and gauges; the units are in the names."""
        answer = await self.connection.call(GetStats(self._new_rid()))
        assert isinstance(answer, Stats)
        return answer.values

    async def cache_tree(self, max_nodes: int = 200, max_preview: int = 24) -> list[CacheNode]:
        """The largest nodes of the radix tree, parents first, with the first ids of each edge."""
        message = GetCacheTree(self._new_rid(), max_nodes, max_preview)
        answer = await self.connection.call(message)
        assert isinstance(answer, CacheTree)
        return list(answer.nodes)

    async def flush_cache(self) -> None:
        """Forget every cached prefix that no running request uses."""
        await self.connection.call(FlushCache(self._new_rid()))

    async def stop_runtime(self, *, drain: bool = True) -> None:
        """End the runtime, for all its clients; `drain`: after its open requests have finished."""
        await self.connection.call(Shutdown(self._new_rid(), drain))

    # ---- one way for both forms of generate ----

    async def collect_prepared(
        self, prompts: Prompt | Prompts, sampling: SamplingParams, options: dict[str, Any]
    ) -> Any:
        requests = await self._prepare(prompts, sampling, options)
        waiting: dict[str, asyncio.Future[GenerateResult]] = {}
        try:
            for number, (message, ids) in enumerate(requests):
                future: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()
                self._start(number, message, ids, _settle(future))
                waiting[message.rid] = future
            results = await asyncio.gather(*waiting.values())
        except BaseException:
            self.connection.abandon(list(waiting))
            for future in waiting.values():
                future.cancel()
            raise
        return results if isinstance(prompts, list) and not _is_ids(prompts) else results[0]

    async def stream_prepared(
        self,
        prompts: "Prompt | Prompts | array[int]",
        sampling: SamplingParams,
        options: dict[str, Any],
    ) -> AsyncGenerator[Piece]:
        requests = await self._prepare(prompts, sampling, options)
        queue: asyncio.Queue[Piece | RadixgenError] = asyncio.Queue()
        still_open: set[str] = set()
        try:
            for number, (message, ids) in enumerate(requests):
                self._start(number, message, ids, queue.put_nowait)
                still_open.add(message.rid)
            while still_open:
                item = await queue.get()
                if isinstance(item, RadixgenError):
                    raise item
                if item.result is not None:
                    still_open.discard(item.rid)
                yield item
        finally:
            self.connection.abandon(list(still_open))

    def _start(
        self,
        number: int,
        message: GenerateRequest,
        ids: "array[int]",
        put: Callable[[Piece | RadixgenError], None],
    ) -> None:
        sampling, tokenizer = message.sampling, self.tokenizer

        def make_decoder() -> IncrementalDecoder:
            return IncrementalDecoder(
                tokenizer,
                skip_special_tokens=sampling.skip_special_tokens,
                stop=sampling.stop,
                continuation=True,
                min_tokens=sampling.min_tokens,
                num_skipped=len(message.healed),
            )

        def make_thinker() -> IncrementalDecoder | None:
            return thought_decoder(tokenizer, message.thinking) if message.thinking else None

        stream = RequestStream(message.rid, number, sampling.n, make_decoder, make_thinker)
        self.connection.send(message, _Sink(stream, put), ids)

    async def _prepare(
        self,
        prompts: "Prompt | Prompts | array[int]",
        sampling: SamplingParams,
        options: dict[str, Any],
    ) -> "list[tuple[GenerateRequest, array[int]]]":
        """Every prompt's message and ids, or the first fault of any before one is sent."""
        many = isinstance(prompts, list) and not _is_ids(prompts)
        each: list[Any] = list(prompts) if many else [prompts]
        fields = dict(options)
        rid = fields.pop("rid", None)
        if many and rid is not None:
            raise InvalidRequest("rid names one request; leave it out for a list", "rid")
        check_in_vocabulary(sampling, self.ready.vocab_size)
        check_adapter(fields.get("lora", ""), self.ready.adapters)
        requests = []
        for prompt in each:
            ids = await self._encode("prompt", prompt)
            check_prompt("prompt", ids, self.ready, num_more=sampling.max_tokens != 0)
            healed = ""
            if sampling.token_healing and sampling.max_tokens != 0:
                num_kept, healed = self._heal(ids, fields)
                ids = ids[:num_kept]
            name = rid or self._new_rid()
            requests.append((GenerateRequest(name, sampling, healed=healed, **fields), ids))
        return requests

    def _heal(self, ids: "array[int]", options: dict[str, Any]) -> tuple[int, str]:
        """How many tokens a prompt keeps, and the bytes of the others, as a message has them."""
        thinking = options.get("thinking")
        if thinking is not None and thinking.budget:
            reason = "thoughts begin with a token of their own; leave thinking or this out"
            raise InvalidRequest(reason, "token_healing")
        num_kept, data = self._healer.heal(ids)
        return num_kept, data.decode("latin-1")

    @cached_property
    def _healer(self) -> Healer:
        return Healer(self.tokenizer)

    async def _encode(self, name: str, prompt: Any, start: bool = True) -> "array[int]":
        """Ids of a prompt. `start`: with the tokens that open a text, as the model has them."""
        if not isinstance(prompt, str):
            if not isinstance(prompt, list | tuple | array):
                message = f"{name}={shown(prompt)} is neither text nor a list of token ids"
                raise InvalidRequest(message, name)
            return token_ids(name, prompt)
        if not prompt:
            raise InvalidRequest(f"{name} is empty; give at least one character", name)
        check_text(name, prompt)
        check_length(name, self.tokenizer.fewest_tokens(prompt), self.ready)
        if len(prompt) < LONG_TEXT:
            return array("i", self.tokenizer.encode(prompt, add_special_tokens=start))
        ids = await asyncio.to_thread(self.tokenizer.encode, prompt, add_special_tokens=start)
        return array("i", ids)

    def _new_rid(self) -> str:
        return f"{self._prefix}-{next(self._names)}"


def _checked_messages(messages: Any) -> ChatMessages:
    """Raises InvalidRequest, with a position, for what is no conversation."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequest("messages is not a list of at least one message", "messages")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            text = f"messages[{number}] is not a mapping with role and content"
            raise InvalidRequest(text, "messages")
        for name, value in message.items():
            if isinstance(value, str):
                check_text(f"messages[{number}].{name}", value)
    return messages


def _check_continuations(texts: Any) -> None:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        message = f"continuations={shown(texts)} is not a list of texts or token ids"
        raise InvalidRequest(message, "continuations")
    if not texts:
        raise InvalidRequest("continuations is empty; give at least one", "continuations")
    if len(texts) > MAX_CONTINUATIONS:
        message = (
            f"continuations are {len(texts):,}, over the limit of {MAX_CONTINUATIONS:,}; score "
        )
        message += "them in parts, or let the model write one under a choice of them"
        raise InvalidRequest(message, "continuations")


def _is_ids(prompts: list[Any]) -> bool:
    """A list of numbers is one prompt; anything else is a list of prompts."""
    return bool(prompts) and isinstance(prompts[0], int)


def _settle(future: "asyncio.Future[GenerateResult]") -> Callable[[Piece | RadixgenError], None]:
    def put(item: Piece | RadixgenError) -> None:
        if future.done():
            return
        if isinstance(item, RadixgenError):
            future.set_exception(item)
        elif item.result is not None:
            future.set_result(item.result)

    return put
