"""What the server is and how it is: models, health, versions, numbers, docs. Generates nothing
but the one token of `/health_generate`."""

import contextlib
import importlib.metadata
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from radixgen.errors import RuntimeUnavailable
from radixgen.serve.context import Context, get_context
from radixgen.serve.docs import page
from radixgen.serve.errors import unavailable
from radixgen.serve.http import json_answer, unless_gone
from radixgen.serve.jobs import Job
from radixgen.serve.metrics import CONTENT_TYPE
from radixgen.serve.openapi import answers
from radixgen.serve.schemas import ModelCard, ModelList
from radixgen.serve.supervisor import Supervisor
from radixgen.types import SamplingParams

router = APIRouter(tags=["server"])

HEALTH_SECONDS = 20.0


def _card(context: Context, name: str, request: Request) -> dict[str, Any]:
    """A model in OpenAI's words, and in Anthropic's as well for their clients."""
    parent = {"parent": context.model_name} if context.adapter_of(name) else {}
    told: dict[str, Any] = {}
    if _is_anthropic(request):
        created = datetime.fromtimestamp(context.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"type": "model", "display_name": name, "created_at": created}
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "radixgen",
        "max_model_len": context.client.ready.max_context,
        **parent,
        **told,
    }


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


@router.get("/v1/models", responses=answers(ModelList), tags=["OpenAI"])
async def list_models(request: Request) -> Response:
    """The model that is served, and its adapters, which have it as their parent."""
    context = get_context(request)
    names = [context.model_name, *context.client.ready.adapters]
    cards = [_card(context, name, request) for name in names]
    ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}
    told = ends if _is_anthropic(request) else {}
    return json_answer({"object": "list", "data": cards, **told})


@router.get("/v1/models/{name:path}", responses=answers(ModelCard), tags=["OpenAI"])
async def get_model(name: str, request: Request) -> Response:
    """One model."""
    context = get_context(request)
    context.check_model(name)
    return json_answer(_card(context, name, request))


@router.get("/health", responses=answers(None))
@router.get("/ping", responses=answers(None))
@router.get("/ready", responses=answers(None))
async def health(request: Request) -> Response:
    """200 when a request that comes now would be served, else 503."""
    _check_health(get_context(request).supervisor)
    return json_answer({"status": "ok"})


def _check_health(supervisor: Supervisor) -> None:
    """Raises ApiError 503 unless a request that comes now would be served at once."""
    if not supervisor.healthy:
        state = supervisor.state
        raise unavailable("the runtime does not answer" if state == "serving" else state)


@router.get("/health_generate", responses=answers(None))
async def health_generate(request: Request) -> Response:
    """200 when a token can be generated."""
    context = get_context(request)
    _check_health(context.supervisor)
    sampling = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    rid = f"health-{request.state.request_id}"
    job = Job(rid, [[0]], sampling, namespace="health", priority=2**30)
    await unless_gone(request, context.jobs.run(job), HEALTH_SECONDS)
    return json_answer({"status": "ok"})


@router.get("/version", responses=answers(None))
async def version() -> Response:
    """The version of the server."""
    return json_answer({"version": importlib.metadata.version("radixgen")})


@router.get("/metrics", responses=answers(None, media_type="text/plain"))
async def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    return Response(get_context(request).metrics.render(), media_type=CONTENT_TYPE)


@router.get("/model_info", responses=answers(None), tags=["native"])
@router.get("/get_model_info", responses=answers(None), tags=["native"])
async def model_info(request: Request) -> Response:
    """The model, in SGLang's words."""
    context = get_context(request)
    tokenizer = context.client.tokenizer
    return json_answer(
        {
            "model_path": context.model_name,
            "tokenizer_path": context.model_name,
            "is_generation": True,
            "vocab_size": context.client.ready.vocab_size,
            "max_context": context.client.ready.max_context,
            "eos_token_ids": list(tokenizer.eos_ids),
            "has_chat_template": tokenizer.has_chat_template,
            "features": ["hint", "thinking"],  # of /generate, beyond SGLang's
        }
    )


@router.get("/server_info", responses=answers(None), tags=["native"])
@router.get("/get_server_info", responses=answers(None), tags=["native"])
async def server_info(request: Request) -> Response:
    """Settings and counters of server and runtime; none of its keys."""
    context = get_context(request)
    ready, supervisor = context.client.ready, context.supervisor
    counters: dict[str, float] = {}
    with contextlib.suppress(RuntimeUnavailable):  # there are none while it is restarted
        counters = await supervisor.client.stats()
    return json_answer(
        {
            "state": supervisor.state,
            "version": importlib.metadata.version("radixgen"),
            "model_path": context.model_name,
            "served_model_name": context.model_name,
            "max_context": ready.max_context,
            "page_size": ready.page_size,
            "num_pages": ready.num_pages,
            "forms": ready.forms,
            "max_total_num_tokens": ready.num_pages * ready.page_size,
            "open_prompts": supervisor.num_open,
            "runtime_restarts": supervisor.num_restarts,
            "runtime": counters,
        }
    )


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """`/openapi.json` for people."""
    return HTMLResponse(page(request.app.openapi()))
