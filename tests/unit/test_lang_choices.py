"""The choices methods on tables of log-probabilities with known winners."""

import pytest

from radixgen.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radixgen.lang.ir import Scores

# "Paris" and "London" have two tokens, "antidisestablishmentarianism" five.
CAPITALS = ("Paris", "antidisestablishmentarianism", "London")
CONDITIONAL = ((-1.0, -1.0), (-3.0, -0.1, -0.1, -0.1, -0.1), (-2.0, -2.5))


def test_mean_prefers_the_long_word_of_likely_endings() -> None:
    decision = token_length_normalized(Scores(CAPITALS, CONDITIONAL))
    assert CAPITALS[decision.index] == "antidisestablishmentarianism"
    assert decision.meta["normalized_prompt_logprobs"] == pytest.approx([-1.0, -0.68, -2.25])


def test_greedy_is_decided_by_the_first_token() -> None:
    decision = greedy_token_selection(Scores(CAPITALS, CONDITIONAL))
    assert CAPITALS[decision.index] == "Paris"
    matrix = decision.meta["greedy_logprob_matrix"]
    assert [len(row) for row in matrix] == [5, 5, 5]
    assert matrix[0] == pytest.approx([-1.0] * 5)


def test_greedy_compares_a_short_option_by_its_mean() -> None:
    scores = Scores(("a", "ab"), ((-1.0,), (-1.0, -1.2)))
    assert greedy_token_selection(scores).index == 0
    scores = Scores(("a", "ab"), ((-1.0,), (-1.0, -0.8)))
    assert greedy_token_selection(scores).index == 1


def test_unconditional_removes_what_is_likely_anyway() -> None:
    alone = ((-5.0, -5.0), (-3.0, -0.1, -0.1, -0.1, -0.1), (-4.0, -4.5))
    decision = unconditional_likelihood_normalized(Scores(CAPITALS, CONDITIONAL, alone))
    assert CAPITALS[decision.index] == "Paris"
    gains = decision.meta["normalized_unconditional_prompt_logprobs"]
    assert gains == pytest.approx([4.0, 0.0, 2.0])


def test_ties_go_to_the_first() -> None:
    scores = Scores(("x", "y"), ((-1.0,), (-1.0,)), ((-1.0,), (-1.0,)))
    for method in (
        token_length_normalized,
        greedy_token_selection,
        unconditional_likelihood_normalized,
    ):
        assert method(scores).index == 0
