"""What is said of a value without its sets: as the data say, and never of a schema without any."""

import json
from decimal import Decimal
from typing import Any

import pytest
from test_json_conformance import needs_data

from benchmarks.grammar_conformance import PUBLIC, SUITE, rows_of
from radixgen.errors import InvalidGrammar
from radixgen.grammars.json_document import Document
from radixgen.grammars.json_examples import has_example, holds
from radixgen.grammars.json_shapes import goal


def told(schema: Any, value: Any) -> bool | None:
    return holds(Document(json.dumps(schema)).root, _read(value))


def _read(value: Any) -> Any:
    """A value as schemas are read, with exact numbers."""
    return json.loads(json.dumps(value), parse_float=Decimal)


@needs_data
@pytest.mark.parametrize(("path", "least"), [(SUITE, 900), (PUBLIC, 300)])
def test_what_is_told_of_the_instances_of_public_data(path: Any, least: int) -> None:
    number = 0
    for row in rows_of(path):
        document = Document(json.dumps(row["schema"]))
        for test in row["tests"]:
            try:
                found = holds(document.root, _read(test["data"]))
            except InvalidGrammar:  # it refers to what is not there
                continue
            if found is not None:
                assert found == test["valid"], (row["id"], test["data"])
                number += 1
    assert number >= least


VALUES = [{}, [], "", 0, False, None, "aa", 2, 2.5, True, {"a": 1}, {"a": "aa", "b": {}}]
UNSATISFIABLE: list[Any] = [
    False,
    {"enum": []},
    {"not": {}},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "object", "required": ["a"], "maxProperties": 0},
    {"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"]}, "maxProperties": 1},
    {"type": "object", "minProperties": 1, "propertyNames": False},
    {"type": "object", "required": ["a"], "patternProperties": {"a": False}},
    {"type": "string", "minLength": 2, "maxLength": 1},
    {"type": "string", "minLength": 1, "pattern": "^$"},
    {"type": "integer", "minimum": 1.5, "maximum": 1.8},
    {"type": "number", "minimum": 1, "multipleOf": 5, "maximum": 4},
    {"oneOf": [{"type": "object"}, {}], "type": "object", "required": ["a"]},
    {"anyOf": [{"const": 1}, {"const": "a"}], "type": "null"},
    {"allOf": [{"type": "array"}, {"minItems": 1}, {"items": False}]},
    {"type": "array", "contains": False},
    {"if": {}, "then": False},
    {"if": {"type": "object"}, "else": False, "type": "null"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}, "type": "string"},
]


@pytest.mark.parametrize("schema", UNSATISFIABLE, ids=json.dumps)
def test_no_example_of_what_has_none(schema: Any) -> None:
    wanted = goal(Document(json.dumps(schema)).root)
    assert not has_example(wanted)
    assert not any(told(schema, value) for value in VALUES)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object"}], "not": {"const": 0}},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        {
            "allOf": [
                {"$ref": "#/$defs/a"},
                {"required": ["b"], "properties": {"b": {"minimum": 2}}},
            ],
            "$defs": {
                "a": {"type": "object", "required": ["a"], "properties": {"a": {"const": {}}}}
            },
        },
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"type": "string", "minLength": 3}},
            "not": {"properties": {"a": {"enum": ["", "aa"]}}},
        },
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"$ref": "#"}},
            "maxProperties": 1,
        }
        | {"properties": {"a": {"type": ["string", "null"]}}},
        {"dependentRequired": {"a": ["b"]}, "type": "object"},
    ],
    ids=json.dumps,
)
def test_an_example_of_what_combines_schemas(schema: Any) -> None:
    assert has_example(goal(Document(json.dumps(schema)).root))


def test_what_fails_a_schema_is_an_example_of_its_negation() -> None:
    listed = {"enum": ["", {}, [], 0, False, None]}
    assert not has_example(goal(Document(json.dumps(listed)).root, False))
    assert has_example(goal(Document(json.dumps({"enum": ["", {}]})).root, False))


@pytest.mark.parametrize(
    ("stated", "listed", "has_some"),
    [
        ({"type": "string"}, {"enum": ["", "a"]}, True),
        ({"type": ["string", "null"], "minLength": 2}, {"const": "aa", "type": "string"}, True),
        ({"type": "string", "maxLength": 0}, {"const": ""}, False),
        ({"type": "string", "enum": ["a"]}, {"const": "a"}, False),
        ({"type": "string", "pattern": "^$"}, {"const": ""}, False),
        ({"type": "string"}, {"type": "string"}, False),
    ],
)
def test_strings_but_for_listed_ones(stated: Any, listed: Any, has_some: bool) -> None:
    document = Document(json.dumps({"allOf": [stated, listed]}))
    one, other = document.root.children("allOf")
    assert has_example(goal(one) | goal(other, False)) == has_some


def test_a_schema_that_leads_back_to_itself_tells_nothing() -> None:
    loop = {"anyOf": [{"$ref": "#"}, {"type": "string"}]}
    assert told(loop, 1) is None
    assert told(loop, "a") is True
    refers = {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#"}
    assert told(refers, {"a": 1}) is None
    assert not has_example(goal(Document(json.dumps(refers)).root))
    assert told({"properties": {"a": {"$ref": "#"}}, "type": "object"}, {"a": {"a": {}}}) is None
