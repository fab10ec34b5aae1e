"""`uniqueItems` over items that nobody can list: each differs from those the text has."""

import json
import random
from typing import Any

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars import json_keywords
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import make_engine
from radixgen.grammars.json_unique import canonical, value_before_comma
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask, fill_bitmasks
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

# Pieces of arrays, among them many that pass a comma.
WORDS = [
    *("a", "b", '"', '","', '", "', '",', '"]', '["', ",a", '","a"', '"a","', ',""', '"",', 'a"]'),
    *("1,", "1,1", "},{", ',{"', '{"a":1', "[1],[", "],", ",b", "true,", '"a", "b"', "ab", "é"),
]
LETTERS = b' "+,-.0123e:[\\]abflnrstu{}\xc3\xa9'
TOKENS = [*(bytes((byte,)) for byte in LETTERS), *(word.encode() for word in WORDS), None]
VOCABULARY = Vocabulary.from_tokens(TOKENS, end_ids=[len(TOKENS) - 1])
COMPILERS = [GrammarCompiler(VOCABULARY, engine_factory=f) for f in (make_engine, PythonEngine)]
STRINGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
OBJECTS = {
    "type": "array",
    "uniqueItems": True,
    "items": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
SCHEMAS: list[dict[str, Any]] = [
    STRINGS,
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 1},
    {"type": "array", "items": {"type": "string", "pattern": "^(a|b+)$"}, "uniqueItems": True},
    {
        "type": "array",
        "items": {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]},
        "uniqueItems": True,
    },
    {"type": "array", "uniqueItems": True},
    OBJECTS,
    {"type": "object", "properties": {"s": STRINGS, "t": STRINGS}, "required": ["s", "t"]},
    {"anyOf": [STRINGS, {"type": "array", "items": {"type": "integer"}}]},
    {"type": "array", "items": STRINGS, "uniqueItems": True},
    {**STRINGS, "minItems": 3, "maxItems": 4},
    {
        "type": "array",
        "items": {"type": "string", "pattern": "^(a|b+)$"},
        "uniqueItems": True,
        "minItems": 2,
    },
]


def matcher(
    schema: Any, compiler: GrammarCompiler = COMPILERS[0], **options: Any
) -> GrammarMatcher:
    source = json.dumps(schema)
    spec = GrammarSpec("json_schema", source, tuple(sorted(options.items())))
    return compiler.compile(spec).matcher()


def accepts(schema: Any, text: str, **options: Any) -> bool:
    found = [matcher(schema, compiler, **options) for compiler in COMPILERS]
    answers = {one.accept_bytes(text.encode()) and one.is_accepting() for one in found}
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize(
    ("text", "is_unique"),
    [
        ("[]", True),
        ('["a"]', True),
        ('["a","b","ab"]', True),
        ('["a","b","a"]', False),
        ('["a","\\u0061"]', False),
        ('["a,","a"]', True),
        ('["a\\"", "a\\""]', False),
        ('["a\\\\","a\\\\"]', False),
        ('["é", "\\u00e9"]', False),
        ('["",""]', False),
        ("[1,2,1.0]", False),
        ("[1,true,[1],{}]", True),
        ("[10,1e1]", False),
        ('[{"a":1,"b":[2]},{"b":[2],"a":1.0}]', False),
        ('[{"a":1},{"a":1,"b":1}]', True),
        ("[[1,2],[2,1]]", True),
        ('[["]"],["]"]]', False),
        ("[null,null]", False),
        ("[0,-0]", False),
        ("[0,false]", True),
    ],
)
def test_items_of_any_kind_differ(text: str, is_unique: bool) -> None:
    assert accepts({"type": "array", "uniqueItems": True}, text) == is_unique


@pytest.mark.parametrize(
    ("text", "is_unique"),
    [
        ('[{"a":1},{"a":2},"x",{"a":3}]', True),
        ('[{"a":1},"x",{"a":2},{"a":1}]', False),
        ('[{"a":1},{"a":1,"b":""},{"a":1,"b":"x"}]', True),
        ('[{"a":1},{"a":1,"b":""},{"a":2},{"a":1,"b":""}]', False),
        ("[[1],[1,2],[]]", True),
        ("[[1],[2],[2]]", False),
        ('[{"a":0},[],[0],{"a":2}]', True),
        ('[[],{"a":0},{"a":1},[]]', False),
    ],
)
def test_few_objects_and_arrays_are_left_out_as_many_are(
    text: str, is_unique: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {"anyOf": [OBJECTS["items"], {"type": ["array", "string"]}]}
    schema = {"type": "array", "uniqueItems": True, "items": some}
    masks: list[list[Any]] = []
    for most in (json_keywords.MAX_DIFFERENCES, 0):
        monkeypatch.setattr(json_keywords, "MAX_DIFFERENCES", most)
        one, mask = matcher(schema, GrammarCompiler(VOCABULARY)), allocate_bitmask(1, len(TOKENS))
        masks.append([])
        for byte in text.encode():
            one.fill_bitmask(mask, 0)
            masks[-1].append(mask.tolist())
            if not one.accept_bytes(bytes((byte,))):
                break
        assert one.is_accepting() == is_unique
    assert masks[0] == masks[1]


def test_layouts() -> None:
    assert accepts(STRINGS, '["a","b"]', whitespace="compact")
    assert not accepts(STRINGS, '["a","a"]', whitespace="compact")
    assert accepts(STRINGS, '["a" , "b"]', item_separator=" , ")
    assert not accepts(STRINGS, '["a" , "a"]', item_separator=" , ")
    assert accepts(STRINGS, '[\n "a",\n "b"\n]')


def test_another_reading_of_the_text_is_kept() -> None:
    schema = {"anyOf": [STRINGS, {"type": "array", "items": {"enum": ["a", "b"]}}]}
    assert accepts(schema, '["a","a"]')
    assert accepts(schema, '["c","a"]')
    assert not accepts(schema, '["c","a","a"]')


def test_finite_places_before_others() -> None:
    two = {"prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "uniqueItems": True}
    assert accepts(two, "[true,false,1]")
    assert not accepts(two, "[true,true]")
    assert not accepts(two, "[true,false,1,1]")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        {"type": "array", "items": {"type": "object", "maxProperties": 1}},
        {"type": "array", "contains": {"const": 1}},
        {"type": "array", "prefixItems": [{"type": "string"}, {"const": "a"}]},
    ],
)
def test_what_may_run_out_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidGrammar, match="uniqueItems cannot be enforced"):
        matcher({**schema, "uniqueItems": True})


def allowed(one: GrammarMatcher, budget: int | None = None) -> set[int]:
    mask = allocate_bitmask(1, VOCABULARY.size)
    one.fill_bitmask(mask, 0, budget)
    assert one.error is None
    return set(np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist())


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_masks_are_what_can_be_followed(schema: Any, compiler: GrammarCompiler) -> None:
    draw = random.Random(3)
    for _ in range(2):
        one = matcher(schema, compiler, whitespace="compact")
        for _ in range(10):
            may = allowed(one) - VOCABULARY.end_ids
            wanted = {t for t in range(VOCABULARY.size - 1) if one.fork().accept_token(t)}
            assert may == wanted
            many = allocate_bitmask(1, VOCABULARY.size)
            fill_bitmasks([one], many, [0])
            liked = sorted(may & set(range(len(LETTERS), VOCABULARY.size))) or sorted(may)
            if not may or not one.accept_token(draw.choice(liked)):
                break


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_text_is_complete_within_its_budget(schema: Any, compiler: GrammarCompiler) -> None:
    for seed in range(2):
        draw, one, text = random.Random(seed), matcher(schema, compiler, whitespace="compact"), b""
        budget = one.shortest_completion() + draw.randrange(10)
        while budget and not one.is_finished():
            may = allowed(one, budget) - VOCABULARY.end_ids
            assert may or one.is_accepting(), text
            liked = sorted(may & set(range(len(LETTERS), VOCABULARY.size))) or sorted(may)
            if not may:
                break
            token = draw.choice(liked)
            assert one.accept_token(token)
            text += TOKENS[token] or b""
            budget -= 1
        assert one.is_accepting(), text
        json.loads(text)


def test_rollback_and_forks_keep_the_text() -> None:
    one = matcher(STRINGS)
    assert all(one.accept_bytes(part) for part in (b'["a"', b',"b', b'",'))
    other = one.fork()
    one.rollback(2)
    assert one.accept_bytes(b', "b"]')
    assert one.is_accepting()
    assert not other.accept_bytes(b'"b"')
    assert other.accept_bytes(b'"c"]')


def test_an_array_ends_where_items_are_counted_out() -> None:
    one = matcher({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    assert one.accept_bytes(b"[" + b",".join(b"%d" % i for i in range(256)))
    assert not one.accept_bytes(b",")
    assert one.accept_bytes(b"]")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('x["a",', '"a"'),
        ('["b\\\\\\"[", ', None),
        ('["[{", {"a": "]", "b": [1, 2]} ,', '{"a":"]","b":[1,2]}'),
        ("[-12.50,", "-12.5"),
        ("[1,true,", "true"),
        ('[[], [["\\\\"]],', '[["\\\\"]]'),
    ],
)
def test_the_value_before_a_comma_is_read_from_behind(text: str, value: str | None) -> None:
    if value is not None:
        assert canonical(value_before_comma(text.encode())) == value
    else:
        assert value_before_comma(text.strip().encode()) == 'b\\"['


def test_in_a_tag_between_other_text() -> None:
    tag = {"begin": "<f>", "schema": STRINGS, "end": "</f>"}
    source = json.dumps({"structures": [tag], "triggers": ["<f"]})
    one = COMPILERS[0].compile(GrammarSpec("structural_tag", source)).matcher()
    assert one.accept_bytes(b'so, "a", "a": <f>["a", "b"]</f>, and <f>["a"')
    assert not one.fork().accept_bytes(b', "a"')
    assert one.accept_bytes(b', "b"]</f>, bye')
    assert one.is_accepting()


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("items", [{"type": "string"}, {"type": "string", "maxLength": 3}, {}])
@pytest.mark.parametrize("least", [2, 3, 5])
def test_the_shortest_completion_has_different_items_however_tokens_pass_commas(
    compiler: GrammarCompiler, items: dict[str, Any], least: int
) -> None:
    schema = {"type": "array", "uniqueItems": True, "minItems": least, "items": items}
    grammar = compiler.compile(GrammarSpec("json_schema", json.dumps(schema)))
    for prefix in (b"", b"[", b'["', b'["",', b'["a","', b'["a", "b"', b'["",""'[:5]):
        matcher = grammar.matcher()
        assert matcher.accept_bytes(prefix), prefix
        most = matcher.shortest_completion()
        tokens = matcher.shortest_tokens()
        assert matcher.error is None
        assert 0 < len(tokens) <= most + least, (prefix, tokens, most)  # a token cut at each comma
        text = prefix + b"".join(TOKENS[token] or b"" for token in tokens)
        found = json.loads(text)
        assert len({canonical_text(item) for item in found}) == len(found) >= least, text
        assert all(matcher.accept_token(token) for token in tokens), text
        assert matcher.is_accepting()


def canonical_text(item: object) -> str:
    return json.dumps(item, sort_keys=True)
