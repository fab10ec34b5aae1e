"""Masks over public schemas against brute force: allowed is exactly what can be followed."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

DATA = Path(__file__).parents[3] / "shared" / "data" / "maskbench_public.jsonl"
STATES = 12  # of each schema
CHUNK = 50  # schemas a test


def words_of(text: str, draw: random.Random) -> Iterator[bytes]:
    """Pieces of the texts themselves, so that tokens cross every border that occurs."""
    data = text.encode()
    for _ in range(6):
        start = draw.randrange(len(data))
        yield data[start : start + draw.randint(2, 9)]


def rows() -> list[dict[str, Any]]:
    if not DATA.exists():
        return []
    found = [json.loads(line) for line in DATA.read_text().splitlines()]
    return [row for row in found if row.get("bench300")]


ROWS = rows()


def instance(row: dict[str, Any]) -> str:
    valid = next(test["data"] for test in row["tests"] if test["valid"])
    return json.dumps(valid, ensure_ascii=False)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    draw = random.Random(5)
    words = {word for row in ROWS for word in words_of(instance(row), draw)}
    tokens = [*(bytes([b]) for b in range(256)), *sorted(words)[::2], None]
    return GrammarCompiler(Vocabulary.from_tokens(tokens, [len(tokens) - 1]))


def check(matcher: GrammarMatcher) -> None:
    engine, state = matcher.grammar.engine, matcher._states[-1]
    mask = allocate_bitmask(1, engine.vocabulary.size)
    matcher.fill_bitmask(mask, 0)
    assert matcher.error is None
    allowed = set(np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist())
    tokens = engine.vocabulary.tokens
    wanted = {i for i, t in enumerate(tokens) if t and engine.after_token(state, i)}
    assert allowed - engine.vocabulary.end_ids == wanted
    assert bool(allowed & engine.vocabulary.end_ids) == matcher.is_accepting()


@pytest.mark.skipif(
    not ROWS, reason="the public schemas lie in a folder `shared` beside the checkout"
)
@pytest.mark.parametrize("start", range(0, 300, CHUNK))
def test_masks_of_public_schemas_are_brute_force(compiler: GrammarCompiler, start: int) -> None:
    compiled = 0
    for row in ROWS[start : start + CHUNK]:
        try:
            source = json.dumps(row["schema"])
            matcher = compiler.compile(GrammarSpec("json_schema", source)).matcher()
        except InvalidGrammar:
            continue
        compiled += 1
        text = instance(row).encode()
        places = set(random.Random(start).sample(range(len(text)), min(STATES, len(text))))
        for place, byte in enumerate(text):
            if place in places:
                check(matcher)
            if not matcher.accept_bytes(bytes([byte])):
                break
    assert compiled > CHUNK // 2
