"""`/openapi.json`, and what FastAPI cannot know of it: which models there are, what a number may
be, which keys are asked for, and a body of each kind that is answered. Knows no routes.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from radixgen.serve.examples import EXAMPLES, examples_of
from radixgen.serve.gate import OPEN_PATHS
from radixgen.serve.settings import ServeConfig
from radixgen.types import RANGES

Schema = dict[str, Any]

# Names that requests have for what SamplingParams bounds under its own.
_NAMES = {
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"),
    "min_tokens": ("min_tokens", "min_new_tokens"),
    **{
        name: (name,)
        for name in (
            "temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
            "presence_penalty", "n",
        )
    },
}  # fmt: skip
_LIMITS: dict[str, Schema] = {
    **{
        name: {"minimum": low, "maximum": high}
        for ours, _, low, high in RANGES
        for name in _NAMES.get(ours, ())
    },
    **{name: {"minItems": 1} for name in ("messages", "guided_choice", "input_ids")},
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def describe(app: FastAPI, config: ServeConfig) -> None:
    """Have `/openapi.json` tell all of it. It is made when it is first asked for."""

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, config)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI, config: ServeConfig) -> Schema:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for name, schema in document["components"]["schemas"].items():
        _name_models(schema.get("properties", {}).get("model"), list(config.model_names))
        if name in EXAMPLES:
            _bound(schema["properties"])
            schema["examples"] = examples_of(name, config.model_names[0])
    if config.api_keys:
        _ask_for_keys(document, config)
    return document


def _name_models(field: Schema | None, names: list[str]) -> None:
    """`field`: the schema of a field `model`, which is text or, in some, nothing."""
    if field is not None:
        for part in field.get("anyOf", [field]):
            if part.get("type") == "string":
                part["enum"] = names


def _bound(fields: Schema) -> None:
    for name in fields.keys() & _LIMITS.keys():
        fields[name] |= _LIMITS[name]


def _ask_for_keys(document: Schema, config: ServeConfig) -> None:
    """Either header will do, on every route that the gate keeps."""
    document["components"]["securitySchemes"] = _KEYS
    for path, methods in document["paths"].items():
        if path.encode() in OPEN_PATHS or (path == "/metrics" and config.open_metrics):
            continue
        for operation in methods.values():
            operation["security"] = [{name: []} for name in _KEYS]
