"""Random schemas: what a grammar writes validates, and it accepts exactly the valid values."""

import json
from typing import Any

import jsonschema
import pytest
from helpers import GrammarSampler, recognised
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from benchmarks.grammar_conformance import rewritten
from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import Node, RuleSet
from radixgen.grammars.json_schema import compile_schema

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-20, 20),
    st.sampled_from(["", "a", "ab", "é", 'q"', "b1"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=5,
)
bounds = st.integers(-5, 5) | st.sampled_from([0.5, -1.25, 2.75])
small = st.integers(0, 3)
patterns = st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^.{2}$", "[0-9]"])
leaves = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"const": values}),
    st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {}, optional={"minLength": small, "maxLength": small, "pattern": patterns}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={
            "minimum": bounds,
            "exclusiveMaximum": bounds,
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.25]),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "null", "array", "object", "boolean"])}
    ),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b", "c", "ab"]), inner, max_size=3)
    names = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=2, unique=True)
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": named,
            "required": names,
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(patterns, inner, max_size=2),
            "propertyNames": st.fixed_dictionaries({"pattern": patterns}),
            "minProperties": st.integers(0, 1),
            "maxProperties": small,
            "dependentRequired": st.dictionaries(st.sampled_from("abc"), names, max_size=2),
        },
    )
    arrays = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("array"),
            "prefixItems": st.lists(inner, max_size=2),
            "items": inner,
            "minItems": small,
            "maxItems": small,
            "contains": inner,
            "maxContains": small,
        },
    )
    logic = st.fixed_dictionaries(
        {}, optional={"allOf": some, "anyOf": some, "oneOf": some, "not": inner, "if": inner}
    )
    conditional = st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner})
    left_over = st.fixed_dictionaries(
        {"anyOf": some},
        optional={"properties": named, "unevaluatedProperties": inner, "unevaluatedItems": inner},
    )
    return st.one_of(objects, arrays, logic, conditional, left_over)


schemas = st.recursive(leaves, composed, max_leaves=8)
SLOW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def compiled(schema: Any, **options: Any) -> Node | None:
    try:
        return compile_schema(json.dumps(schema), {"whitespace": "compact", **options}, RuleSet())
    except InvalidGrammar:
        return None


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@SLOW
@given(schemas, st.integers(0, 1 << 30), st.sampled_from(["any", "declared"]))
def test_what_a_grammar_writes_validates(schema: Any, seed: int, order: str) -> None:
    node = compiled(schema, property_order=order)
    if node is None:
        return
    sampler = GrammarSampler(node, seed)
    for _ in range(3):
        text = sampler.sample()
        if text is not None:
            assert is_valid(schema, json.loads(text)), (schema, text)


@SLOW
@given(schemas, st.lists(values, min_size=1, max_size=8))
def test_a_grammar_accepts_exactly_the_valid_values(schema: Any, instances: list[Any]) -> None:
    node = compiled(schema, property_order="any")
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in instances]
    wanted = [is_valid(schema, value) for value in instances]
    if node is None:
        try:
            compile_schema(json.dumps(schema), {}, RuleSet())
        except InvalidGrammar as error:
            if "no value satisfies" in str(error):
                assert not any(wanted), (schema, texts)
        return
    assert dict(zip(texts, recognised(node, texts), strict=True)) == dict(
        zip(texts, wanted, strict=True)
    ), schema


# Without objects, for which hypothesis-jsonschema reaches into an older hypothesis.
GENERATED: list[Any] = [
    {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "maxItems": 4},
    {"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 5},
    {"allOf": [{"type": "integer", "minimum": 3}, {"multipleOf": 4}]},
    {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
    {"type": "array", "items": {"enum": [1, 2, "a"]}, "uniqueItems": True, "minItems": 2},
    {"type": ["string", "boolean"], "not": {"enum": ["", True]}},
]


@SLOW
@given(st.sampled_from(GENERATED), st.data())
def test_instances_of_another_generator_are_accepted(schema: Any, data: st.DataObject) -> None:
    value = data.draw(from_schema(schema))
    written = json.dumps(rewritten(value), ensure_ascii=False, separators=(",", ":"))
    node = compiled(schema, property_order="any")
    assert node is not None
    assert recognised(node, [written]) == [True], (schema, value)


@pytest.mark.parametrize("text", ["{}", '{"a": 1}', '{"type": ["string", "nul'])
def test_broken_schemas_end_in_an_error_of_ours(text: str) -> None:
    for cut in range(len(text)):
        for byte in b'"{}[]0\\\xff':
            source = (text[:cut] + chr(byte) + text[cut + 1 :]).strip()
            try:
                compile_schema(source, {}, RuleSet())
            except InvalidGrammar:
                continue
