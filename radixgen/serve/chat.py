"""`POST /v1/chat/completions`: messages in, an answer or tool calls out, at once or as chunks."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.serve.chat_request import choice_of, plan_of, tools_of, turns_of
from radixgen.serve.constraints import Constraint, constraint_of
from radixgen.serve.context import (
    Context,
    get_context,
    head_of,
    log_usage,
    make_job,
    usage_of,
    usage_sum,
)
from radixgen.serve.conversation import prompt_ids
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import check_mass, check_stream_options, to_sampling, told_mass
from radixgen.serve.http import DONE, event, json_answer
from radixgen.serve.jobs import Job
from radixgen.serve.logprobs import LogprobFeed, chat_logprobs
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.reasoning import Split, show_of
from radixgen.serve.schemas import ChatAnswer, ChatRequest
from radixgen.serve.tool_calls import (
    Argument,
    Called,
    Event,
    Reader,
    Said,
    ToolCallParser,
    cut_of,
    parsed,
    reader_of,
    sampling_of_calls,
    told_reason,
)
from radixgen.serve.tools import Tool, ToolChoice, constrain
from radixgen.types import Choice, FinishReason, GenerateResult, Piece, Usage

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", responses=answers(ChatAnswer, stream=True))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    context = get_context(request)
    lora = context.adapter_of(body.model)
    when_usage = check_stream_options(body.stream_options, body.stream)
    check_mass(body.grammar_mass, body.stream)
    turns, tools, choice = turns_of(body.messages), tools_of(body.tools), choice_of(body)
    content = constraint_of(body)
    constraint = answer_constraint(tools, choice, content)
    plan, show = plan_of(body, context.thinker), show_of(body)
    with renamed(constraint, prompt="messages"):
        sampling = to_sampling(
            body, context.config, max_tokens=_max_tokens(body), logprobs=_logprobs(body, context)
        )
        sampling = sampling_of_calls(sampling, choice)
        prompt = await prompt_ids(context.client, turns, tools, plan.layout)
        thinking = plan.thinking(context.client.tokenizer, prompt, sampling.max_tokens)
        job = make_job(request, "chatcmpl", [prompt], sampling, constraint, body, lora, thinking)
        make_split = partial(Split, thinking, show, content is None)
        reader = reader_of(tools, choice, sampling)
        answer = _Answer(context, job, body, reader, make_split)
        if body.stream:
            return await context.stream(request, answer.events(request, when_usage))
        results = await context.run(request, job)
    return json_answer(answer.whole(results[0]))


def answer_constraint(
    tools: Sequence[Tool], choice: ToolChoice, content: Constraint | None
) -> Constraint | None:
    """What holds of the answer as a whole: calls of tools, and content where there is none."""
    spec = constrain(tools, choice, content.spec if content else None)
    if spec is None:
        return None
    return Constraint(spec, content.param if content else "tools")


def _max_tokens(body: ChatRequest) -> int | None:
    given = (body.max_tokens, body.max_completion_tokens)
    if None not in given and given[0] != given[1]:
        raise bad_request("max_tokens and max_completion_tokens differ; give one", "max_tokens")
    return given[0] if given[1] is None else given[1]


def _logprobs(body: ChatRequest, context: Context) -> int | None:
    limit, top = context.config.max_top_logprobs, body.top_logprobs
    if top is not None and not 0 <= top <= limit:
        raise bad_request(f"top_logprobs={top} is not within 0 and {limit}", "top_logprobs")
    if top and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
    return (top or 0) if body.logprobs else None


def finish_name(reason: FinishReason, num_calls: int) -> str:
    return "tool_calls" if num_calls and reason is FinishReason.STOP else str(reason)


def call_id(rid: str, choice: int, index: int) -> str:
    """The name of a call: the same whether it is streamed or not."""
    return f"call_{rid.rsplit('-', 1)[-1][-24:]}_{choice}_{index}"


@dataclass(slots=True)
class _ChoiceStream:
    feed: LogprobFeed
    parser: ToolCallParser | None
    split: Split
    custom: dict[int, bool] = field(default_factory=dict)  # calls by index
    last: Event | None = None  # of those that are told
    num_tokens: int = 0


class _Answer:
    """A result, or pieces, in OpenAI's shape. `reader`: where the text may hold calls.
    `make_split`: what tells the thoughts of a choice from its answer."""

    def __init__(
        self,
        context: Context,
        job: Job,
        body: ChatRequest,
        reader: Reader | None,
        make_split: Callable[[], Split],
    ) -> None:
        self._make_split = make_split
        self._context = context
        self._job = job
        self._body = body
        self._reader = reader
        self._tokenizer = context.client.tokenizer
        self._head = head_of(job, "chat.completion.chunk", body.model)

    # ---- at once ----

    def whole(self, result: GenerateResult) -> dict[str, Any]:
        return self._head | {
            "object": "chat.completion",
            "choices": [self._choice(choice) for choice in result.choices],
            "usage": usage_sum(
                [result.usage], sum(choice.num_thought_tokens for choice in result.choices)
            ),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        calls: list[dict[str, Any]] = []
        split = self._make_split()
        thoughts, text = split.push(choice)
        message |= told_thoughts(thoughts) if split.tells_apart else {}
        text += self._kept_stop(choice)
        items = parsed(text, self._reader, cut_of(choice)) if self._reader else [Said(text)]
        for item in items:
            if isinstance(item, Said):
                message["content"] = (message["content"] or "") + item.text
            elif isinstance(item, Called):
                calls.append(self._begun(choice.index, item))
            elif isinstance(item, Argument):
                extend_call(calls[item.index], item.text)
        reason = told_reason(choice.finish_reason, items[-1] if items else None)
        if calls:
            message["tool_calls"] = calls
        elif message["content"] is None:
            message["content"] = ""
        logprobs = None
        if self._body.logprobs:
            logprobs = chat_logprobs(self._feed().push(choice), self._tokenizer)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_name(reason, len(calls)),
            "stop_reason": choice.stop_reason,
            **told_mass(self._body.grammar_mass, choice),
        }

    def _begun(self, choice: int, call: Called) -> dict[str, Any]:
        head = {"id": call_id(self._job.rid, choice, call.index)}
        if call.custom:
            return head | {"type": "custom", "custom": {"name": call.name, "input": ""}}
        return head | {"type": "function", "function": {"name": call.name, "arguments": ""}}

    def _feed(self) -> LogprobFeed:
        return LogprobFeed(self._tokenizer, self._job.sampling.stop, self._body.keeps_stop)

    def _kept_stop(self, piece: Choice | Piece) -> str:
        kept = self._body.keeps_stop and isinstance(piece.stop_reason, str)
        return str(piece.stop_reason) if kept else ""

    # ---- as chunks ----

    async def events(self, request: Request, when_usage: str) -> AsyncGenerator[bytes]:
        """The chunks of a stream: the roles when the first token is there, then what comes."""
        choices: dict[int, _ChoiceStream] = {}
        usages: list[Usage] = []
        async for piece in self._context.jobs.stream(self._job):
            if not choices:
                for index in range(self._job.sampling.n):
                    parser = self._reader() if self._reader else None
                    choices[index] = _ChoiceStream(self._feed(), parser, self._make_split())
                    role = {"role": "assistant", "content": "", "refusal": None}
                    yield self._chunk(index, role, None, when_usage, choices)
            if piece.result is not None:
                usages.append(piece.result.usage)
                continue
            for data in self._piece_chunks(piece, choices, when_usage):
                yield data
        log_usage(request, usages)
        if when_usage != "none":
            num_thoughts = sum(state.split.num_tokens for state in choices.values())
            usage = usage_sum(usages, num_thoughts)
            yield event(self._head | {"choices": [], "usage": usage})
        yield DONE

    def _piece_chunks(
        self, piece: Piece, choices: dict[int, _ChoiceStream], when_usage: str
    ) -> Iterator[bytes]:
        state = choices[piece.index]
        state.num_tokens += len(piece.token_ids)
        logprobs = None
        if self._body.logprobs:
            logprobs = chat_logprobs(state.feed.push(piece), self._tokenizer)
            logprobs = logprobs if logprobs["content"] else None
        deltas = list(self._deltas(piece, state))
        if logprobs is not None and not deltas:
            deltas = [{"content": ""}]
        for delta in deltas:
            yield self._chunk(piece.index, delta, logprobs, when_usage, choices)
            logprobs = None
        if piece.finish_reason is not None:
            reason = finish_name(told_reason(piece.finish_reason, state.last), len(state.custom))
            yield self._chunk(piece.index, {}, None, when_usage, choices, reason, piece.stop_reason)

    def _deltas(self, piece: Piece, state: _ChoiceStream) -> Iterator[dict[str, Any]]:
        thoughts, text = state.split.push(piece)
        if thoughts:
            yield told_thoughts(thoughts)
        text += self._kept_stop(piece)
        if state.parser is None:
            if text:
                yield {"content": text}
            return
        events = state.parser.push(text)
        if piece.finish_reason is not None:
            events += state.parser.finish(cut_of(piece))
        state.last = events[-1] if events else state.last
        for item in events:
            delta = self._delta(item, piece.index, state)
            if delta is not None:
                yield delta

    def _delta(self, item: Event, choice: int, state: _ChoiceStream) -> dict[str, Any] | None:
        if isinstance(item, Said):
            return {"content": item.text}
        if isinstance(item, Called):
            state.custom[item.index] = item.custom
            return {"tool_calls": [{"index": item.index} | self._begun(choice, item)]}
        if isinstance(item, Argument):
            key = (
                {"custom": {"input": item.text}}
                if state.custom[item.index]
                else {"function": {"arguments": item.text}}
            )
            return {"tool_calls": [{"index": item.index} | key]}
        return None

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        when_usage: str,
        choices: dict[int, _ChoiceStream],
        finish: str | None = None,
        stop: str | int | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        if finish is not None:
            choice["stop_reason"] = stop
        chunk = self._head | {"choices": [choice]}
        if when_usage == "always":
            num_tokens = sum(state.num_tokens for state in choices.values())
            num_thoughts = sum(state.split.num_tokens for state in choices.values())
            chunk["usage"] = usage_of(len(self._job.prompts[0]), num_tokens, 0, num_thoughts)
        elif when_usage == "end":
            chunk["usage"] = None
        return event(chunk)


def told_thoughts(text: str) -> dict[str, str]:
    """Under the name that DeepSeek, SGLang and most clients have, and vLLM's."""
    return {"reasoning_content": text, "reasoning": text}


def extend_call(call: dict[str, Any], text: str) -> None:
    """The next piece of a call's arguments or input."""
    inner, name = (
        (call["custom"], "input") if call["type"] == "custom" else (call["function"], "arguments")
    )
    inner[name] += text
