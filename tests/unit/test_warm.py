"""An engine over many tokens knows strings, numbers and formats before the first text."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from radixgen.grammars import compiler
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.native_engine import NativeEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

WORDS = [bytes(word) for word in product(b"aeinorst", repeat=4)]
TOKENS = [*(bytes((b,)) for b in range(256)), *WORDS, b"20", b'{"', b'a", ', b"1.", b"2-", None]
SCHEMA = {
    "type": "object",
    "properties": {"at": {"format": "date-time", "type": "string"}, "name": {"type": "string"}},
}
TEXT = b'{"at": "2022-01-31T12:34:56Z", "name": "some", "other": -1.5}'
LAST = {"type": "object", "properties": {"url": {"format": "uri"}}, "additionalProperties": False}


def new_compiler(monkeypatch: pytest.MonkeyPatch, many: int) -> GrammarCompiler:
    monkeypatch.setattr(compiler, "MANY_TOKENS", many)
    monkeypatch.setattr(compiler, "SOME_SECONDS", 1e9)  # and no masks within the compile
    return GrammarCompiler(Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1]))


def masks(
    compiler: GrammarCompiler, schema: dict[str, Any] = SCHEMA, text: bytes = TEXT
) -> tuple[list[list[int]], int]:
    """Those of a text, and how much the engine grew by them, in bytes."""
    matcher = compiler.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()
    engine, mask, found = matcher.grammar.engine, allocate_bitmask(1, len(TOKENS)), []
    if not isinstance(engine, NativeEngine):
        pytest.skip("no C compiler: the native engine does not run here")
    before = engine.num_bytes
    for byte in text:
        matcher.fill_bitmask(mask, 0)
        found.append(mask[0].tolist())
        assert matcher.accept_bytes(bytes((byte,)))
    return found, engine.num_bytes - before


def test_a_warm_engine_fills_the_same_masks_with_less_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cold, cold_bytes = masks(new_compiler(monkeypatch, len(TOKENS) + 1))
    warm, warm_bytes = masks(new_compiler(monkeypatch, len(TOKENS)))
    assert np.array_equal(cold, warm)
    assert warm_bytes < cold_bytes / 2, (warm_bytes, cold_bytes)


def test_a_format_is_warm_before_whatever_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is sorted for good when it is met again: not for want of a second time."""
    text = b'{"url": "https://one.example/two"}'
    cold, cold_bytes = masks(new_compiler(monkeypatch, len(TOKENS) + 1), LAST, text)
    warm, warm_bytes = masks(new_compiler(monkeypatch, len(TOKENS)), LAST, text)
    assert np.array_equal(cold, warm)
    assert warm_bytes < cold_bytes / 4, (warm_bytes, cold_bytes)
