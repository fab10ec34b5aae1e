"""The text of a JSON Schema as a value, with exact numbers, and values as messages show them.

Knows no keyword.
"""

import json
import re
from decimal import Decimal
from typing import Any

from radixgen.errors import InvalidGrammar

MAX_MAGNITUDE = 400  # digits of a number before its point, and behind it; a double has 325
MAX_DEPTH = 500  # of nested containers in a schema's text
_LONG_NUMBER = re.compile(rf"\d{{{MAX_MAGNITUDE}}}")
_STEP = MAX_MAGNITUDE // 2
_DIGITS = re.compile(r"\d(?=\d)")


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    whole = _encode(value)
    return whole if len(whole) <= 60 else whole[:60] + "…"


def read_json(source: str) -> Any:
    """A schema's text, with exact decimals. Raises InvalidGrammar."""
    decoder = _EXACT if _has_long_number(source) else _USUAL
    try:
        value = _decoded(source, decoder)
    except (ValueError, ArithmeticError) as error:
        raise InvalidGrammar(f"the schema is not JSON: {error}") from None
    except RecursionError:
        raise InvalidGrammar(
            f"the schema nests over {MAX_DEPTH} levels deep; move parts to $defs"
        ) from None
    if not isinstance(value, dict | bool):
        raise InvalidGrammar(f"a schema is an object or a boolean, not {shown(value)}", "#")
    return value


def _decoded(source: str, decoder: json.JSONDecoder) -> Any:
    """The value of a text, without a search for blanks around it where there plainly are none."""
    if source.startswith("{") and source.endswith("}"):
        value, end = decoder.raw_decode(source)
        if end == len(source):
            return value
    return decoder.decode(source)


def _has_long_number(source: str) -> bool:
    """Whether so many digits stand in a row. Two out of every so many characters then are digits,
    which is seldom so and seen much sooner: only there it is looked at all of them."""
    if len(source) < MAX_MAGNITUDE:
        return False
    found = (pair.start() * _STEP for pair in _DIGITS.finditer(source[::_STEP]))
    return any(_LONG_NUMBER.search(source, max(at - _STEP, 0), at + 2 * _STEP) for at in found)


def _whole(text: str) -> int:
    if len(text) > MAX_MAGNITUDE:
        raise ValueError(f"a number of over {MAX_MAGNITUDE} digits")
    return int(text)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # no infinity is written so
    if value.adjusted() > MAX_MAGNITUDE or exponent < -MAX_MAGNITUDE:
        raise ValueError(f"a number with over {MAX_MAGNITUDE} places before or behind its point")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number; it is what one over 1.8e308 becomes on the way")


def _plain(value: Any) -> Any:
    """A decimal as the number that it is, where a double can say which."""
    return (
        float(value) if isinstance(value, Decimal) and abs(value.adjusted()) < 300 else str(value)
    )


_encode = json.JSONEncoder(ensure_ascii=False, default=_plain).encode
_USUAL = json.JSONDecoder(parse_float=_decimal, parse_constant=_no_constant)
_EXACT = json.JSONDecoder(parse_float=_decimal, parse_int=_whole, parse_constant=_no_constant)
