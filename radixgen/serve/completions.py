"""`POST /v1/completions`: text or token-id prompts, one or many, echoed and scored if asked for."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.options import Prompt
from radixgen.serve.constraints import constraint_of
from radixgen.serve.context import (
    Context,
    get_context,
    head_of,
    log_usage,
    make_job,
    usage_of,
    usage_sum,
)
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import (
    check_mass,
    check_prompts,
    check_stream_options,
    to_sampling,
    told_mass,
)
from radixgen.serve.http import DONE, event, json_answer
from radixgen.serve.jobs import Job
from radixgen.serve.logprobs import CompletionLogprobs, LogprobFeed, merged
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.schemas import CompletionAnswer, CompletionRequest
from radixgen.tokenizer import Tokenizer
from radixgen.types import Choice, GenerateResult, Piece, Usage

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/completions", responses=answers(CompletionAnswer, stream=True))
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue prompts."""
    context = get_context(request)
    lora = context.adapter_of(body.model)
    prompts = list_of_prompts(body.prompt)
    check_prompts(len(prompts), context.config)
    when_usage = check_stream_options(body.stream_options, body.stream)
    check_mass(body.grammar_mass, body.stream)
    constraint = constraint_of(body)
    with renamed(constraint):
        sampling = to_sampling(
            body, context.config, max_tokens=body.max_tokens, **_logprobs(body, context)
        )
        job = make_job(request, "cmpl", prompts, sampling, constraint, body, lora)
        answer = _Answer(context, job, body, prompts)
        if body.stream:
            return await context.stream(request, answer.events(request, when_usage))
        results = await context.run(request, job)
    return json_answer(answer.whole(results))


def list_of_prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> list[Prompt]:
    """Each prompt by itself. Raises ApiError for none."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt or any(part in ("", []) for part in prompt):
        raise bad_request("prompt is empty; give at least one token", "prompt")
    if isinstance(prompt[0], int):
        return [cast(Prompt, prompt)]
    return list(cast(list[Prompt], prompt))


def _logprobs(body: CompletionRequest, context: Context) -> dict[str, Any]:
    limit = context.config.max_top_logprobs
    if body.logprobs is not None and not 0 <= body.logprobs <= limit:
        raise bad_request(f"logprobs={body.logprobs} is not within 0 and {limit}", "logprobs")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request(f"best_of={body.best_of} must equal n; nothing is ranked", "best_of")
    if body.echo and body.stream and body.logprobs is not None:
        raise bad_request("echo with logprobs cannot be streamed; leave one out", "echo")
    return {
        "logprobs": body.logprobs,
        "prompt_logprobs": body.logprobs if body.echo else None,
    }


@dataclass(slots=True)
class _ChoiceStream:
    feed: LogprobFeed
    table: CompletionLogprobs
    num_tokens: int = 0


class _Answer:
    """Results, or pieces, in OpenAI's shape."""

    def __init__(
        self, context: Context, job: Job, body: CompletionRequest, prompts: list[Prompt]
    ) -> None:
        self._context = context
        self._job = job
        self._body = body
        self._prompts = prompts
        self._tokenizer: Tokenizer = context.client.tokenizer
        self._head = head_of(job, "text_completion", body.model)

    def whole(self, results: list[GenerateResult]) -> dict[str, Any]:
        choices = [
            self._choice(number, result, choice)
            for number, result in enumerate(results)
            for choice in result.choices
        ]
        return self._head | {
            "choices": choices,
            "usage": usage_sum([result.usage for result in results]),
        }

    def _choice(self, number: int, result: GenerateResult, choice: Choice) -> dict[str, Any]:
        text = choice.text + self._kept_stop(choice)
        if self._body.echo:
            text = self._prompt_text(number) + text
        return {
            "index": number * self._job.sampling.n + choice.index,
            "text": text,
            "logprobs": self._table(number, result, choice),
            "finish_reason": str(choice.finish_reason),
            "stop_reason": choice.stop_reason,
            **told_mass(self._body.grammar_mass, choice),
        }

    def _table(self, number: int, result: GenerateResult, choice: Choice) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        columns = CompletionLogprobs(self._tokenizer, self._body.logprobs)
        tables = []
        if self._body.echo:
            ids = self._prompt_ids(number)
            tables.append(columns.table(result.prompt_logprobs, ids))
        tables.append(columns.table(self._feed().push(choice)))
        return merged(tables)

    def _feed(self) -> LogprobFeed:
        """With `echo` every token has its row: evaluations count on the one behind the prompt."""
        body = self._body
        stops, is_score = self._job.sampling.stop, bool(body.echo)
        return LogprobFeed(self._tokenizer, stops, body.keeps_stop, is_score)

    def _kept_stop(self, piece: Choice | Piece) -> str:
        kept = self._body.keeps_stop and isinstance(piece.stop_reason, str)
        return str(piece.stop_reason) if kept else ""

    def _prompt_text(self, number: int) -> str:
        prompt = self._prompts[number]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, False)

    def _prompt_ids(self, number: int) -> list[int]:
        prompt = self._prompts[number]
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    async def events(self, request: Request, when_usage: str) -> AsyncGenerator[bytes]:
        """The chunks of a stream."""
        choices: dict[int, _ChoiceStream] = {}
        usages: list[Usage] = []
        num_prompt = 0
        if when_usage == "always":
            num_prompt = sum(len(self._prompt_ids(i)) for i in range(len(self._prompts)))
        async for piece in self._context.jobs.stream(self._job):
            if piece.result is not None:
                usages.append(piece.result.usage)
                continue
            chunk = self._chunk(piece, choices)
            if when_usage == "always":
                num_tokens = sum(c.num_tokens for c in choices.values())
                chunk["usage"] = usage_of(num_prompt, num_tokens, 0)
            elif when_usage == "end":
                chunk["usage"] = None
            yield event(chunk)
        log_usage(request, usages)
        if when_usage != "none":
            yield event(self._head | {"choices": [], "usage": usage_sum(usages)})
        yield DONE

    def _chunk(self, piece: Piece, choices: dict[int, _ChoiceStream]) -> dict[str, Any]:
        index = piece.prompt * self._job.sampling.n + piece.index
        first = index not in choices
        if first:
            columns = CompletionLogprobs(self._tokenizer, self._body.logprobs or 0)
            choices[index] = _ChoiceStream(self._feed(), columns)
        state = choices[index]
        state.num_tokens += len(piece.token_ids)
        text = piece.text + self._kept_stop(piece)
        if first and self._body.echo:
            text = self._prompt_text(piece.prompt) + text
        table = None
        if self._body.logprobs is not None:
            table = state.table.table(state.feed.push(piece))
        choice = {
            "index": index,
            "text": text,
            "logprobs": table,
            "finish_reason": str(piece.finish_reason) if piece.finish_reason else None,
            "stop_reason": piece.stop_reason,
        }
        return self._head | {"choices": [choice]}
