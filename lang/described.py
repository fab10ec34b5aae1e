"""How a Python type is described where pydantic's own JSON schema says less than the type takes.

Knows pydantic's core schemas and what pydantic reads; no constraints, no texts.
"""

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


def description(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON schema of a type: what meets it can be read. Raises what pydantic does, and
    ValueError for parts of a type that no schema here can say."""
    return adapter.json_schema(schema_generator=_Described)


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

    def timedelta_schema(self, schema: Any) -> dict[str, Any]:
        if found := [name for name in BOUNDS if schema.get(name) is not None]:
            raise ValueError(f"a timedelta's bounds ({', '.join(found)}) cannot be enforced")
        return {"type": "string", "pattern": DURATION}

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        """Of ASCII where there are lengths: these count bytes, and a schema's count characters."""
        least, most = schema.get("min_length"), schema.get("max_length")
        if least is None and most is None:
            return super().bytes_schema(schema)
        length = f"{least or 0},{'' if most is None else most}"
        return {"type": "string", "pattern": rf"^[\x00-\x7f]{{{length}}}$"}

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """With keys that a pattern describes and no others, which pydantic would not take."""
        found = super().dict_schema(schema)
        return {"additionalProperties": False, **found} if "patternProperties" in found else found

    def json_schema(self, schema: Any) -> NoReturn:
        raise ValueError("Json is a text that holds JSON, which cannot be enforced: take its type")

    def complex_schema(self, schema: Any) -> NoReturn:
        raise ValueError("JSON has no complex numbers: take two floats")


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
