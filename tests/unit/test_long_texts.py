"""Texts of many bytes: what is long and shared is passed at once, and as if byte by byte."""

import json
from random import Random
from typing import Any

import pytest

from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

TOKENS = [*(bytes([byte]) for byte in range(256)), b"ab", b'y"', b"ax", None]
TABLE = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
NATIVE = GrammarCompiler(TABLE)


def closed(name: str, value: str) -> dict[str, Any]:
    """An object of one member."""
    member = {name: {"const": value}}
    return {"properties": member, "required": [name], "additionalProperties": False}


def spec_of(kind: str, shared: str) -> GrammarSpec:
    """Two texts or more that differ at their ends only."""
    one, two, cut = shared + "x", shared + "y", shared[: len(shared) // 2]
    schemas: dict[str, Any] = {
        "const": {"const": one},
        "enum": {"enum": [one, two]},
        "enum of prefixes": {"enum": [cut, one, two, shared, "b"]},
        "anyOf": {"anyOf": [{"const": one}, {"const": two}, {"type": "integer"}]},
        "oneOf": {"oneOf": [{"const": one}, {"const": two}]},
        "pattern": {"enum": [one, two], "type": "string", "pattern": "^a"},
        "names": {"type": "object", **closed(one, "z"), "anyOf": [{"required": [one]}]},
        "members": closed("k", one),
        "names left out": {
            "type": "object",
            "properties": {one: {"type": "null"}, two: {"type": "null"}},
            "required": [one],
        },
    }
    if kind in schemas:
        return GrammarSpec("json_schema", json.dumps(schemas[kind]))
    if kind == "choice":
        return GrammarSpec("choice", json.dumps([one, two]))
    if kind == "choice of rules":
        return GrammarSpec("gbnf", f'root ::= "{one}" n | "{two}" [a-c]\nn ::= [0-9]+')
    return GrammarSpec("gbnf", f'root ::= "{one}" | "{two}" | [0-9]+')


KINDS = (
    *("const", "enum", "enum of prefixes", "anyOf", "oneOf", "pattern", "names", "members"),
    *("names left out", "choice", "choice of rules", "gbnf"),
)


def row_of(matcher: GrammarMatcher) -> list[int]:
    words = allocate_bitmask(1, TABLE.size)
    matcher.fill_bitmask(words, 0)
    assert matcher.error is None
    found: list[int] = words.tolist()
    return found


def spelled(matcher: GrammarMatcher) -> bytes:
    return b"".join(TOKENS[token] or b"" for token in matcher.shortest_tokens())


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_hundreds_of_thousands_of_bytes_is_followed_within_a_step(kind: str) -> None:
    shared = "a" * (190_000 if kind.startswith(("gbnf", "choice of")) else 400_000)
    grammar = NATIVE.compile(spec_of(kind, shared))
    text = spelled(NATIVE.compile(spec_of(kind, "a" * 8)).matcher())
    text = text.replace(b"a" * 8, shared.encode()) if b"a" * 8 in text else text
    whole = grammar.matcher()
    assert whole.accept_bytes(text), whole.error
    assert whole.is_accepting()
    half = grammar.matcher()
    assert half.accept_bytes(text[: len(text) // 2]), half.error
    row_of(half)
    assert half.accept_bytes(text[len(text) // 2 :]), half.error
    assert half.is_accepting()
    wrong = grammar.matcher()
    assert not wrong.accept_bytes(text[:-2] + b"!" + text[-1:])


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_at_once_lead_where_each_byte_leads(kind: str) -> None:
    rng = Random(kind)
    shared = "".join(rng.choice("ab") for _ in range(600))
    spec = spec_of(kind, "a" + shared)
    texts = {spelled(NATIVE.compile(spec).matcher())}
    texts |= {text.replace(b"x", b"y") for text in texts} | {text[:300] + b"q" for text in texts}
    plain = GrammarCompiler(TABLE, engine_factory=PythonEngine).compile(spec)
    for text in texts:
        places = sorted({*(rng.randrange(len(text)) for _ in range(6)), len(text)})
        at_once, one_by_one, simple = (g.matcher() for g in (NATIVE.compile(spec),) * 2 + (plain,))
        before = 0
        for place in places:
            piece = text[before:place]
            fits = simple.accept_bytes(piece)
            assert at_once.accept_bytes(piece) == fits
            assert all(one_by_one.accept_bytes(bytes((byte,))) for byte in piece) == fits
            if not fits:
                break
            assert row_of(at_once) == row_of(one_by_one) == row_of(simple)
            assert at_once.shortest_completion() == one_by_one.shortest_completion()
            before = place
