"""Strings of which much is asked at once: an engine says with the compile whether there are any."""

import json
from typing import Any

import pytest

from radixgen.grammars import derivative, text_emptiness
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import Engine, NativeEngine, make_engine
from radixgen.grammars.expr import Expr, RuleSet, complement, conj
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
