"""`/docs`: the routes and their fields as one page without scripts and without outside assets."""

import json
from html import escape
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}code{font-size:.9em}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #8884;padding:.2rem .6rem;text-align:left;vertical-align:top}"
    "summary{cursor:pointer;padding:.3rem 0}b{display:inline-block;min-width:4rem}"
)


def page(schema: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    models = schema.get("components", {}).get("schemas", {})
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(schema['info']['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(schema['info']['title'])} {escape(schema['info']['version'])}</h1>",
        f"<p>{escape(schema['info'].get('description', ''))} The schema: "
        "<a href=openapi.json>openapi.json</a>.</p>",
    ]
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            group = (operation.get("tags") or ["other"])[0]
            groups.setdefault(group, []).append(_operation(path, method, operation, models))
    for group, operations in groups.items():
        parts += [f"<h2>{escape(group)}</h2>", *operations]
    return "\n".join([*parts, "</html>"])


def _operation(path: str, method: str, operation: dict[str, Any], models: dict[str, Any]) -> str:
    text = escape(operation.get("description", operation.get("summary", "")))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(body.get("schema", {}), models)
    head = f"<b>{method.upper()}</b><code>{escape(path)}</code>"
    body_text = _example(schema) + _fields(schema)
    return f"<details><summary>{head}</summary><p>{text}</p>{body_text}</details>"


def _resolved(schema: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    found: dict[str, Any] = models.get(name, schema)
    return found


def _example(schema: dict[str, Any]) -> str:
    shown = [json.dumps(body, indent=2) for body in schema.get("examples", [])[:1]]
    return "".join(f"<pre>{escape(text)}</pre>" for text in shown)


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table><tr><th>field<th>type<th></tr>{''.join(rows)}</table>" if rows else ""


def _kind(field: dict[str, Any]) -> str:
    """The type of a field in words."""
    for name in ("anyOf", "oneOf"):
        if name in field:
            return " or ".join(_kind(part) for part in field[name])
    if "$ref" in field:
        return str(field["$ref"].rsplit("/", 1)[-1])
    if "const" in field or "enum" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join(repr(value) for value in values)
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))
