"""Objects and strings as the native engine puts them together, against the Python engine.

The one asks Python for the parts of a chain of members (`chain.py`) and takes masks of a string
from what stands before its quote (`native/heads.c`); the other expands every rule.
"""

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.engine import Engine
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary

LONG = {f"n{i}": {"type": "integer"} for i in range(20)}
FORMATS = {"type": "string", "pattern": "^[a-z]+(/[a-z.]+){0,3}$"}
KEYED = {"type": "object", "properties": {"k": FORMATS}}
SCHEMAS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a long chain": (
        {"properties": LONG},
        [{}, {"n3": 1, "n8": 2, "n19": 3, "other": 4}, {"n16": 0}],
        [{"n8": 1, "n3": 2}, {"n7": "x"}, {"other": 4, "n1": 1}],
    ),
    "needed members in a long chain": (
        {"properties": LONG, "required": ["n9", "n17"]},
        [{"n9": 1, "n17": 2}, {"n0": 0, "n9": 1, "n12": 1, "n17": 2, "n18": 3, "x": None}],
        [{}, {"n9": 1}, {"n17": 2}, {"n10": 1, "n17": 2}],
    ),
    "no other members": (
        {"properties": LONG, "additionalProperties": False},
        [{}, {"n19": 1}],
        [{"n20": 1}, {"n": 1}],
    ),
    "other members of a schema": (
        {"properties": {"a": {}}, "additionalProperties": {"type": "boolean"}},
        [{"a": 1, "b": True}, {"ab": False}],
        [{"b": 1}, {"b": True, "a": 1}],
    ),
    "a name that only a false schema has": (
        {"properties": {"a": False, "b": {}}},
        [{"b": 1, "c": 2}, {}],
        [{"a": 1}, {"b": 1, "a": 1}],
    ),
    "names that begin each other, and the empty one": (
        {"properties": {"ab": {}, "": {"type": "null"}, "a": {}, "abc": {}}},
        [{"ab": 1, "": None, "a": 2, "abcd": 3}, {"b": 1}],
        [{"": 1}, {"a": 1, "ab": 2}],
    ),
    "names with two spellings": (
        {"properties": {"é": {"type": "null"}, 'a"b': {"type": "null"}, "t\t": {}}},
        [{"é": None, 'a"b': None}, {"x": 1}],
        [{"é": 1}, {'a"b': 1}],
    ),
    "values of which only the grammar tells whether they are": (
        {
            "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"pattern": "^x", "maxLength": 3}},
            "required": ["a"],
            "$defs": {"x": {"minProperties": 1, "properties": {"y": {"type": "null"}}}},
        },
        [{"a": {"y": None}, "b": "xab"}, {"a": 1}],
        [{"a": {}}, {"b": "x"}, {"a": 1, "b": "xabc"}],
    ),
    "references of references": (
        {
            "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"properties": {"a": {"$ref": "#"}}}},
        },
        [{"a": {"a": {"b": {}}}}, {"b": 3}],
        [{"a": {"a": {"b": {"b": [], "a": 1}}}}],
    ),
    "members that two schemas declare": (
        {
            "allOf": [
                {"properties": LONG, "required": ["n9"]},
                {"properties": {"a": {}, "é": {"type": "null"}, "n3": {}, "b": FORMATS}},
            ],
            "type": "object",
            "required": ["a"],
        },
        [
            {"n0": 1, "a": 2, "n3": 1, "n9": 1, "é": None, "b": "x/y", "n10": 3, "other": 1},
            {"a": 1, "é": None, "n9": 1},
            {"n9": 1, "a": 1},
        ],
        [{"n9": 1}, {"a": 1}, {"a": 1, "n10": 1}, {"n9": 1, "a": 1, "é": 1}, {"n9": 1, "o": 1}],
    ),
    "alternatives that share members": (
        {
            "type": "object",
            "properties": {"name": {}, "n": {"type": "null"}},
            "required": ["name"],
            "oneOf": [
                {"properties": {"type": {"const": text}, text: KEYED}, "required": ["type"]}
                for text in ("a", "b")
            ],
        },
        [
            {"name": 1, "type": "a", "a": {"k": "x"}, "n": None, "m": 1},
            {"type": "b", "b": {}, "name": []},
            {"name": 0, "n": None, "type": "b"},
        ],
        [
            {"name": 1},
            {"type": "a"},
            {"name": 1, "type": "c"},
            {"name": 1, "type": "a", "a": {"k": "!"}},
            {"n": None, "name": 1, "type": "a"},
        ],
    ),
    "orders that end, with values that only the grammar tells of": (
        {
            "allOf": [
                {"properties": {"a": {}, "b": {"$ref": "#/$defs/x"}, "c": {"$ref": "#/$defs/no"}}},
                {"properties": {"d": {"$ref": "#/$defs/x"}, "e": {"$ref": "#/$defs/no"}}},
                {"properties": {"f": False, "g": {"type": "null"}}},
                {"properties": {"a": {"type": "integer"}}},
            ],
            "properties": {name: {} for name in "abcdefg"},
            "additionalProperties": False,
            "type": "object",
            "$defs": {
                "x": {"minProperties": 1, "properties": {"y": {"type": "null"}}},
                "no": {"type": "object", "minProperties": 1, "additionalProperties": False},
            },
        },
        [{}, {"a": 1, "b": {"y": None}, "d": {"z": 1}, "g": None}, {"d": 1}],
        [{"c": {}}, {"e": {"y": None}}, {"f": 1}, {"b": {}}, {"h": 1}],
    ),
    "orders without a member": (
        {
            "allOf": [{"properties": {"a": {"$ref": "#/$defs/no"}}}, {"properties": {"b": {}}}],
            "additionalProperties": False,
            "type": "object",
            "properties": {"a": {}, "b": {"$ref": "#/$defs/no"}},
            "$defs": {"no": {"type": "object", "minProperties": 1, "additionalProperties": False}},
        },
        [{}],
        [{"a": {}}, {"b": {"x": 1, "y": 2}}],
    ),
    "members of a pattern, and no others": (
        {
            "type": "object",
            "properties": {"ab": {}, "c": {"type": "null"}},
            "patternProperties": {"^a": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{"ab": 1, "c": None, "a": 2, "abc": 3}, {"abb": 0}, {}],
        [{"b": 1}, {"a": "x"}, {"ab": None}, {"c": None, "ab": 1}],
    ),
    "a needed member that is declared nowhere, and members of a pattern": (
        {
            "type": "object",
            "properties": {"a": {}},
            "required": ["b"],
            "patternProperties": {"^x": {"type": "integer"}},
        },
        [{"b": 1}, {"a": 1, "b": 1, "xz": 1}, {"b": 1, "zz": "x", "xa": 2}],
        [{"a": 1}, {"b": 1, "x": "x"}, {"xz": 1, "b": 1}],
    ),
    "members of a pattern without values": (
        {
            "type": "object",
            "properties": {"c": {"type": "null"}},
            "patternProperties": {"^a": {"type": "integer", "minimum": 2, "maximum": 1}},
            "additionalProperties": False,
        },
        [{"c": None}, {}],
        [{"a": 1}, {"c": None, "a": 2}],
    ),
    "one text before different marks": (
        {"type": "array", "items": {"anyOf": [FORMATS, KEYED]}},
        [["ab/c", {"k": "ab/c.d"}, "a"], [{"k": "x", "y": "!"}]],
        [["ab/"], ["A"], [{"k": "a//b"}]],
    ),
    "a text of bounded length that is searched": (
        {"items": {"type": "string", "pattern": "^(\\S+ ){0,2}\\S+$", "maxLength": 9}},
        [["ab cd e", "x", "abcdefghi"], ["a b c"]],
        [["a b c d"], ["abcdefghij"], [" "]],
    ),
}


def vocabulary() -> Vocabulary:
    draw = random.Random(11)
    texts = [json.dumps(v).encode() for _, good, bad in SCHEMAS.values() for v in good + bad]
    pieces = {t[i : i + n] for t in texts for i in range(len(t)) for n in (2, 3, 5)}
    letters = b'abcxn01."/ ,:{}\\'
    pieces |= {bytes(draw.choices(letters, k=draw.randint(2, 5))) for _ in range(200)}
    tokens: list[bytes | None] = [bytes([b]) for b in range(256)]
    tokens += [*sorted(pieces), b'"a', b'"a', None]
    return Vocabulary.from_tokens(tokens, [len(tokens) - 1])


VOCABULARY = vocabulary()


@pytest.fixture(scope="module")
def engines() -> tuple[PythonEngine, NativeEngine]:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    return PythonEngine(VOCABULARY, 1 << 30), NativeEngine(VOCABULARY, library, 1 << 30)


def row_of(engine: Engine, state: int) -> list[int]:
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    engine.fill_row(state, row, 0)
    found: list[int] = row[0].tolist()
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_masks_and_verdicts_are_those_of_the_rules(
    name: str, engines: tuple[PythonEngine, NativeEngine]
) -> None:
    schema, good, bad = SCHEMAS[name]
    python, native = engines
    for value, is_good in [*((v, True) for v in good), *((v, False) for v in bad)]:
        # A grammar each: what one engine has expanded the other has to expand by itself.
        states = [
            engine.start(compile_schema(json.dumps(schema), {}, RuleSet()))
            for engine in (python, native)
        ]
        for byte in json.dumps(value, ensure_ascii=False).encode():
            assert row_of(native, states[1]) == row_of(python, states[0])
            one = bytes([byte])
            states = [python.after_bytes(states[0], one), native.after_bytes(states[1], one)]
            assert bool(states[0]) == bool(states[1])
            if not states[0]:
                break
        assert (bool(states[0]) and python.is_accepting(states[0])) == is_good, value
        assert (bool(states[1]) and native.is_accepting(states[1])) == is_good, value
        if states[0]:
            assert len(native.shortest_tokens(states[1])) == len(python.shortest_tokens(states[0]))


def test_objects_of_every_mix_of_keywords_take_the_same_members() -> None:
    """Members in any order, some twice, under names that are declared, needed, matched or none."""
    library, vocabulary = load_library(), Vocabulary.from_tokens([b"x", None], [1])
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    parts: list[list[dict[str, Any]]] = [
        [{}, {"properties": {"a": {}}}, {"properties": {"\u00e9": {}, "a": {"type": "null"}}}],
        [{}, {"required": ["b"]}, {"required": ["a", "xb"]}],
        [
            {},
            {"patternProperties": {"^x": {"type": "integer"}}},
            {"propertyNames": {"maxLength": 2}},
        ],
        [{}, {"allOf": [{"properties": {"b": {}, "xb": {}}}]}, {"additionalProperties": False}],
    ]
    names = ("a", "b", "xb", "\u00e9", "zz")
    texts = [
        "{" + ", ".join(f'"{name}": 1' for name in chosen) + "}"
        for count in range(4)
        for chosen in itertools.product(names, repeat=count)
    ]
    for mix in itertools.product(*parts):
        schema = json.dumps(
            {"type": "object"} | dict(item for part in mix for item in part.items())
        )
        python, native = (
            PythonEngine(vocabulary, 1 << 30),
            NativeEngine(vocabulary, library, 1 << 30),
        )
        taken: list[list[str]] = []
        for engine in (python, native):
            try:
                start = engine.start(compile_schema(schema, {}, RuleSet()))
            except InvalidGrammar:
                taken.append(["refused"])
                continue
            ends = ((text, engine.after_bytes(start, text.encode())) for text in texts)
            taken.append([text for text, end in ends if end and engine.is_accepting(end)])
        assert taken[0] == taken[1], schema
