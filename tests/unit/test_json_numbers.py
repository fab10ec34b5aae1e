"""Sets of numbers against exact arithmetic, and their texts against the sets."""

import random
from fractions import Fraction

import pytest
from helpers import recognised

from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_decimals import number_text, spelled
from radixgen.grammars.json_numbers import (
    EVERY,
    INTEGERS,
    NONE,
    Numbers,
    Piece,
    least_multiple,
    meet_pieces,
    numbers,
    without_points,
)
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.oracle import accepts

STEPS = [None, None, Fraction(1), Fraction(3), Fraction(1, 4), Fraction(7, 10), Fraction(1, 100)]
OTHERS = [frozenset(), frozenset(), frozenset((Fraction(1),)), frozenset((Fraction(1, 2),))]


def an_end(rng: random.Random) -> Fraction | None:
    if rng.random() < 0.3:
        return None
    return Fraction(rng.randint(-3000, 3000), 10 ** rng.choice([0, 0, 1, 2, 5]))


def a_piece(rng: random.Random) -> Piece:
    whole = rng.random() < 0.3
    step = rng.choice(STEPS)
    if whole:
        step = least_multiple(step or Fraction(1), Fraction(1))
    opened = (rng.random() < 0.5, rng.random() < 0.5)
    return Piece(an_end(rng), an_end(rng), *opened, step, rng.choice(OTHERS), whole)


def values_near(rng: random.Random, *pieces: Piece) -> set[Fraction]:
    """Values at and beside the ends, where mistakes are."""
    ends = [Fraction(0), Fraction(rng.randint(-99, 99))]
    ends += [end for p in pieces for end in (p.low, p.high) if end is not None]
    steps = [Fraction(0), Fraction(1), Fraction(1, 10), Fraction(1, 1000), Fraction(7, 4)]
    return {end + sign * step for end in ends for step in steps for sign in (1, -1)}


@pytest.mark.parametrize("seed", range(60))
def test_the_texts_of_a_piece_are_its_values(seed: int) -> None:
    rng = random.Random(seed)
    piece = a_piece(rng)
    values = sorted(values_near(rng, piece))
    node = number_text(numbers([piece]), RuleSet())
    texts = [spelled(value).decode() for value in values]
    found = dict(zip(texts, recognised(node, texts), strict=True))
    wanted = {spelled(value).decode(): piece.holds(value) for value in values}
    assert found == wanted


@pytest.mark.parametrize("seed", range(40))
def test_scientific_notation_keeps_the_interval(seed: int) -> None:
    rng = random.Random(seed)
    piece = Piece(an_end(rng), an_end(rng), rng.random() < 0.5, rng.random() < 0.5)
    found = numbers([piece])
    if not found.pieces:
        return  # nothing, or one point
    texts = [f"{float(v) * 10**e:.3e}" for v in values_near(rng, piece) for e in (0, -7, 5) if v]
    wanted = [piece.holds(Fraction(text)) for text in texts]
    assert recognised(number_text(found, RuleSet()), texts) == wanted


@pytest.mark.parametrize("seed", range(60))
def test_sets_form_an_algebra(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [a_piece(rng) for _ in range(2)]
    one, other = (numbers([piece]) for piece in pieces)
    for value in values_near(rng, *pieces):
        first, second = (piece.holds(value) for piece in pieces)
        assert one.holds(value) == first
        assert one.meet(other).holds(value) == (first and second)
        assert one.join(other).holds(value) == (first or second)
        assert one.complement().holds(value) == (not first)
        assert meet_pieces(*pieces).holds(value) == (first and second)


@pytest.mark.parametrize(("low", "high"), [(100, 599), (-7, 103), (-120, -20), (0, 17), (-9, 9)])
def test_a_range_is_what_its_listed_integers_are(low: int, high: int) -> None:
    ends = Fraction(2 * low - 1, 2), Fraction(high)
    found = numbers([Piece(*ends, multiple=Fraction(1), whole=True)])
    listed = Numbers(points=frozenset(map(Fraction, range(low, high + 1))))
    assert not found.points
    assert found.members() == listed.points
    assert found.complement() == listed.complement()
    texts = [str(n) for n in range(-650, 650)] + ["-0", "00", "100.0", "1e2", "+1", "012"]
    both = (recognised(number_text(one, RuleSet()), texts) for one in (found, listed))
    assert next(both) == next(both)


def test_emptiness_is_exact_for_multiples_in_an_interval() -> None:
    third = Piece(Fraction(1), Fraction(2), True, True, Fraction(3))
    assert third.is_empty()
    assert numbers([third]).is_empty()
    assert not Piece(Fraction(1), Fraction(3), True, False, Fraction(3)).is_empty()
    assert Piece(multiple=Fraction(4), nots=frozenset((Fraction(2),))).is_empty()


def test_the_ends_of_the_algebra() -> None:
    assert EVERY.complement().is_empty()
    assert not NONE.complement().is_empty()
    assert INTEGERS.complement().meet(INTEGERS).is_empty()
    assert without_points([]) is EVERY
    few = numbers([Piece(Fraction(0), Fraction(9), multiple=Fraction(3))])
    assert few.members() == frozenset(map(Fraction, (0, 3, 6, 9)))
    assert INTEGERS.members() is None
    assert Numbers(points=frozenset((Fraction(1),))).complement().members() is None


@pytest.mark.parametrize(
    ("value", "text"),
    [("0", b"0"), ("-0.50", b"-0.5"), ("1e3", b"1000"), ("12.034", b"12.034"), ("1e-3", b"0.001")],
)
def test_a_number_is_written_without_trailing_zeros(value: str, text: bytes) -> None:
    assert spelled(Fraction(value)) == text


def test_the_largest_float_bounds_numbers() -> None:
    largest = "1.7976931348623157e308"
    node = compile_schema(f'{{"type":"number","minimum":0,"maximum":{largest}}}', {}, RuleSet())
    bound = spelled(Fraction(largest))
    assert accepts(node, bound)
    assert not accepts(node, bound + b".1")


@pytest.mark.parametrize("found", [EVERY, numbers([Piece(Fraction(0), low_open=True)])])
def test_no_exponent_makes_a_float_infinite_or_zero(found: Numbers) -> None:
    node = number_text(found, RuleSet())
    for text in ("1e-307", "9.99e307", "1E+200", "1.5e-07", "12.5", "1e99"):
        assert accepts(node, text.encode()), text
        assert 0 < float(text) < float("inf")
    for text in ("1e308", "1e-308", "10e300", "123456789012345678901234e290", "4.3e-338", "1e999"):
        assert not accepts(node, text.encode()), text
    if found is EVERY:
        assert all(accepts(node, text) for text in (b"-0", b"0e5", b"12e05", b"120E012"))


@pytest.mark.parametrize("step", [Fraction(1), Fraction(1, 10), Fraction(1, 100), Fraction(5, 100)])
@pytest.mark.parametrize(
    ("low", "high"), [(None, None), (-7, 12), (0, None), (3, Fraction("99.99"))]
)
def test_multiples_end_in_any_number_of_zeros(
    step: Fraction, low: Fraction | None, high: Fraction | None
) -> None:
    piece = Piece(low, high, multiple=step)
    node = number_text(Numbers(pieces=(piece,)), RuleSet())
    digits = [
        f"{value / 1000:.{places}f}" for value in range(-7500, 12500, 37) for places in (1, 3)
    ]
    texts = [*digits, "3", "0", "-0.10", "12", "12.0000", "12.01", "99.990", "5.005", "100.00"]
    assert recognised(node, texts) == [piece.holds(Fraction(text)) for text in texts]
