"""SGLang's own routes: `/generate`, and what its clients and routers ask a server for.

    /generate          text or input_ids, one or a list; a list, or n > 1, is answered with a list
    stream             cumulative text, as SGLang has it by default

Names are SGLang's; what it has and we have not is refused, not passed over.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from radixgen.errors import InvalidRequest
from radixgen.options import Prompt
from radixgen.serve.constraints import constraint_of
from radixgen.serve.context import Context, get_context, log_usage, make_job
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import (
    Closed,
    HintFields,
    Rid,
    RoutingFields,
    Salt,
    check_mass,
    check_prompts,
    to_sampling,
    told_mass,
)
from radixgen.serve.http import DONE, event, json_answer
from radixgen.serve.jobs import Job
from radixgen.serve.logprobs import finite
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.reasoning import TaggedThinking
from radixgen.serve.render import conversation_ids
from radixgen.serve.schemas import ChatMessage, ChatRequest, TemplateRequest, ToolDefinition
from radixgen.serve.sglang import SglangSampling
from radixgen.tokenizer import Tokenizer
from radixgen.types import (
    Choice,
    FinishReason,
    GenerateResult,
    Piece,
    TokenLogprob,
    Usage,
)

router = APIRouter(tags=["native"])

MAX_TOP = 100


class GenerateBody(Closed):
    """`POST /generate`"""

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: SglangSampling = Field(default_factory=SglangSampling)
    rid: Rid | None = None
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    priority: int | None = None
    cache_salt: Salt | None = None
    extra_key: Salt | None = None
    lora_path: str | None = Field(None, description="the name of an adapter of the runtime")
    thinking: TaggedThinking | None = Field(None, description="free text before the answer")
    hint: HintFields | None = Field(None, description="of what will become of the cached tokens")


@router.post("/generate", responses=answers(None, stream=True))
@router.put("/generate", responses=answers(None, stream=True))
async def generate(body: GenerateBody, request: Request) -> Response:
    """Continue prompts, in SGLang's words."""
    context = get_context(request)
    prompts, many = _prompts(body)
    check_prompts(len(prompts), context.config, "text" if body.text is not None else "input_ids")
    check_mass(body.sampling_params.grammar_mass, body.stream)
    constraint = constraint_of(body.sampling_params.constraint())
    routing = RoutingFields(
        rid=body.rid,
        priority=body.priority,
        cache_salt=body.cache_salt or body.extra_key,
        hint=body.hint,
    )
    thinking = body.thinking.as_thinking() if body.thinking else None
    with renamed(constraint, max_tokens="max_new_tokens", lora="lora_path"):
        sampling = to_sampling(
            body.sampling_params.common(),
            context.config,
            max_tokens=body.sampling_params.max_new_tokens,
            **_logprobs(body),
        )
        lora = body.lora_path or ""
        job = make_job(request, "gen", prompts, sampling, constraint, routing, lora, thinking)
        answer = _Answer(context, job, body, many=many)
        if body.stream:
            return await context.stream(request, answer.events(request))
        results = await context.run(request, job)
    return json_answer(answer.whole(results))


def _prompts(body: GenerateBody) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a list."""
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("give either text or input_ids", "text")
    given: Any = body.input_ids if body.text is None else body.text
    if not given:
        raise bad_request("the prompt is empty", "input_ids" if body.text is None else "text")
    many = isinstance(given, list) and not isinstance(given[0], int)
    if many and not all(given):
        raise bad_request("one of the prompts is empty", "text")
    return (list(given) if many else [given]), many


def _logprobs(body: GenerateBody) -> dict[str, Any]:
    if not body.return_logprob:
        if body.top_logprobs_num or body.logprob_start_len != -1:
            raise bad_request("log-probabilities need return_logprob=true", "return_logprob")
        return {}
    if not 0 <= body.top_logprobs_num <= MAX_TOP:
        raise bad_request(f"top_logprobs_num is not within 0 and {MAX_TOP}", "top_logprobs_num")
    of_prompt = body.logprob_start_len >= 0
    return {
        "logprobs": body.top_logprobs_num,
        "prompt_logprobs": body.top_logprobs_num if of_prompt else None,
    }


class _Answer:
    """Results, or pieces, in SGLang's shape. `many`: the prompts came as a list."""

    def __init__(self, context: Context, job: Job, body: GenerateBody, *, many: bool) -> None:
        self._context = context
        self._job = job
        self._body = body
        self._many = many or job.sampling.n > 1
        self._tokenizer: Tokenizer = context.client.tokenizer

    def whole(self, results: list[GenerateResult]) -> Any:
        items = [
            self._item(number, choice, result)
            for number, result in enumerate(results)
            for choice in result.choices
        ]
        return items if self._many else items[0]

    def _item(self, number: int, choice: Choice, result: GenerateResult) -> dict[str, Any]:
        usage = result.usage
        meta = self._meta(number, choice.finish_reason, choice.stop_reason, choice.token_ids)
        meta |= _usage(usage, len(choice.token_ids))
        meta |= told_mass(self._body.sampling_params.grammar_mass, choice)
        meta |= self._thoughts(choice.thoughts, choice.num_thought_tokens)
        if self._body.return_logprob:
            meta |= self._tables("output", choice.logprobs)
            start = self._body.logprob_start_len
            if start >= 0:
                meta |= self._tables("input", result.prompt_logprobs[start:], number, start)
        text = choice.text + self._kept_stop(choice.stop_reason)
        return {"text": text, "output_ids": list(choice.token_ids), "meta_info": meta}

    def _meta(
        self,
        number: int,
        reason: FinishReason | None,
        stop: str | int | None,
        token_ids: Sequence[int],
    ) -> dict[str, Any]:
        return {
            "id": self._job.rid_of(number),
            "finish_reason": _finish(reason, stop, len(token_ids)),
        }

    def _thoughts(self, text: str, num_tokens: int) -> dict[str, Any]:
        """Without their tags, which `output_ids` begin with."""
        if self._body.thinking is None:
            return {}
        return {"reasoning_content": text, "reasoning_tokens": num_tokens}

    def _kept_stop(self, stop: str | int | None) -> str:
        return stop if self._body.sampling_params.no_stop_trim and isinstance(stop, str) else ""

    def _tables(
        self,
        side: Literal["input", "output"],
        entries: Sequence[TokenLogprob | None],
        number: int = 0,
        start: int = 0,
    ) -> dict[str, Any]:
        """Entries are [logprob, token_id, text or null]; the first of a prompt has no logprob."""
        rows: list[list[Any]] = []
        tops: list[Any] = []
        for place, entry in enumerate(entries):
            if entry is None:
                rows.append([None, *self._named(self._prompt_id(number, start + place))])
                tops.append(None)
                continue
            rows.append([finite(entry.logprob), *self._named(entry.token_id)])
            tops.append([[finite(value), *self._named(i)] for i, value in entry.top])
        found: dict[str, Any] = {f"{side}_token_logprobs": rows}
        if self._body.top_logprobs_num:
            found[f"{side}_top_logprobs"] = tops
        return found

    def _named(self, token_id: int) -> list[Any]:
        text = None
        if self._body.return_text_in_logprobs:
            data = self._tokenizer.token_bytes(token_id, special_text=True)
            text = data.decode("utf-8", "replace")
        return [token_id, text]

    def _prompt_id(self, number: int, place: int) -> int:
        prompt = self._job.prompts[number]
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return ids[place]

    async def events(self, request: Request) -> AsyncGenerator[bytes]:
        """The chunks of a stream: what each choice has so far, and a last one with its costs."""
        growing: dict[tuple[int, int], _Growing] = {}
        usages: list[Usage] = []
        async for piece in self._context.jobs.stream(self._job):
            if piece.result is not None:
                usages.append(piece.result.usage)
                for choice in piece.result.choices:
                    item = self._item(piece.prompt, choice, piece.result)
                    yield self._chunk(piece, choice.index, item)
                continue
            state = growing.setdefault((piece.prompt, piece.index), _Growing())
            state.add(piece)
            if piece.finish_reason is None:
                yield self._chunk(piece, piece.index, self._so_far(piece, state))
        log_usage(request, usages)
        yield DONE

    def _so_far(self, piece: Piece, state: "_Growing") -> dict[str, Any]:
        meta = self._meta(piece.prompt, None, None, state.token_ids)
        meta["completion_tokens"] = len(state.token_ids)
        if state.cached_tokens is not None:
            meta["cached_tokens"] = state.cached_tokens
        meta |= self._thoughts(state.thoughts, state.num_thought_tokens)
        if self._body.return_logprob:
            meta |= self._tables("output", state.logprobs)
        return {"text": state.text, "output_ids": state.token_ids, "meta_info": meta}

    def _chunk(self, piece: Piece, index: int, item: dict[str, Any]) -> bytes:
        if self._many:
            item = {"index": piece.prompt * self._job.sampling.n + index} | item
        return event(item)


class _Growing:
    """What one choice of a stream has so far."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.cached_tokens: int | None = None
        self.thoughts = ""
        self.num_thought_tokens = 0

    def add(self, piece: Piece) -> None:
        if piece.cached_tokens is not None:
            self.cached_tokens = piece.cached_tokens
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.thoughts += piece.thoughts
        self.num_thought_tokens += piece.num_thought_tokens


def _finish(
    reason: FinishReason | None, stop: str | int | None, num_tokens: int
) -> dict[str, Any] | None:
    match reason:
        case None:
            return None
        case FinishReason.STOP:
            return {"type": "stop"} | ({} if stop is None else {"matched": stop})
        case FinishReason.LENGTH:
            return {"type": "length", "length": num_tokens}
    return {"type": "abort", "message": "the request was aborted"}


def _usage(usage: Usage, num_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": num_tokens,
        "cached_tokens": usage.cached_tokens,
        "e2e_latency": usage.total_seconds,
        "time_to_first_token": usage.first_token_seconds,
        "queue_time": usage.queue_seconds,
    }


# ---- control ----


class AbortBody(Closed):
    rid: str | None = None
    abort_all: bool = False


@router.post("/abort_request", responses=answers(None))
async def abort_request(body: AbortBody, request: Request) -> Response:
    """Abort a request by its rid, or all; who waits for it gets what there is."""
    jobs = get_context(request).jobs
    if body.abort_all:
        await jobs.abort_all()
        return json_answer({"success": True})
    if not body.rid:
        raise bad_request("give a rid, or abort_all=true", "rid")
    return json_answer({"success": await jobs.abort(body.rid)})


@router.post("/flush_cache", responses=answers(None))
async def flush_cache(request: Request) -> Response:
    """Forget every cached prefix that no running request uses."""
    await get_context(request).supervisor.client.flush_cache()
    return json_answer({"success": True})


class TokenizeBody(Closed):
    """One of `prompt`, `text` and `messages`; a conversation goes through the chat template."""

    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[ToolDefinition] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


@router.post("/tokenize", responses=answers(None))
@router.post("/v1/tokenize", responses=answers(None))
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """The token ids of a text."""
    context = get_context(request)
    if body.model is not None:
        context.check_model(body.model)
    given = [text for text in (body.prompt, body.text) if text is not None]
    if len(given) + (body.messages is not None) != 1:
        raise bad_request("give exactly one of prompt, text and messages", "prompt")
    if body.messages is None:
        ids = context.client.tokenizer.encode(given[0], body.add_special_tokens)
    else:
        ids = await conversation_ids(context, _conversation(context, body))
    return json_answer(
        {"tokens": ids, "count": len(ids), "max_model_len": context.client.ready.max_context}
    )


def _conversation(context: Context, body: TokenizeBody) -> ChatRequest:
    fields = {name: getattr(body, name) for name in TemplateRequest.model_fields}
    return ChatRequest(model=context.model_name, **fields)


class DetokenizeBody(Closed):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


@router.post("/detokenize", responses=answers(None))
@router.post("/v1/detokenize", responses=answers(None))
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of token ids."""
    context = get_context(request)
    if body.model is not None:
        context.check_model(body.model)
    limit = context.client.ready.vocab_size
    bad = next((i for i in body.tokens if not 0 <= i < limit), None)
    if bad is not None:
        raise InvalidRequest(f"token id {bad} is not within 0 and {limit - 1}", "tokens")
    text = context.client.tokenizer.decode(body.tokens, body.skip_special_tokens)
    return json_answer({"prompt": text, "text": text})
