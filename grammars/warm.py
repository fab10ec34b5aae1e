"""What most grammars come to, made with an engine rather than within some text's first mask.

How a vocabulary looks from inside a string, a number or a standard format depends on nothing that
a constraint says. Over many tokens it takes milliseconds to find out, and is the same ever after.
Knows sample texts. Knows no automaton.
"""

import json
from typing import Any

from radixgen.grammars.engine import Engine
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.matcher import allocate_bitmask

_MEMBERS = {"s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}}

_PRINTABLE = "".join(map(chr, range(ord(" "), 0x7F)))

# Schemas, each with a text that goes through the states that are worth having.
_SCHEMAS: tuple[tuple[Any, str], ...] = (
    ({}, '{"a": "b", "c": [1, -2.5e+3, true, false, null], "d": {}}'),
    ({"properties": _MEMBERS}, '{"s": "b", "n": -10.5e5, "i": 123, "x": 1}'),
    ({"type": "string", "pattern": "a"}, '"bab"'),
    ({"type": "string", "minLength": 1}, '"b"'),
    ({"type": "string", "pattern": r"^\S+\s[^/]*$"}, '"b c"'),  # classes of most characters
    ({"not": {"enum": [_PRINTABLE]}}, '"b"'),  # each character by itself, in all its spellings
    ({"type": "array", "uniqueItems": True}, '["a", {"b": 1}, [2], 3]'),
)
_FORMATS = {
    "date-time": "2022-01-31T12:34:56.123Z",
    "date": "2022-01-31",
    "time": "12:34:56.1+01:30",
    "email": "ab.c@ex-ample.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "uri": "https://user@example.com:80/a/b?c=d#e",
    "ipv4": "127.0.0.1",
    "ipv6": "2001:db8::1",
    "hostname": "www.example.com",
}


def _format(name: str) -> dict[str, str]:
    return {"type": "string", "format": name}


def warm(engine: Engine) -> None:
    """Fill the masks on the way of the sample texts. Raises InvalidGrammar for want of memory."""
    mask = allocate_bitmask(1, engine.vocabulary.size)
    # Twice: loops within formats are looked at for good when they stand before something else.
    formats = [
        ({"properties": {"s": _format(f)}, "additionalProperties": more}, f'{{"s": "{text}"')
        for f, text in _FORMATS.items()
        for more in (True, False)
    ]
    for schema, text in (*_SCHEMAS, *formats):
        state = engine.start(compile_schema(json.dumps(schema), {}, RuleSet()))
        for byte in text.encode():
            engine.fill_row(state, mask, 0)
            state = engine.after_bytes(state, bytes((byte,)))
        engine.fill_row(state, mask, 0)
