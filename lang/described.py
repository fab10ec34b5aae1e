"""How a Python type is described where pydantic's own JSON schema says less than the type takes.

Knows pydantic's core schemas and what pydantic reads; no constraints, no texts.
"""

import re
from decimal import Decimal
from typing import Any, NoReturn

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
FLOAT_DIGITS = 15  # of a decimal number, at most, come back from a float as they were
USUAL_PLACES = 6  # behind the point of a number whose type names none
MAX_LONE_DIGITS = 100  # max_digits without decimal_places: one alternative a place of the point

_SECONDS = r"[0-9]{1,6}(\.[0-9]{1,6})?S"
_MINUTES = rf"([0-9]{{1,6}}M({_SECONDS})?|{_SECONDS})"
_TIME = rf"T([0-9]{{1,6}}H({_MINUTES})?|{_MINUTES})"
DURATION = rf"^-?P([0-9]{{1,6}}W|[0-9]{{1,8}}D({_TIME})?|{_TIME})$"  # within timedelta's range

_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_IPV6 = r"[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"
FORMATS = {
    "ipvanyaddress": f"{_IPV4}|{_IPV6}",
    "ipv4interface": rf"{_IPV4}(/(3[0-2]|[12]?[0-9]))?",
    "ipv6interface": rf"{_IPV6}(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?",
    **{
        f"uuid{version}": rf"[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}"
        r"-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
        for version in (1, 3, 4, 5, 6, 7, 8)
    },
}
"""What pydantic reads under names of its own, as regexes."""
UNSAID = frozenset(
    ("base64", "base64url", "directory-path", "file-path", "ipv4network", "ipv6network",
     "ipvanyinterface", "ipvanynetwork", "multi-host-uri", "name-email", "new-path", "socket-path")
)  # fmt: skip

_WHOLE = "0|-?[1-9][0-9]{0,17}"
KEYS = {"int": _WHOLE, "float": rf"({_WHOLE})(\.[0-9]{{1,17}})?", "bool": "true|false"}
"""What pydantic reads keys of a dict from, as regexes."""

_HOST = r"([a-z0-9]+(-[a-z0-9]+)*\.)*[a-z]+(-[a-z0-9]+)*"
_PATH = r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"


def description(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON schema of a type: what meets it can be read. Raises what pydantic does, and
    ValueError for parts of a type that no schema here can say."""
    found = adapter.json_schema(schema_generator=_Described)
    _read_formats(found)
    return found


def _read_formats(part: Any) -> None:
    """Replace formats of pydantic's own by patterns. Raises ValueError for those without one."""
    if isinstance(part, list):
        for inner in part:
            _read_formats(inner)
        return
    if not isinstance(part, dict):
        return
    name = part.get("format")
    if isinstance(name, str) and name in UNSAID:
        raise ValueError(f"{name} cannot be enforced: take str, with a pattern if need be")
    if isinstance(name, str) and name in FORMATS:
        part.pop("format")
        part["pattern"] = f"^({FORMATS[name]})$"
    for key, inner in part.items():
        if key not in ("const", "default", "enum", "examples"):
            _read_formats(inner)


class _Described(GenerateJsonSchema):
    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """A string, which keeps every digit; a number where there are bounds."""
        bounds = {name: schema[name] for name in BOUNDS if schema.get(name) is not None}
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        is_unsigned = bounds == {"ge": 0}
        if (bounds and not is_unsigned) or schema.get("multiple_of") is not None:
            return _number(schema, bounds, digits, places)
        sign = "" if is_unsigned else "-?"
        return {"type": "string", "pattern": f"^{sign}({_digits(digits, places)})$"}

    def date_schema(self, schema: Any) -> dict[str, Any]:
        _check_free("date", schema)
        return super().date_schema(schema)

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        _check_free("datetime", schema)
        if schema.get("tz_constraint", "aware") != "aware":
            raise ValueError("a datetime is written with its offset: take datetime, or str")
        return super().datetime_schema(schema)

    def time_schema(self, schema: Any) -> dict[str, Any]:
        _check_free("time", schema)
        return super().time_schema(schema)

    def timedelta_schema(self, schema: Any) -> dict[str, Any]:
        _check_free("timedelta", schema)
        return {"type": "string", "pattern": DURATION}

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        """Of ASCII where there are lengths: these count bytes, and a schema's count characters."""
        least, most = schema.get("min_length"), schema.get("max_length")
        if least is None and most is None:
            return super().bytes_schema(schema)
        length = f"{least or 0},{'' if most is None else most}"
        return {"type": "string", "pattern": rf"^[\x00-\x7f]{{{length}}}$"}

    def url_schema(self, schema: Any) -> dict[str, Any]:
        """Of schemes that are asked for: what every parser of URLs takes."""
        schemes = schema.get("allowed_schemes")
        if not schemes:
            return super().url_schema(schema)
        host = "" if schemes == ["file"] else rf"{_HOST}(:[1-9][0-9]{{0,3}})?"
        start = "|".join(map(re.escape, schemes))
        return {"type": "string", "pattern": f"^({start})://{host}{_PATH}$"}

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """With keys that a pattern describes and no others, which pydantic would not take, and
        keys that are numbers in a text, which it does not describe."""
        found = super().dict_schema(schema)
        keys = schema.get("keys_schema", {})
        if keys.get("type") == "tuple":
            raise ValueError("keys of a JSON object are texts: take a list of pairs")
        if keys.get("type") in KEYS:
            _check_free(f"dict's {keys['type']} keys", keys)
            return {**found, "propertyNames": {"pattern": f"^({KEYS[keys['type']]})$"}}
        return {"additionalProperties": False, **found} if "patternProperties" in found else found

    def json_schema(self, schema: Any) -> NoReturn:
        raise ValueError("Json is a text that holds JSON, which cannot be enforced: take its type")

    def complex_schema(self, schema: Any) -> NoReturn:
        raise ValueError("JSON has no complex numbers: take two floats")


def _check_free(name: str, schema: Any) -> None:
    """Raises ValueError for bounds that JSON schema has no words for."""
    found = [bound for bound in (*BOUNDS, "multiple_of") if schema.get(bound) is not None]
    if "now_op" in schema:
        found.append(schema["now_op"])
    if found:
        raise ValueError(f"the bounds of a {name} ({', '.join(found)}) cannot be enforced")


def _digits(digits: int | None, places: int | None) -> str:
    """A regex of decimals without sign."""
    if digits is None:
        return r"(0|[1-9][0-9]*)" + _behind("+" if places is None else places)
    if places is not None:
        if places >= digits:  # pydantic takes 0.5 here, but no 0
            return rf"0\.[0-9]{{1,{digits}}}"
        return rf"(0|[1-9][0-9]{{0,{digits - places - 1}}})" + _behind(places)
    if digits > MAX_LONE_DIGITS:
        raise ValueError(
            f"max_digits={digits} is over {MAX_LONE_DIGITS}: it needs decimal_places too"
        )
    ways = [rf"0{_behind(digits)}", rf"[1-9][0-9]{{0,{digits - 1}}}"]
    ways += [
        rf"[1-9][0-9]{{0,{digits - behind - 1}}}\.[0-9]{{{behind}}}" for behind in range(1, digits)
    ]
    return "|".join(ways)


def _behind(places: int | str) -> str:
    if places == 0:
        return ""
    return r"(\.[0-9]+)?" if places == "+" else rf"(\.[0-9]{{1,{places}}})?"


def _number(
    schema: Any, bounds: dict[str, Any], digits: int | None, places: int | None
) -> dict[str, Any]:
    """A JSON number, which pydantic reads through a float: of no more digits than that keeps."""
    if digits is not None and places is None:
        raise ValueError("max_digits goes with bounds only where decimal_places is given too")
    multiple = schema.get("multiple_of")
    if multiple is not None and places is not None:
        raise ValueError("multiple_of and decimal_places do not go together")
    values = [Decimal(bound) for bound in bounds.values()]
    whole = max([1, *(value.adjusted() + 1 for value in values if value)])
    behind = max(
        map(_places, values if multiple is None else [*values, Decimal(multiple)]), default=0
    )
    if whole + behind > FLOAT_DIGITS:
        raise ValueError(f"bounds and multiple_of of a Decimal have at most {FLOAT_DIGITS} digits")
    room = FLOAT_DIGITS - whole
    wanted = max(behind, USUAL_PLACES) if places is None else places
    step = Decimal(1).scaleb(-min(room, wanted)) if multiple is None else Decimal(multiple)
    widest = FLOAT_DIGITS - _places(step)
    if digits is not None and places is not None:
        widest = min(widest, max(digits - places, 0))
    return {
        "type": "number",
        "multipleOf": _plain(step),
        **_ends(bounds, 10**widest),
    }


def _ends(bounds: dict[str, Any], edge: int) -> dict[str, Any]:
    """The bounds as keywords, and `edge` where an end has none or a wider one."""
    found = {BOUNDS[name]: _plain(Decimal(value)) for name, value in bounds.items()}
    if max(found.get("minimum", -edge), found.get("exclusiveMinimum", -edge)) <= -edge:
        found = {**found, "exclusiveMinimum": -edge}
    if min(found.get("maximum", edge), found.get("exclusiveMaximum", edge)) >= edge:
        found = {**found, "exclusiveMaximum": edge}
    return found


def _plain(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _places(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else FLOAT_DIGITS + 1
