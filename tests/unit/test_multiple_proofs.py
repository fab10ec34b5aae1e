"""What rules of multiples say of themselves without a search: that they have a text, how long."""

import itertools
from fractions import Fraction

import pytest

from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.expr import Rule, RuleSet
from radixgen.grammars.json_decimals import number_text
from radixgen.grammars.json_numbers import Numbers, Piece
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

VOCABULARY = Vocabulary.from_tokens([*(bytes((b,)) for b in range(256)), None], [256], {256})
MANY = 200  # rules, of which the first are looked at


@pytest.mark.parametrize(
    "step", [None, "0.01", "0.02", "0.25", "0.7", "3", "7", "0.125", "40", "1.5"]
)
@pytest.mark.parametrize(
    "ends", [("0", "100"), ("-1.5", "12.25"), ("0.3", "0.9"), (None, "77"), ("5", None)]
)
@pytest.mark.parametrize("nots", [(), ("2",), ("0.5", "3")])
def test_sure_rules_have_a_text_within_their_bound(
    step: str | None, ends: tuple[str | None, str | None], nots: tuple[str, ...]
) -> None:
    low, high = (None if end is None else Fraction(end) for end in ends)
    rules = RuleSet()
    engine = PythonEngine(VOCABULARY, 1 << 28)
    multiple = None if step is None else Fraction(step)
    piece = Piece(low, high, multiple=multiple, nots=frozenset(map(Fraction, nots)))
    if piece.is_empty():  # as of what is never made a node of
        return
    node = number_text(Numbers(pieces=(piece,)), rules)
    if not isinstance(node, Rule):  # what is to divide is one unit of the last place, or all is
        assert (step, nots) in (("0.01", ()), (None, ()))
        assert engine.start(node)
        return
    waiting, seen = [node], {node}
    for rule in waiting:
        if rule.productive:
            state = engine.start(rule.body())
            assert state, rule.key
            assert rule.most is None or engine.fewest_tokens(state) <= rule.most, rule.key
        for found in list(rules._rules.values()):
            if found not in seen and len(seen) < MANY:
                seen.add(found)
                waiting.append(found)


@pytest.mark.parametrize(
    ("schema", "last"),
    [
        ('{"type": "number", "multipleOf": 12345, "maximum": 2e9}', b"-12345"),
        ('{"multipleOf": 12345, "type": "integer", "minimum": 1000, "maximum": 1e9}', b"12345"),
        ('{"type": "number", "multipleOf": 0.12345, "maximum": 1e7}', b"0.12345"),
        ('{"type": "integer", "multipleOf": 12345, "not": {"multipleOf": 2}}', b"-12345"),
        ('{"type": "number", "multipleOf": 0.777, "not": {"multipleOf": 7}}', b"1.554"),
        ('{"type": "number", "not": {"multipleOf": 9007199254740993}}', b"54"),
        ('{"type": "integer", "minimum": 1e9, "not": {"multipleOf": 98765432101}}', b"1000000001"),
    ],
)
def test_large_steps_expand_few_rules(schema: str, last: bytes) -> None:
    # each remainder of a step has a rule: what cannot be reached, or surely can, is known by sums
    rules = RuleSet()
    engine = PythonEngine(VOCABULARY, 1 << 28)
    state = engine.start(compile_schema(schema, {}, rules))
    for byte in last:
        assert engine.fewest_tokens(state) <= 12
        state = engine.after_bytes(state, bytes((byte,)))
    assert engine.is_accepting(state)
    assert len(rules) < 2000


def test_a_piece_that_shows_a_member_has_one() -> None:
    steps = [None, *map(Fraction, ("0.5", "2", "3", "7"))]
    for multiple, low, high in itertools.product(steps, (None, -4, 2), (None, 3, 12)):
        for nots in ((), ("2",), ("0.5",), ("2", "3")):
            ends = (
                None if low is None else Fraction(low),
                None if high is None else Fraction(high),
            )
            piece = Piece(*ends, multiple=multiple, nots=frozenset(map(Fraction, nots)))
            if not piece.is_empty():
                some = any(piece.holds(Fraction(n, 4) + Fraction(1, 9)) for n in range(-99, 99))
                some = some or any(piece.holds(Fraction(n, 2)) for n in range(-99, 99))
                assert piece.has_some() <= some, piece
                assert piece.has_some() or low == high or (low and high), piece


def test_what_is_no_multiple_of_a_huge_step_ends_soon() -> None:
    number = '{"type": "number", "minimum": 9007199254740993, "multipleOf": 9007199254740993}'
    schema = f'{{"type": "array", "items": {{"not": {number}}}, "minItems": 2}}'
    matcher = GrammarCompiler(VOCABULARY).compile(GrammarSpec("json_schema", schema)).matcher()
    assert matcher.shortest_completion() == len("[0,0]")
    assert matcher.error is None
