"""Traces for OpenTelemetry: one span a request, with what it cost in the words of its conventions.

Needs the extra `otel`, and nothing of it is imported unless a collector is named. A request that
comes with a `traceparent` becomes a part of that trace. Knows no routes.
"""

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.types import Scope

from radixgen.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
}
_NAMES = {
    "rid": "gen_ai.response.id",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "first_token_seconds": "gen_ai.server.time_to_first_token",
}
_HEADERS = (b"traceparent", b"tracestate")


class Tracing:
    """Spans of requests that have ended. `model`: the name of the one that is served."""

    def __init__(self, processor: "SpanProcessor", model: str) -> None:
        trace: Any = import_module("opentelemetry.sdk.trace")
        resources: Any = import_module("opentelemetry.sdk.resources")
        propagation: Any = import_module("opentelemetry.trace.propagation.tracecontext")
        resource = resources.Resource.create({"service.name": "radixgen"})
        self._provider: TracerProvider = trace.TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("radixgen")
        self._propagator = propagation.TraceContextTextMapPropagator()
        self._model = model

    def record(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        """The span of a request that took `seconds` and ended now."""
        from opentelemetry.trace import SpanKind, StatusCode

        ended = time.time_ns()
        span = self._tracer.start_span(
            f"{scope['method']} {route}",
            self._context(scope),
            SpanKind.SERVER,
            self._attributes(scope, route, status),
            start_time=ended - int(seconds * 1e9),
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(ended)

    def _context(self, scope: Scope) -> Any:
        given = {n.decode(): v.decode("latin-1") for n, v in scope["headers"] if n in _HEADERS}
        return self._propagator.extract(given)

    def _attributes(self, scope: Scope, route: str, status: int) -> dict[str, Any]:
        state = scope["state"]
        found: dict[str, Any] = {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": status,
            "radixgen.request_id": state["request_id"],
        }
        if route in _OPERATIONS:
            found["gen_ai.operation.name"] = _OPERATIONS[route]
            found["gen_ai.request.model"] = self._model
        log: dict[str, Any] = state["log"]
        return found | {_NAMES[name]: value for name, value in log.items() if name in _NAMES}

    def close(self) -> None:
        """Send what has not been sent. Blocks while it does."""
        self._provider.shutdown()


def tracing_to(endpoint: str, model: str) -> Tracing:
    """Traces for the collector at `endpoint`. Raises ConfigError where that cannot be."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"the traces endpoint {endpoint!r} is no http or https address")
    try:
        export: Any = import_module("opentelemetry.sdk.trace.export")
        otlp: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise ConfigError(
            "traces need OpenTelemetry, which is not installed: pip install 'radixgen[otel]'"
        ) from None
    address = endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
    return Tracing(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=address)), model)
