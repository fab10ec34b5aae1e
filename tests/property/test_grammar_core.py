"""The native engine against the Python one, and both against the definition of a mask.

At every state visited the mask has to be what brute force over the vocabulary gives: exactly the
tokens after which some complete text is still reachable.
"""

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen.errors import InvalidGrammar
from radixgen.grammars.engine import Engine
from radixgen.grammars.expr import (
    ANY_BYTE,
    EPSILON,
    Expr,
    Node,
    RuleSet,
    byte_set,
    complement,
    concat,
    conj,
    literal,
    optional,
    repeat,
    star,
    union,
)
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary

LETTERS = b'abc{}[]",:0123\xc3\xa9\\ -'


def small_vocabulary() -> Vocabulary:
    draw = random.Random(7)
    tokens: list[bytes | None] = [bytes([b]) for b in range(256)]
    tokens += [bytes(draw.choices(LETTERS, k=draw.randint(2, 6))) for _ in range(500)]
    tokens += [b"ab", b"ab", b'"a":', "\u4e00".encode(), None, None]
    return Vocabulary.from_tokens(tokens, [len(tokens) - 1, len(tokens) - 2])


VOCABULARY = small_vocabulary()


def engines() -> tuple[PythonEngine, NativeEngine]:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    return PythonEngine(VOCABULARY, 1 << 30), NativeEngine(VOCABULARY, library, 1 << 30)


def mask_of(engine: Engine, state: int) -> set[int]:
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    engine.fill_row(state, row, 0)
    return set(np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist())


def brute_force(engine: Engine, state: int) -> set[int]:
    allowed = {i for i, t in enumerate(VOCABULARY.tokens) if t and engine.after_bytes(state, t)}
    return allowed | (VOCABULARY.end_ids if engine.is_accepting(state) else set())


def lit(text: bytes) -> Expr:
    return literal(text)


def expr(node: Node) -> Expr:
    assert isinstance(node, Expr)
    return node


CHARACTER = expr(
    union(
        byte_set(set(range(32, 128)) - {34, 92}),
        concat(byte_set(range(0xC2, 0xE0)), byte_set(range(0x80, 0xC0))),
        concat(lit(b"\\"), byte_set(b'"\\nt')),
    )
)
NAMES = union(*(lit(n) for n in (b"a", b"ab", b"abc", b"b", b"cab")))
STRING = concat(lit(b'"'), star(CHARACTER), lit(b'"'))
KEY = concat(lit(b'"'), conj(expr(star(CHARACTER)), complement(expr(NAMES))), lit(b'"'))
BOUNDED = concat(lit(b'"'), repeat(CHARACTER, 2, 5), lit(b'"'))
NUMBER = concat(optional(lit(b"-")), repeat(byte_set(b"0123456789"), 1, 4))


def json_like() -> Node:
    rules = RuleSet()
    value = rules.rule("value", lambda: union(STRING, NUMBER, BOUNDED, array, object_))
    array = rules.rule("array", lambda: listed(b"[", value, b"]"))
    object_ = rules.rule("object", lambda: listed(b"{", member, b"}"))
    member = rules.rule(
        "member",
        lambda: union(
            concat(lit(b'"a":'), NUMBER),
            concat(lit(b'"abc":'), value),
            concat(KEY, lit(b":"), value),
        ),
    )
    return value


def listed(start: bytes, item: Node, end: bytes) -> Node:
    items = concat(item, star(concat(lit(b","), item)))
    return concat(lit(start), optional(items), lit(end))


def arithmetic() -> Node:
    rules = RuleSet()
    term = rules.rule(
        "term",
        lambda: union(
            concat(term, lit(b"-"), term),
            concat(term, lit(b","), byte_set(b"ab")),
            byte_set(b"0123"),
            concat(lit(b"{"), term, lit(b"}")),
        ),
    )
    return term


def palindromes() -> Node:
    rules = RuleSet()
    whole = rules.rule(
        "palindrome",
        lambda: union(EPSILON, *(concat(lit(c), whole, lit(c)) for c in (b"a", b"b", b"c"))),
    )
    return whole


def rules_beside_others() -> Node:
    """Rules that are expanded while other ways are still waiting, whatever their order."""
    rules = RuleSet()
    first, last = (rules.rule(name, lambda: concat(KEY, lit(b":"))) for name in ("first", "last"))
    return star(union(first, concat(lit(b'"ab"'), NUMBER), concat(lit(b'"a"'), lit(b"}")), last))


def many_words() -> Node:
    draw = random.Random(3)
    return union(*(lit(bytes(draw.choices(b"abc", k=draw.randint(1, 7)))) for _ in range(300)))


def no_trigger() -> Node:
    return conj(
        expr(star(byte_set(b"abc"))),
        complement(expr(concat(star(ANY_BYTE), lit(b"bca"), star(ANY_BYTE)))),
    )


def bounded_words(low: int, high: int) -> Node:
    """Strings of up to three words and of so many characters."""
    blank = byte_set(b" -")
    word = repeat(conj(expr(CHARACTER), complement(expr(blank))), 1, None)
    words = concat(repeat(concat(word, repeat(blank, 1, None)), 0, 2), word)
    both = conj(expr(words), expr(repeat(CHARACTER, low, high)))
    return concat(lit(b'"'), both, lit(b'"'), optional(lit(b",")))


def far_end(letters: bytes) -> Node:
    """Parts that may be empty or repeated, beside complements: the shortest way is not plain."""
    x, y = letters[:1], letters[1:]
    parts = [repeat(byte_set(letters), i % 3, 2 + i % 2) for i in range(7)]
    unlike = concat(repeat(byte_set(letters), 0, 8), star(lit(y)))
    return conj(
        expr(concat(*parts, lit(letters))),
        complement(expr(unlike)),
        complement(expr(concat(star(ANY_BYTE), lit(y + x), star(ANY_BYTE), lit(y + x + y)))),
    )


GRAMMARS: dict[str, Callable[[], Node]] = {
    "string": lambda: STRING,
    "key": lambda: KEY,
    "bounded": lambda: BOUNDED,
    "number": lambda: NUMBER,
    "json": json_like,
    "arithmetic": arithmetic,
    "palindromes": palindromes,
    "words": many_words,
    "counted": lambda: repeat(union(lit(b"a"), lit(b"aa"), lit(b"ab")), 3, 20),
    "without": no_trigger,
    "wide counted": lambda: concat(repeat(byte_set(range(32, 127)), 2, 9), lit(b"\n")),
    "ambiguous loop": lambda: concat(star(byte_set(range(32, 127))), lit(b"a"), star(ANY_BYTE)),
    "rules beside others": rules_beside_others,
    "counted search": lambda: concat(
        lit(b'"'),
        conj(
            expr(repeat(CHARACTER, 2, 6)),
            expr(concat(star(CHARACTER), byte_set(b"abc"), star(CHARACTER))),
        ),
        lit(b'"'),
    ),
    "bounded words": lambda: bounded_words(1, 14),
    "hardly bounded words": lambda: bounded_words(0, 60),
    "far end": lambda: far_end(b"ab"),
    "far end, no word": lambda: far_end(b"xy"),
    "two strings": lambda: union(STRING, concat(lit(b'"'), repeat(CHARACTER, 0, 3), lit(b'":'))),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_are_brute_force_at_every_state(name: str) -> None:
    python, native = engines()
    node = GRAMMARS[name]()
    states = python.start(node), native.start(node)
    seen: set[int] = set()
    for seed in range(12):
        follow(python, native, states, random.Random(seed), seen)
    assert len(seen) > 2


def follow(
    python: PythonEngine,
    native: NativeEngine,
    states: tuple[int, int],
    draw: random.Random,
    seen: set[int],
) -> None:
    """A random text, token by token, everything compared at each state met for the first time."""
    one, two = states
    for _ in range(20):
        allowed = mask_of(native, two)
        if one not in seen:
            seen.add(one)
            assert allowed == mask_of(python, one)
            assert allowed == brute_force(python, one)
            assert python.forced_bytes(one) == native.forced_bytes(two)
            assert python.next_bytes(one) == native.next_bytes(two)
            assert python.is_accepting(one) == native.is_accepting(two)
            check_completion(python, native, one, two, draw)
        tokens = sorted(allowed - VOCABULARY.end_ids)
        if not tokens:
            return
        token = draw.choice(tokens)
        one, two = python.after_token(one, token), native.after_token(two, token)
        assert one
        assert two


def check_completion(
    python: PythonEngine, native: NativeEngine, one: int, two: int, draw: random.Random
) -> None:
    """A completion completes, both engines find one as short, and a budget keeps what it allows."""
    shortest = native.shortest_tokens(two)
    assert len(shortest) == len(python.shortest_tokens(one))
    after = two
    for token in shortest:
        after = native.after_token(after, token)
    assert native.is_accepting(after)
    budget = len(shortest) + draw.randint(0, 1)
    rows = np.zeros((2, VOCABULARY.num_words), np.int32)
    native.fill_row(two, rows, 0)
    python.fill_row(one, rows, 1)
    native.restrict_row(two, rows, 0, budget)
    python.restrict_row(one, rows, 1, budget)
    assert np.array_equal(rows[0], rows[1])
    assert not shortest or rows[0][shortest[0] >> 5] >> (shortest[0] & 31) & 1


def test_costs_are_brute_force() -> None:
    """No token of this vocabulary is longer than one of the bytes: tokens count bytes."""
    python, native = engines()
    node = far_end(b"xy")
    waiting, seen = [(python.start(node), native.start(node))], set()
    while waiting:
        one, two = waiting.pop()
        if two in seen:
            continue
        seen.add(two)
        fewest = steps_to_end(native, two)
        assert len(python.shortest_tokens(one)) == native.fewest_tokens(two) == fewest
        after = ((python.after_bytes(one, b), native.after_bytes(two, b)) for b in (b"x", b"y"))
        waiting.extend(states for states in after if states[0])
    assert len(seen) > 50


def steps_to_end(engine: NativeEngine, state: int) -> int:
    level, seen, steps = {state}, {state}, 0
    while not any(map(engine.is_accepting, level)):
        level = {engine.after_bytes(here, b) for here in level for b in (b"x", b"y")} - seen - {0}
        seen |= level
        steps += 1
        assert level
    return steps


def small(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    counts = st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 4)))
    return st.one_of(
        st.lists(children, min_size=2, max_size=3).map(lambda p: expr(concat(*p))),
        st.lists(children, min_size=2, max_size=5).map(lambda p: expr(union(*p))),
        st.tuples(children, counts).map(
            lambda p: expr(repeat(p[0], p[1][0], None if p[1][1] is None else p[1][0] + p[1][1]))
        ),
        st.lists(children, min_size=2, max_size=2).map(lambda p: conj(*p)),
        children.map(complement),
    )


LEAVES = st.one_of(
    st.binary(max_size=3).map(lambda b: lit(bytes(b"abc"[x % 3] for x in b))),
    st.sets(st.sampled_from(b"abc"), min_size=1).map(byte_set),
    st.just(expr(byte_set(range(32, 127)))),
)


@settings(max_examples=60, deadline=None)
@given(st.recursive(LEAVES, small, max_leaves=8), st.integers(0, 1000))
def test_random_expressions_run_alike(node: Expr, seed: int) -> None:
    python, native = engines()
    states = python.start(node), native.start(node)
    assert bool(states[0]) == bool(states[1])
    if states[0]:
        follow(python, native, states, random.Random(seed), set())


Bodies = list[list[list[int]]]  # per rule its alternatives; 0 to 2 are rules, 3 to 5 letters
ALTERNATIVE = st.lists(st.integers(0, 5), max_size=3)
BODIES = st.lists(st.lists(ALTERNATIVE, min_size=1, max_size=3), min_size=3, max_size=3)
LONGEST = 4


def rules_of(bodies: Bodies) -> Node:
    """The first of three rules that refer to each other: left recursion, empty and dead rules."""
    rules = RuleSet()

    def symbol(code: int) -> Node:
        return rule(code) if code < 3 else lit(b"abc"[code - 3 : code - 2])

    def rule(name: int) -> Node:
        return rules.rule(name, lambda: union(*(concat(*map(symbol, p)) for p in bodies[name])))

    return rule(0)


def language(bodies: Bodies) -> set[bytes]:
    """All strings of the first rule of at most LONGEST letters, by the least fixpoint."""
    known: list[set[bytes]] = [set(), set(), set()]
    while True:
        before = [len(k) for k in known]
        for name, body in enumerate(bodies):
            for part in body:
                words = {b""}
                for code in part:
                    more = known[code] if code < 3 else {b"abc"[code - 3 : code - 2]}
                    words = {w + m for w in words for m in more if len(w + m) <= LONGEST}
                known[name] |= words
        if before == [len(k) for k in known]:
            return known[0]


@settings(max_examples=40, deadline=None)
@given(BODIES, st.integers(0, 99))
def test_random_grammars_run_alike_and_right(bodies: Bodies, seed: int) -> None:
    python, native = engines()
    states = python.start(rules_of(bodies)), native.start(rules_of(bodies))
    words = language(bodies)
    assert bool(states[0]) == bool(states[1])
    assert states[0] or not words
    if states[0]:
        follow(python, native, states, random.Random(seed), set())
        for length in range(LONGEST + 1):
            for letters in itertools.product(b"abc", repeat=length):
                word = bytes(letters)
                for engine, state in ((python, states[0]), (native, states[1])):
                    after = engine.after_bytes(state, word)
                    assert bool(after and engine.is_accepting(after)) == (word in words), word
                    assert after or not any(w.startswith(word) for w in words)


def test_a_rule_too_deep_to_expand_is_a_limit_of_the_grammar() -> None:
    def deep() -> Node:
        raise RecursionError

    _, engine = engines()
    start = engine.start(concat(lit(b"a"), RuleSet().rule("deep", deep, productive=True)))
    with pytest.raises(InvalidGrammar, match="too deep"):
        engine.shortest_tokens(start)
