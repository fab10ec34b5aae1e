"""Every spelling of a constraint that clients send, as one GrammarSpec. Knows no model.

    response_format {type: json_schema | json_object | structural_tag | regex | text …}
    structured_outputs {json | regex | choice | grammar | json_object | structural_tag}     vLLM
    guided_json, guided_regex, guided_choice, guided_grammar, guided_json_object      older vLLM
    regex, ebnf, json_schema, structural_tag                                              SGLang
    grammar: GBNF text                     llama.cpp        grammar: {type, value}           TGI
    format: "json" or a schema             Ollama

Exactly one may be given. What cannot be enforced is refused, never passed over.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from radixgen.serve.errors import bad_request, unknown_field
from radixgen.serve.fields import ConstraintFields
from radixgen.types import GrammarSpec, check_text

ANY_OBJECT = {"type": "object"}
ANY_JSON = "$$ANY$$"  # SGLang's name for any JSON value


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must be, and the field of the request that said so."""

    spec: GrammarSpec
    param: str


def constraint_of(fields: ConstraintFields) -> Constraint | None:
    """The constraint of a request. Raises ApiError for two, and for one that is malformed."""
    found: list[Constraint] = []
    for name, read in _READERS.items():
        value = getattr(fields, name)
        if value is not None:
            spec = read(value, name)
            if spec is not None:
                found.append(Constraint(spec, name))
    if len(found) > 1:
        names = " and ".join(constraint.param for constraint in found)
        raise bad_request(f"{names} are both constraints; give exactly one", found[1].param)
    return found[0] if found else None


def schema_spec(schema: Any, param: str, *, compact: bool = False) -> GrammarSpec:
    """The spec of a JSON schema: an object, true or false, or its JSON text."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            what = "is a text that is no JSON; give a schema as an object, or as its JSON text"
            raise bad_request(f"{param} {what} ({error})", param) from None
        except RecursionError:
            raise bad_request(f"{param} is nested too deeply", param) from None
    if not isinstance(schema, dict | bool):
        raise bad_request(f"{param} is not a JSON schema, which is an object or a bool", param)
    options = (("whitespace", "compact"),) if compact else ()
    try:
        return GrammarSpec("json_schema", json.dumps(schema), options)
    except RecursionError:
        raise bad_request(f"{param} is nested too deeply", param) from None


def grammar_spec(text: str, param: str) -> GrammarSpec:
    """GBNF has `::=`; what has none is Lark."""
    if not text.strip():
        raise bad_request(f"{param} is empty", param)
    return GrammarSpec("gbnf" if "::=" in text else "lark", text)


def as_format(spec: GrammarSpec) -> dict[str, Any]:
    """The spec as a format of structural tags, to be combined with others."""
    match spec.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(spec.source)}
        case "regex":
            return {"type": "regex", "pattern": spec.source}
        case "gbnf":
            return {"type": "grammar", "grammar": spec.source}
        case "lark":
            return {"type": "lark", "grammar": spec.source}
        case "choice":
            words = json.loads(spec.source)
            return {
                "type": "or",
                "elements": [{"type": "const_string", "value": word} for word in words],
            }
    tag = json.loads(spec.source)
    if not isinstance(tag.get("format"), dict):
        raise bad_request("a structural tag beside tools must have the form {format: …}")
    return dict(tag["format"])


def format_spec(form: Mapping[str, Any], options: tuple[Any, ...] = ()) -> GrammarSpec:
    """The spec of a format of structural tags."""
    tag = {"type": "structural_tag", "format": form}
    return GrammarSpec("structural_tag", json.dumps(tag), options)


# ---- the spellings ----


def _response_format(value: dict[str, Any], param: str) -> GrammarSpec | None:
    kind = value.get("type")
    match kind:
        case "text":
            _only(value, {"type"}, param)
            return None
        case "json_object":
            _only(value, {"type", "schema"}, param)
            return schema_spec(value.get("schema", ANY_OBJECT), f"{param}.schema")
        case "json_schema":
            return _json_schema(value, param)
        case "structural_tag":
            return GrammarSpec("structural_tag", json.dumps(value))
        case "regex" | "json":
            return _typed(value, param)
        case "grammar":
            _only(value, {"type", "grammar"}, param)
            return grammar_spec(_text(value.get("grammar"), f"{param}.grammar"), param)
    known = "text, json_object, json_schema, structural_tag, regex, grammar"
    raise bad_request(f"{param}.type={_short(kind)} is none of {known}", f"{param}.type")


def _json_schema(value: dict[str, Any], param: str) -> GrammarSpec:
    """OpenAI's `json_schema: {name, schema, strict}`; a bare `schema` beside `type` is Mistral's
    and llama.cpp's. `strict: false` is kept like true, which is more than it asks for."""
    _only(value, {"type", "json_schema", "schema"}, param)
    inner = value.get("json_schema")
    if inner is None and "schema" in value:
        return schema_spec(value["schema"], f"{param}.schema")
    where = f"{param}.json_schema"
    if not isinstance(inner, dict):
        raise bad_request(f"{where} must be an object with a schema", where)
    _only(inner, {"name", "schema", "strict", "description"}, where)
    if not isinstance(inner.get("strict"), bool | None):
        raise bad_request(f"{where}.strict must be true or false", f"{where}.strict")
    if not isinstance(inner.get("name"), str | None):
        raise bad_request(f"{where}.name must be text", f"{where}.name")
    if inner.get("schema") is None:
        raise bad_request(f"{where}.schema is required", f"{where}.schema")
    return schema_spec(inner["schema"], f"{where}.schema")


def _typed(value: dict[str, Any], param: str) -> GrammarSpec:
    """TGI's {type, value}."""
    _only(value, {"type", "value"}, param)
    inner, where = value.get("value"), f"{param}.value"
    match value.get("type"):
        case "json" | "json_schema":
            if isinstance(inner, dict) and isinstance(inner.get("schema"), dict):
                inner = inner["schema"]
            return schema_spec(inner, where)
        case "regex":
            return _regex(_text(inner, where), where)
    raise bad_request(
        f"{param}.type={_short(value.get('type'))} is none of json, json_schema, regex",
        f"{param}.type",
    )


_KINDS: dict[str, Callable[[Any, str], GrammarSpec | None]] = {}


def _structured(value: dict[str, Any], param: str) -> GrammarSpec:
    """vLLM's object: one constraint, and how its JSON is laid out."""
    given = {name: inner for name, inner in value.items() if _is_given(name, inner)}
    compact = given.pop("disable_any_whitespace", False)
    if not isinstance(compact, bool):
        where = f"{param}.disable_any_whitespace"
        raise bad_request(f"{where} must be true or false", where)
    kinds = [name for name in given if name in _KINDS]
    others = sorted(given.keys() - _KINDS.keys())
    if others:
        raise unknown_field(param, others[0], (*_KINDS, "disable_any_whitespace"))
    if len(kinds) != 1:
        names = ", ".join(_KINDS)
        raise bad_request(f"{param} needs exactly one of {names}; it has {len(kinds)}", param)
    where = f"{param}.{kinds[0]}"
    spec = _KINDS[kinds[0]](given[kinds[0]], where)
    assert spec is not None
    if not compact:
        return spec
    if spec.kind not in ("json_schema", "structural_tag"):
        raise bad_request(f"disable_any_whitespace goes with JSON, not with {kinds[0]}", param)
    return GrammarSpec(spec.kind, spec.source, (("whitespace", "compact"),))


def _is_given(name: str, value: Any) -> bool:
    """Null gives nothing, nor does false, but as a schema: there it is one that nothing meets."""
    return value is not None and (value is not False or name == "json")


def _json(value: Any, param: str) -> GrammarSpec:
    if isinstance(value, str) and value == ANY_JSON:
        return schema_spec(True, param)
    return schema_spec(value, param)


def _json_object(value: Any, param: str) -> GrammarSpec | None:
    if not isinstance(value, bool):
        raise bad_request(f"{param} must be true or false", param)
    return schema_spec(ANY_OBJECT, param) if value else None


def _regex(value: Any, param: str) -> GrammarSpec:
    return GrammarSpec("regex", _text(value, param))


def _choice(value: Any, param: str) -> GrammarSpec:
    if not isinstance(value, list) or not value or not all(isinstance(s, str) for s in value):
        raise bad_request(f"{param} must be a list of at least one text", param)
    return GrammarSpec("choice", json.dumps(value))


def _grammar(value: Any, param: str) -> GrammarSpec:
    return grammar_spec(_text(value, param), param)


def _tag(value: Any, param: str) -> GrammarSpec:
    if isinstance(value, str):
        return GrammarSpec("structural_tag", _text(value, param))
    return GrammarSpec("structural_tag", json.dumps(_object(value, param)))


def _ebnf(value: Any, param: str) -> GrammarSpec:
    return GrammarSpec("gbnf", _text(value, param))


def _grammar_field(value: Any, param: str) -> GrammarSpec:
    """llama.cpp's GBNF text, or TGI's object."""
    return _typed(value, param) if isinstance(value, dict) else _grammar(value, param)


def _ollama(value: Any, param: str) -> GrammarSpec | None:
    if isinstance(value, dict):
        return schema_spec(value, param)
    if value == "":
        return None
    if value != "json":
        raise bad_request(f'{param}={_short(value)} is neither "json" nor a JSON schema', param)
    return schema_spec(ANY_OBJECT, param)


_KINDS |= {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _tag,
}
_READERS: dict[str, Callable[[Any, str], GrammarSpec | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "guided_json_object": _json_object,
    "regex": _regex,
    "ebnf": _ebnf,
    "json_schema": _json,
    "structural_tag": _tag,
    "grammar": _grammar_field,
    "format": _ollama,
}


def _only(value: Mapping[str, Any], known: set[str], param: str) -> None:
    for name in value:
        if name not in known:
            raise unknown_field(param, name, known)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise bad_request(f"{param} must be text, and not empty", param)
    check_text(param, value)
    return value


def _object(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request(f"{param} must be an object", param)
    return value


def _short(value: Any) -> str:
    return repr(value)[:64]
