"""Programs against a radixgen runtime: token ids over the client's connection.

Owns the step from a node to a request and back. Knows the client; nothing of the process behind it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from radixgen.client import EngineClient
from radixgen.lang.backends.protocol import Generation, Push, Scored, is_worth_warming
from radixgen.lang.backends.spelling import spelled_ids
from radixgen.lang.chat import ChatFormat
from radixgen.lang.choices import needs_unconditional
from radixgen.lang.constraints import check_constraint, check_thoughts
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen, GenOptions, Node, Scores, Select, as_texts, max_tokens_of
from radixgen.options import check_adapter, check_in_vocabulary, check_request_options
from radixgen.thoughts import THINK, template_tags
from radixgen.types import CacheHint, Choice, GenerateResult, SamplingParams


class LocalBackend:
    """`client`, which belongs to `loop`."""

    def __init__(self, client: EngineClient, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.loop = loop
        tokenizer = client.tokenizer
        self.chat = None
        if tokenizer.has_chat_template:
            tags = template_tags(tokenizer.chat_template) or THINK
            self.chat = ChatFormat(self._render, tags)

    def _render(self, messages: list[dict[str, str]], generation: bool) -> str:
        return self.client.tokenizer.render_chat(messages, add_generation_prompt=generation)

    def encode(self, text: str, at_start: bool) -> Sequence[int]:
        return self.client.tokenizer.encode(text, add_special_tokens=at_start)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.client.tokenizer.decode(token_ids, skip_special_tokens=False)

    def check(self, node: Node) -> None:
        """Parameters out of range and constraints that cannot be read surface here, at the line
        that adds the node."""
        if isinstance(node, Gen):
            check_in_vocabulary(_sampling(node), self.client.ready.vocab_size)
            self._check_request(node.options)
            check_thoughts(node)
            if node.grammar is not None:
                check_constraint(node.grammar)
        elif isinstance(node, Select):
            self._check_request(node.options)

    def _check_request(self, options: GenOptions) -> None:
        check_request_options(_request_options(options))
        check_adapter(options.lora or "", self.client.ready.adapters)

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        sampling = _sampling(gen)
        result: GenerateResult | None = None
        prompt = conversation.prompt() or self._opening()
        options = _request_options(gen.options)
        options |= {"grammar": gen.grammar, "hint": hint}
        if gen.thoughts is not None:
            options["thinking"] = gen.thoughts.thinking()
        async for piece in self.client.stream_prepared(prompt, sampling, options):  # checked before
            if piece.index == 0:
                if piece.cached_tokens is not None:
                    push.found(len(prompt), piece.cached_tokens)
                if piece.thoughts:
                    push.thought(piece.thoughts)
                if piece.text:
                    push(piece.text)
            result = piece.result or result
        assert result is not None
        heals = sampling.token_healing
        return [self._generation(choice, result, heals) for choice in result.choices]

    def _opening(self) -> list[int]:
        """A generation needs a token to follow: the first of all is the one that opens a text."""
        opening = self.client.tokenizer.encode("", add_special_tokens=True)
        return opening or [min(self.client.tokenizer.eos_ids)]

    def _generation(self, choice: Choice, result: GenerateResult, heals: bool) -> Generation:
        ids: Sequence[int] = ()
        tail = choice.text  # with healing, the first token spells more than the text
        if not heals:
            thoughts = choice.token_ids[: choice.num_thought_tokens]
            answer = choice.token_ids[choice.num_thought_tokens :]
            ids, tail = spelled_ids(self.client.tokenizer, choice.text, answer, choice.stop_reason)
            ids = [*thoughts, *ids]
        meta: dict[str, Any] = {
            "finish_reason": choice.finish_reason.value,
            "stop_reason": choice.stop_reason,
            "prompt_tokens": result.usage.prompt_tokens,
            "cached_tokens": result.usage.cached_tokens,
            "completion_tokens": len(choice.token_ids),
            "first_token_seconds": result.usage.first_token_seconds,
            "total_seconds": result.usage.total_seconds,
        }
        if choice.num_thought_tokens:
            meta |= {
                "reasoning_content": choice.thoughts.strip(),
                "reasoning_tokens": choice.num_thought_tokens,
            }
        if choice.grammar_masses:
            meta["grammar_mass"] = choice.grammar_mass
        if choice.logprobs:
            meta |= _logprobs(choice)
        return Generation(choice.text, ids, meta, tail, choice.thoughts)

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        prefix, rest = conversation.branches(select.choices)
        options = _request_options(select.options)
        given = await self.client.score(prefix or self._opening(), rest, hint=hint, **options)
        alone: tuple[tuple[float, ...], ...] = ()
        if needs_unconditional(select.method):
            without = await self.client.score(self._opening(), rest, **options)
            alone = without.logprobs
        scores = Scores(select.choices, given.logprobs, alone)
        meta = {
            "prompt_tokens": given.usage.prompt_tokens,
            "cached_tokens": given.usage.cached_tokens,
        }
        return Scored(scores, [[*prefix, *option] for option in rest], meta)

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        ids = self.worth_warming(conversation, hint.forks)
        if ids:
            nothing = SamplingParams(max_tokens=0)
            await self.client.generate(ids, nothing, hint=hint, **_request_options(options))

    def worth_warming(self, conversation: Conversation, num_sharing: int) -> list[int]:
        """What `warm` computes: all but the last token, which may yet change; nothing when most of
        it has been computed already, since the rest is sooner shared by the scheduler."""
        if not is_worth_warming(len(conversation.pending), num_sharing):
            return []
        return conversation.branches(("", " "))[0]

    async def flush_cache(self) -> None:
        await self.client.flush_cache()

    async def server_info(self) -> Mapping[str, Any]:
        ready = self.client.ready
        return {
            "model": ready.model,
            "max_context": ready.max_context,
            "page_size": ready.page_size,
            "num_pages": ready.num_pages,
            "stats": await self.client.stats(),
        }


def _logprobs(choice: Choice) -> dict[str, Any]:
    """(log-probability, token id, None) of each token and of the likeliest in its place: SGLang's
    rows, whose third entry is a text."""
    return {
        "output_token_logprobs": [(p.logprob, p.token_id, None) for p in choice.logprobs],
        "output_top_logprobs": [
            [(logprob, token_id, None) for token_id, logprob in p.top] for p in choice.logprobs
        ],
    }


def _sampling(gen: Gen) -> SamplingParams:
    """The request's parameters. A dtype's stops join those that were asked for."""
    more: dict[str, Any] = {"max_tokens": max_tokens_of(gen)} if gen.thoughts else {}
    if gen.extra_stop:
        stop = (*as_texts(gen.options.stop or ()), *gen.extra_stop)
        more["stop"] = tuple(dict.fromkeys(stop))
    return gen.options.sampling(**more)


def _request_options(options: GenOptions) -> Any:
    said = {
        "priority": options.priority,
        "namespace": options.namespace,
        "lora": options.lora,
    }
    return {name: value for name, value in said.items() if value is not None}
