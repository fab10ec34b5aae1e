"""A schema that nothing satisfies is refused with the place and the keywords that are to blame."""

import json
from typing import Any

import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_blame import MAX_TRIED
from radixgen.grammars.json_schema import compile_schema, describe

EMPTY_RANGE = {"type": "integer", "minimum": 9, "maximum": 3}


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidGrammar) as caught:
        compile_schema(json.dumps(schema), {}, RuleSet())
    return str(caught.value)


def needing(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members)}


@pytest.mark.parametrize(
    ("schema", "why", "path"),
    [
        (EMPTY_RANGE, "type, minimum and maximum together leave none", "#"),
        (needing(a={}, b=EMPTY_RANGE), "minimum and maximum together", "#/properties/b"),
        (
            needing(o=needing(list={"type": "array", "items": EMPTY_RANGE, "minItems": 1})),
            "minimum and maximum",
            "#/properties/o/properties/list/items",
        ),
        (
            {"type": "array", "prefixItems": [{}, {"enum": []}], "minItems": 2},
            "enum leaves none",
            "#/prefixItems/1",
        ),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"enum": []}}}, "enum leaves none", "#/$defs/n"),
        ({"allOf": [{}, EMPTY_RANGE]}, "minimum and maximum", "#/allOf/1"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "allOf leaves none", "#"),
        ({"oneOf": [{"type": "null"}, {"const": None}]}, "oneOf leaves none", "#"),
        ({"anyOf": [EMPTY_RANGE, {"enum": []}]}, "anyOf leaves none", "#"),
        (needing(a=False), "properties and required together", "#"),
        (
            {"type": "object", "additionalProperties": False, "required": ["x"]},
            "type, additionalProperties and required together",
            "#",
        ),
        (
            {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
            "items, uniqueItems and minItems together",
            "#",
        ),
    ],
)
def test_the_first_schema_to_blame_is_named_with_its_keywords(
    schema: Any, why: str, path: str
) -> None:
    found = refusal(schema)
    assert found.startswith("no value satisfies the schema: ")
    assert why in found
    assert found.endswith(f"(at {path})")


def test_what_has_no_keyword_is_refused_all_the_same() -> None:
    assert refusal(False) == "no value satisfies the schema (at #)"


def test_a_way_that_goes_round_ends() -> None:
    assert "(at #/properties/a)" in refusal(needing(a={"$ref": "#"}))


def test_after_many_trials_the_last_place_known_is_named() -> None:
    wide = needing(**{f"m{i}": {} for i in range(2 * MAX_TRIED)}, last=EMPTY_RANGE)
    assert "type, properties and required together leave none (at #)" in refusal(wide)


def test_a_number_that_is_wrong_is_shown_as_a_number() -> None:
    assert refusal({"minLength": 2.5}).startswith("minLength is a whole number from 0 up, not 2.5 ")


def test_what_may_be_left_out_and_is_impossible_is_listed_with_its_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {
            "b": {"type": "object", "required": ["x"], "properties": {"x": EMPTY_RANGE}},
            "a": {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 1}},
            "not there": False,
            "any": {"not": EMPTY_RANGE},
            "fine": {"type": "integer"},
        },
    }
    _, notes = describe(json.dumps(schema), {}, RuleSet())
    assert [str(error) for error in notes.impossible] == [
        "no value satisfies the schema: type, minLength and maxLength together leave none "
        "(at #/properties/a/items)",
        "no value satisfies the schema: type, minimum and maximum together leave none "
        "(at #/properties/b/properties/x)",
    ]
