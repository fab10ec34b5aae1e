"""Intervals of numbers as the native engine writes them, beside the expressions they stand for.

Both engines are walked side by side along random texts; at each byte they have to allow the same.
"""

import random
from fractions import Fraction

import pytest

from radixgen.grammars.engine import Engine
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.interval import IntervalRule
from radixgen.grammars.json_decimals import number_text, spelled
from radixgen.grammars.json_numbers import Numbers, Piece
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_tokens([*(bytes((b,)) for b in range(256)), None], [256], {256})
ENDS = [
    Fraction(text)
    for text in [
        "0",
        "1",
        "5",
        "9",
        "10",
        "12",
        "99",
        "100",
        "101",
        "360",
        "65535",
        "0.5",
        "0.05",
        "9.99",
        "10.01",
    ]
]
ENDS += [
    Fraction(text)
    for text in ["0.001", "1e15", "123456789.125", "1e40", "1e-12", "1e308", "1.5e308"]
]
WHOLE = Fraction(1)


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    return NativeEngine(VOCABULARY, library, 1 << 28), PythonEngine(VOCABULARY, 1 << 28)


def some_piece(draw: random.Random) -> Piece:
    low, high = sorted(draw.choice(ENDS) * draw.choice((1, 1, -1)) for _ in range(2))
    start = None if draw.random() < 0.25 else low
    end = None if draw.random() < 0.25 else high
    whole = draw.random() < 0.4
    opened = [one is not None and draw.random() < 0.4 for one in (start, end)]
    return Piece(start, end, opened[0], opened[1], WHOLE if whole else None, whole=whole)


def walk(draw: random.Random, native: Engine, python: Engine, starts: tuple[int, int]) -> None:
    one, other = starts
    for _ in range(30):
        allowed = native.next_bytes(one)
        assert allowed == python.next_bytes(other)
        assert native.is_accepting(one) == python.is_accepting(other)
        choices = [byte for byte in range(256) if allowed >> byte & 1]
        if not choices:
            return
        byte = bytes((draw.choice(choices),))
        one, other = native.after_bytes(one, byte), python.after_bytes(other, byte)


@pytest.mark.parametrize("seed", range(60))
def test_both_engines_allow_the_same(seed: int, engines: tuple[Engine, Engine]) -> None:
    draw = random.Random(seed)
    native, python = engines
    piece = some_piece(draw)
    while piece.is_empty():
        piece = some_piece(draw)
    node = number_text(Numbers(pieces=(piece,)), RuleSet())
    assert isinstance(node, IntervalRule)
    starts = native.start(node), python.start(node.body())
    for _ in range(40):
        walk(draw, native, python, starts)


@pytest.mark.parametrize(
    ("ends", "inside", "outside"),
    [
        (("0", "1"), "0 0.5 1 1.0 1.000 9.99e-1", "1.01 -0.5 2 01 1.5e1 .5"),
        (("-1.5", "0.25"), "-1.5 -1 -0 0 0.25 2.5e-1 -1.5e0", "-1.51 0.2501 0.3 1 -2e0"),
        (("99", None), "99 100 1e2 1.5e300 12345.5", "98.99 9.8e1 -99 0"),
        ((None, "-10"), "-10 -10.5 -1e1 -99 -1e300", "-9.99 10 0 -9e0"),
    ],
)
def test_texts_of_an_interval(
    ends: tuple[str | None, str | None],
    inside: str,
    outside: str,
    engines: tuple[Engine, Engine],
) -> None:
    low, high = (None if end is None else Fraction(end) for end in ends)
    start = engines[0].start(number_text(Numbers(pieces=(Piece(low, high),)), RuleSet()))
    for text in inside.split():
        assert engines[0].is_accepting(engines[0].after_bytes(start, text.encode())), text
    for text in outside.split():
        state = engines[0].after_bytes(start, text.encode())
        assert not state or not engines[0].is_accepting(state), text


def test_ends_of_many_digits(engines: tuple[Engine, Engine]) -> None:
    """Of a thousand digits, which no recursion of Python takes."""
    low = Fraction(10**1200 + 1)
    node = number_text(
        Numbers(pieces=(Piece(low, low * 2, whole=True, multiple=WHOLE),)), RuleSet()
    )
    state = engines[0].start(node)
    assert engines[0].is_accepting(engines[0].after_bytes(state, spelled(low)))
    assert not engines[0].is_accepting(engines[0].after_bytes(state, spelled(low - 1)[:-1]))
    assert not engines[0].after_bytes(state, spelled(low - 1))
