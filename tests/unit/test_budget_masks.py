"""Masks within a budget where some bytes are in no token: exact in both engines, and cheap."""

import numpy as np
import pytest

from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import make_engine
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

MISSING = b"\x04\x05\xf1\xff"
TOKENS: list[bytes | None] = [bytes([b]) for b in range(256) if b not in MISSING]
TOKENS += [b"zz", b"abc", b'":"', None]
END = len(TOKENS) - 1
VOCABULARY = Vocabulary.from_tokens(TOKENS, [END])
COMPILERS = [GrammarCompiler(VOCABULARY, engine_factory=f) for f in (make_engine, PythonEngine)]


def masked(matcher: GrammarMatcher, budget: int) -> set[int]:
    words = allocate_bitmask(1, VOCABULARY.size)
    matcher.fill_bitmask(words, 0, budget)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def completes(matcher: GrammarMatcher, budget: int) -> bool:
    """Breadth first over tokens: whether some text is complete within `budget` of them."""
    level = [matcher]
    for _ in range(budget + 1):
        if any(m.is_accepting() for m in level):
            return True
        after = {}
        for m in level:
            for token_id in masked(m, 100) - {END}:
                other = m.fork()
                assert other.accept_token(token_id)
                after[other._states[-1]] = other
        level = list(after.values())
    return False


@pytest.mark.parametrize("compiler", COMPILERS, ids=["native", "python"])
@pytest.mark.parametrize(
    "pattern",
    [
        r"[\x04-\x06]b",
        r"(\x04|zz)c",
        r"(\x04\x05|abc){1,2}",
        r"[^a-z]{2}\x05?",
        r"(x\x04|y\x04|xyzzy)",
        r"((a|\x04)b)+c",
        r"a(\x05|bcabc)*",
    ],
)
def test_every_allowed_token_can_be_completed_and_no_other(
    compiler: GrammarCompiler, pattern: str
) -> None:
    matcher = compiler.compile(GrammarSpec("regex", pattern)).matcher()
    for budget in range(1, 7):
        if matcher.shortest_completion() > budget:
            continue
        for token_id in masked(matcher, budget) - {END}:
            after = matcher.fork()
            assert after.accept_token(token_id)
            assert completes(after, budget - 1), (pattern, budget, TOKENS[token_id])


@pytest.mark.parametrize("budget", [2, 3, 5, 40])
def test_both_engines_agree(budget: int) -> None:
    for pattern in (r"[\x04-\x06]b", r"(\x04|zz)c", r"(x\x04|y\x04|xyzzy)", r"((a|\x04)b)+c"):
        masks = [
            masked(compiler.compile(GrammarSpec("regex", pattern)).matcher(), budget)
            for compiler in COMPILERS
        ]
        assert masks[0] == masks[1], pattern


@pytest.mark.parametrize("compiler", COMPILERS, ids=["native", "python"])
def test_what_no_token_can_spell_is_refused(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(GrammarSpec("regex", r"a\x04")).matcher()
    assert matcher.shortest_completion() == 0
    assert matcher.error is not None


def test_a_roomy_budget_walks_no_trie() -> None:
    """The work of a mask with a budget is that of one without, also where bytes are missing."""
    spec = GrammarSpec("json_schema", '{"type": "string", "maxLength": 300}')
    visited = []
    for budget in (None, 1000):
        compiler = GrammarCompiler(VOCABULARY)
        matcher = compiler.compile(spec).matcher()
        words = allocate_bitmask(1, VOCABULARY.size)
        engine = matcher._engine
        if isinstance(engine, PythonEngine):
            pytest.skip("there is no compiler here")
        assert matcher.accept_bytes(b'"')
        for byte in b"some text" * 5:
            matcher.fill_bitmask(words, 0, budget)
            assert matcher.accept_bytes(bytes([byte]))
        visited.append(engine.sizes()["steps"])  # type: ignore[attr-defined]
    assert visited[1] <= 2 * visited[0] + 500


@pytest.mark.parametrize("compiler", COMPILERS, ids=["native", "python"])
def test_a_text_of_very_many_bytes_is_bounded_unspelled(compiler: GrammarCompiler) -> None:
    before = compiler._engine.num_bytes
    matcher = compiler.compile(GrammarSpec("regex", "z{100000}|a")).matcher()
    assert masked(matcher, 60) == {TOKENS.index(b"a")}
    assert matcher.accept_token(TOKENS.index(b"zz"))
    assert matcher.shortest_completion() == 99_998
    assert compiler._engine.num_bytes - before < 1 << 20
