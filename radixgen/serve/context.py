"""What every route has at hand, and what they all do first: name, key, rid. Knows no route."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.responses import Response

from radixgen.client import EngineClient
from radixgen.options import Prompt
from radixgen.serve.constraints import Constraint
from radixgen.serve.errors import ApiError
from radixgen.serve.fields import RoutingFields
from radixgen.serve.http import FormatError, open_stream, openai_error_event, unless_gone
from radixgen.serve.jobs import Job, Jobs
from radixgen.serve.metrics import Metrics
from radixgen.serve.reasoning import Thinker, thinker_of
from radixgen.serve.settings import ServeConfig
from radixgen.serve.supervisor import Supervisor
from radixgen.types import GenerateResult, SamplingParams, Thinking, Usage


@dataclass(frozen=True, slots=True)
class Context:
    """One server's parts."""

    config: ServeConfig
    supervisor: Supervisor
    metrics: Metrics
    jobs: Jobs
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def client(self) -> EngineClient:
        """For what is known without a runtime: it may just be restarted. Jobs have the other."""
        return self.supervisor.known

    @property
    def thinker(self) -> Thinker:
        """What is known of the model's thoughts."""
        tokenizer = self.client.tokenizer
        template = tokenizer.chat_template if tokenizer.has_chat_template else ""
        return thinker_of(self.config.reasoning_parser, template)

    @property
    def model_name(self) -> str:
        return self.config.model_names[0]

    def adapter_of(self, name: str) -> str:
        """The adapter that a model's name means: none for the model itself, whose names go first.

        Raises ApiError 404 for a model that is not served.
        """
        if name in self.config.model_names:
            return ""
        adapters = self.client.ready.adapters
        if name in adapters:
            return name
        served = ", ".join(map(repr, (self.model_name, *adapters)))
        raise ApiError(
            404,
            f"the model {name[:100]!r} is not served here; {served} is",
            param="model",
            code="model_not_found",
        )

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 for a model that is not served."""
        self.adapter_of(name)

    async def run(self, request: Request, job: Job) -> list[GenerateResult]:
        """The results of a job, unless the client goes away or the time is over."""
        results = await unless_gone(request, self.jobs.run(job), self.config.request_seconds)
        log_usage(request, [result.usage for result in results])
        return results

    async def stream(
        self,
        request: Request,
        events: AsyncGenerator[bytes],
        format_error: FormatError = openai_error_event,
    ) -> Response:
        """The answer that sends `events`."""
        return await open_stream(
            request,
            events,
            format_error,
            seconds=self.config.request_seconds,
            ping_seconds=self.config.ping_seconds,
            on_open=self.metrics.stream,
        )


def get_context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def make_job(
    request: Request,
    prefix: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    constraint: Constraint | None,
    routing: RoutingFields,
    lora: str = "",
    thinking: Thinking | None = None,
) -> Job:
    """A job with the request's name, which is also the answer's id, and the caller's namespace."""
    rid = routing.rid or routing.request_id or f"{prefix}-{uuid.uuid4().hex}"
    request.state.log["rid"] = rid[:128]
    return Job(
        rid=rid,
        prompts=prompts,
        sampling=sampling,
        grammar=constraint.spec if constraint else None,
        priority=routing.priority or 0,
        namespace=namespace(request, routing.cache_salt),
        lora=lora,
        thinking=thinking,
        hint=routing.hint.as_hint() if routing.hint else None,
    )


def namespace(request: Request, salt: str | None) -> str:
    """Where prefixes are shared: within a key, if the server keeps keys apart, and a salt."""
    of_key: str = request.state.namespace
    return f"{of_key}/{salt}" if salt else of_key


def log_usage(request: Request, usages: Sequence[Usage]) -> None:
    """What the log line says of the tokens."""
    request.state.log |= {
        "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "completion_tokens": sum(usage.completion_tokens for usage in usages),
        "first_token_seconds": round(max(u.first_token_seconds for u in usages), 4),
    }


def head_of(job: Job, kind: str, model: str) -> dict[str, Any]:
    """What every object of OpenAI's API begins with."""
    return {"id": job.rid, "object": kind, "created": int(time.time()), "model": model}


def usage_of(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """OpenAI's usage."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def usage_sum(usages: Sequence[Usage], reasoning_tokens: int = 0) -> dict[str, Any]:
    return usage_of(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        reasoning_tokens,
    )
