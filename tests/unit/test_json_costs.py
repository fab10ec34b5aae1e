"""Shortest completions where a search among rules would not end: found by what is known of them."""

import json
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import make_engine
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

LETTERS = b' "+,-.0123456789:E[\\]abcdefghijklmnopqrstuvwxyz{}'
TOKENS = [*(bytes((byte,)) for byte in LETTERS), b"12", b"345", b'","', None]
VOCABULARY = Vocabulary.from_tokens(TOKENS, end_ids=[len(TOKENS) - 1])
COMPILERS = [GrammarCompiler(VOCABULARY, engine_factory=f) for f in (make_engine, PythonEngine)]


def matcher(schema: Any, compiler: GrammarCompiler, **options: Any) -> GrammarMatcher:
    spec = GrammarSpec("json_schema", json.dumps(schema), tuple(sorted(options.items())))
    return compiler.compile(spec).matcher()


def finish(one: GrammarMatcher, budget: int, seed: int) -> bytes:
    """A random text of at most so many tokens."""
    draw, text = random.Random(seed), b""
    mask = allocate_bitmask(1, VOCABULARY.size)
    while not one.is_finished():
        one.fill_bitmask(mask, 0, budget)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        may = sorted(set(bits.nonzero()[0].tolist()) - VOCABULARY.end_ids)
        if not may:
            break
        token = draw.choice(may)
        assert one.accept_token(token)
        text, budget = text + (TOKENS[token] or b""), budget - 1
    assert one.error is None
    assert one.is_accepting()
    return text


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_order_of_many_required_members_is_not_searched(compiler: GrammarCompiler) -> None:
    names = [f"{a}{b}" for a in "abc" for b in "efgh"]
    schema = {
        "type": "object",
        "properties": {name: {"enum": [1, 12, 345]} for name in [*names, "x"]},
        "required": names,
        "additionalProperties": False,
    }
    declared = matcher(schema, compiler, whitespace="compact")
    one = matcher(schema, compiler, whitespace="compact", property_order="any")
    needed = one.shortest_completion()
    assert needed == declared.shortest_completion()
    found = json.loads(finish(one, needed + 3, 1))
    assert set(found) - {"x"} == set(names)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("bounds", [{}, {"minimum": 50_000}, {"minimum": 0, "maximum": 100_000}])
@pytest.mark.parametrize("step", [12, 10_007, 10**9])
def test_multiples_of_large_numbers(step: int, bounds: Any, compiler: GrammarCompiler) -> None:
    one = matcher({"type": "integer", "multipleOf": step, **bounds}, compiler)
    needed = one.shortest_completion()
    assert needed >= 1
    assert Fraction(finish(one, needed + 2, step).decode()) % step == 0


def test_counts_that_no_text_reaches() -> None:
    one = matcher({"type": "array", "maxItems": 1e300, "items": {"const": 1}}, COMPILERS[0])
    assert one.accept_bytes(b"[1, 1, 1]")
    with pytest.raises(InvalidGrammar, match="minLength is at most"):
        matcher({"type": "string", "minLength": 1e300}, COMPILERS[0])


@pytest.mark.parametrize("beside", [{}, {"unevaluatedProperties": False}])
@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_references_that_double_are_read_once(keyword: str, beside: Any) -> None:
    chain = {str(i): {keyword: [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(60)}
    last = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = {"$ref": "#/$defs/0", "$defs": {**chain, "60": last}, **beside}
    one = matcher(schema, COMPILERS[0])
    assert one.accept_bytes(b'{"a": 1}')
    assert one.is_accepting()
