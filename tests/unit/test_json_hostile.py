"""Schemas made to be slow are refused by the JSON Schema front end, and not worked out."""

import json
from typing import Any

import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema


def nested_choices(depth: int) -> Any:
    schema: Any = {"type": "object"}
    for _ in range(depth):
        member = {"type": "object", "required": ["a"], "properties": {"a": schema}}
        schema = {"oneOf": [schema, member]}
    return schema


HOSTILE: dict[str, tuple[str, str]] = {
    "alternatives of one place": (
        json.dumps(
            {
                "type": "object",
                "allOf": [
                    {"anyOf": [{"required": [f"r{i}{j}"]} for j in range(3)]} for i in range(12)
                ],
            }
        ),
        "alternatives",
    ),
    "nested choices": (json.dumps(nested_choices(12)), "ways"),
    "nested negations": ('{"not":' * 400 + '{"type":"null"}' + "}" * 400, "nests"),
    "a deep text": ('{"not":' * 100_000, "nests"),
    "a huge exponent": ('{"multipleOf":1e-99999999999}', "places"),
    "a huge number": ('{"maximum":' + "9" * 5000 + "}", "digits"),
    "a bound that is too large": ('{"minimum":1e400}', "minimum is a number of at most 80 digits"),
    "a bound that is too low": ('{"type":"integer","maximum":-1e200}', "maximum is a number of at"),
    "a divisor that is too small": (
        '{"multipleOf":1e-200}',
        "multipleOf is a number of at most 80",
    ),
    "many patterns that overlap": (
        json.dumps({"patternProperties": {c: {"enum": [c]} for c in "abcdefghijklm"}}),
        "overlap",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_and_not_worked_out(name: str) -> None:
    source, message = HOSTILE[name]
    with pytest.raises(InvalidGrammar, match=message):
        compile_schema(source, {}, RuleSet())
