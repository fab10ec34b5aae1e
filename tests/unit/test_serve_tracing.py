"""Spans of requests: what they say, whose they are, and that nobody needs OpenTelemetry."""

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from radixgen.errors import ConfigError
from radixgen.serve.gate import Gate
from radixgen.serve.settings import ServeConfig
from radixgen.serve.tracing import Tracing, tracing_to

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def span_of(status: int, *headers: tuple[bytes, bytes]) -> Any:
    """The span of a request to /v1/completions that went through the gate."""
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter), "m")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["log"] |= {"rid": "cmpl-1", "prompt_tokens": 9, "completion_tokens": 2}
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def nothing(*_: Any) -> Any:
        return None

    gate = Gate(app, ServeConfig(model_names=("m",)), lambda s, *rest: tracing.record(
        s, s["path"], *rest))  # fmt: skip
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": list(headers)}
    asyncio.run(gate(scope, nothing, nothing))
    tracing.close()
    (span,) = exporter.get_finished_spans()
    return span


def test_a_span_tells_what_a_request_was_and_cost() -> None:
    span = span_of(200, (b"x-request-id", b"mine"))
    assert span.name == "POST /v1/completions"
    assert span.parent is None
    assert span.end_time >= span.start_time
    told = {
        "http.response.status_code": 200,
        "radixgen.request_id": "mine",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 2,
    }
    assert told.items() <= dict(span.attributes).items()
    assert span.resource.attributes["service.name"] == "radixgen"


def test_a_span_belongs_to_the_callers_trace() -> None:
    span = span_of(503, (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()))
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert not span.status.is_ok


def test_a_wrong_parent_is_none() -> None:
    assert span_of(200, (b"traceparent", b"\xff-rubbish")).parent is None


def test_without_opentelemetry_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"pip install 'radixgen\[otel\]'"):
        tracing_to("http://127.0.0.1:4318", "m")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://x", "http://", ""])
def test_addresses_that_are_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="no http or https address"):
        tracing_to(endpoint, "m")
