"""Structural tags of both forms: what they take, what they refuse, where free text ends."""

import json
import random
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import Node, RuleSet, literal
from radixgen.grammars.free_text import FreeText
from radixgen.grammars.oracle import accepts, allows_prefix
from radixgen.grammars.structural_tag import compile_structural_tag

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
NUMBER = {"type": "regex", "pattern": r"\d+"}
TAG = {"begin": "<f=a>", "content": NUMBER, "end": "</f>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG]}


def _compiled(tag: Any, **options: Any) -> Node:
    return compile_structural_tag(json.dumps(tag), options, RuleSet())


def _of(form: Any, **options: Any) -> Node:
    return _compiled({"type": "structural_tag", "format": form}, **options)


def test_legacy_form() -> None:
    structures = [
        {"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=b>", "schema": True, "end": "</f>"},
    ]
    node = _compiled({"structures": structures, "triggers": ["<f="]})
    inside = ["", "hi < <f", '\u00e9 <f=a>{"x":1}</f> more <f=b>[]</f>', '<<f=a>{"x":1}</f>']
    outside = ["<f=", "<f=c>", '<f=a>{"x":"1"}</f>', '<f=a>{"x":1}']
    assert recognised(node, inside) == [True] * 4
    assert recognised(node, outside) == [False] * 4
    assert not accepts(node, b"\xff")


@pytest.mark.parametrize("at_least_one", [False, True])
@pytest.mark.parametrize("stop_after_first", [False, True])
def test_how_many_tags(at_least_one: bool, stop_after_first: bool) -> None:
    node = _of({**TRIGGERED, "at_least_one": at_least_one, "stop_after_first": stop_after_first})
    texts = ["", "t", "t<f=a>1</f>", "t<f=a>1</f>u", "<f=a>1</f><f=a>2</f>"]
    more = not stop_after_first
    assert recognised(node, texts) == [not at_least_one, not at_least_one, True, more, more]


def test_reasoning_then_an_answer() -> None:
    think = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    answer = {"type": "json_schema", "json_schema": SCHEMA}
    node = _of({"type": "sequence", "elements": [think, answer]})
    inside = ['<think>a < b </thin</think>{"x":1}', '<think></think>{"x": 2}']
    outside = ['{"x":1}', '<think>a</think>b</think>{"x":1}', "<think>a</think>"]
    assert recognised(node, inside + outside) == [True] * 2 + [False] * 3


FORMATS = [
    ({"type": "const_string", "value": "a\u00e9"}, ["a\u00e9"], ["a", ""]),
    ({"type": "grammar", "grammar": 'root ::= "a" root | "b"'}, ["b", "aab"], ["a"]),
    ({"type": "lark", "grammar": 'start: "a"~2'}, ["aa"], ["a"]),
    ({"type": "any_text"}, ["", "x<\n"], []),
    ({"type": "any_text", "excludes": ["ab", "c"]}, ["", "a", "ba"], ["ab", "xaby", "c"]),
    (
        {"type": "or", "elements": [NUMBER, {"type": "const_string", "value": "x"}]},
        ["12", "x"],
        [""],
    ),
    ({"type": "optional", "content": NUMBER}, ["", "1"], ["x"]),
    ({"type": "star", "content": {"type": "const_string", "value": "ab"}}, ["", "abab"], ["a"]),
    ({"type": "plus", "content": {"type": "const_string", "value": "ab"}}, ["ab"], [""]),
    (
        {"type": "repeat", "content": {"type": "const_string", "value": "a"}, "min": 1, "max": 2},
        ["a", "aa"],
        ["", "aaa"],
    ),
    (
        {"type": "repeat", "content": {"type": "const_string", "value": "a"}, "min": 2, "max": -1},
        ["aa", "aaa"],
        ["a"],
    ),
    (
        {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": [">", "]"]},
        ["<a>", "<]"],
        ["<", "<a>>", "<a]>"],
    ),
    ({"type": "tag", "begin": "", "content": NUMBER, "end": ""}, ["1"], [""]),
    (
        {"type": "tag", "begin": "(", "content": {**TRIGGERED, "excludes": ["!"]}, "end": ")"},
        ["()", "(a<f=a>1</f>b)"],
        ["(", "(a)b)", "(!)"],
    ),
    (
        {"type": "tags_with_separator", "tags": [TAG], "separator": ","},
        ["", "<f=a>1</f>", "<f=a>1</f>,<f=a>2</f>"],
        [",", "<f=a>1</f>,"],
    ),
    (
        {
            "type": "tags_with_separator",
            "tags": [TAG],
            "separator": ",",
            "at_least_one": True,
            "stop_after_first": True,
        },
        ["<f=a>1</f>"],
        ["", "<f=a>1</f>,<f=a>2</f>"],
    ),
]


@pytest.mark.parametrize(("form", "inside", "outside"), FORMATS)
def test_formats(form: Any, inside: list[str], outside: list[str]) -> None:
    assert recognised(_of(form), inside + outside) == [True] * len(inside) + [False] * len(outside)


def test_an_end_that_overlaps_itself_closes_at_once() -> None:
    node = _of({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "aa"})
    assert recognised(node, ["aa", "baa", "aaa"]) == [True, True, False]


def test_options_reach_the_schemas() -> None:
    form = {"type": "json_schema", "json_schema": SCHEMA}
    assert accepts(_of(form), b'{"x": 1}')
    assert not accepts(_of(form, whitespace="compact"), b'{"x": 1}')
    with pytest.raises(InvalidGrammar):
        _of({"type": "any_text"}, no_such_option=1)


REFUSED = [
    ([], "object"),
    ({"type": "structural_tag", "format": {"type": "token", "token": 5}}, "format"),
    ({"type": "structural_tag", "format": {"type": "regex", "pattern": "("}}, "format"),
    (
        {"type": "structural_tag", "format": {"type": "regex", "pattern": "a", "excludes": []}},
        "known",
    ),
    ({"type": "structural_tag", "format": {**TRIGGERED, "triggers": ["<g"]}}, "trigger"),
    ({"type": "structural_tag", "format": {**TRIGGERED, "triggers": ["<f", "<f="]}}, "2 triggers"),
    ({"type": "structural_tag", "format": {**TRIGGERED, "triggers": ["<f=", "x"]}}, "no tag"),
    ({"type": "structural_tag", "format": {**TRIGGERED, "triggers": [""]}}, "empty"),
    ({"type": "structural_tag", "format": {**TRIGGERED, "excludes": ["<"]}}, "never occur"),
    ({"type": "structural_tag", "format": {**TRIGGERED, "tags": []}}, "at least one"),
    ({"type": "structural_tag", "format": {"type": "or", "elements": []}}, "no formats"),
    ({"type": "structural_tag", "format": {"type": "sequence"}}, "missing"),
    ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "schema"),
    (
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "?"}}},
        "json_schema|type",
    ),
]


@pytest.mark.parametrize(("tag", "message"), REFUSED)
def test_refused_with_a_reason(tag: Any, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        _compiled(tag)


def test_deep_and_malformed_sources_are_errors() -> None:
    form: dict[str, Any] = {**NUMBER}
    for _ in range(200):
        form = {"type": "optional", "content": form}
    with pytest.raises(InvalidGrammar, match="deep"):
        _of(form)
    for source in ("", "{", "[" * 100_000, '{"format": NaN}', "null"):
        with pytest.raises(InvalidGrammar):
            compile_structural_tag(source, {}, RuleSet())


def test_free_text_against_search() -> None:
    draw = random.Random(5)
    for _ in range(60):
        patterns = {"".join(draw.choices("ab", k=draw.randint(1, 4))) for _ in range(3)}
        kept = {p for p in patterns if not any(q != p and q in p for q in patterns)}
        node = FreeText(RuleSet(), {p: literal(b"!") for p in kept}, may_end=True).node()
        for _ in range(40):
            text = "".join(draw.choices("abc", k=draw.randint(0, 9)))
            first = min((text.find(p) + len(p) for p in kept if p in text), default=None)
            assert accepts(node, text.encode()) == (first is None)
            assert allows_prefix(node, text.encode()) == (first is None or first == len(text))
            assert accepts(node, text.encode() + b"!") == (first is None or first == len(text))


def _old(**said: Any) -> dict[str, Any]:
    return {"structures": [{"begin": "<a", "schema": True, "end": ""}], "triggers": ["<"], **said}


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        (_old(structures=[{"begin": "<a", "schema": {"type": "?"}, "end": ""}]), "structures[0]"),
        (_old(structures=[{"begin": "a", "schema": True, "end": ""}]), "structures[0]"),
        (_old(structures=[{"begin": "<a", "schema": True, "end": 3}]), "structures[0]"),
        (_old(triggers=["<", "*"]), "triggers"),
        (_old(triggers=[3]), "triggers"),
    ],
)
def test_an_error_of_the_older_form_is_where_its_writer_finds_it(tag: Any, path: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        _compiled(tag)
    assert caught.value.path.removesuffix(".schema") == path
    assert "format" not in str(caught.value)


def test_the_schema_of_the_older_form_is_named() -> None:
    with pytest.raises(InvalidGrammar, match=r"\(at #/type\) \(at structures\[0\]\.schema\)$"):
        _compiled(_old(structures=[{"begin": "<a", "schema": {"type": "?"}, "end": ""}]))
