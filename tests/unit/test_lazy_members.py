"""Members that wait: one table reads their names, their values are made when a text gets there."""

import json
import re
from typing import Any

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import Engine
from radixgen.grammars.expr import Node, Rule, byte_set, concat, literal, star, union
from radixgen.grammars.json_document import Document
from radixgen.grammars.json_proofs import has_value
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

TOKENS = [*(bytes([b]) for b in range(256)), b"ab", b"abc", b"bcd", b"cd1", b"c1", b"d2", None]
VOCABULARY = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])


def way(word: bytes) -> Node:
    """A word before a rule of its own."""
    rest = concat(star(byte_set(b"12")), literal(word[:1]))
    return concat(literal(word), Rule(word, lambda: rest))


def ways(*words: bytes) -> Node:
    return union(*map(way, words))


@pytest.mark.parametrize(
    "node",
    [
        ways(b"abc", b"abd", b"acd", b"b", b"cd"),
        ways(b"a", b"ab", b"abc", b"b", b"c"),  # one begins another: no table
        union(ways(b"abc", b"abd", b"acd", b"bc"), literal(b"ab"), star(literal(b"a"))),
    ],
)
def test_a_table_of_words_reads_what_its_parts_read(node: Node) -> None:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    engines: list[Engine] = [
        PythonEngine(VOCABULARY, 1 << 28),
        NativeEngine(VOCABULARY, library, 1 << 28),
    ]
    waiting = [tuple(e.start(node) for e in engines)]
    seen = set(waiting)
    while waiting:
        states = waiting.pop()
        plain, native = (allowed(e, s) for e, s in zip(engines, states, strict=True))
        assert plain == native
        lengths = {len(e.shortest_tokens(s)) for e, s in zip(engines, states, strict=True)}
        assert len(lengths) == 1
        for token in plain - VOCABULARY.end_ids:
            after = tuple(e.after_token(s, token) for e, s in zip(engines, states, strict=True))
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    assert len(seen) > 5


def allowed(engine: Engine, state: int) -> set[int]:
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    engine.fill_row(state, row, 0)
    return set(np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist())


def accepts(schema: dict[str, Any], text: str) -> bool:
    matcher = (
        GrammarCompiler(VOCABULARY)
        .compile(GrammarSpec("json_schema", json.dumps(schema)))
        .matcher()
    )
    return matcher.accept_bytes(text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize("required", [[], ["p0"], ["p20", "p33"], ["p39"]])
@pytest.mark.parametrize("more", [True, False])
def test_members_far_apart(required: list[str], more: bool) -> None:
    names = [f"p{i}" for i in range(40)]
    values = [{"type": "integer"}, {"enum": ["x"]}, {"$ref": "#"}, {"type": "array"}]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: values[i % 2] for i, name in enumerate(names)},
        "required": required,
        "additionalProperties": more,
    }
    value = {name: i if i % 2 == 0 else "x" for i, name in enumerate(names)}
    for step in (1, 3, 17, 39):
        for start in (0, 5, 20):
            kept = {n: value[n] for n in names[start::step]}
            whole = set(required) <= set(kept)
            assert accepts(schema, json.dumps(kept)) == whole
            assert accepts(schema, json.dumps(kept | {"other": 1})) == (whole and more)
    assert not accepts(schema, json.dumps(dict(reversed(value.items()))))
    assert not accepts(schema, '{"p1": "y"}')


DEFS = {"o": {"type": "object", "required": ["a"], "properties": {"a": {"type": "null"}}}}
PLAIN: list[dict[str, Any]] = [
    {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.01},
    {"type": "integer", "exclusiveMinimum": 7},
    {"type": "string", "minLength": 3},
    {"type": "string", "format": "uri"},
    {"required": ["a"], "properties": {"a": {"type": "null"}}},
    {"type": "array", "minItems": 2, "items": {"type": ["null", "string"]}},
    {"$ref": "#/$defs/b", "$defs": {"b": {"anyOf": [{"type": "boolean"}, False]}}},
    {"type": "object", "anyOf": [{"type": "string"}, {"$ref": "#/$defs/o"}], "$defs": DEFS},
    {"type": ["object", "null"], "oneOf": [{"$ref": "#/$defs/o"}, {"type": "null"}], "$defs": DEFS},
]
NOT_PLAIN: list[dict[str, Any]] = [
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": 3, "maximum": 2},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "object", "required": ["a"], "patternProperties": {"": False}},
    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
    {"type": "array", "minItems": 1, "items": False},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "array", "minItems": 1, "prefixItems": [False]},
    {"type": "string", "pattern": "a^b"},
    {"type": "integer", "enum": [0.5]},
    {"type": []},
    {"type": "object", "anyOf": [{"type": "string"}, {"type": "array"}]},
    {"type": "object", "oneOf": [{"type": "object"}, {"type": "object"}]},
    {"type": "null", "oneOf": [{"type": "object"}, {"type": "string"}]},
]


@pytest.mark.parametrize("schema", PLAIN)
def test_a_look_proves_a_value(schema: dict[str, Any]) -> None:
    assert has_value(Document(json.dumps(schema)).root)
    GrammarCompiler(VOCABULARY).compile(GrammarSpec("json_schema", json.dumps(schema)))


@pytest.mark.parametrize("schema", NOT_PLAIN)
def test_a_look_proves_no_more_than_there_is(schema: dict[str, Any]) -> None:
    assert not has_value(Document(json.dumps(schema)).root)
    with pytest.raises(InvalidGrammar):
        GrammarCompiler(VOCABULARY).compile(GrammarSpec("json_schema", json.dumps(schema)))


@pytest.mark.parametrize("pattern", [".*", ".+", "(ab)?", "[a-c]+", "(a|b?)+", "(ab)+", "[^a]{2,}"])
def test_what_is_searched_for_is_found_anywhere(pattern: str) -> None:
    for value in ("", "a", "b", "xabx", "\n", "\né", "aab", "aé", "xx"):
        found = re.search(pattern, value) is not None
        assert accepts({"pattern": pattern}, json.dumps(value)) == found
        members = {"patternProperties": {pattern: False}}
        assert accepts(members, json.dumps({value: 1})) != found
