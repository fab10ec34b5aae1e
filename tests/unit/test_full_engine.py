"""An engine without memory left: what it is asked raises InvalidGrammar and nothing else, and it
keeps count of its rules, whatever they were needed for when memory ended."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import Engine, NativeEngine, make_engine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

SAMPLE = Path(__file__).parents[3] / "shared/data/maskbench_public.jsonl"


def follow(compiler: GrammarCompiler, source: str) -> None:
    """Compile a schema and write the first 30 bytes that it allows, the lowest of each."""
    matcher = compiler.compile(GrammarSpec("json_schema", source)).matcher()
    bitmask = np.zeros((1, compiler.vocabulary.num_words), np.int32)
    for _ in range(30):
        matcher.fill_bitmask(bitmask, 0)
        allowed = np.flatnonzero(np.unpackbits(bitmask[0].view(np.uint8), bitorder="little"))
        if not len(allowed) or not matcher.accept_token(int(allowed[-1])):
            return
        matcher.shortest_completion()


# Memory ends at another place with each: within a chain, a list, a schema that C reads, a mask.
@pytest.mark.parametrize(("kib", "first"), [(200, 0), (500, 100), (540, 180), (600, 200)])
def test_a_full_engine_refuses_and_does_not_fail(kib: int, first: int) -> None:
    made: list[NativeEngine] = []

    def small(vocabulary: Vocabulary, _: int) -> Engine:
        engine = make_engine(vocabulary, kib << 10)
        if not isinstance(engine, NativeEngine):
            pytest.skip("no C compiler")
        made.append(engine)
        return engine

    tokens: list[bytes | None] = [bytes((byte,)) for byte in range(256)]
    vocabulary = Vocabulary.from_tokens([*tokens, b'{"', b'":', b'", "', None], [259])
    compiler = GrammarCompiler(vocabulary, engine_factory=small)  # never thinks it full
    refused = 0
    for line in SAMPLE.read_text().splitlines()[first : first + 120]:
        try:
            follow(compiler, json.dumps(json.loads(line)["schema"]))
        except InvalidGrammar as error:
            refused += "memory" in str(error)
    assert refused
    (engine,) = made
    nodes = engine.nodes
    assert nodes.met() == len(nodes.rules)
    assert all(nodes.rules[index] in (rule, None) for rule, index in nodes._indices.items())


def test_an_engine_that_has_room_takes_what_a_step_may_take() -> None:
    """However full its arrays are: they grow by less than that, until another engine begins."""
    tokens = [*(bytes((byte,)) for byte in range(256)), None]
    compiler = GrammarCompiler(Vocabulary.from_tokens(tokens, end_ids=[256]))
    source = random.Random(1)
    for _ in range(80):
        text = "".join(source.choice("abcdef") for _ in range(30_000))
        schema = json.dumps({"enum": [f"{text}a", f"{text}b"]})
        matcher = compiler.compile(GrammarSpec("json_schema", schema)).matcher()
        assert matcher.accept_bytes(f'"{text}a"'.encode()), matcher.error
        assert matcher.is_accepting()
