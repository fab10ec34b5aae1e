"""The application: routes behind the gate, and every error in the shape that clients read.

The runtime is already started when the app serves; who starts it is the command's affair.
"""

import importlib.metadata
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from radixgen.errors import RadixgenError
from radixgen.serve import (
    absent,
    cache,
    chat,
    completions,
    decisions,
    messages,
    models,
    native,
    render,
    responses,
)
from radixgen.serve.context import Context
from radixgen.serve.document import describe
from radixgen.serve.errors import ApiError, api_error, validation_error
from radixgen.serve.gate import Gate, error_body
from radixgen.serve.jobs import Jobs
from radixgen.serve.metrics import Metrics
from radixgen.serve.settings import ServeConfig
from radixgen.serve.supervisor import Supervisor
from radixgen.serve.tracing import Tracing

ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    messages.router,
    decisions.router,
    native.router,
    render.router,
    models.router,
    cache.router,
    absent.router,  # last: its paths take whatever is left of theirs
)
ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
PATHS = frozenset(route.path for route in ROUTES)


def create_app(
    supervisor: Supervisor, config: ServeConfig, tracing: Tracing | None = None
) -> ASGIApp:
    """The ASGI application of a server. `config.model_names` holds at least one name."""
    metrics = Metrics(
        lambda: supervisor.stats,
        lambda: supervisor.num_restarts,
        config.metrics_compat,
        config.model_names[0],
    )
    context = Context(config, supervisor, metrics, Jobs(supervisor, metrics))
    app = FastAPI(
        title="radixgen",
        version=importlib.metadata.version("radixgen"),
        description="Structured generation with a radix prefix cache.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect's address would be made of what the client says
    )
    app.state.context = context
    for router in ROUTERS:
        app.include_router(router)
    for kind in (RadixgenError, HTTPException, TimeoutError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    describe(app, config)

    def on_done(scope: Scope, status: int, seconds: float) -> None:
        route = _route_of(scope)
        metrics.answered(route, status)
        if tracing is not None:
            tracing.record(scope, route, status, seconds)

    return Gate(app, config, on_done)


def _route_of(scope: Scope) -> str:
    """The path of the route that a request asked for, one of few whatever clients send."""
    path: str = scope["path"]
    return path if path in PATHS else getattr(scope.get("route"), "path", "other")


async def _on_error(request: Request, error: Exception) -> Response:
    answer = _answer(request, api_error(error))
    if answer.status_code == 405:
        answer.headers["allow"] = ", ".join(_methods_of(request))
    return answer


def _methods_of(request: Request) -> list[str]:
    """The methods that the path has: those of every route of it, not of the first alone."""
    methods = set[str]()
    for route in ROUTES:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(request, validation_error(error.errors(), _schema_of(request)))


def _schema_of(request: Request) -> Any:
    """The type of the route's body, None where it has none."""
    body = getattr(request.scope.get("route"), "body_field", None)
    return getattr(getattr(body, "field_info", None), "annotation", None)


def _answer(request: Request, error: ApiError) -> Response:
    body = error_body(request.scope, error, request.state.request_id)
    return Response(body, error.status_code, dict(error.headers or {}), "application/json")
