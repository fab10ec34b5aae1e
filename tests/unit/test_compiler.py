"""The compiler: caching, threads, limits, and constraints made to hurt."""

import json
import threading
import time

import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars import compiler as compiler_module
from radixgen.grammars.compiler import HEALED, GrammarCompiler
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

TOKENS = [*(bytes([b]) for b in range(256)), b"aa", b"aaaa", b'{"', None]
VOCABULARY = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY)


def test_equal_specs_compile_once(compiler: GrammarCompiler) -> None:
    spec = GrammarSpec("regex", "a+")
    assert compiler.compile(spec) is compiler.compile(GrammarSpec("regex", "a+"))
    assert compiler.compile(GrammarSpec("regex", "b+")) is not compiler.compile(spec)


def test_threads_that_ask_at_once_share_one_compile(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    build = compiler_module.build

    def slow(spec: GrammarSpec, rules: object) -> object:
        calls.append(spec)
        time.sleep(0.05)
        return build(spec, rules)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(compiler_module, "build", slow)
    found = in_threads(4, lambda: compiler.compile(GrammarSpec("regex", "ab*")))
    assert len(calls) == 1
    assert len({id(grammar) for grammar in found}) == 1


def in_threads(number: int, call: object) -> list[object]:
    results: list[object] = []

    def run() -> None:
        assert callable(call)
        results.append(call())

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_failed_compile_is_told_to_all_and_not_kept(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(InvalidGrammar):
            compiler.compile(GrammarSpec("regex", "(a"))


def test_what_nothing_satisfies_is_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidGrammar, match="satisf"):
        compiler.compile(GrammarSpec("json_schema", json.dumps({"enum": []})))


@pytest.mark.parametrize("healed", ["日", 5, None])
def test_what_comes_before_the_text_is_bytes(compiler: GrammarCompiler, healed: object) -> None:
    spec = GrammarSpec("regex", "a", ((HEALED, healed),))  # type: ignore[arg-type]  # bad on purpose
    with pytest.raises(InvalidGrammar, match="healed="):
        compiler.compile(spec)


def test_masks_from_many_threads_are_those_of_one(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec("regex", "(ab|a{2,40}c)*"))

    def texts() -> tuple[tuple[int, ...], ...]:
        matcher, rows = grammar.matcher(), []
        mask = allocate_bitmask(1, VOCABULARY.size)
        for byte in b"abaaaacabaac" * 20:
            matcher.fill_bitmask(mask, 0)
            rows.append(tuple(mask[0].tolist()))
            assert matcher.accept_token(byte)
        return tuple(rows)

    assert len(set(in_threads(4, texts))) == 1


def test_the_cache_has_a_bound() -> None:
    compiler = GrammarCompiler(VOCABULARY, max_bytes=1 << 20)
    first = compiler.compile(GrammarSpec("regex", "a" * 2000))
    for letter in "bcdefg":
        compiler.compile(GrammarSpec("regex", letter * 2000))
    assert compiler.compile(GrammarSpec("regex", "a" * 2000)) is not first


def test_a_full_engine_is_left_to_its_matchers() -> None:
    compiler = GrammarCompiler(VOCABULARY, max_bytes=1 << 20)
    matcher = compiler.compile(GrammarSpec("regex", "(a|b)*c")).matcher()
    mask = allocate_bitmask(1, VOCABULARY.size)
    engines = set()
    for number in range(120):
        grammar = compiler.compile(
            GrammarSpec("regex", f"[a-{chr(98 + number % 20)}]{{{number}}}x")
        )
        engines.add(id(grammar.engine))
        other = grammar.matcher()
        for _ in range(min(number, 40)):
            other.fill_bitmask(mask, 0)
            assert other.accept_token(ord("a"))
    assert len(engines) > 1
    assert matcher.accept_token(ord("a"))
    assert matcher.accept_token(ord("c"))
    assert matcher.is_accepting()


HOSTILE = {
    "nested counts": GrammarSpec("regex", "(a{1000}){1000}"),
    "nested stars": GrammarSpec("regex", "((((a*)*)*)*)*b"),
    "ambiguous": GrammarSpec("regex", "(a|aa|aaa|aaaa){1,400}b"),
    "far back": GrammarSpec("regex", "(a|b)*a(a|b){200}"),
    "deep groups": GrammarSpec("regex", "(" * 5000 + "a" + ")" * 5000),
    "big enum": GrammarSpec(
        "json_schema", json.dumps({"enum": [f"value {i}" for i in range(20000)]})
    ),
    "nested oneOf": GrammarSpec(
        "json_schema",
        json.dumps({"oneOf": [{"oneOf": [{"type": "string"}] * 20}] * 20}),
    ),
    "deep schema": GrammarSpec("json_schema", '{"items":' * 3000 + "{}" + "}" * 3000),
    "endless recursion": GrammarSpec(
        "json_schema",
        json.dumps({"$ref": "#", "required": ["a"], "properties": {"a": {"$ref": "#"}}}),
    ),
    "large choice": GrammarSpec("choice", json.dumps([f"choice number {i}" for i in range(20000)])),
    "left recursion": GrammarSpec("lark", 'start: start start | "a" | start "a" start\n'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_constraints_cost_little_and_hang_nothing(
    compiler: GrammarCompiler, name: str
) -> None:
    began = time.process_time()
    try:
        matcher = compiler.compile(HOSTILE[name]).matcher()
        mask = allocate_bitmask(1, VOCABULARY.size)
        for _ in range(30):
            matcher.fill_bitmask(mask, 0)
            if matcher.error or not matcher.accept_token(ord("a")):
                break
    except InvalidGrammar:
        pass  # refused, which is as good an end
    assert time.process_time() - began < 10
    assert compiler.compile(GrammarSpec("regex", "ok")).matcher().forced_bytes() == b"ok"
