"""Python types to constraints and back: what `gen(schema=…)` sends and what `s["x"]` becomes.

Knows pydantic and JSON Schema; no states, no backends.
"""

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import typing_extensions
from pydantic import BaseModel, TypeAdapter, ValidationError

from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.lang.described import description
from radixgen.types import GrammarSpec, shown

Parse = Callable[[str], Any]


def constraint_of(schema: Any, param: str = "schema") -> tuple[GrammarSpec, Parse]:
    """The constraint of a schema and the function from a generated text to its value.

    `schema`: a pydantic model, dataclass, TypedDict, Enum, Literal, list[T] or any type pydantic
    can describe, or a JSON schema as dict, bool or JSON text. Raises InvalidRequest otherwise,
    with `param`, the argument's name.
    """
    if isinstance(schema, str):
        return _from_json(_loaded(schema, param), param)
    if isinstance(schema, dict | bool):
        return _from_json(schema, param)
    if not _is_type(schema):
        raise InvalidRequest(
            f"{param}={shown(schema)} is not a schema: give a pydantic model, a dataclass, a "
            "TypedDict, a type such as list[int] or Literal['a', 'b'], or a JSON schema as dict or "
            "text",
            param,
        )
    return _from_type(schema, param)


def _is_type(schema: Any) -> bool:
    return isinstance(schema, type | types.UnionType) or typing.get_origin(schema) is not None


def _loaded(text: str, param: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"the schema is not JSON: {error}", param) from None
    except RecursionError:
        raise InvalidRequest("the schema is nested too deeply; flatten it", param) from None


def _from_json(schema: Any, param: str) -> tuple[GrammarSpec, Parse]:
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"a JSON schema is an object or a bool, not {shown(schema)}", param)
    try:
        source = json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the schema cannot be written as JSON: {error}", param) from None
    except RecursionError:
        raise InvalidRequest("the schema is nested too deeply; flatten it", param) from None
    return GrammarSpec("json_schema", source), json_value


def _from_type(schema: Any, param: str) -> tuple[GrammarSpec, Parse]:
    if schema is BaseModel:
        raise InvalidRequest("BaseModel itself has no members: derive a class from it", param)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_readable(schema))
        described = description(adapter)
    except Exception as error:  # whatever pydantic, or what a type says of itself, raises
        told = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = "; ".join(told[:3]) or type(error).__name__
        message = f"{shown(schema)} has no JSON schema: {reason}"
        raise InvalidRequest(message, param) from error
    return _from_json(_closed(described, schema), param)[0], _reader(adapter, schema)


def _readable(schema: Any) -> Any:
    """A `typing.TypedDict` as pydantic takes it: before Python 3.12 it wants the backport's."""
    if not typing.is_typeddict(schema) or sys.version_info >= (3, 12):
        return schema
    hints = typing.get_type_hints(schema, include_extras=True)
    optional = schema.__optional_keys__
    members = {
        name: typing.NotRequired[hint] if name in optional else hint for name, hint in hints.items()
    }
    return typing_extensions.TypedDict(schema.__name__, members)  # type: ignore[operator]


def _closed(described: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Members that a class does not declare are not wanted, unless it says that it allows them."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        if schema.model_config.get("extra") == "allow":
            return described
    elif not (dataclasses.is_dataclass(schema) or typing.is_typeddict(schema)):
        return described
    if described.get("type") == "object":
        described.setdefault("additionalProperties", False)
    for part in described.get("$defs", {}).values():
        if part.get("type") == "object" and "properties" in part:
            part.setdefault("additionalProperties", False)
    return described


def _reader(adapter: TypeAdapter[Any], schema: Any) -> Parse:
    def read(text: str) -> Any:
        try:
            _refuse_extreme(text)
            return adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            at = f" at {where}" if where else ""
            name = schema.__name__ if isinstance(schema, type) else shown(schema)
            raise ValueError(f"it is no {name}: {first['msg']}{at}") from error

    return read


def reader_of(name: str | None, parse: Parse) -> Parse:
    """`parse`, whose failure is told as a RadixgenError with the name of the variable."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, RecursionError) as error:
            what = "what was written" if name is None else f"variable {name!r}"
            reason = str(error).strip() or type(error).__name__
            raise RadixgenError(f"{what} cannot be read from {shown(text)}: {reason}") from error

    return read


MAX_DIGITS = 308  # of a whole number: what a float of 64 bits can hold
_MAYBE_EXTREME = re.compile(r"[eE]\+?[0-9]|[0-9]{300}")


def json_value(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for numbers beyond what a float can hold, which
    would become infinite."""
    return json.loads(text, parse_float=_finite, parse_int=_whole)


def _refuse_extreme(text: str) -> None:
    if _MAYBE_EXTREME.search(text):
        json_value(text)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{shown(digits)} is beyond what a float can hold")
    return value


def _whole(digits: str) -> int:
    if len(digits.lstrip("+-")) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, at most {MAX_DIGITS}")
    return int(digits)


DTYPES: dict[type, tuple[str, Parse, tuple[str, ...]]] = {
    int: (r"[-+]?[0-9]+", _whole, (" ", "\n")),
    float: (r"[-+]?[0-9]*\.?[0-9]+", _finite, (" ", "\n")),
    bool: (r"(True|False)", lambda text: text == "True", ()),
    str: (r'"[\w\d\s]*"', lambda text: text.strip('"'), ()),
}
"""`dtype` of SGLang: type -> (regex, from text to value, extra stops)."""


def constraint_of_dtype(dtype: type) -> tuple[GrammarSpec, Parse, tuple[str, ...]]:
    """The regex, reader and stops of a dtype. Raises InvalidRequest for other types."""
    if not isinstance(dtype, type) or dtype not in DTYPES:
        raise InvalidRequest(f"dtype={shown(dtype)}: int, float, bool or str", "dtype")
    regex, parse, stops = DTYPES[dtype]
    return GrammarSpec("regex", regex), parse, stops
