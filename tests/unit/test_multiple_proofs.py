"""What rules of multiples say of themselves without a search: that they have a text, how long."""

from fractions import Fraction

import pytest

from radixgen.grammars.expr import Rule, RuleSet
from radixgen.grammars.json_decimals import number_text
from radixgen.grammars.json_numbers import Numbers, Piece
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_tokens([*(bytes((b,)) for b in range(256)), None], [256], {256})
MANY = 200  # rules, of which the first are looked at


@pytest.mark.parametrize("step", ["0.01", "0.25", "0.7", "3", "7", "0.125", "40", "1.5"])
@pytest.mark.parametrize(
    "ends", [("0", "100"), ("-1.5", "12.25"), ("0.3", "0.9"), (None, "77"), ("5", None)]
)
def test_sure_rules_have_a_text_within_their_bound(
    step: str, ends: tuple[str | None, str | None]
) -> None:
    low, high = (None if end is None else Fraction(end) for end in ends)
    rules = RuleSet()
    engine = PythonEngine(VOCABULARY, 1 << 28)
    node = number_text(Numbers(pieces=(Piece(low, high, multiple=Fraction(step)),)), rules)
    assert isinstance(node, Rule)
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
