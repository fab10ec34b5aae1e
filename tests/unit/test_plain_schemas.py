"""Schemas that a look at their keywords shows are read as the others are, only sooner."""

import json
from typing import Any

import pytest

from radixgen.grammars import json_keywords, json_plain, json_proofs, json_texts, json_values
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_document import Document
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

TOKENS = [*(bytes((byte,)) for byte in range(256)), b'{"', b'":', b'": ', b'"}', b", ", b"[{", None]
BY_FRONT_END = (
    ("strict", True),
)  # an option, though it says what is so without: see native_schemas
INTEGER = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": INTEGER, "y": INTEGER}, "required": ["y"]}
MANY = {f"name{i}": {"type": ["null", "integer", "boolean"][i % 3]} for i in range(20)}

# Schemas with texts that they allow, or do not.
CASES: list[tuple[Any, list[Any]]] = [
    (POINT, [{"x": 1, "y": 2}, {"y": 2, "z": [1]}, {"x": 1}, {}]),
    ({**POINT, "additionalProperties": False}, [{"x": 1, "y": 2}, {"y": 2, "z": 1}]),
    ({**POINT, "additionalProperties": INTEGER}, [{"y": 2, "z": 1}, {"y": 2, "z": "a"}]),
    ({**POINT, "format": "x", "minItems": 3, "maximum": 2}, [{"x": 1, "y": 2}, [1]]),
    ({"type": ["object"], "properties": MANY}, [{"name1": 2, "name18": None}, {"name3": 1}]),
    ({"type": "object", "properties": {"a": False, "b": INTEGER}}, [{"b": 1}, {"a": 1}]),
    (
        {"type": "object", "properties": {"é\n": True}, "additionalProperties": False},
        [{"é\n": [{}]}, {"é": {}}],
    ),
    (
        {"type": "object", "properties": {"next": {"$ref": "#"}, "on": True}, "required": ["on"]},
        [{"next": {"on": 1}, "on": {"a": 1}}, {"next": 1}],
    ),
    ({"type": "array", "items": POINT}, [[], [{"y": 1}, {"x": 1, "y": 2}], [{}], {}]),
    ({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2}, [[1], [], [1, 2, 3]]),
    ({"type": ["array"], "items": {"$ref": "#"}, "maxItems": 1}, [[[[]]], [[], []], [1]]),
    ({"type": "array", "items": INTEGER, "minLength": 2, "required": ["a"]}, [[1, 2], ["a"]]),
]
# Schemas of scalars, as they are and as members, with values that they allow, or do not.
SCALARS: list[tuple[Any, list[Any]]] = [
    ({"type": "string", "title": "x"}, ["a", "", 1]),
    ({"type": "boolean", "properties": {"a": False}}, [True, False, None]),
    ({"type": "null", "minItems": 2}, [None, 0]),
    ({"type": "integer", "minLength": 3}, [1, "abc"]),
    ({"type": ["string", "null"]}, ["a", None, 1]),
    ({"type": "number", "minimum": 2}, [2, 3.5, 1]),
    ({"enum": ["b", "a", "b", 'c"é']}, ["a", "b", 'c"é', "c"]),
    ({"type": "string", "enum": ["ab", "abc"]}, ["ab", "abc", "a"]),
    ({"type": "string", "enum": ["ab", 1]}, ["ab", 1]),
    ({"type": "integer", "enum": ["ab", 1]}, [1, "ab"]),
    ({"type": ["string", "null"], "enum": ["ab", None]}, ["ab", None, "a"]),
    ({"enum": ["ab", "c"], "maxLength": 1}, ["c", "ab"]),
    ({"enum": ["ab", "c"], "not": {"const": "c"}}, ["ab", "c"]),
    ({"enum": ["ab", "c"], "const": "c"}, ["c", "ab"]),
    ({"type": "string", "enum": ["a"], "required": ["b"], "items": False}, ["a", "b"]),
]


def followed(schema: Any, values: list[Any]) -> list[Any]:
    """What each state of these texts says: its mask, and what would complete it."""
    compiler = GrammarCompiler(Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1]))
    grammar = compiler.compile(GrammarSpec("json_schema", json.dumps(schema), BY_FRONT_END))
    return [
        seen
        for value in values
        for seen in states(grammar.matcher(), json.dumps(value, ensure_ascii=False))
    ]


def states(matcher: GrammarMatcher, text: str) -> list[Any]:
    mask, found = allocate_bitmask(1, len(TOKENS)), []
    for byte in text.encode():
        matcher.fill_bitmask(mask, 0)
        found.append((mask.tolist(), matcher.shortest_completion()))
        if not matcher.accept_bytes(bytes((byte,))):
            break
    return [*found, matcher.is_accepting()]


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_plain_schemas_allow_what_the_general_way_does(
    schema: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = followed(schema, values)
    monkeypatch.setattr(json_values, "plain_object", lambda *_: None)
    monkeypatch.setattr(json_values, "plain_array", lambda *_: None)
    assert plain == followed(schema, values)
    assert plain[-1] is False  # the last text of each is none of it


@pytest.mark.parametrize(("schema", "values"), SCALARS)
@pytest.mark.parametrize("required", [[], ["a"]])
def test_plain_scalars_are_what_the_general_way_finds(
    schema: Any, values: list[Any], required: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = {"type": "object", "properties": {"a": schema, "b": True}, "required": required}
    wholes = [(schema, values), (inside, [{"a": value} for value in values])]
    plain = [followed(*whole) for whole in wholes]
    for module in (json_plain, json_values):
        monkeypatch.setattr(module, "leaf", lambda _: None)
    for module in (json_plain, json_proofs):
        monkeypatch.setattr(module, "plainly_has_value", lambda _: False)
    assert plain == [followed(*whole) for whole in wholes]
    assert not any(found[-1] for found in plain)  # the last value of each is none of it


@pytest.mark.parametrize("value", [False, {"type": []}, {"enum": []}, {"enum": [1]}, {"not": {}}])
def test_what_no_look_shows_is_left_open(value: Any) -> None:
    assert not json_proofs.plainly_has_value(value)


def test_any_value_is_one_rule_for_all_grammars() -> None:
    compiler = GrammarCompiler(Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1]))
    grammars = [
        compiler.compile(GrammarSpec("json_schema", json.dumps({"properties": {name: True}})))
        for name in ("a", "b")
    ]
    states = [
        grammar.engine.after_bytes(grammar.start, b'{"%s": {"c": [' % name)
        for grammar, name in zip(grammars, (b"a", b"b"), strict=True)
    ]
    sizes = getattr(compiler._engine, "sizes", None)
    if sizes is None:
        pytest.skip("the engine in Python keeps no counts")
    mask = allocate_bitmask(1, len(TOKENS))
    grammars[0].engine.fill_row(states[0], mask, 0)
    before = sizes()["nodes"]
    grammars[1].engine.fill_row(states[1], mask, 0)
    assert sizes()["nodes"] - before < 20  # what is behind the value, and nothing within it


@pytest.mark.parametrize(
    ("pattern", "lengths"),
    [
        ("^a{2,4}b?$", (2, 5)),
        ("^(ab|c)+$", (1, None)),
        ("a", (1, None)),
        ("^$", (0, 0)),
        ("^[0-9]{3}(?!5)$", (3, 3)),
        ("^(?!a).{1,3}$", (1, 3)),
    ],
)
def test_bounds_that_every_text_keeps_are_left_out(
    pattern: str, lengths: tuple[int, int | None]
) -> None:
    found, (least, most) = json_keywords.pattern(pattern), lengths
    assert json_texts.of_length(found, 0, None) is found
    assert json_texts.of_length(found, least, most) is found
    assert json_texts.of_length(found, least + 1, most) is not found
    if most is None:
        assert json_texts.of_length(found, least, 1000) is not found
    else:
        assert json_texts.of_length(found, least, most - 1) is not found


def test_a_closed_object_has_no_room_for_other_members() -> None:
    closed = {**POINT, "additionalProperties": False}
    schema = {**closed, "not": {"enum": [{"x": 1, "y": 2}]}}
    algebra = Algebra(Document(json.dumps(schema)), lambda *_: None, formats=True)
    shapes = algebra.evaluate(algebra.document.root, "object")
    assert [shape.some for shape in shapes] == [()] * len(shapes)
    assert len(shapes) == 3  # another x, another y, or no x
    values = [{"x": 1, "y": 2}, {"x": 2, "y": 2}, {"y": 2}, {"x": 1, "y": 3}, {"y": 2, "z": 1}]
    assert [followed(schema, [value])[-1] for value in values] == [False, True, True, True, False]
