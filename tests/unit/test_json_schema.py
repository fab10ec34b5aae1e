"""The JSON Schema front end, keyword by keyword: texts that it must accept and must refuse."""

import json
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema, describe

COMPACT = {"whitespace": "compact"}


def verdicts(schema: Any, texts: list[str], **options: Any) -> list[bool]:
    node = compile_schema(json.dumps(schema), {**COMPACT, **options}, RuleSet())
    return recognised(node, texts)


def check(schema: Any, accept: list[str], refuse: list[str], **options: Any) -> None:
    found = verdicts(schema, accept + refuse, **options)
    wanted = [True] * len(accept) + [False] * len(refuse)
    assert found == wanted, [
        (text, was)
        for text, was, want in zip(accept + refuse, found, wanted, strict=True)
        if was != want
    ]


INTEGER = {"type": "integer"}
CLOSED = {"additionalProperties": False}

CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "anything": (True, ["1", '{"a":[null,{}]}', '""', "-1.5e3"], ["", "01", "{", "nul", '{"a"}']),
    "keywords without a type speak of their own kind": (
        {"minLength": 2, "minimum": 3, "required": ["a"], "maxItems": 1},
        ['"ab"', "3", '{"a":1}', "[1]", "true", "null"],
        ['"a"', "2", "{}", "[1,2]"],
    ),
    "type lists": ({"type": ["integer", "null"]}, ["1", "null"], ["1.5", '"1"', "true"]),
    "integer": (INTEGER, ["0", "-7", "12345678901234567890"], ["1.5", "01", "-0", "1e2", "+1"]),
    "bounds are exact": (
        {"type": "number", "exclusiveMinimum": 0.1, "maximum": 2.5},
        ["0.10000000000000000001", "2.5", "2.50", "1", "1.5e-1", "2.5e+00"],
        ["0.1", "0.10", "2.51", "-1", "1e-1", "2.6e0", "25e-1"],
    ),
    "bounds beyond a double": (
        {"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740995},
        ["9007199254740993", "9007199254740995"],
        ["9007199254740992", "9007199254740996"],
    ),
    "draft 4 writes exclusive bounds as booleans": (
        {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5},
        ["4", "5"],
        ["3", "6"],
    ),
    "multiples": ({"type": "integer", "multipleOf": 7, "minimum": 10}, ["14", "700"], ["7", "15"]),
    "decimal multiples": (
        {"type": "number", "multipleOf": 0.01},
        ["0.01", "3", "-2.5", "1.250"],
        ["0.001", "1.255"],
    ),
    "large multiples": (
        {"type": "integer", "multipleOf": 123456789},
        ["0", "123456789", "-246913578"],
        ["1", "123456788"],
    ),
    "not a multiple": (
        {"type": "integer", "not": {"multipleOf": 3}, "minimum": 0, "maximum": 10000},
        ["1", "9998"],
        ["0", "9999", "10001"],
    ),
    "pattern is a search": ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    "pattern, length and format together": (
        {"type": "string", "pattern": "^[a-z.]+$", "maxLength": 4, "minLength": 2},
        ['"ab"', '"a.cd"'],
        ['"a"', '"abcde"', '"aB"'],
    ),
    "length counts code points, an escape is one": (
        {"type": "string", "minLength": 2, "maxLength": 2},
        ['"é😀"', '"\\n\\""', '"\\ud83d\\ude00a"'],
        ['"😀"', '"abc"', '"\\n"'],
    ),
    "formats assert": ({"format": "date"}, ['"2024-02-29"', "3"], ['"2023-02-29"', '"x"']),
    "unknown formats do not": ({"type": "string", "format": "topic"}, ['"x"'], ["1"]),
    "enum by value": (
        {"enum": [1, "a", None, [1, {"b": 2}], {"x": [], "y": "é"}]},
        ["1", '"a"', "null", '[1,{"b":2}]', '{"x":[],"y":"é"}'],
        ["2", '"b"', "[1]", "{}", '{"x":[]}', '{"x":[],"y":"é","z":1}'],
    ),
    "enum beside other keywords is filtered": (
        {"enum": ["ab", "abc", 5, 50], "maxLength": 2, "minimum": 6},
        ['"ab"', "50"],
        ['"abc"', "5"],
    ),
    "true is not 1": ({"const": 1}, ["1"], ["true", "1.5"]),
    "const and enum meet": ({"const": 2, "enum": [1, 2]}, ["2"], ["1"]),
    "optional members and commas": (
        {"properties": {"a": INTEGER, "b": INTEGER, "c": INTEGER}, "required": ["b"], **CLOSED},
        ['{"b":1}', '{"a":1,"b":2}', '{"b":1,"c":2}', '{"a":1,"b":2,"c":3}'],
        [
            "{}",
            '{"a":1}',
            '{"a":1,"c":2}',
            '{"b":1,}',
            '{,"b":1}',
            '{"c":1,"b":2}',
            '{"b":1,"b":2}',
        ],
    ),
    "undeclared members come last": (
        {"properties": {"a": INTEGER}, "additionalProperties": {"type": "null"}},
        ['{"a":1,"b":null}', '{"b":null}', '{"aa":null}', '{"":null}'],
        ['{"b":1}', '{"a":null}', '{"b":null,"a":1}'],
    ),
    "an escape smuggles no declared name in": (
        {"properties": {"ab": INTEGER}, "additionalProperties": {"type": "null"}},
        ['{"ab":1}', '{"ac":null}', '{"\\u00e9":null}'],
        ['{"\\u0061b":null}', '{"a\\u0062":null}', '{"ab":null}'],
    ),
    "patternProperties meet properties": (
        {
            "properties": {"x1": {"minimum": 5}},
            "patternProperties": {"^x": INTEGER, "1$": {"maximum": 9}},
            **CLOSED,
        },
        ['{"x1":7}', '{"x2":1}', '{"x2":1,"y1":"s"}'],
        ['{"x1":4}', '{"x1":10}', '{"x1":7.5}', '{"x21":10}', '{"y":1}'],
    ),
    "propertyNames": (
        {"propertyNames": {"pattern": "^[ab]+$"}, "additionalProperties": INTEGER},
        ["{}", '{"ab":1}'],
        ['{"c":1}', '{"a":"x"}'],
    ),
    "propertyNames from a list": (
        {"propertyNames": {"enum": ["a", "b"]}},
        ["{}", '{"a":1,"b":2}', '{"b":1,"a":2}'],
        ['{"c":1}', '{"a":1,"a":2}'],
    ),
    "maxProperties": ({"type": "object", "maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":2}']),
    "minProperties": (
        {"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, **CLOSED},
        ['{"a":1,"c":2}', '{"a":1,"b":2,"c":3}'],
        ["{}", '{"b":1}'],
    ),
    "a member that must be there, of any name": (
        {"type": "object", "not": {"additionalProperties": INTEGER}},
        ['{"a":"s"}', '{"a":1,"b":"s"}'],
        ["{}", '{"a":1}', '{"a":"s","a":1}'],
    ),
    "an impossible member vanishes": (
        {"properties": {"a": False, "b": INTEGER}, **CLOSED},
        ["{}", '{"b":1}'],
        ['{"a":1}'],
    ),
    "items": (
        {"items": INTEGER, "minItems": 1, "maxItems": 2},
        ["[1]", "[1,2]"],
        ["[]", "[1,2,3]"],
    ),
    "prefixItems": (
        {"type": "array", "prefixItems": [INTEGER, {"type": "null"}], "items": {"type": "boolean"}},
        ["[]", "[1]", "[1,null]", "[1,null,true,false]"],
        ["[null]", "[1,2]", "[1,null,3]"],
    ),
    "items as a list, as up to 2019-09": (
        {"items": [INTEGER], "additionalItems": False},
        ["[]", "[1]"],
        ["[1,2]", '["a"]'],
    ),
    "contains": (
        {"type": "array", "contains": INTEGER, "minContains": 2, "maxContains": 2},
        ["[1,2]", '[1,"x",2,null]'],
        ["[]", "[1]", "[1,2,3]"],
    ),
    "uniqueItems of a finite set": (
        {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
        ["[]", '["b","a",1]'],
        ['["a","a"]', "[1,1]"],
    ),
    "allOf merges": (
        {
            "allOf": [
                {"properties": {"a": {"minimum": 3}}, "required": ["a"]},
                {"properties": {"a": INTEGER, "b": {}}},
            ],
            "type": "object",
        },
        ['{"a":3}', '{"a":4,"b":0}', '{"b":0,"a":4}'],
        ['{"a":2}', '{"a":3.5}', "{}"],
    ),
    "anyOf with siblings": (
        {"anyOf": [{"minimum": 10}, {"maximum": 2}], "type": "integer"},
        ["10", "2"],
        ["5", "2.5"],
    ),
    "oneOf": (
        {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]},
        ["1", "6"],
        ["2", "3", "5"],
    ),
    "oneOf of objects that overlap": (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"b":1,"c":2}'],
        ["{}", '{"a":1,"b":2}', '{"b":1,"a":2}'],
    ),
    "not": ({"not": {"type": ["string", "null"]}}, ["1", "[]", "{}"], ['"a"', "null"]),
    "not of an object": (
        {"type": "object", "not": {"properties": {"a": INTEGER}, "required": ["b"]}},
        ["{}", '{"a":"s","b":1}', '{"a":1}'],
        ['{"b":1}', '{"a":1,"b":1}'],
    ),
    "not of an array": (
        {"type": "array", "not": {"items": INTEGER, "minItems": 1}},
        ["[]", '["a"]', '[1,"a",2]'],
        ["[1]", "[1,2]"],
    ),
    "not of an enum": (
        {"enum": [{"a": 1}, {"a": 2}, [1]], "not": {"enum": [{"a": 2}, [1]]}},
        ['{"a":1}'],
        ['{"a":2}', "[1]"],
    ),
    "if, then, else": (
        {
            "properties": {"t": {"enum": ["x", "y"]}, "v": {}},
            "required": ["t"],
            "if": {"properties": {"t": {"const": "x"}}},
            "then": {"required": ["v"]},
            "else": {"properties": {"v": False}},
            "type": "object",
        },
        ['{"t":"x","v":1}', '{"t":"y"}'],
        ['{"t":"x"}', '{"t":"y","v":1}'],
    ),
    "dependencies of both kinds": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}, "c": {}},
            "dependencies": {"a": ["b"], "c": {"properties": {"a": False}}},
            **CLOSED,
        },
        ["{}", '{"b":1}', '{"a":1,"b":2}', '{"b":1,"c":2}'],
        ['{"a":1}', '{"a":1,"b":2,"c":3}'],
    ),
    "references, siblings and recursion": (
        {
            "$defs": {
                "tree": {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}, **CLOSED}
            },
            "$ref": "#/$defs/tree",
            "type": "object",
        },
        ["{}", '{"kids":[{},{"kids":[{"kids":[]}]}]}'],
        ['{"kids":[{"x":1}]}', "[]"],
    ),
    "anchors and ids": (
        {
            "$id": "http://a.test/root",
            "$defs": {
                "n": {"$anchor": "num", "type": "integer"},
                "s": {"$id": "inner", "$defs": {"t": {"type": "string"}}, "$ref": "#/$defs/t"},
            },
            "anyOf": [{"$ref": "#num"}, {"$ref": "inner"}],
        },
        ["1", '"s"'],
        ["null", "1.5"],
    ),
    "up to draft 7 a reference hides what stands beside it": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"any": {}},
            "properties": {"a": {"$ref": "#/definitions/any", "type": "null"}},
        },
        ['{"a":1}'],
        [],
    ),
    "unevaluatedProperties sees what held": (
        {
            "type": "object",
            "properties": {"a": {}},
            "anyOf": [{"properties": {"b": INTEGER}, "required": ["b"]}, {"required": ["a"]}],
            "unevaluatedProperties": False,
        },
        ['{"a":1}', '{"a":1,"b":2}', '{"b":2}'],
        ['{"a":1,"b":"x"}', '{"a":1,"c":2}', "{}"],
    ),
    "names are literal": (
        {"properties": {'a"(.)\n': INTEGER}, "required": ['a"(.)\n'], **CLOSED},
        ['{"a\\"(.)\\n":1}'],
        ['{"a\\"(x)\\n":1}'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_keyword_is_enforced(name: str) -> None:
    schema, accept, refuse = CASES[name]
    check(schema, accept, refuse)


def test_any_order_on_request() -> None:
    schema = {"properties": {"a": INTEGER, "b": INTEGER}, "required": ["b"]}
    texts = ['{"b":1,"a":2}', '{"x":0,"b":1,"a":2}', '{"a":1,"b":2}']
    check(schema, texts, ['{"a":1}', '{"b":1,"b":2}', '{"b":"x"}'], property_order="any")
    assert verdicts(schema, texts) == [False, False, True]


def test_whitespace() -> None:
    schema = {"type": "object", "additionalProperties": {"items": INTEGER}}
    text = {"a": [1, 2], "b": []}
    indented, spaced = json.dumps(text, indent=4), json.dumps(text)
    compact = json.dumps(text, separators=(",", ":"))
    every = [compact, spaced, indented]
    assert verdicts(schema, every, whitespace="flexible") == [True, True, True]
    assert verdicts(schema, every, whitespace="compact") == [True, False, False]
    fixed = {"item_separator": ", ", "key_separator": ": "}
    assert verdicts(schema, every, **fixed) == [False, True, False]
    endless = '{"a":' + " " * 65 + "[]}"
    assert verdicts(schema, [endless], whitespace="flexible") == [False]
    assert verdicts(schema, [endless], whitespace="flexible", max_whitespace=65) == [True]


def test_formats_as_annotations() -> None:
    check({"format": "date"}, ['"x"'], [], formats="annotate")


REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"a": {"$ref": "http://else.where/x"}}}, r"\$ref", "#/properties/a/$ref"),
    (
        {"items": {"uniqueItems": True, "minItems": 2, "items": {"type": "integer"}}},
        "uniqueItems",
        "#/items/uniqueItems",
    ),
    ({"pattern": "(a)\\1"}, "pattern", "#/pattern"),
    ({"properties": {"p/q": {"pattern": "["}}}, "pattern", "#/properties/p~1q/pattern"),
    ({"minProperties": 3, "type": "object"}, "minProperties", "#/minProperties"),
    ({"allOf": [{"type": "array", "not": {"uniqueItems": True}}]}, "uniqueItems", "#/allOf/0/not"),
    ({"format": "idn-hostname"}, "format", "#/format"),
    ({"type": "string", "minLength": "3"}, "minLength", "#/minLength"),
    ({"type": "text"}, "type", "#/type"),
    ({"required": "a"}, "required", "#/required"),
    ({"$ref": "#/$defs/none"}, "points to nothing", "#/$ref"),
    ({"$ref": "#/anyOf/-1", "anyOf": [{}]}, "points to nothing", "#/$ref"),
    ({"$ref": "#/anyOf/00", "anyOf": [{}]}, "points to nothing", "#/$ref"),
    ({"$ref": "#/anyOf/%D9%A0", "anyOf": [{}]}, "points to nothing", "#/$ref"),
    (
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        "itself",
        "#/$defs/a",
    ),
]


@pytest.mark.parametrize(("schema", "message", "path"), REFUSED)
def test_what_cannot_be_enforced_is_refused_with_its_path(
    schema: Any, message: str, path: str
) -> None:
    with pytest.raises(InvalidGrammar, match=message) as caught:
        compile_schema(json.dumps(schema), {}, RuleSet())
    assert caught.value.path.startswith(path)


UNSATISFIABLE: list[Any] = [
    False,
    {"enum": []},
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    {"type": "string", "pattern": "^a$", "minLength": 2},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": False, "minItems": 1},
    {"const": 1, "type": "string"},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "integer", "multipleOf": 4, "not": {"multipleOf": 2}},
    {"anyOf": [{"minimum": 1}, {}], "not": {}},
]


@pytest.mark.parametrize("schema", UNSATISFIABLE)
def test_an_unsatisfiable_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidGrammar, match="no value"):
        compile_schema(json.dumps(schema), {}, RuleSet())


def test_without_strict_the_rest_is_enforced_and_the_gaps_are_listed() -> None:
    schema = {"type": "array", "items": INTEGER, "uniqueItems": True, "x-note": 1}
    schema |= {"minItems": 2, "maxItems": 2}
    node, notes = describe(json.dumps(schema), {**COMPACT, "strict": False}, RuleSet())
    assert recognised(node, ["[1,1]", "[1,2]", "[1,2,3]", '["a",1]']) == [True, True, False, False]
    assert [(note.keyword, note.path) for note in notes.unchecked] == [("uniqueItems", "#")]
    assert [(note.keyword, note.path) for note in notes.ignored] == [("x-note", "#")]


@pytest.mark.parametrize(
    "options",
    [
        {"whitespace": "wide"},
        {"max_whitespace": -1},
        {"max_whitespace": True},
        {"item_separator": ";"},
        {"property_order": "random"},
        {"indent": 2},
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidGrammar, match=next(iter(options))):
        compile_schema("{}", options, RuleSet())


@pytest.mark.parametrize("source", ["", "[]", "{", '"a"', '{"minimum": NaN}', "[" * 100_000])
def test_a_text_that_is_no_schema(source: str) -> None:
    with pytest.raises(InvalidGrammar):
        compile_schema(source, {}, RuleSet())


def test_large_and_deep_schemas_stay_cheap() -> None:
    names = {f"property_{i}": {"type": "string"} for i in range(600)}
    wide = {"properties": names, "required": list(names), **CLOSED}
    text = json.dumps(dict.fromkeys(names, ""), separators=(",", ":"))
    check(wide, [text], [text[:-1]])
    words = [f"word number {i}" for i in range(50_000)]
    check({"enum": words}, ['"word number 49999"'], ['"word number 50000"'])
    deep: Any = INTEGER
    for _ in range(60):
        deep = {"properties": {"a": deep}, "required": ["a"], **CLOSED}
    check(deep, ['{"a":' * 60 + "1" + "}" * 60], ['{"a":' * 60 + '""' + "}" * 60])


def test_schemas_of_one_rule_set_keep_their_options() -> None:
    rules, text = RuleSet(), ['{"a": 1}', '{"a":1}']
    flexible = compile_schema("{}", {}, rules)
    compact = compile_schema('{"type":"object"}', COMPACT, rules)
    assert recognised(flexible, text) == [True, True]
    assert recognised(compact, text) == [False, True]
