"""What a look at schemas shows, before sets are computed: it agrees with the sets."""

import itertools
import json
from typing import Any

import pytest
from helpers import recognised
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen.errors import InvalidGrammar
from radixgen.grammars import json_algebra, json_counts, json_hard, json_sets
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_bounds import MANY, alternatives, apart, are_unlike
from radixgen.grammars.json_check import Checker, Notes
from radixgen.grammars.json_counts import Counts
from radixgen.grammars.json_document import Document, Schema
from radixgen.grammars.json_hard import hard
from radixgen.grammars.json_keywords import KINDS
from radixgen.grammars.json_proofs import Proofs, has_value
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.json_shapes import Goal, goal
from radixgen.grammars.json_terms import possible_kinds
from radixgen.grammars.json_texts import Texts

NAMED = {"one": {"enum": ["a", 1]}, "other": {"const": "b"}}
SCHEMAS: list[Any] = [
    {"const": 1},
    {"const": 1.0},
    {"const": True},
    {"enum": [1, "a", None]},
    {"enum": ["b", [1], {"a": 1}]},
    {"enum": []},
    {"$ref": "#/$defs/one"},
    {"$ref": "#/$defs/other"},
    {"$ref": "#/$defs/other", "const": 1},
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"type": "number", "enum": [2.5]},
    {"not": {"const": 1}},
    {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
    {"type": "object", "properties": {"k": {"enum": [2, "a"]}}, "required": ["k"]},
    {"type": "object", "properties": {"k": {"enum": [2, "a"]}}},
    {"properties": {"k": {"$ref": "#/$defs/one"}}, "required": ["k"]},
]


def _parts(document: Document) -> list[Schema]:
    return document.root.children("anyOf")


def _document(schemas: list[Any]) -> Document:
    return Document(json.dumps({"$defs": NAMED, "anyOf": schemas}))


def _ignore(keyword: str, node: Schema, why: str) -> None:
    raise AssertionError(f"{keyword} of {node} is refused: {why}")


def test_what_is_apart_or_unlike_has_no_common_value(monkeypatch: pytest.MonkeyPatch) -> None:
    document = _document(SCHEMAS)
    parts = _parts(document)
    pairs = list(itertools.combinations_with_replacement(parts, 2))
    seen = [(apart(*pair, "object"), are_unlike(goal(pair[0]) | goal(pair[1]))) for pair in pairs]
    for (one, other), (are_apart, _) in zip(pairs, seen, strict=True):
        assert apart(other, one, "object") == are_apart
    monkeypatch.setattr(json_algebra, "are_unlike", lambda wanted: False)
    algebra = Algebra(_document(SCHEMAS), _ignore, True)
    fresh = _parts(algebra.document)
    for (one, other), answers in zip(
        itertools.combinations_with_replacement(fresh, 2), seen, strict=True
    ):
        both: Goal = goal(one) | goal(other)
        are_apart, unlike = answers
        assert not are_apart or not algebra.goal_set(both, "object"), (one.value, other.value)
        assert not unlike or algebra.never(both), (one.value, other.value)
    assert sum(a for a, _ in seen) > 10
    assert sum(u for _, u in seen) > 10


COUNTED: list[Any] = [
    {"type": "string"},
    {"type": "string", "pattern": "^[ab]{1,3}$"},
    {"type": "string", "pattern": "^(a|b+)$"},
    {"type": "string", "pattern": "^é*$"},
    {"type": "string", "maxLength": 1},
    {"type": "string", "pattern": "^a+$", "maxLength": 3},
    {"type": "array", "items": {"type": "string", "pattern": "^(ab)*$"}},
    {"type": "array", "items": {"const": 1}, "maxItems": 2},
    {"type": "array", "items": False},
    {
        "type": "object",
        "properties": {"k": {"type": "string", "pattern": "^x{2}$"}, "m": {"pattern": "^y*$"}},
        "required": ["k"],
        "additionalProperties": False,
    },
]


def test_a_look_never_counts_less_than_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts() -> list[int]:
        algebra = Algebra(_document(COUNTED), _ignore, True)
        counter = Counts(algebra, Proofs(algebra))
        return [counter.at_least(goal(node), 100) for node in _parts(algebra.document)]

    looked = counts()

    def by_lengths(found: Texts, most: int) -> int:
        return len(json_counts.lengths(found, most))

    monkeypatch.setattr(json_counts, "_count_texts", by_lengths)
    counted = counts()
    assert looked == [100, 14, 100, 100, 94, 3, 100, 1, 0, 100]
    assert all(a >= b for a, b in zip(looked, counted, strict=True))


def _beside(parts: tuple[Any, Any]) -> Any:
    """The keywords of both in one schema."""
    one, other = parts
    return {**one, **other} if isinstance(one, dict) and isinstance(other, dict) else other


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.sampled_from(("allOf", "anyOf", "oneOf")), few).map(lambda p: {p[0]: p[1]}),
        inner.map(lambda part: {"not": part}),
        st.tuples(inner, inner, inner).map(lambda p: {"if": p[0], "then": p[1], "else": p[2]}),
        inner.map(lambda part: {"dependentSchemas": {"k": part}}),
        st.tuples(inner, inner).map(_beside),
    )


LEAVES: list[Any] = [
    *SCHEMAS[3:],
    {"required": ["k", "m"]},
    {"items": {"type": "string"}, "minItems": 1},
    {"prefixItems": [{"const": 1}, True], "maxItems": 3},
    {"contains": {"const": 1}, "maxContains": 2},
    {"type": "object", "additionalProperties": False, "maxProperties": 2},
    {"patternProperties": {"^a": {"type": "string"}}},
    {"propertyNames": {"maxLength": 3}, "minProperties": 1},
    {"dependentRequired": {"k": ["m", "n"]}},
    {"enum": [{"k": 1}, {"k": 2, "m": [1]}, [1, 2]]},
    True,
    False,
]


@settings(max_examples=150, deadline=None)
@given(st.recursive(st.sampled_from(LEAVES), _combined, max_leaves=8))
def test_there_are_no_more_shapes_than_the_bound(schema: Any) -> None:
    document = Document(json.dumps({"$defs": NAMED, "allOf": [schema]}))
    algebra = Algebra(document, _ignore, True)
    try:
        shapes = [len(algebra.evaluate(document.root, kind)) for kind in ("object", "array")]
    except AssertionError:  # too many
        shapes = [json_sets.MAX_SHAPES]
    assert max(shapes) <= alternatives(document.root)


def _is_hard(schema: Any) -> bool:
    document = Document(json.dumps(schema))
    return document.root in hard(Checker(document, _ignore, Notes(), True).run())


def test_what_cannot_be_refused_is_not_worked_out_beforehand() -> None:
    tagged = [
        {"type": "object", "properties": {"kind": {"const": i}, "x": {"const": i}}}
        for i in range(20)
    ]
    easy: list[Any] = [
        {"minProperties": 1},
        {"maxProperties": 5},
        {"uniqueItems": False},
        {"type": "object", "required": ["kind"], "allOf": [{"oneOf": tagged}]},
        {"oneOf": [{**one, "required": ["kind"]} for one in tagged]},
        {"type": "string", "oneOf": [{"enum": [str(i)]} for i in range(50)]},
        {"anyOf": [{"type": "object", "required": [f"k{i}"]} for i in range(MANY)]},
    ]
    for schema in easy:
        assert not _is_hard(schema), schema
        assert not _is_hard({"properties": {"a": {"items": schema}}}), schema
    others: list[Any] = [
        {"minProperties": 2},
        {"not": {"properties": {"a": {"maxProperties": 5}}}},
        {"uniqueItems": True},
        {"unevaluatedProperties": False},
        {"oneOf": tagged},
        {"anyOf": [{"type": "object", "required": [f"k{i}"]} for i in range(MANY + 1)]},
        {"patternProperties": {f"^{letter}": True for letter in "abcdefg"}},
    ]
    for schema in others:
        assert _is_hard(schema), schema
        assert _is_hard({"properties": {"a": {"items": schema}}}), schema


def test_a_negated_bound_is_refused_at_once() -> None:
    schema = {"properties": {"a": {"type": "object", "not": {"maxProperties": 5}}}}
    with pytest.raises(InvalidGrammar, match="minProperties cannot be enforced"):
        compile_schema(json.dumps(schema), {}, RuleSet())


def test_alternatives_told_apart_at_once_are_those_told_apart_by_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tagged = [
        {"properties": {"kind": {"enum": [i, str(i)]}, f"x{i}": {"const": i}}} for i in range(4)
    ]
    schema = {
        "type": "object",
        "required": ["kind"],
        "allOf": [{"oneOf": tagged}, {"required": ["x1"]}],
    }
    members = [{"kind": k, "x1": x} for k in (0, 1, "1", 2, "9") for x in (1, 2)]
    texts = [json.dumps(value, separators=(",", ":")) for value in (*members, {"x1": 1})]
    options = {"whitespace": "compact"}
    looked = recognised(compile_schema(json.dumps(schema), options, RuleSet()), texts)
    monkeypatch.setattr(json_algebra, "all_apart", lambda *_: False)
    monkeypatch.setattr(json_algebra, "are_apart", lambda *_: False)
    monkeypatch.setattr(json_algebra, "are_unlike", lambda wanted: False)
    assert recognised(compile_schema(json.dumps(schema), options, RuleSet()), texts) == looked
    assert looked == [True, True, True, False, True, False, True, True, False, False, False]


def test_kinds_that_a_look_leaves_out_have_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    combined: list[Any] = [
        {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/one"}]},
        {"oneOf": [{"type": "object"}, {"type": ["null", "object"]}], "type": ["object", "array"]},
        {"allOf": [{"type": ["integer", "string"]}, {"enum": [1, None, "a"]}]},
        {"$ref": "#/$defs/one", "type": "string"},
        {"anyOf": [True, {"type": "string"}], "const": []},
        {"anyOf": [False, {"type": "boolean", "not": {"const": True}}]},
        {"type": "array", "if": {"minItems": 1}, "then": {"type": "array"}, "else": False},
        {"$ref": "#/$defs/round"},
    ]
    around = {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/round"}, "type": "array"}]}
    document = Document(
        json.dumps({"$defs": {**NAMED, "round": around}, "anyOf": SCHEMAS + combined})
    )
    looked = [set(possible_kinds(node)) for node in _parts(document)]
    assert looked[len(SCHEMAS) :] == [
        {"string", "number"},
        {"object"},
        {"number", "string"},
        {"string"},
        {"array"},
        {"boolean"},
        {"array"},
        {"array", "null"},
    ]
    monkeypatch.setattr(json_algebra, "possible_kinds", lambda node: KINDS)
    algebra = Algebra(document, _ignore, True)
    for node, kinds in zip(_parts(document), looked, strict=True):
        for kind in set(KINDS) - kinds:
            found = algebra.goal_set(goal(node), kind)
            assert not found or found.is_empty(), (node.value, kind)


def test_kinds_of_what_refers_to_itself_are_all_looked_at() -> None:
    defs = {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}
    with pytest.raises(InvalidGrammar, match="refers to itself"):
        compile_schema(json.dumps({"$defs": defs, "$ref": "#/$defs/a"}), {}, RuleSet())


def test_what_plainly_has_a_value_has_one() -> None:
    """`True` for what the sets show to have values; what they show to be empty is never so."""
    schemas: list[Any] = [
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "pattern": "a^"},
        {"type": "string", "pattern": "^(?!a)a"},
        {"type": "string", "pattern": "a", "maxLength": 0},
        {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": ["string", "null"]}]},
        {"oneOf": [{"type": "string", "pattern": "b^"}, {"type": "null"}]},
        {"oneOf": [{"type": "integer"}, {"type": "number"}, {"enum": [1]}]},
        {"oneOf": [True, True]},
        {"oneOf": [{"type": "integer"}, True]},
        {"oneOf": [{"type": "integer"}]},
    ]
    algebra = Algebra(_document(schemas), _ignore, True)
    proofs = Proofs(algebra)
    nodes = _parts(algebra.document)
    looked = [has_value(node) for node in nodes]
    assert looked == [True, *[False] * 3, True, False, True, *[False] * 3, True]
    for node, plainly in zip(nodes, looked, strict=True):
        assert not plainly or proofs._some(goal(node)) is True, node.value


def test_few_alternatives_are_seen_to_be_few(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}}}
    for number, keyword, is_few in (
        (2, "oneOf", True),
        (5, "oneOf", False),
        (MANY, "anyOf", True),
        (MANY + 1, "anyOf", False),
        (300, "allOf", True),
    ):
        schema: Any = {"items": {keyword: [one] * number}, "minItems": 1}
        asked: list[int] = []
        monkeypatch.setattr(json_hard, "alternatives", lambda node, n=asked: n.append(1) or 1)
        _is_hard(schema)
        assert not asked if is_few else asked, (number, keyword)
        asked.clear()
        referring = {"$ref": "#/$defs/one", "enum": 5}  # which says nothing beside a reference
        draft = "http://json-schema.org/draft-07/schema#"
        _is_hard({"$schema": draft, "$defs": {"one": one}, keyword: [referring] * number})
        assert not asked if is_few else asked, (number, keyword)
    asked = []
    monkeypatch.setattr(json_hard, "alternatives", lambda node, n=asked: n.append(1) or 1)
    _is_hard({"oneOf": [*({"type": ["string", "null"], "enum": ["a"]} for _ in range(20)), one]})
    assert not asked
