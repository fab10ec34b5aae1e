"""Programs against OpenAI-compatible chat APIs, and what LiteLLM makes look like one.

JSON schemas go as `response_format` in strict mode, regexes and Lark grammars as a forced custom
tool, `thinking` as an effort. What the API cannot keep is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.lang.backends.protocol import Generation, Push, Scored
from radixgen.lang.backends.remote import (
    json_schema_of,
    limit,
    messages_of,
    optional_import,
    refuse_broken,
    refuse_options,
    refuse_select,
    running_thread,
    stops,
    translated,
)
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen, GenOptions, Node, Select
from radixgen.types import CacheHint

_SAME = ("n", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
_OFFERED = (*_SAME, "max_tokens", "stop", "logit_bias", "logprobs")
_MAX_STOPS = 4
_TOOL = "answer"


class OpenAI:
    """An OpenAI-compatible API. `client_options` go to `openai.AsyncOpenAI` (api_key, base_url …).

    Raises ConfigError when the package `openai` is missing or has no key.
    """

    chat = None
    encode = None

    def __init__(
        self, model_name: str, is_chat_model: bool | None = None, **client_options: Any
    ) -> None:
        if is_chat_model is False:
            raise InvalidRequest(
                "only chat models: completion models are served by RuntimeEndpoint", "is_chat_model"
            )
        self.model_name = model_name
        self.who = f"the OpenAI API ({model_name})"
        create = self._connect(client_options)
        self._create: Callable[..., Awaitable[Any]] = create
        self._thread = running_thread("radixgen openai")
        self.loop: asyncio.AbstractEventLoop = self._thread.loop

    def _connect(self, client_options: Mapping[str, Any]) -> Callable[..., Awaitable[Any]]:
        openai = optional_import("openai", "openai", "OpenAI()")
        try:
            self._client = openai.AsyncOpenAI(**client_options)
        except openai.OpenAIError as error:
            raise translated(error, self.who) from error
        create: Callable[..., Awaitable[Any]] = self._client.chat.completions.create
        return create

    def close(self) -> None:
        """Close its connections and end its thread."""
        self._thread.run(self._disconnect())
        self._thread.stop()

    async def _disconnect(self) -> None:
        await self._client.close()

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def check(self, node: Node) -> None:
        if isinstance(node, Select):
            refuse_select(node, self.who)
        if isinstance(node, Gen):
            node.options.sampling()
            refuse_options(node.options, _OFFERED, self.who)
            if len(stops(node)) > _MAX_STOPS:
                raise InvalidRequest(f"{self.who} takes {_MAX_STOPS} stop strings", "stop")
            if node.thoughts is not None and node.thoughts.effort is None:
                raise InvalidRequest(
                    f"{self.who} takes no budget of tokens for thoughts: say thinking='low', "
                    "'medium' or 'high', or run on a radixgen runtime",
                    "thinking",
                )
            self.constraint(node)

    def constraint(self, gen: Gen) -> dict[str, Any]:
        """The request's fields for a constraint. Raises InvalidRequest for one it cannot keep."""
        if gen.grammar is None:
            return {}
        schema = json_schema_of(gen)
        if schema is not None:
            named = {"name": gen.name or _TOOL, "schema": schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        if gen.grammar.kind not in ("regex", "lark"):
            raise InvalidRequest(
                f"{self.who} cannot keep a {gen.grammar.kind} grammar: use a JSON schema, a regex "
                "or Lark, or run on a radixgen runtime",
                "grammar",
            )
        definition = {"syntax": gen.grammar.kind, "definition": gen.grammar.source}
        tool = {"name": _TOOL, "format": {"type": "grammar", "grammar": definition}}
        return {
            "tools": [{"type": "custom", "custom": tool}],
            "tool_choice": {"type": "custom", "custom": {"name": _TOOL}},
        }

    def _request(self, conversation: Conversation, gen: Gen) -> dict[str, Any]:
        options = gen.options
        request: dict[str, Any] = {
            name: getattr(options, name) for name in _SAME if getattr(options, name) is not None
        }
        request["model"] = self.model_name
        request["messages"] = messages_of(conversation, self.who, prefill=False)
        request["max_completion_tokens"] = limit(gen)
        if stops(gen):
            request["stop"] = stops(gen)
        if options.logit_bias:
            request["logit_bias"] = {str(k): v for k, v in options.logit_bias.items()}
        if gen.thoughts is not None:
            request["reasoning_effort"] = gen.thoughts.effort
        if options.logprobs is not None:
            request |= {"logprobs": True, "top_logprobs": options.logprobs}
        return request | self.constraint(gen)

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        request = self._request(conversation, gen)
        try:
            if "tools" in request:
                generations = _of_completion(await self._create(**request))
                push.thought(generations[0].thoughts)
                push(generations[0].text)
            else:
                more = {"stream": True, "stream_options": {"include_usage": True}}
                generations = await _of_stream(await self._create(**request, **more), push)
        except RadixgenError:
            raise
        except Exception as error:  # whatever the SDK raises, told in our words
            raise translated(error, self.who) from error
        for generation in generations:
            refuse_broken(gen, generation.text, generation.meta["finish_reason"], self.who)
        return generations

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        refuse_select(select, self.who)

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        """Such APIs cache by themselves."""

    async def flush_cache(self) -> NoReturn:
        raise InvalidRequest(f"{self.who} does not let its cache be flushed")

    async def server_info(self) -> Mapping[str, Any]:
        return {"model": self.model_name}


class LiteLLM(OpenAI):
    """Any model that LiteLLM reaches. `call_options` go with every call (api_key, api_base …).

    `json_schemas`: whether the model keeps them; None: what LiteLLM knows of it, which is nothing
    for a server of one's own.
    """

    def __init__(
        self, model_name: str, *, json_schemas: bool | None = None, **call_options: Any
    ) -> None:
        super().__init__(model_name, **call_options)
        self._json_schemas = json_schemas

    def _connect(self, client_options: Mapping[str, Any]) -> Callable[..., Awaitable[Any]]:
        self._litellm = optional_import("litellm", "litellm", "LiteLLM()")
        self.who = f"LiteLLM ({self.model_name})"

        async def create(**request: Any) -> Any:
            # An unknown setting is then an error of LiteLLM's, instead of being dropped.
            return await self._litellm.acompletion(drop_params=False, **client_options, **request)

        return create

    async def _disconnect(self) -> None:
        """LiteLLM keeps clients of its own for each event loop."""
        close = getattr(self._litellm, "close_litellm_async_clients", None)
        if close is not None:
            await close()

    def constraint(self, gen: Gen) -> dict[str, Any]:
        if gen.grammar is None:
            return {}
        if json_schema_of(gen) is None:
            raise InvalidRequest(
                f"{self.who} cannot keep a {gen.grammar.kind} constraint: use a JSON schema, "
                "or run on a radixgen runtime",
                "grammar",
            )
        if not self._keeps_schemas():
            raise InvalidRequest(
                f"{self.who}: LiteLLM does not know that this model keeps JSON schemas; if it "
                "does, say LiteLLM(…, json_schemas=True)",
                "grammar",
            )
        return super().constraint(gen)

    def _keeps_schemas(self) -> bool:
        if self._json_schemas is not None:
            return self._json_schemas
        return bool(self._litellm.supports_response_schema(model=self.model_name))


def _of_completion(completion: Any) -> list[Generation]:
    """Of a forced custom tool: what it was called with."""
    generations = []
    for choice in completion.choices:
        calls = choice.message.tool_calls or []
        if not calls:
            raise RadixgenError("the API did not call the tool that carries the constraint")
        meta = _meta("stop" if choice.finish_reason == "tool_calls" else choice.finish_reason)
        meta |= _usage(completion.usage)
        generations.append(_thought(Generation(calls[0].custom.input, (), meta), choice.message))
    return generations


def _thoughts(said: Any) -> str:
    """Of a message or a delta, where an API tells them: OpenAI's own does not."""
    text = getattr(said, "reasoning_content", None) or getattr(said, "reasoning", None)
    return text if isinstance(text, str) else ""


def _thought(generation: Generation, message: Any) -> Generation:
    text = _thoughts(message)
    meta = generation.meta | ({"reasoning_content": text.strip()} if text else {})
    return replace(generation, meta=meta, thoughts=text)


async def _of_stream(stream: Any, push: Push) -> list[Generation]:
    texts: dict[int, list[str]] = {}
    metas: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    async for chunk in stream:
        usage |= _usage(getattr(chunk, "usage", None))
        for choice in chunk.choices:
            text, meta = texts.setdefault(choice.index, []), metas.setdefault(choice.index, _meta())
            thought = _thoughts(choice.delta)
            if thought:
                meta["reasoning_content"] = meta.get("reasoning_content", "") + thought
                if choice.index == 0:
                    push.thought(thought)
            piece = choice.delta.content or ""
            text.append(piece)
            if piece and choice.index == 0:
                push(piece)
            if getattr(choice.delta, "refusal", None):
                meta["finish_reason"] = "refusal"
            elif choice.finish_reason and meta["finish_reason"] is None:
                meta["finish_reason"] = choice.finish_reason
            for entry in getattr(getattr(choice, "logprobs", None), "content", None) or ():
                meta.setdefault("output_token_logprobs", []).append((entry.logprob, entry.token))
    if not texts:
        raise RadixgenError("the API answered with nothing")
    thoughts = {i: meta.get("reasoning_content", "") for i, meta in metas.items()}
    return [
        Generation("".join(texts[i]), (), metas[i] | usage, "", thoughts[i]) for i in sorted(texts)
    ]


def _meta(finish: str | None = None) -> dict[str, Any]:
    return {"finish_reason": finish}


def _usage(usage: Any) -> dict[str, Any]:
    if usage is None:
        return {}
    details = getattr(usage, "prompt_tokens_details", None)
    more = getattr(usage, "completion_tokens_details", None)
    thought = getattr(more, "reasoning_tokens", None)
    told = {"reasoning_tokens": thought} if thought else {}
    return told | {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": getattr(details, "cached_tokens", None) or 0,
    }
