"""Bodies made from the server's own schema: what it documents is what it does."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from live_server import shared_server

# Every route that takes a body, but for those that end other tests' requests.
ROUTES = (
    "/apply-template",
    "/detokenize",
    "/generate",
    "/tokenize",
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/completions",
    "/v1/decisions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
)
# Fields that keep a request short; the others are random.
BOUNDS: dict[str, Any] = {"max_tokens": 3, "max_new_tokens": 3, "max_completion_tokens": 3,
                          "max_output_tokens": 3, "n": 2}  # fmt: skip


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with shared_server().client() as client:
        yield client


@functools.cache
def document() -> Any:
    with shared_server().client() as client:
        return client.get("/openapi.json").json()


@functools.cache
def bodies(route: str) -> st.SearchStrategy[Any]:
    """Objects of the route's schema: those it needs and a few more fields."""
    given = document()["paths"][route]["post"]["requestBody"]["content"]["application/json"]
    schema = resolved(given["schema"])
    always = {*schema.get("required", ()), *(BOUNDS.keys() & schema["properties"].keys())}
    required = {name: field(schema, name) for name in sorted(always)}
    optional = {name: field(schema, name) for name in schema["properties"] if name not in required}
    some = st.sets(st.sampled_from(sorted(optional)), max_size=3)
    return some.flatmap(
        lambda names: st.fixed_dictionaries(required | {name: optional[name] for name in names})
    )


def field(schema: Any, name: str) -> st.SearchStrategy[Any]:
    return st.just(BOUNDS[name]) if name in BOUNDS else values(schema["properties"][name])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["type", "model", "prompt", "input", "content", "role", "schema", "name"]),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Values of a schema, as far as ours go."""
    schema = resolved(schema)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return st.one_of(*map(values, schema[name]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    low, high = schema.get("minLength", 0), min(schema.get("maxLength", 12), 12)
    most = min(schema.get("maxItems", 4), 4)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(-3, 300),
        "number": st.floats(-2, 3),
        "string": st.text(min_size=low, max_size=max(low, high)),
    }
    kind = schema.get("type")
    if kind == "array":
        items = values(schema.get("items", {}))
        return st.lists(items, min_size=min(schema.get("minItems", 0), most), max_size=most)
    if kind != "object":
        return simple[kind] if kind else ANYTHING
    if "properties" not in schema:
        return st.dictionaries(st.text(max_size=6), ANYTHING, max_size=3)
    required = schema.get("required", ())
    known = {name: field(schema, name) for name in schema["properties"]}
    return st.fixed_dictionaries(
        {name: known[name] for name in required},
        optional={name: part for name, part in known.items() if name not in required},
    )


def resolved(schema: Any) -> Any:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document()["components"]["schemas"][name] if name else schema


def inlined(schema: Any) -> Any:
    """The schema without references; none of ours is recursive."""
    if isinstance(schema, list):
        return [inlined(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {k: v for k, v in resolved(schema).items() if k not in ("default", "discriminator")}
    return {name: inlined(part) for name, part in whole.items()}


def check(route: str, answer: httpx2.Response) -> None:
    """The answer's status is documented, is no fault of the server, and fits its schema."""
    documented = document()["paths"][route]["post"]["responses"][str(answer.status_code)]
    assert answer.status_code < 500, answer.text
    content = documented["content"][answer.headers["content-type"].partition(";")[0]]
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
        assert lines
        assert all(json.loads(line[6:]) for line in lines if line != "data: [DONE]")
    else:
        jsonschema.validate(answer.json(), inlined(content["schema"]))


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_stream_is_answered_as_documented(http: httpx2.Client, route: str) -> None:
    said = [{"role": "user", "content": "a"}]
    body = {"messages": said, "max_tokens": 3} | {"model": "tiny", "stream": True}
    if route == "/v1/responses":
        body = {"input": said, "max_output_tokens": 3, "model": "tiny", "stream": True}
    answer = http.post(route, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    check(route, answer)


@pytest.mark.parametrize("route", ROUTES)
def test_bodies_of_the_schema_are_answered_as_documented(http: httpx2.Client, route: str) -> None:
    seen: set[int] = set()

    @settings(
        max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(body=bodies(route))
    def ask(body: Any) -> None:
        answer = http.post(route, json=body)
        seen.add(answer.status_code)
        check(route, answer)

    ask()
    assert seen <= {200, 400}


@settings(max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(
    body=ANYTHING,
    route=st.sampled_from(ROUTES),
)
def test_any_json_is_refused_or_answered(http: httpx2.Client, body: Any, route: str) -> None:
    check(route, http.post(route, json=body))
