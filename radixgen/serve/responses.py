"""`POST /v1/responses`: OpenAI's Responses API without state, at once or as events."""

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.serve.chat import answer_constraint, call_id
from radixgen.serve.context import Context, get_context, log_usage, make_job
from radixgen.serve.conversation import Layout, prompt_ids
from radixgen.serve.errors import ApiError
from radixgen.serve.http import json_answer, named_event
from radixgen.serve.jobs import Job
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.reasoning import Show, Split, is_omitted, plan
from radixgen.serve.responses_request import (
    ResponsesRequest,
    choice_of,
    constraint_of,
    tools_of,
    turns_of,
    wish_of,
)
from radixgen.serve.schemas import InputTokensAnswer
from radixgen.serve.tool_calls import (
    Argument,
    Called,
    Ended,
    Event,
    Reader,
    Said,
    cut_of,
    reader_of,
    told_reason,
)
from radixgen.types import Choice, FinishReason, Piece, SamplingParams, Usage

router = APIRouter(tags=["OpenAI"])

Named = tuple[str, dict[str, Any]]


@router.post("/v1/responses", responses=answers(None, stream=True))
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a conversation. Nothing is stored."""
    context = get_context(request)
    lora = context.adapter_of(body.model)
    turns, tools, choice = turns_of(body), tools_of(body), choice_of(body)
    content = constraint_of(body)
    constraint = answer_constraint(tools, choice, content)
    thoughts = plan(wish_of(body), context.thinker, Layout())
    with renamed(constraint, prompt="input", max_tokens="max_output_tokens"):
        prompt = await prompt_ids(context.client, turns, tools, thoughts.layout)
        tokenizer, most = context.client.tokenizer, body.max_output_tokens
        thinking = thoughts.thinking(tokenizer, prompt, most)
        job = make_job(request, "resp", [prompt], _sampling(body), constraint, body, lora, thinking)
        split = Split(thinking, Show(hidden=is_omitted(body.thinking)), content is None)
        writer = _Writer(job, body, reader_of(tools, choice, job.sampling), split)
        if body.stream:
            events = _events(context, request, job, writer)
            return await context.stream(request, events, writer.error)
        (result,) = await context.run(request, job)
    done = result.choices[0]
    for _ in writer.push(done):
        pass
    return json_answer(writer.response(done.finish_reason, result.usage))


@router.post("/v1/responses/input_tokens", responses=answers(InputTokensAnswer))
async def input_tokens(body: ResponsesRequest, request: Request) -> Response:
    """How many tokens the prompt of a conversation has. Raises what answering it would."""
    context = get_context(request)
    context.check_model(body.model)
    turns, tools = turns_of(body), tools_of(body)
    answer_constraint(tools, choice_of(body), constraint_of(body))
    layout = plan(wish_of(body), context.thinker, Layout()).layout
    with renamed(None, prompt="input"):
        ids = await prompt_ids(context.client, turns, tools, layout)
    return json_answer({"object": "response.input_tokens", "input_tokens": len(ids)})


def _sampling(body: ResponsesRequest) -> SamplingParams:
    given = {
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
    }
    return SamplingParams(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


async def _events(
    context: Context, request: Request, job: Job, writer: "_Writer"
) -> AsyncGenerator[bytes]:
    """The events of a stream, numbered."""
    reason = None
    begun = False
    async for piece in context.jobs.stream(job):
        if not begun:
            begun = True
            for name in ("response.created", "response.in_progress"):
                yield writer.event((name, {"response": writer.response(None, None)}))
        if piece.result is None:
            reason = piece.finish_reason or reason
            for item in writer.push(piece):
                yield writer.event(item)
            continue
        log_usage(request, [piece.result.usage])
        whole = writer.response(reason or FinishReason.ABORT, piece.result.usage)
        yield writer.event((f"response.{whole['status']}", {"response": whole}))


class _Writer:
    """The items of a response as its text arrives. `reader`: where the text may hold calls;
    `split`: what tells thoughts from the answer."""

    def __init__(
        self, job: Job, body: ResponsesRequest, reader: Reader | None, split: Split
    ) -> None:
        self._split = split
        self._body = body
        self._rid = job.rid
        self._sampling = job.sampling
        self._parser = reader() if reader else None
        self._created = time.time()
        self._output: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item is being written
        self._number = 0  # of the next event
        self._last: Event | None = None  # of what the text was read as

    # ---- the object ----

    def response(self, reason: FinishReason | None, usage: Usage | None) -> dict[str, Any]:
        """The response as it stands. `reason` None: it is being written."""
        told = None if reason is None else told_reason(reason, self._last)
        status, body = _status(told), self._body
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._rid,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": self._output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": self._sampling.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "top_p": self._sampling.top_p,
            "truncation": "disabled",
            "usage": usage and _usage(usage, self._split.num_tokens),
        }

    # ---- the events ----

    def event(self, item: Named) -> bytes:
        name, fields = item
        data = {"type": name, "sequence_number": self._number} | fields
        self._number += 1
        return named_event(name, data)

    def error(self, error: ApiError) -> bytes:
        """An error in the middle of a stream, which it ends."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self.event(("error", fields))

    def push(self, piece: Piece | Choice) -> Iterator[Named]:
        """What a piece of an answer adds."""
        thoughts, text = self._split.push(piece)
        reason = piece.finish_reason
        if thoughts:
            yield from self._think(thoughts)
        events: list[Event] = [Said(text)] if text else []
        if self._parser is not None:
            events = self._parser.push(text)
            if reason is not None:
                events += self._parser.finish(cut_of(piece))
        for item in events:
            self._last = item
            yield from self._take(item)
        if reason is not None:
            yield from self._close(_status(told_reason(reason, self._last)))

    def _think(self, text: str) -> Iterator[Named]:
        if not self._is_open:
            yield from self._open_part(
                "rs", {"type": "reasoning", "summary": []}, {"type": "reasoning_text", "text": ""}
            )
        self._output[-1]["content"][0]["text"] += text
        fields = {"content_index": 0, "delta": text}
        yield "response.reasoning_text.delta", self._here() | fields

    def _take(self, item: Event) -> Iterator[Named]:
        if isinstance(item, Said):
            if not self._is_open or self._output[-1]["type"] != "message":
                yield from self._open_message()
            part = self._output[-1]["content"][0]
            part["text"] += item.text
            fields = {"content_index": 0, "delta": item.text, "logprobs": []}
            yield "response.output_text.delta", self._here() | fields
        elif isinstance(item, Called):
            yield from self._open_call(item)
        elif isinstance(item, Argument):
            kind, name = self._kind()
            self._output[-1][name] += item.text
            yield f"response.{kind}.delta", self._here() | {"delta": item.text}
        elif isinstance(item, Ended):
            yield from self._close("completed")

    def _here(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _kind(self) -> tuple[str, str]:
        """What the events of the open call are called, and where its text is."""
        if self._output[-1]["type"] == "custom_tool_call":
            return "custom_tool_call_input", "input"
        return "function_call_arguments", "arguments"

    def _open(self, item: dict[str, Any]) -> Iterator[Named]:
        yield from self._close("completed")
        self._output.append(item)
        self._is_open = True
        index = len(self._output) - 1
        yield "response.output_item.added", {"output_index": index, "item": _copy(item)}

    def _open_message(self) -> Iterator[Named]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._open_part("msg", {"type": "message", "role": "assistant"}, part)

    def _open_part(
        self, prefix: str, kind: dict[str, Any], part: dict[str, Any]
    ) -> Iterator[Named]:
        """Begin an item with one part of content."""
        name = f"{prefix}_{self._rid[-24:]}_{len(self._output)}"
        yield from self._open({"id": name, **kind, "status": "in_progress", "content": []})
        yield "response.content_part.added", self._here() | {"content_index": 0, "part": dict(part)}
        self._output[-1]["content"].append(part)

    def _open_call(self, call: Called) -> Iterator[Named]:
        call_name = call_id(self._rid, 0, call.index)
        item: dict[str, Any] = {
            "id": call_name.replace("call_", "ctc_" if call.custom else "fc_", 1),
            "type": "custom_tool_call" if call.custom else "function_call",
            "call_id": call_name,
            "name": call.name,
            "status": "in_progress",
        }
        yield from self._open(item | {"input" if call.custom else "arguments": ""})

    def _close(self, status: str) -> Iterator[Named]:
        """The open item, if there is one, is done."""
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        item["status"] = status
        if "content" in item:
            part = item["content"][0]
            fields = {"content_index": 0, "text": part["text"]}
            if item["type"] == "message":
                yield "response.output_text.done", self._here() | fields | {"logprobs": []}
            else:
                yield "response.reasoning_text.done", self._here() | fields
            yield "response.content_part.done", self._here() | {"content_index": 0, "part": part}
        else:
            kind, name = self._kind()
            yield f"response.{kind}.done", self._here() | {name: item[name], "name": item["name"]}
        yield "response.output_item.done", {"output_index": len(self._output) - 1, "item": item}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now, for an event that is written later."""
    return item | ({"content": []} if "content" in item else {})


def _status(reason: FinishReason | None) -> str:
    match reason:
        case None:
            return "in_progress"
        case FinishReason.LENGTH:
            return "incomplete"
        case FinishReason.STOP:
            return "completed"
    return "cancelled"


def _usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
