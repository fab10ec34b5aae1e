"""Public schemas that the native engine reads by itself are read as the front end reads them."""

import json
from pathlib import Path

import pytest

from benchmarks.grammar_conformance import PUBLIC, SUITE, rows_of
from radixgen.errors import InvalidGrammar
from radixgen.grammars import native_engine
from radixgen.grammars.compiler import CompiledGrammar, GrammarCompiler
from radixgen.grammars.engine import NativeEngine
from radixgen.grammars.json_native import plain_schemas
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

if native_engine.load_library() is None:
    pytest.skip("there is no compiler", allow_module_level=True)
TOKENS = [*(bytes((byte,)) for byte in range(256)), b'{"', b'": "', b'":', b"[{", b"}}", None]
BY_FRONT_END = (("strict", True),)  # an option, though it says what is so without
STEPS = 300  # of an instance
needs_data = pytest.mark.skipif(not SUITE.exists(), reason="the data are not beside the checkout")


def compiled(compiler: GrammarCompiler, spec: GrammarSpec) -> CompiledGrammar | str:
    """The grammar, or how it is refused."""
    try:
        return compiler.compile(spec)
    except InvalidGrammar as error:
        return str(error)


def assert_alike(one: CompiledGrammar, other: CompiledGrammar, text: bytes, where: str) -> None:
    first, second = one.matcher(), other.matcher()
    masks = allocate_bitmask(2, len(TOKENS))
    for byte in text[:STEPS]:
        first.fill_bitmask(masks, 0)
        second.fill_bitmask(masks, 1)
        assert (masks[0] == masks[1]).all(), where
        data = bytes((byte,))
        accepted = first.accept_bytes(data)
        assert accepted == second.accept_bytes(data), where
        if not accepted:
            return
    assert first.is_accepting() == second.is_accepting(), where


@needs_data
@pytest.mark.parametrize(("path", "step", "least"), [(SUITE, 1, 0.1), (PUBLIC, 8, 0.5)])
def test_public_schemas_are_read_alike(path: Path, step: int, least: float) -> None:
    vocabulary = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
    by_engine, by_front_end = GrammarCompiler(vocabulary), GrammarCompiler(vocabulary)
    engine, num_read, rows = by_engine._engine, 0, rows_of(path)[::step]
    plain = plain_schemas(())
    assert isinstance(engine, NativeEngine)
    assert plain is not None
    for row in rows:
        source = json.dumps(row["schema"])
        one = compiled(by_engine, GrammarSpec("json_schema", source))
        other = compiled(by_front_end, GrammarSpec("json_schema", source, BY_FRONT_END))
        if isinstance(one, str) or isinstance(other, str):
            assert one == other, row["id"]
        elif engine.start_schema(source, plain) is not None:
            num_read += 1
            for test in row["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False).encode()
                assert_alike(one, other, text, row["id"])
    assert num_read >= least * len(rows)
