"""The matcher: accept, fill, forced text, completions within a budget, rollback, fork, errors."""

import random
from collections import deque

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import CompiledGrammar, GrammarCompiler
from radixgen.grammars.engine import Engine, make_engine
from radixgen.grammars.matcher import GrammarMatcher, Words, allocate_bitmask, fill_bitmasks
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

WORDS = [b"ab", b"abc", b"bc", b'":', b'{"', b'"}', b"true", b"fal", b"se", b"12", b'","']
TOKENS = [*(bytes([b]) for b in range(256)), *WORDS, None]
VOCABULARY = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
END = len(TOKENS) - 1

ENGINES = {"python": PythonEngine, "native or python": make_engine}


@pytest.fixture(params=ENGINES)
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, engine_factory=ENGINES[request.param])


def regex(compiler: GrammarCompiler, pattern: str) -> GrammarMatcher:
    return compiler.compile(GrammarSpec("regex", pattern)).matcher()


def token(text: bytes) -> int:
    return TOKENS.index(text)


def allowed(matcher: GrammarMatcher, budget: int | None = None) -> set[int]:
    mask = allocate_bitmask(1, VOCABULARY.size)
    matcher.fill_bitmask(mask, 0, budget)
    return ids_of(mask[0])


def ids_of(row: Words) -> set[int]:
    return set(np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist())


def test_tokens_are_accepted_and_refused_without_a_trace(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "abc?")
    assert not matcher.accept_token(token(b"b"))
    assert not matcher.accept_token(END)
    assert not matcher.accept_token(-1)
    assert not matcher.accept_token(VOCABULARY.size)
    assert matcher.num_steps == 0
    assert matcher.accept_token(token(b"ab"))
    assert matcher.is_accepting()
    assert allowed(matcher) == {token(b"c"), END}
    assert matcher.accept_token(END)
    assert matcher.is_terminated()
    assert not matcher.accept_token(token(b"c"))
    assert allowed(matcher) == {END}
    assert matcher.error is None


def test_accept_bytes_is_one_step(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "(abc)+")
    assert matcher.accept_bytes(b"abcab")
    assert not matcher.accept_bytes(b"b")
    assert matcher.num_steps == 1
    assert allowed(matcher) == {token(b"c")}
    matcher.rollback(1)
    assert allowed(matcher) == {token(b"a"), token(b"ab"), token(b"abc")}


def test_forced_bytes_stop_at_a_choice_and_at_an_end(compiler: GrammarCompiler) -> None:
    assert regex(compiler, "ab(c|d)").forced_bytes() == b"ab"
    assert regex(compiler, "abc(d)?").forced_bytes() == b"abc"
    assert regex(compiler, "a*").forced_bytes() == b""
    assert regex(compiler, "x{5}").forced_bytes() == b"xxxxx"


def test_rollback_restores_every_mask(compiler: GrammarCompiler) -> None:
    matcher, draw = regex(compiler, "(ab|abc|c){2,9}"), random.Random(5)
    masks: list[set[int]] = []
    while len(masks) < 6:
        masks.append(allowed(matcher))
        assert matcher.accept_token(draw.choice(sorted(masks[-1] - {END})))
    matcher.rollback(2)
    assert allowed(matcher) == masks[4]
    matcher.rollback(4)
    assert allowed(matcher) == masks[0]
    with pytest.raises(ValueError, match="undo 1 of 0"):
        matcher.rollback(1)


def test_rollback_over_the_end(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "a")
    assert matcher.accept_token(token(b"a"))
    assert matcher.accept_token(END)
    matcher.rollback(1)
    assert not matcher.is_terminated()
    assert matcher.is_accepting()
    matcher.rollback(1)
    assert allowed(matcher) == {token(b"a")}


def test_a_fork_goes_its_own_way(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "a(b|c)")
    assert matcher.accept_token(token(b"a"))
    other = matcher.fork()
    assert other.accept_token(token(b"c"))
    assert matcher.accept_token(token(b"b"))
    other.rollback(2)
    assert matcher.num_steps == 2
    assert other.num_steps == 0


def fewest_tokens(matcher: GrammarMatcher) -> int:
    """Breadth first over tokens."""
    level = deque([(matcher, 0)])
    seen = set()
    while True:
        here, depth = level.popleft()
        if here.is_accepting():
            return depth
        for token_id in sorted(allowed(here) - {END}):
            after = here.fork()
            assert after.accept_token(token_id)
            state = after._states[-1]
            if state not in seen:
                seen.add(state)
                level.append((after, depth + 1))


@pytest.mark.parametrize("pattern", ["abc|abcabcab", "(ab){3}c", "true|false", "a*"])
def test_the_shortest_completion_is_what_a_search_finds(
    compiler: GrammarCompiler, pattern: str
) -> None:
    matcher = regex(compiler, pattern)
    assert matcher.shortest_completion() == fewest_tokens(matcher)
    for token_id in matcher.shortest_tokens():
        assert matcher.accept_token(token_id)
    assert matcher.is_accepting()
    assert matcher.shortest_completion() == 0


def test_the_shortest_completion_is_of_the_shortest_text(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "[ab]{4}x?")  # abab takes fewer tokens, and no fewer bytes
    assert matcher.shortest_completion() == 4 > fewest_tokens(matcher)


@pytest.mark.parametrize("pattern", ["(true|false|12){1,6}", "ab(c|abc(ab)*)x", "a*", "(a|b)*abc"])
@pytest.mark.parametrize("spare", [0, 1, 5])
def test_a_budget_is_always_enough(compiler: GrammarCompiler, pattern: str, spare: int) -> None:
    for seed in range(10):
        matcher, draw = regex(compiler, pattern), random.Random(seed)
        budget = matcher.shortest_completion() + spare
        while budget and (choices := allowed(matcher, budget) - {END}):
            assert matcher.accept_token(draw.choice(sorted(choices)))
            budget -= 1
            assert matcher.shortest_completion() <= budget
        assert matcher.is_accepting()


def test_a_budget_takes_nothing_it_need_not(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "a(b{3}|c)")
    assert matcher.accept_token(token(b"a"))
    assert allowed(matcher, 3) == {token(b"b"), token(b"c"), token(b"bc")} & allowed(matcher)
    assert allowed(matcher, 2) == {token(b"c")}
    assert matcher.accept_token(token(b"c"))
    assert allowed(matcher, 0) == {END}


def test_a_batch_writes_what_single_calls_write(compiler: GrammarCompiler) -> None:
    matchers = [regex(compiler, p) for p in ("a+", "b|c", "(ab)*", "a+")]
    assert matchers[0].accept_token(token(b"a"))
    assert matchers[2].accept_token(END)
    mask = np.full((6, VOCABULARY.num_words + 1), -1, np.int32)
    fill_bitmasks(matchers, mask, [5, 0, 2, 3])
    for matcher, row in zip(matchers, [5, 0, 2, 3], strict=True):
        wide = np.full((1, VOCABULARY.num_words + 1), -1, np.int32)
        matcher.fill_bitmask(wide, 0)
        assert np.array_equal(mask[row], wide[0])
        assert mask[row, -1] == 0
    assert (mask[[1, 4]] == -1).all()


def test_rows_outside_the_mask_are_refused(compiler: GrammarCompiler) -> None:
    matcher = regex(compiler, "a")
    with pytest.raises(IndexError):
        matcher.fill_bitmask(allocate_bitmask(2, VOCABULARY.size), 2)
    with pytest.raises(IndexError):
        fill_bitmasks([matcher], allocate_bitmask(2, VOCABULARY.size), [2])
    with pytest.raises(ValueError, match=r"words|shape|broadcast"):
        matcher.fill_bitmask(np.zeros((1, 1), np.int32), 0)


class Broken:
    """An engine that meets a limit at the second token."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.vocabulary = engine.vocabulary

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def after_token(self, state: int, token_id: int) -> int:
        if token_id == token(b"b"):
            raise InvalidGrammar("over the limit")
        return self._engine.after_token(state, token_id)


def test_a_limit_is_a_state_of_the_matcher(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec("regex", "(ab)*"))
    broken: Engine = Broken(grammar.engine)  # type: ignore[assignment]  # a stand-in by delegation
    matcher = CompiledGrammar(
        grammar.spec, broken, grammar.start, grammar.rules, grammar.max_growth
    ).matcher()
    assert matcher.accept_token(token(b"a"))
    assert not matcher.accept_token(token(b"b"))
    assert matcher.error == "over the limit"
    assert allowed(matcher) == {END}
    assert not matcher.accept_token(token(b"a"))
    assert matcher.forced_bytes() == b""
    assert matcher.shortest_completion() == 0
    assert matcher.fork().error == "over the limit"
    matcher.rollback(1)
    assert matcher.fork().error is None
    assert token(b"a") in allowed(matcher)


def test_a_text_that_takes_too_much_memory_stops_alone(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec("regex", "(a|b)*a(a|b){60}"))
    poor = CompiledGrammar(grammar.spec, grammar.engine, grammar.start, grammar.rules, 20_000)
    greedy, batch, draw = poor.matcher(), poor.matcher(), random.Random(1)
    mask = allocate_bitmask(1, VOCABULARY.size)
    for _ in range(3000):
        letter = draw.choice((token(b"a"), token(b"b")))
        greedy.fill_bitmask(mask, 0)
        if not greedy.accept_token(letter):
            break
    assert greedy.error is not None
    assert "memory" in greedy.error
    for _ in range(3000):
        fill_bitmasks([batch], mask, [0])
        if not batch.accept_token(draw.choice((token(b"a"), token(b"b")))):
            break
    assert batch.error is not None
    assert grammar.matcher().accept_token(token(b"a"))


def test_all_that_a_text_adds_to_its_engine_is_on_its_account(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec("regex", "(a|b)*a(a|b){60}|c{1,40}"))
    matcher, mask = grammar.matcher(), allocate_bitmask(1, VOCABULARY.size)
    before, left = grammar.engine.num_bytes, matcher._account._left
    for ask in (
        lambda: matcher.fill_bitmask(mask, 0, 61),
        matcher.shortest_completion,
        matcher.shortest_tokens,
        matcher.forced_bytes,
    ):
        ask()
        assert left - matcher._account._left == grammar.engine.num_bytes - before
    assert grammar.engine.num_bytes > before
    assert matcher.error is None
