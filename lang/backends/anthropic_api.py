"""Programs against the Anthropic Messages API. JSON schemas go as its output format, thoughts as
its budget of them.

The beginning of an answer may be given, where the model allows it: the API continues it.
"""

import asyncio
from collections.abc import Mapping, Sequence
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

LEAST_BUDGET = 1024  # tokens of thoughts that the API takes
_SAME = ("temperature", "top_p", "top_k")
_OFFERED = (*_SAME, "max_tokens", "stop")
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class Anthropic:
    """A Claude model. `client_options` go to `anthropic.AsyncAnthropic` (api_key, base_url …).

    Raises ConfigError when the package `anthropic` is missing or has no key.
    """

    chat = None
    encode = None

    def __init__(self, model_name: str, **client_options: Any) -> None:
        anthropic = optional_import("anthropic", "anthropic", "Anthropic()")
        self.model_name = model_name
        self.who = f"the Anthropic API ({model_name})"
        try:
            self._client = anthropic.AsyncAnthropic(**client_options)
        except anthropic.AnthropicError as error:
            raise translated(error, self.who) from error
        self._thread = running_thread("radixgen anthropic")
        self.loop: asyncio.AbstractEventLoop = self._thread.loop

    def close(self) -> None:
        """Close its connections and end its thread."""
        self._thread.run(self._client.close())
        self._thread.stop()

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def check(self, node: Node) -> None:
        if isinstance(node, Select):
            refuse_select(node, self.who)
        if not isinstance(node, Gen):
            return
        node.options.sampling()
        refuse_options(node.options, _OFFERED, self.who)
        if (node.options.temperature or 0) > 1:
            raise InvalidRequest(f"{self.who} takes temperatures up to 1", "temperature")
        self._check_thoughts(node)
        if node.grammar is not None and json_schema_of(node) is None:
            raise InvalidRequest(
                f"{self.who} cannot keep a {node.grammar.kind} constraint: use a JSON schema, or "
                "run on a radixgen runtime",
                "grammar",
            )

    def _check_thoughts(self, gen: Gen) -> None:
        if gen.thoughts is None:
            return
        budget, options = gen.thoughts.budget, gen.options
        if not LEAST_BUDGET <= budget < limit(gen):
            raise InvalidRequest(
                f"{self.who} thinks for {LEAST_BUDGET} tokens or more, and for less than "
                f"max_tokens={limit(gen)}, which counts thoughts as well; thinking is {budget}",
                "thinking",
            )
        if options.temperature not in (None, 1) or (options.top_k or 0) > 0:
            message = f"{self.who} thinks at temperature 1 and without top_k only"
            raise InvalidRequest(message, "thinking")

    def _request(self, conversation: Conversation, gen: Gen) -> dict[str, Any]:
        prefill = gen.grammar is None and gen.thoughts is None
        messages = messages_of(conversation, self.who, prefill=prefill)
        settings = {name: getattr(gen.options, name) for name in _SAME}
        if (settings["top_k"] or 0) < 1:  # off
            del settings["top_k"]
        # The SDK's newest versions have no parameters for these; models that know them take them.
        request: dict[str, Any] = {
            "extra_body": {name: value for name, value in settings.items() if value is not None}
        }
        system = [message["content"] for message in messages if message["role"] == "system"]
        if system:
            request["system"] = "\n\n".join(system)
        request["messages"] = [message for message in messages if message["role"] != "system"]
        request["model"] = self.model_name
        request["max_tokens"] = limit(gen)
        if gen.thoughts is not None:
            request["thinking"] = {"type": "enabled", "budget_tokens": gen.thoughts.budget}
        if stops(gen):
            request["stop_sequences"] = stops(gen)
        schema = json_schema_of(gen)
        if schema is not None:
            request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        return request

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        request = self._request(conversation, gen)
        pieces: list[str] = []
        thoughts: list[str] = []
        try:
            async with self._client.messages.stream(**request) as stream:
                async for event in stream:
                    if event.type == "text":
                        pieces.append(event.text)
                        push(event.text)
                    elif event.type == "thinking":
                        thoughts.append(event.thinking)
                        push.thought(event.thinking)
                message = await stream.get_final_message()
        except RadixgenError:
            raise
        except Exception as error:  # whatever the SDK raises, told in our words
            raise translated(error, self.who) from error
        refuse_broken(gen, "".join(pieces), message.stop_reason, self.who)
        cached = message.usage.cache_read_input_tokens or 0
        meta = {
            "finish_reason": _FINISH.get(message.stop_reason, message.stop_reason),
            "stop_reason": message.stop_sequence,
            "prompt_tokens": message.usage.input_tokens + cached,
            "cached_tokens": cached,
            "completion_tokens": message.usage.output_tokens,
        }
        if thoughts:
            meta["reasoning_content"] = "".join(thoughts).strip()
        return [Generation("".join(pieces), (), meta, "", "".join(thoughts))]

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        refuse_select(select, self.who)

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        """The API has no call for that."""

    async def flush_cache(self) -> NoReturn:
        raise InvalidRequest(f"{self.who} does not let its cache be flushed")

    async def server_info(self) -> Mapping[str, Any]:
        return {"model": self.model_name}
