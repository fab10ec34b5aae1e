"""What cannot be enforced or followed is refused when it is compiled, before there is any text."""

import json
from itertools import permutations
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from radixgen.errors import InvalidGrammar
from radixgen.grammars import shortest
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import make_engine
from radixgen.grammars.json_check import MAX_OPTIONAL
from radixgen.grammars.json_texts import EVERY, any_of, language, of_length
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.text_emptiness import is_boolean
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

COMPACT = (("whitespace", "compact"),)
INTEGER = {"type": "integer"}
BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])


def matcher(schema: Any) -> GrammarMatcher:
    compiler = GrammarCompiler(BYTES)
    return compiler.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()


def follow(schema: Any, text: str) -> GrammarMatcher:
    """A matcher behind a text, each byte of which its masks allow."""
    found, row = matcher(schema), allocate_bitmask(1, BYTES.size)
    for byte in text.encode():
        found.fill_bitmask(row, 0)
        assert found.error is None
        assert found.accept_bytes(bytes((byte,))), (text, found.error)
    found.fill_bitmask(row, 0)
    assert found.error is None
    return found


X = {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}
LOOPS: list[tuple[Any, str]] = [
    ({"anyOf": [{"$ref": "#"}]}, "#"),
    ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "#"),
    ({"allOf": [{"$ref": "#"}]}, "#"),
    ({"not": {"$ref": "#"}}, "#"),
    ({"if": {"$ref": "#"}, "then": False}, "#"),
    ({"dependentSchemas": {"a": {"$ref": "#"}}}, "#"),
    ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": X}}, "#/$defs/x"),
    (
        {"items": {"items": {"$ref": "#/$defs/y"}}, "$defs": {"x": X, "y": {"$ref": "#/$defs/x"}}},
        "#/$defs/x",
    ),
]


@pytest.mark.parametrize(("schema", "path"), LOOPS)
def test_a_schema_that_leads_back_to_itself_is_refused_wherever_it_stands(
    schema: Any, path: str
) -> None:
    with pytest.raises(InvalidGrammar, match="refers to itself") as caught:
        matcher(schema)
    assert str(caught.value.path).startswith(path)


def test_a_schema_that_comes_back_behind_a_member_or_an_item_is_none() -> None:
    tree = {"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}, "type": "array"}]}
    assert follow(tree, "[[null],null,[]]").is_accepting()
    chain = {
        "properties": {"a": {"$ref": "#"}},
        "allOf": [{"$ref": "#/$defs/b"}],
        "$defs": {"b": {}},
    }
    assert follow(chain, '{"a":{"a":1}}').is_accepting()


@pytest.mark.parametrize("keyword", ["dependentRequired", "dependentSchemas", "dependencies"])
def test_names_that_depend_on_too_many_others_are_refused_by_the_keyword_that_says_so(
    keyword: str,
) -> None:
    then = {f"a{i}": [f"b{i}"] for i in range(40)}
    if keyword == "dependentSchemas":
        then = {name: {"required": names} for name, names in then.items()}  # type: ignore[misc]  # schemas
    draft = "http://json-schema.org/draft-07/schema#" if keyword == "dependencies" else ""
    schema = {**({"$schema": draft} if draft else {}), keyword: then}
    with pytest.raises(
        InvalidGrammar, match=f"{keyword} cannot be enforced.*depend on others"
    ) as e:
        matcher({"properties": {"q": schema}} if not draft else schema)
    assert str(e.value.path).endswith(f"/{keyword}")


def test_items_that_differ_are_known_of_before_a_text_wherever_they_stand() -> None:
    schema = {"contains": {"type": "integer"}, "unevaluatedItems": {"uniqueItems": True}}
    assert follow(schema, '["a",1,["x","y"]]').is_accepting()
    assert not follow(schema, '["a",["x"').accept_bytes(b',"x"')


def test_as_many_names_as_can_be_kept_apart_may_be_left_out() -> None:
    def members(number: int) -> dict[str, Any]:
        return {f"{'abcdefgh'[i % 8]}{i}": {"type": "null"} for i in range(number)}

    follow({"type": "object", "properties": members(MAX_OPTIONAL)}, '{"')
    many = members(MAX_OPTIONAL + 1)
    with pytest.raises(InvalidGrammar, match=r"16385 names in a row .* \(at #/items/properties\)"):
        matcher({"items": {"properties": many}})
    matcher({"type": "object", "properties": many, "required": ["d2003"]})


LONG: list[tuple[Any, str]] = [
    ({"const": {f"k{i}": i for i in range(5000)}}, '{"k0":0,"k1":1,'),
    ({"const": [*range(5000)]}, "[0,1,"),
    ({"enum": [[[*range(3000)]], None]}, "[[0,1,"),
    ({"type": "object", "required": [f"k{i}" for i in range(12_000)]}, '{"k0":[1],"k1":{},'),
]


@pytest.mark.parametrize(("schema", "begun"), LONG)
def test_what_has_thousands_of_parts_is_followed(schema: Any, begun: str) -> None:
    if "required" in schema:
        schema = {**schema, "properties": dict.fromkeys(schema["required"], True)}
    found = follow(schema, begun)
    assert found.shortest_completion() > 5000
    assert found.error is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (("json_schema", '{"items":{"minLength":65537}}'), r"minLength is at most 65536.*#/items/"),
        (("json_schema", '{"type":["string","null"],"minLength":65537}'), "minLength is at most"),
        (("json_schema", '{"type":"array","minItems":65537}'), "minItems is at most 65536"),
        (("json_schema", '{"pattern":"^a{300000}"}'), r"pattern .* 262144 .*\(at #/pattern\)"),
        (
            ("regex", "a{300000}"),
            "300000 repeats have to come, at most 262144 may; lower it, at character 1",
        ),
        (("regex", "(a{1000}){1000}"), "all texts have 1000000 bytes or more, at most 262144"),
        (("lark", 'start: "a"~300000'), "300000 repeats have to come"),
        (("gbnf", 'root ::= "a"{300000,}'), "300000 repeats have to come"),
    ],
)
def test_a_text_that_is_too_long_to_be_followed_is_refused(
    spec: tuple[Any, str], message: str
) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        GrammarCompiler(BYTES).compile(GrammarSpec(*spec))


@pytest.mark.parametrize("factory", [make_engine, PythonEngine])
def test_a_long_text_that_is_forced_is_spelled(factory: Any) -> None:
    text = "".join(chr(97 + i * i % 26) for i in range(3000))
    tokens = [b"ab", b"jaqj", b"zz", *(bytes([byte]) for byte in range(97, 123)), b'"', None]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    compiler = GrammarCompiler(vocabulary, engine_factory=factory)
    found = compiler.compile(GrammarSpec("json_schema", json.dumps({"const": text}))).matcher()
    spelled = [tokens[token] or b"" for token in found.shortest_tokens()]
    assert b"".join(spelled) == json.dumps(text).encode()
    assert len(spelled) == found.shortest_completion() == fewest(json.dumps(text).encode(), tokens)


def fewest(text: bytes, tokens: list[bytes | None]) -> int:
    """How many tokens spell a text, at least."""
    found = [0]
    for end in range(1, len(text) + 1):
        fits = (len(t) for t in tokens if t and text.endswith(t, 0, end))
        found.append(1 + min(found[end - size] for size in fits))
    return found[-1]


ENDS: list[Any] = [
    {"properties": {"a": {}, "b": {}}, "maxProperties": 2, "required": ["e", "g"]},
    {"maxProperties": 2, "properties": dict.fromkeys("abcdefgh", INTEGER), "required": ["h", "c"]},
    {
        "maxProperties": 3,
        "properties": {**dict.fromkeys("abcd", INTEGER), "e": {"required": ["e"], "$ref": "#"}},
        "required": ["x", "y", "z"],
    },
]


@pytest.mark.parametrize("schema", ENDS)
def test_no_word_is_begun_that_nothing_may_follow(schema: Any) -> None:
    """All texts of one or two members, as both engines see them: their masks are the same, and what
    they allow can be completed."""
    spec = GrammarSpec("json_schema", json.dumps({"type": "object", **schema}), COMPACT)
    native, plain = (
        GrammarCompiler(BYTES, engine_factory=factory).compile(spec).matcher()
        for factory in (make_engine, PythonEngine)
    )
    ours, theirs = allocate_bitmask(1, BYTES.size), allocate_bitmask(1, BYTES.size)
    for text in ("{", '{"', *(f'{{"{a}":1{rest}' for a in "abcexyz" for rest in ("", ',"', ',"c'))):
        behind, other = native.fork(), plain.fork()
        assert behind.accept_bytes(text.encode()) == other.accept_bytes(text.encode()), text
        behind.fill_bitmask(ours, 0)
        other.fill_bitmask(theirs, 0)
        assert (ours == theirs).all(), text
        assert behind.shortest_completion() == other.shortest_completion()
        assert behind.error is None


def test_no_array_is_begun_that_may_not_end() -> None:
    bounds = {"uniqueItems": True, "minItems": 3, "maxItems": 2}
    assert not matcher(bounds).accept_bytes(b"[")
    assert matcher(bounds).accept_bytes(b"{")
    many = {"items": {"items": {"type": "string"}, "uniqueItems": True, "minItems": 257}}
    with pytest.raises(InvalidGrammar, match=r"over 256 items cannot be; .*#/items/uniqueItems"):
        matcher(many)


def many(number: int) -> list[Any]:
    return [{"contains": {"const": value}} for value in range(number)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"items": {"allOf": many(11)}}, r"contains .* over 1024 ways .*\(at #/items/allOf/0/"),
        (
            {"contains": {}, "minContains": 513},
            r"contains .* over 512 items of a kind.*#/contains\)",
        ),
        ({"not": {"anyOf": [{"not": one} for one in many(25)]}}, "contains .* over 1024 ways"),
        (
            {"items": [{"enum": [*range(n, 30)]} for n in range(8)], "minItems": 8, "maxItems": 8},
            r"uniqueItems .* over 4096 ways.*enum.*\(at #/properties/a/uniqueItems\)",
        ),
        ({"oneOf": [{"pattern": f"^a{i}"} for i in range(500)]}, r"oneOf has 500 .*\(at #/oneOf\)"),
    ],
)
def test_what_takes_too_many_steps_to_work_out_is_refused(schema: Any, message: str) -> None:
    if "minItems" in schema:
        draft = {"$schema": "http://json-schema.org/draft-07/schema#", "uniqueItems": True}
        schema = {"properties": {"a": {**draft, **schema}}, **draft}
    with pytest.raises(InvalidGrammar, match=message):
        matcher(schema)


def test_as_many_kinds_of_items_as_can_be_counted_are() -> None:
    assert follow({"allOf": many(9), "type": "array"}, "[8,7,6,5,4,3,2,1,0]").is_accepting()
    assert not follow({"allOf": many(9), "type": "array"}, "[8,7,6,5,4,3,2,1").accept_bytes(b"]")


DRAWN: list[Any] = [
    {"items": {"type": "integer", "minimum": 1, "maximum": 130}, "minItems": 3},
    {"items": {"enum": [*range(12), "a", None, True, "1"]}, "minItems": 9, "maxItems": 14},
    {"prefixItems": [{"enum": [1, 2, 3]}, {"enum": [1, 12, 123]}], "items": {"enum": [1, 12, "x"]}},
    {"prefixItems": [{"enum": [1]}, {"enum": [1, 2]}], "items": False, "minItems": 2},
    {"items": {"enum": [*range(14)]}, "not": {"enum": [[1, 2], [3]]}},
]


@pytest.mark.parametrize("schema", DRAWN)
@pytest.mark.parametrize("factory", [make_engine, PythonEngine])
def test_items_are_drawn_from_a_list_once_each(schema: Any, factory: Any) -> None:
    """Every byte behind the beginnings of random texts, as a validator sees what they come to."""
    schema = {"type": "array", "uniqueItems": True, **schema}
    spec, random = GrammarSpec("json_schema", json.dumps(schema), COMPACT), Random(1)
    grammar = GrammarCompiler(BYTES, engine_factory=factory).compile(spec)
    validator = Draft202012Validator(schema)
    for _ in range(4):
        found, text = grammar.matcher(), b""
        for _ in range(random.randrange(24)):
            allowed = [byte for byte in b'[],"a1234567890xnultre' if fits(found, byte)]
            if allowed:
                text += bytes((random.choice(allowed),))
                assert found.accept_bytes(text[-1:])
        text += b"".join(bytes((token,)) for token in found.shortest_tokens())
        assert validator.is_valid(json.loads(text)), text
    for values in permutations([1, 2, 12, 123, "x"], 3):
        text = json.dumps(values, separators=(",", ":")).encode()
        found = grammar.matcher()
        assert (found.accept_bytes(text) and found.is_accepting()) == validator.is_valid([*values])


def fits(found: GrammarMatcher, byte: int) -> bool:
    return found.fork().accept_bytes(bytes((byte,)))


ONES: list[list[Any]] = [
    [{"const": "a"}, {"const": "b"}, {"enum": ["b", "c", 1]}, {"type": "string", "minLength": 2}],
    [{"enum": ["a", "ab", "abc"]}, {"pattern": "b"}, {"type": "string", "maxLength": 2}],
    [{"enum": [1, 2, 2.5]}, {"type": "integer"}, {"minimum": 2}, {"const": None}, {"const": True}],
    [{"const": True}, {"type": "boolean"}, {"enum": [None, False, "a"]}, {"type": "null"}],
    [{"enum": [[1], [2], "a"]}, {"const": [1]}, {"enum": [{"a": 1}, "a"]}, {"type": "object"}],
]
VALUES = ["a", "b", "c", "ab", "abc", "cc", 0, 1, 2, 2.5, 3, True, False, None, [], [1], [2], {}]


@pytest.mark.parametrize("schemas", ONES)
@pytest.mark.parametrize("sign", [True, False])
def test_exactly_one_of_lists_and_of_what_has_no_end_holds(schemas: Any, sign: bool) -> None:
    schema = {"oneOf": schemas} if sign else {"not": {"oneOf": schemas}}
    validator = Draft202012Validator(schema)
    for value in [*VALUES, {"a": 1}]:
        found = matcher(schema)
        text = json.dumps(value).encode()
        assert (found.accept_bytes(text) and found.is_accepting()) == validator.is_valid(value)


ENTWINED: list[tuple[Any, str]] = [
    *(
        ({"type": "string", "allOf": [{"pattern": f"[a-z]{i % 10}[{a}]"} for i in range(n)]}, "a")
        for n, a in ((9, "0-9"), (10, "a-z"), (24, "0-9"))
    ),
    ({"allOf": [{"pattern": f"^(..{{{n}}})*$"} for n in (2, 4, 6)], "minLength": 1}, "a"),
    (
        {
            "type": "string",
            "allOf": [{"pattern": "[a-z]7[0-9]+"}, {"minLength": 20}, {"pattern": "[a-z]1[0-9]+"}],
            "oneOf": [{"pattern": "^[ab]*$"}, {"minLength": 2}, {"pattern": "[0-9]{3}"}],
        },
        "b7",
    ),
]


@pytest.mark.parametrize(("schema", "begun"), ENTWINED)
def test_patterns_that_wind_around_each_other_are_completed(schema: Any, begun: str) -> None:
    """Where all ways to meet them are too many to look through, one of them is found."""
    for text in ("", f'"{begun}', f'"{begun}-é'):
        found = matcher({"type": "string", **schema})
        assert found.accept_bytes(text.encode())
        number = found.shortest_completion()
        assert found.error is None
        tokens = found.shortest_tokens()
        assert len(tokens) == number
        whole = text.encode() + bytes(tokens)
        Draft202012Validator(schema).validate(json.loads(whole))
        for token in tokens:  # each lowers what is left
            left = found.shortest_completion()
            assert found.accept_token(token)
            assert found.shortest_completion() == left - 1


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_plain_engine_finds_some_text_of_entwined_patterns(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortest, "MAX_TRIED", 100)
    schema = {"allOf": [{"pattern": f"[a-z]{i}[0-9]"} for i in range(number)]}
    spec = GrammarSpec("json_schema", json.dumps({"type": "string", **schema}))
    found = GrammarCompiler(BYTES, engine_factory=PythonEngine).compile(spec).matcher()
    tokens = found.shortest_tokens()
    Draft202012Validator(schema).validate(json.loads(bytes(tokens)))
    for left in range(len(tokens), 0, -1):
        assert found.shortest_completion() == left
        assert found.accept_token(tokens[-left])


UNTOLD = [{"minLength": 1}, {"pattern": "baz|qux"}, {"format": "date-time"}]
UNKNOWN = {"type": "string", "allOf": UNTOLD, "minLength": 300}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (UNKNOWN, "#/allOf"),
        ({"properties": {"a": {"items": UNKNOWN}}}, "#/properties/a/items/allOf"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": UNKNOWN}}, "#/$defs/b/allOf"),
    ],
)
def test_strings_that_are_not_known_to_be_any_are_refused_with_their_path(
    schema: Any, path: str
) -> None:
    """Also where a member may be left out, before a text comes to it."""
    with pytest.raises(InvalidGrammar, match=r"takes over \d+ states to find out; ask") as caught:
        matcher(schema)
    assert caught.value.path == path


@pytest.mark.parametrize("high", [None, 5])
@pytest.mark.parametrize("low", [0, 1, 3])
def test_what_is_not_of_some_length_has_another(low: int, high: int | None) -> None:
    found = of_length(language(any_of(["a", "abc", "abcdef"])), low, high).complement()
    lengths_only = of_length(EVERY, low, high).complement()
    assert not is_boolean(lengths_only.as_expr())
    for text in ("", "a", "ab", "abc", "abcde", "abcdef", "é" * 7):
        is_inside = low <= len(text) and (high is None or len(text) <= high)
        assert lengths_only.holds(text) == (not is_inside)
        assert found.holds(text) == (not (is_inside and text in ("a", "abc", "abcdef")))


def test_exactly_one_of_many_entwined_patterns_is_refused_by_a_count() -> None:
    """Few of their combinations are searched, and of each the fewer states the larger it is."""
    schema = {"oneOf": [{"type": "string", "pattern": f"a{i}.*b"} for i in range(60)]}
    with pytest.raises(InvalidGrammar, match=r"over \d+ states to find out") as caught:
        matcher(schema)
    assert caught.value.path == "#/oneOf"
