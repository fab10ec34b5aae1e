"""References by dynamic scope: what an anchor means depends on the way to the reference."""

import json
from typing import Any

import pytest
from helpers import recognised

from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_document import _num_names
from radixgen.grammars.json_schema import compile_schema

LIST = {
    "$id": "https://example.com/list",
    "type": "array",
    "items": {"$dynamicRef": "#item"},
    "$defs": {"any": {"$dynamicAnchor": "item"}},
}
STRINGS = {
    "$id": "https://example.com/strings",
    "$ref": "list",
    "$defs": {"item": {"$dynamicAnchor": "item", "type": "string"}, "list": LIST},
}
TREE = {
    "$id": "https://example.com/tree",
    "$dynamicAnchor": "node",
    "type": "object",
    "properties": {"data": True, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}
STRICT_TREE = {
    "$id": "https://example.com/strict",
    "$dynamicAnchor": "node",
    "$ref": "tree",
    "unevaluatedProperties": False,
    "$defs": {"tree": TREE},
}
RECURSIVE_TREE = {
    "$schema": "https://json-schema.org/draft/2019-09/schema",
    "$id": "https://example.com/strict",
    "$recursiveAnchor": True,
    "$ref": "tree",
    "unevaluatedProperties": False,
    "$defs": {
        "tree": {
            "$id": "https://example.com/tree",
            "$recursiveAnchor": True,
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$recursiveRef": "#"}}},
        }
    },
}


def answers(schema: dict[str, Any], texts: list[str]) -> list[bool]:
    node = compile_schema(json.dumps(schema), {"whitespace": "compact"}, RuleSet())
    return recognised(node, texts)


def test_the_outermost_anchor_counts() -> None:
    assert answers(STRINGS, ['["a"]', "[1]"]) == [True, False]
    assert answers(LIST, ['["a"]', "[1]"]) == [True, True]


def test_one_schema_means_different_things_on_different_ways() -> None:
    numbers = {
        "$id": "https://example.com/numbers",
        "$ref": "list",
        "$defs": {"item": {"$dynamicAnchor": "item", "type": "number"}},
    }
    both = {
        "$id": "https://example.com/both",
        "prefixItems": [{"$ref": "strings"}, {"$ref": "numbers"}],
        "items": False,
        "$defs": {"strings": STRINGS, "numbers": numbers},
    }
    texts = ['[["a"],[1]]', '[["a"],["a"]]', "[[1],[1]]"]
    assert answers(both, texts) == [True, False, False]


@pytest.mark.parametrize("schema", [STRICT_TREE, RECURSIVE_TREE])
def test_a_recursive_schema_is_extended_at_every_level(schema: dict[str, Any]) -> None:
    texts = ['{"children":[{"children":[]}]}', '{"x":1}', '{"children":[{"x":1}]}']
    assert answers(schema, texts) == [True, False, False]
    inner = schema["$defs"]["tree"]
    assert answers(inner, ['{"children":[{"x":1}]}']) == [True]


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('{"$id": "a"}', 1),
        ('{"id" : "a", "properties": {"id": {}, "my_id": {"default": "x"}}}', 1),
        ('{"my_id": "a", "x$id": "b", "grid": "c"}', 0),
        ('{"$anchor":"a","$dynamicAnchor" :\n"b","anchor": "c","$xAnchor": "d"}', 2),
        ('{"\\u0069d": "a"}', None),
    ],
)
def test_names_are_counted_where_a_text_gives_some(source: str, number: int | None) -> None:
    assert _num_names(source) == number
