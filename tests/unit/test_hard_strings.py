"""Strings of which much is asked at once: an engine says with the compile whether there are any."""

import json
import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars import derivative, text_emptiness
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import Engine, NativeEngine, make_engine
from radixgen.grammars.expr import Expr, RuleSet, complement, conj
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.regex import compile_regex
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])
ENTWINED = [{"pattern": f"^(.{{{n}}})*$"} for n in (3, 5, 7)]


def compiled(schema: Any) -> Any:
    return GrammarCompiler(BYTES).compile(GrammarSpec("json_schema", json.dumps(schema)))


@pytest.mark.parametrize("factory", [make_engine, PythonEngine])
def test_an_engine_says_which_expressions_are_empty(factory: Any) -> None:
    engine: Engine = factory(BYTES, 1 << 28)
    found = [compile_regex(p, {}, RuleSet()) for p in ("[ab]*", "a.*", ".*b", "(a|b)(a|c)", "ba*")]
    parts = [part for part in found if isinstance(part, Expr)]
    for one in parts:
        for other in parts:
            for both in (conj(one, other), conj(one, complement(other)), complement(one)):
                assert engine.is_empty(both) == derivative.is_empty(both)


def test_the_native_engine_leaves_no_search_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """There each state takes a millisecond."""
    if not isinstance(make_engine(BYTES, 1 << 28), NativeEngine):
        pytest.skip("there is no compiler here")

    def refused(*_: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(derivative, "_search", refused)
    monkeypatch.setattr(text_emptiness, "MAX_STATES", 30)
    monkeypatch.setattr(text_emptiness, "MIN_STATES", 30)
    text = {"allOf": [*ENTWINED, {"pattern": "u..1$"}]}
    for schema in (text, {"propertyNames": text, "minProperties": 1}):
        kind = "object" if "propertyNames" in schema else "string"
        found = compiled({"type": kind, **schema}).matcher()
        assert found.shortest_completion() > 105


LONG = {"pattern": "baz|qux", "minLength": 300}  # which a date may not be, as no search finds out
DATE = {"format": "date-time"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"propertyNames": {**LONG, **DATE}}, "#/propertyNames"),
        ({"properties": {"a": {"allOf": [{"propertyNames": {**LONG, **DATE}}]}}}, "#/properties/a"),
        ({"contains": {"type": "string", **LONG, **DATE}, "maxContains": 2}, "#/contains/pattern"),
        ({"items": {"type": "string", **LONG}, "contains": DATE}, "#/items/pattern"),
        ({"patternProperties": {"^a": {"type": "string", **LONG}, "b$": DATE}}, "#/patternPropert"),
        (
            {"properties": {"a": {"type": "string", **LONG}}, "patternProperties": {"^a": DATE}},
            "#/properties/a/pattern",
        ),
        ({"unevaluatedProperties": {"type": "string", **LONG, **DATE}}, "#/unevaluatedProperties/"),
    ],
)
def test_names_and_what_several_schemas_ask_of_a_member_are_decided_with_the_compile(
    schema: Any, path: str
) -> None:
    with pytest.raises(InvalidGrammar, match=r"whether a .* takes over \d+ states") as caught:
        compiled(schema)
    assert str(caught.value.path).startswith(path)


def test_a_text_that_was_found_late_is_one_that_can_be_completed() -> None:
    """What follows its first letter may take more states than it did itself."""
    choice = [{"not": {"pattern": "(?=.*\\d)(?=.*[a-z])"}}, {"pattern": "^(.{4})*$"}]
    schema = {"type": "string", "pattern": "[a-z]3[0-9]+", "minLength": 40, "oneOf": choice}
    with pytest.raises(InvalidGrammar, match="takes over") as caught:
        compiled(schema).matcher().shortest_tokens()
    assert caught.value.path == "#/pattern"


MIXED = {"pattern": "^(?=.*[0-9])(?=.*[a-z])"}
FAR = {
    "oneOf": [{"not": {"format": "date-time"}}, {"allOf": [MIXED, {"pattern": "[a-z].{11}[0-9]"}]}]
}
BEGINNINGS = [
    ({"type": "string", "pattern": "[a-z].{3}[0-9]", **FAR}, b'")'),
    (
        {
            "type": "string",
            "if": {"pattern": "^(((aa|b)+[0-9]*)+|(.{4}){2})*$", "maxLength": 1},
            "then": {"format": "time"},
            "else": {
                "oneOf": [
                    {"format": "date"},
                    {**MIXED, "minLength": 3},
                    {"pattern": "([0-9]+|([a-z]{20,23}[^a-z]*){12,22})*([a-z0-9_]{4}x)*$"},
                ]
            },
        },
        b'"',
    ),
]


@pytest.mark.parametrize(("schema", "begun"), BEGINNINGS)
def test_what_compiles_is_completed(schema: Any, begun: bytes) -> None:
    """Where a search for a way on is given up, a text goes on in others."""
    found, draw = compiled(schema).matcher(), random.Random(begun)
    assert found.accept_bytes(begun)
    row = allocate_bitmask(1, BYTES.size)
    budget = found.shortest_completion() + 20
    for left in range(budget, 0, -1):
        found.fill_bitmask(row, 0, left)
        assert found.error is None
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: BYTES.size - 1]).tolist()
        if not allowed:
            break
        assert found.accept_token(draw.choice(allowed))
    assert found.is_accepting()


ENTANGLED = {
    "type": "object",
    "properties": {
        "ab": {
            "type": "string",
            "not": {"pattern": "[a-z].{3}[0-9]"},
            "pattern": "((ab|ba)(x{8}|.*))(.{5})*(.{2}((ab|ba)|(aa|b)+){12}){12}$",
        }
    },
}


def test_a_budget_leaves_out_what_takes_too_long_to_tell_of() -> None:
    words = [b'{"ab":"' + "".join(w).encode() for w in product("abx0", repeat=4)]
    tokens = [*(bytes([byte]) for byte in range(256)), *words, None]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    grammar = GrammarCompiler(vocabulary).compile(GrammarSpec("json_schema", json.dumps(ENTANGLED)))
    row = allocate_bitmask(1, len(tokens))
    for budget in (2, 50, 140):
        found, left = grammar.matcher(), budget
        while not found.is_accepting():
            found.fill_bitmask(row, 0, left)
            assert found.error is None
            assert found.shortest_completion() <= left
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: len(tokens) - 1]).tolist()
            assert found.shortest_tokens()[0] in allowed
            assert found.accept_token(found.shortest_tokens()[0])
            left -= 1
