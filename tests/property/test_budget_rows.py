"""Masks within a budget: both engines alike, and beside brute force over all tokens.

What brute force says of a state is the fewest tokens after which a text is complete, by relaxation
over all states and all tokens. A token that needs more must never stay in a mask.
"""

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from test_grammar_core import GRAMMARS, expr, far_end, lit, no_trigger
from test_grammar_core import VOCABULARY as LARGE

from radixgen.errors import InvalidGrammar
from radixgen.grammars.engine import Engine
from radixgen.grammars.expr import (
    ANY_BYTE,
    Expr,
    Node,
    RuleSet,
    byte_set,
    complement,
    concat,
    conj,
    repeat,
    star,
    union,
)
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary

LETTERS = [b"a", b"b", b"c"]
WORDS = [b"ab", b"bca", b"cc", b"bb", b"abab", b"ab"]
VOCABULARIES = {
    "letters": Vocabulary.from_tokens([*LETTERS, None], [3]),
    "words": Vocabulary.from_tokens([*LETTERS, *WORDS, None], [9]),
    "a byte short": Vocabulary.from_tokens([b"a", b"b", b"bc", b"ca", b"cab", None], [5]),
}
MOST_STATES = 50
NEVER = 1 << 30
Pair = tuple[int, int]


def engines(vocabulary: Vocabulary) -> tuple[PythonEngine, NativeEngine]:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    return PythonEngine(vocabulary, 1 << 30), NativeEngine(vocabulary, library, 1 << 30)


def kept(engine: Engine, state: int, budget: int) -> set[int]:
    row = np.zeros((1, engine.vocabulary.num_words), np.int32)
    engine.fill_row(state, row, 0)
    engine.restrict_row(state, row, 0, budget)
    tokens = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist()
    return set(tokens) - engine.vocabulary.end_ids


def bound_of(engine: Engine, state: int) -> int | None:
    """What the engine says completes a state; None where no tokens spell the text it looks at."""
    try:
        return engine.fewest_tokens(state)
    except InvalidGrammar:
        return None


def ways_of(python: PythonEngine, native: NativeEngine, start: Pair) -> dict[Pair, dict[int, Pair]]:
    """Of each state that tokens lead to, in both engines, where each token leads; as many states as
    MOST_STATES, of which the last have no ways noted."""
    ways: dict[Pair, dict[int, Pair]] = {}
    waiting = [start]
    for here in waiting:
        if here in ways or len(ways) == MOST_STATES:
            continue
        ways[here] = {}
        for token, data in enumerate(python.vocabulary.tokens):
            after = python.after_token(here[0], token), native.after_token(here[1], token)
            assert bool(after[0]) == bool(after[1])
            if data and after[0]:
                ways[here][token] = after
        waiting.extend(ways[here].values())
    return ways


def fewest(native: NativeEngine, ways: dict[Pair, dict[int, Pair]]) -> dict[Pair, int]:
    """By relaxation. Of states that were not followed it is known at most that they may accept."""
    known = {h: NEVER for from_here in ways.values() for h in from_here.values()}
    known |= dict.fromkeys(ways, NEVER)
    for here in known:
        if native.is_accepting(here[1]):
            known[here] = 0
    while True:
        before = dict(known)
        for here, from_here in ways.items():
            known[here] = min([known[here], *(1 + known[after] for after in from_here.values())])
        if known == before:
            return known


def check_rows(vocabulary: Vocabulary, node: Node) -> tuple[int, int]:
    """Compare all states; returns how many there are and how many tokens budgets took."""
    python, native = engines(vocabulary)
    start = python.start(node), native.start(node)
    assert bool(start[0]) == bool(start[1])
    if not start[0]:
        return 0, 0
    ways = ways_of(python, native, start)
    is_whole = all(after in ways for from_here in ways.values() for after in from_here.values())
    exact, taken = fewest(native, ways), 0
    for here, from_here in ways.items():
        for budget in (0, 1, 2, 3, 5, 8, 13, 1 << 40):
            one, two = kept(python, here[0], budget), kept(native, here[1], budget)
            assert one == two, (here, budget)
            within = {t for t, after in from_here.items() if exact[after] < budget}
            if is_whole:
                assert two <= within, (here, budget)
            if vocabulary.max_length == 1:
                assert two >= within, (here, budget)
            taken += len(from_here) - len(two)
        bound = bound_of(native, here[1])
        assert bound == bound_of(python, here[0])
        if is_whole and bound is not None:
            assert exact[here] <= bound
        if bound:
            assert kept(native, here[1], bound)
    return len(ways), taken


def draw_node(draw: random.Random, depth: int) -> Expr:
    """A small expression: letters below, and above them all that expressions are made of."""
    if depth == 0:
        letters = bytes(draw.choices(b"abc", k=draw.randint(1, 3)))
        return draw.choice([lit(letters), expr(byte_set(letters)), expr(ANY_BYTE)])
    below = [draw_node(draw, depth - 1) for _ in range(3)]
    low = draw.randint(0, 2)
    made: list[Callable[[], Node]] = [
        lambda: union(*below),
        lambda: concat(*below),
        lambda: repeat(below[0], low, draw.choice([None, low + 1, low + 4])),
        lambda: conj(below[0], complement(below[1])),
        lambda: conj(expr(concat(*below)), expr(repeat(expr(ANY_BYTE), low, low + 9))),
        lambda: concat(expr(star(below[0])), below[1]),
        lambda: conj(expr(star(union(*below))), complement(below[2])),
    ]
    return expr(draw.choice(made)())


def nested() -> Node:
    rules = RuleSet()
    whole = rules.rule(
        "whole",
        lambda: union(concat(lit(b"a"), whole, lit(b"b")), concat(lit(b"c"), whole), lit(b"cab")),
    )
    return whole


def nodes() -> Iterator[Node]:
    for seed in range(45):
        draw = random.Random(seed)
        yield draw_node(draw, draw.randint(1, 3))
    yield from (far_end(b"ab"), no_trigger(), nested())


@pytest.mark.parametrize("name", VOCABULARIES)
def test_rows_of_random_grammars_are_brute_force(name: str) -> None:
    counts = [check_rows(VOCABULARIES[name], node) for node in nodes()]
    assert sum(states for states, _ in counts) > 300
    assert sum(taken for _, taken in counts) > 1000


def wide(draw: random.Random) -> Node:
    """Loops that most tokens stay in, which have ways of their own to a mask, and their bounds."""
    any_character = expr(byte_set(range(32, 127)))
    loop = draw.choice(
        [any_character, expr(ANY_BYTE), expr(union(any_character, lit(b"\xc3\xa9")))]
    )
    parts = [expr(repeat(loop, draw.randint(0, 5), draw.choice([None, 9, 30])))]
    if draw.random() < 0.7:
        parts.append(complement(draw_node(draw, 2)))
    if draw.random() < 0.5:
        far = concat(star(ANY_BYTE), lit(bytes(draw.choices(b"ab:-", k=draw.randint(1, 9)))))
        parts.append(draw.choice([expr(far), expr(concat(far, star(ANY_BYTE)))]))
    end = draw.choice([lit(b'"'), lit(b'":12'), expr(repeat(byte_set(b"01"), 2, 12))])
    middle = conj(*parts) if len(parts) > 1 else parts[0]
    return concat(draw.choice([lit(b'"'), expr(star(lit(b"a")))]), middle, end)


@pytest.mark.parametrize("seed", range(24))
def test_rows_over_wide_loops_are_alike_and_can_be_completed(seed: int) -> None:
    draw = random.Random(seed)
    follow(wide(draw), draw)


@pytest.mark.parametrize("name", GRAMMARS)
def test_rows_of_known_grammars_are_alike_and_can_be_completed(name: str) -> None:
    follow(GRAMMARS[name](), random.Random(name))


def follow(node: Node, draw: random.Random) -> None:
    """Random texts within a budget: they come to an end, and both engines allow the same."""
    python, native = engines(LARGE)
    start = python.start(node), native.start(node)
    assert bool(start[0]) == bool(start[1])
    if not start[0]:
        return
    for extra in (0, 1, 3, 9):
        one, two = start
        budget = native.fewest_tokens(two) + extra
        while not (native.is_accepting(two) and draw.random() < 0.3):
            for near in {budget - 2, budget - 1, budget, budget + 1, budget + 4}:
                assert kept(python, one, near) == kept(native, two, near), near
            tokens = sorted(kept(native, two, budget))
            if not tokens:
                break
            token = draw.choice(tokens)
            one, two = python.after_token(one, token), native.after_token(two, token)
            budget -= 1
        assert native.is_accepting(two)


def test_costs_that_cannot_be_said_leave_the_next_masks_cheap() -> None:
    """A search for costs that fails says so, and no later mask is made twice because of it."""

    def deep() -> Node:
        raise RecursionError

    _, native = engines(LARGE)
    rule = RuleSet().rule("deep", deep, productive=True)
    failing, plain = native.start(concat(lit(b"a"), rule)), native.start(far_end(b"ab"))
    row = np.zeros((1, LARGE.num_words), np.int32)
    with pytest.raises(InvalidGrammar, match="too deep"):
        native.restrict_row(failing, row, 0, 5)
    native.fill_row(plain, row, 0)
    steps = native.sizes()["steps"]
    native.fill_row(plain, row, 0)
    assert native.sizes()["steps"] == steps


MARKS = [bytes([byte]) for byte in range(32, 127)]
MANY = [bytes(word) for n in (2, 3, 4) for word in itertools.product(b"abcde", repeat=n)]
OTHERS = [b'ab"', b'e":', b"\xc3", b"\xa9", b"\xc3\xa9", b"b\xc3", b"a1b", b"cde9", b"\\n", b'\\"']
LANES = Vocabulary.from_tokens([*MARKS, *MANY, *OTHERS, None], [len(MARKS + MANY + OTHERS)])


@pytest.mark.parametrize("bounds", [(0, None), (3, None), (5, 9), (2, 3), (0, 1), (40, 40)])
@pytest.mark.parametrize("item", ["letters", "text", "hexadecimal"])
def test_rows_of_long_branches_are_those_of_each_token(
    item: str, bounds: tuple[int, int | None]
) -> None:
    """Down lanes of states, which branches of many tokens lead to at once."""
    letters = byte_set(b"abcdefghijklmnopqrstuvwxyz")
    plain = byte_set(set(range(32, 127)) - set(b'"\\'))
    text = union(expr(plain), lit(b"\xc3\xa9"), concat(lit(b"\\"), byte_set(b'n"')))
    hexadecimal = byte_set(b"0123456789abcdef")
    loop = {"letters": letters, "text": text, "hexadecimal": hexadecimal}[item]
    node = concat(lit(b'"'), repeat(expr(loop), *bounds), lit(b'":cab'))
    python, native = engines(LANES)
    one, two = python.start(node), native.start(node)
    before = native.sizes()["steps"]
    rows = 0
    for data in b'"', b"ab", b"e", b"d", b"a", b"c":
        one, two = (
            engine.after_bytes(state, data) for engine, state in ((python, one), (native, two))
        )
        if not two:
            break
        bound = native.fewest_tokens(two)
        for budget in range(max(bound - 3, 0), bound + 4):
            assert kept(python, one, budget) == kept(native, two, budget), (data, budget)
            rows += 1
    assert rows >= 7
    assert native.sizes()["steps"] - before < rows * len(LANES.tokens) / 2
