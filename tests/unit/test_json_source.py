"""How the text of a schema is read: long numbers wherever they stand, names however spelled."""

import json
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.json_source import MAX_MAGNITUDE, read_json


@pytest.mark.parametrize("before", [0, 1, 7, 150, 199, 200, 201, 399, 1234])
def test_a_long_number_is_refused_wherever_it_stands(before: int) -> None:
    digits = "9" * (MAX_MAGNITUDE + 1)
    with pytest.raises(InvalidGrammar, match="a number of over 400 digits"):
        read_json('{"a":"' + "x" * before + f'","maximum":{digits}}}')
    text = '{"a":"' + "x" * before + digits + '","maximum":' + digits[1:] + "}"
    assert read_json(text)["maximum"] == int(digits[1:])


@pytest.mark.parametrize("length", [1, 199, 200, 399])
def test_rows_of_digits_that_are_short_enough_hide_no_long_one(length: int) -> None:
    short = json.dumps({"a": ["7" * length] * 9, "b": "x" * 123})
    assert read_json(short)["b"]
    with pytest.raises(InvalidGrammar, match="a number of over 400 digits"):
        read_json(short[:-1] + f',"maximum":{"9" * (MAX_MAGNITUDE + 1)}}}')


def test_numbers_are_exact() -> None:
    value = read_json('{"a": 0.1, "b": 1e2, "c": 12345678901234567890}')
    assert [str(value[name]) for name in "abc"] == ["0.1", "1E+2", "12345678901234567890"]


# A reference to a schema by name, beside a root with a name of its own or without.
NAMED = [
    {"$ref": "#word", "$defs": {"w": {"$anchor": "word", "type": "string"}}},
    {
        "$id": "https://example.com/root",
        "$ref": "#word",
        "$defs": {"w": {"$anchor": "word", "type": "string"}},
    },
    {"$ref": "https://example.com/w", "$defs": {"w": {"$id": "https://example.com/w", "const": 1}}},
    {
        "$id": "https://example.com/root",
        "$anchor": "all",
        "type": "array",
        "items": {"anyOf": [{"$ref": "#all"}, {"$ref": "https://example.com/root#all"}]},
    },
    {"$schema": "http://json-schema.org/draft-04/schema#", "id": "#all", "items": {"$ref": "#all"}},
]


@pytest.mark.parametrize("schema", NAMED)
def test_a_name_counts_however_it_is_spelled(schema: dict[str, Any]) -> None:
    plain = json.dumps(schema)
    escaped = plain
    for name, spelling in (("$id", "\\u0024id"), ("id", "\\u0069d"), ("$anchor", "$\\u0061nchor")):
        escaped = escaped.replace(f'"{name}"', f'"{spelling}"')
    assert json.loads(escaped) == schema
    assert escaped != plain
    texts = ['"a"', "1", "[]", "[[]]", "[1]"]
    options = {"whitespace": "compact"}
    assert recognised(compile_schema(plain, options, RuleSet()), texts) == recognised(
        compile_schema(escaped, options, RuleSet()), texts
    )


@pytest.mark.parametrize(
    ("leaf", "path"),
    [
        ({"type": "text"}, "type"),
        ({"type": ["string", "text"]}, "type"),
        ({"type": "string", "enum": "a"}, "enum"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "string", "title": 5, "enum": {"a": 1}}, "enum"),
    ],
)
@pytest.mark.parametrize("where", ["properties/a", "items", "additionalProperties", "not"])
def test_what_is_wrong_in_the_least_schema_is_told(
    leaf: dict[str, Any], path: str, where: str
) -> None:
    first, _, name = where.partition("/")
    schema = {first: {name: leaf} if name else leaf}
    with pytest.raises(InvalidGrammar, match=rf"at #/{where}/{path}\)"):
        compile_schema(json.dumps(schema), {}, RuleSet())
