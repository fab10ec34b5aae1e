"""`POST /v1/messages` and `count_tokens`: Anthropic's API, at once or as events."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.serve.chat import answer_constraint, call_id
from radixgen.serve.context import Context, get_context, log_usage, make_job
from radixgen.serve.conversation import Layout, Turn, prompt_ids
from radixgen.serve.errors import ApiError, bad_request
from radixgen.serve.http import json_answer, named_event
from radixgen.serve.jobs import Job
from radixgen.serve.messages_request import (
    CountRequest,
    MessagesRequest,
    choice_of,
    constraint_of,
    signature_of,
    tools_of,
    turns_of,
    wish_of,
)
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.reasoning import Plan, Show, Split, Wish, is_omitted, plan
from radixgen.serve.schemas import AnthropicErrorAnswer
from radixgen.serve.tool_calls import (
    Argument,
    Called,
    Ended,
    Event,
    Reader,
    Said,
    cut_of,
    parsed,
    reader_of,
    sampling_of_calls,
    told_reason,
)
from radixgen.types import FinishReason, GenerateResult, Piece, SamplingParams, Usage

router = APIRouter(tags=["Anthropic"])


@router.post("/v1/messages/count_tokens", responses=answers(None, error=AnthropicErrorAnswer))
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """How many tokens the prompt of a conversation has."""
    context = get_context(request)
    context.check_model(body.model)
    choice_of(body)
    constraint_of(body)
    turns = _turns(body)
    layout = _plan(context, body, turns).layout
    ids = await prompt_ids(context.client, turns, tools_of(body), layout)
    return json_answer({"input_tokens": len(ids)})


@router.post("/v1/messages", responses=answers(None, stream=True, error=AnthropicErrorAnswer))
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation."""
    context = get_context(request)
    lora = context.adapter_of(body.model)
    tools, choice, content = tools_of(body), choice_of(body), constraint_of(body)
    constraint = answer_constraint(tools, choice, content)
    turns = _turns(body)
    thoughts = _plan(context, body, turns)
    with renamed(constraint, prompt="messages", stop="stop_sequences"):
        prompt = await prompt_ids(context.client, turns, tools, thoughts.layout)
        thinking = thoughts.thinking(context.client.tokenizer, prompt, body.max_tokens)
        sampling = sampling_of_calls(_sampling(body), choice)
        job = make_job(request, "msg", [prompt], sampling, constraint, body, lora, thinking)
        split = Split(thinking, Show(hidden=thoughts.wish.on is None), content is None)
        answer = _Answer(context, job, body, reader_of(tools, choice, sampling), split)
        if body.stream:
            return await context.stream(request, answer.events(request), _error_event(request))
        results = await context.run(request, job)
    return json_answer(answer.whole(results[0]))


def _turns(body: CountRequest) -> list[Turn]:
    turns = turns_of(body)
    if not turns:
        raise bad_request("messages hold no content", "messages")
    return turns


def _plan(context: Context, body: CountRequest, turns: Sequence[Turn]) -> Plan:
    """The thoughts and the layout. A last message of the assistant is continued, as Anthropic's
    models do; and they think when they are asked to, so ours that can be told not to are told."""
    continues = turns[-1].role == "assistant"
    layout = Layout(open_answer=not continues, continue_last=continues)
    wish, thinker = wish_of(body), context.thinker
    if wish.on is None and thinker.switches:
        wish = Wish(False)
    return plan(wish, replace(thinker, by_default=False), layout)


def _sampling(body: MessagesRequest) -> SamplingParams:
    given = {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
    }
    return SamplingParams(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def _error_event(request: Request) -> Any:
    def event(error: ApiError) -> bytes:
        return named_event("error", error.anthropic_body(request.state.request_id))

    return event


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's input_tokens are those that were not cached."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _stop(reason: FinishReason, stop: str | int | None, num_calls: int) -> dict[str, Any]:
    if reason is FinishReason.STOP and isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    name = "max_tokens" if reason is FinishReason.LENGTH else "end_turn"
    if num_calls and reason is FinishReason.STOP:
        name = "tool_use"
    return {"stop_reason": name, "stop_sequence": None}


class _Answer:
    """A result, or pieces, in Anthropic's shape. `reader`: where the text may hold calls;
    `split`: what tells thoughts from the answer."""

    def __init__(
        self,
        context: Context,
        job: Job,
        body: MessagesRequest,
        reader: Reader | None,
        split: Split,
    ) -> None:
        self._split = split
        self._omits = is_omitted(body.thinking)
        self._thoughts = ""  # those that were told
        self._context = context
        self._job = job
        self._head = {"id": job.rid, "type": "message", "role": "assistant", "model": body.model}
        self._reader = reader
        self._parser = reader() if reader else None
        self._num_calls = 0
        self._last: Event | None = None  # of those that are told
        self._open: str | None = None  # the type of the content block that is being written
        self._index = -1  # its place

    def whole(self, result: GenerateResult) -> dict[str, Any]:
        choice = result.choices[0]
        blocks: list[dict[str, Any]] = []
        written: list[str] = []  # the arguments of each call
        thoughts, text = self._split.push(choice)
        if self._split.tells_apart:
            blocks.append(self._thought_block(thoughts))
        items = parsed(text, self._reader, cut_of(choice)) if self._reader else [Said(text)]
        for item in items:
            if isinstance(item, Said):
                blocks.append({"type": "text", "text": item.text})
            elif isinstance(item, Called):
                blocks.append(self._begun(item))
                written.append("")
            elif isinstance(item, Argument):
                written[item.index] += item.text
        reason = told_reason(choice.finish_reason, items[-1] if items else None)
        calls = [block for block in blocks if block["type"] == "tool_use"]
        for call, text in zip(calls, written, strict=True):
            call["input"] = _value(text)
        return self._head | {
            "content": blocks,
            **_stop(reason, choice.stop_reason, len(calls)),
            "usage": _usage(result.usage),
        }

    def _thought_block(self, text: str) -> dict[str, Any]:
        shown = "" if self._omits else text
        return {"type": "thinking", "thinking": shown, "signature": signature_of(text)}

    def _begun(self, call: Called) -> dict[str, Any]:
        name = call_id(self._job.rid, 0, call.index).replace("call_", "toolu_", 1)
        return {"type": "tool_use", "id": name, "name": call.name, "input": {}}

    async def events(self, request: Request) -> AsyncGenerator[bytes]:
        """The events of a stream."""
        last: Piece | None = None
        async for piece in self._context.jobs.stream(self._job):
            if last is None:
                yield self._start()
            if piece.result is None:
                last = piece
                for data in self._piece(piece):
                    yield data
                continue
            usage = piece.result.usage
            log_usage(request, [usage])
            for data in self._end(last, usage):
                yield data

    def _start(self) -> bytes:
        usage = {"input_tokens": len(self._job.prompts[0]), "output_tokens": 0}
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return named_event(
            "message_start", {"type": "message_start", "message": self._head | empty}
        )

    def _piece(self, piece: Piece) -> Iterator[bytes]:
        thoughts, text = self._split.push(piece)
        if thoughts:
            yield from self._think(thoughts)
        events: list[Event] = [Said(text)] if text else []
        if self._parser is not None:
            events = self._parser.push(text)
            if piece.finish_reason is not None:
                events += self._parser.finish(cut_of(piece))
        self._last = events[-1] if events else self._last
        for item in events:
            if isinstance(item, Said):
                if self._open != "text":
                    yield from self._block({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": item.text})
            elif isinstance(item, Called):
                self._num_calls += 1
                yield from self._block(self._begun(item))
            elif isinstance(item, Argument):
                yield self._delta({"type": "input_json_delta", "partial_json": item.text})
            elif isinstance(item, Ended):
                yield from self._close()

    def _think(self, text: str) -> Iterator[bytes]:
        if self._open is None:
            yield from self._block({"type": "thinking", "thinking": "", "signature": ""})
        self._thoughts += text
        if not self._omits:
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def _block(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._open = block["type"]
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        yield named_event("content_block_start", start)

    def _close(self) -> Iterator[bytes]:
        if self._open == "thinking":
            signature = signature_of(self._thoughts)
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._open is not None:
            self._open = None
            stop = {"type": "content_block_stop", "index": self._index}
            yield named_event("content_block_stop", stop)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        body = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return named_event("content_block_delta", body)

    def _end(self, last: Piece | None, usage: Usage) -> Iterator[bytes]:
        yield from self._close()
        reason = (last and last.finish_reason) or FinishReason.ABORT
        reason = told_reason(reason, self._last)
        delta = _stop(reason, last.stop_reason if last else None, self._num_calls)
        body = {"type": "message_delta", "delta": delta, "usage": _usage(usage)}
        yield named_event("message_delta", body)
        yield named_event("message_stop", {"type": "message_stop"})


def _value(text: str) -> Any:
    """The arguments of a call; those that were cut off by an abort are none."""
    try:
        return json.loads(text)
    except ValueError:
        return {}
