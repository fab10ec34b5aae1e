"""What steps cost by their rows, learned from their seconds, and which drafts pay by that."""

import random

import pytest

from radixgen.runtime.costs import StepCosts


def test_costs_are_fitted_and_guessed_until_then() -> None:
    costs = StepCosts()
    assert costs.row_ratio() == StepCosts.ROW_RATIO
    for _ in range(50):
        costs.add(1, 1, 0.010)
    assert costs.row_ratio() == pytest.approx(StepCosts.ROW_RATIO), "of one size"
    for rows in [1, 2, 5, 9] * 20:
        costs.add(rows, rows, 0.008 + 0.002 * rows)
    assert costs.row_ratio() == pytest.approx(0.25, rel=0.1)
    assert costs.least_chance(1) == pytest.approx(0.2, rel=0.1)
    assert costs.least_chance(64) > 0.9, "in a large batch a row saves little but a row"


def test_what_else_the_machine_does_hardly_changes_costs() -> None:
    costs, rng = StepCosts(), random.Random(3)
    for _ in range(3000):
        rows = rng.choice([1, 5, 16, 16, 16, 24, 40])
        late = rng.expovariate(1 / 0.05) if rng.random() < 0.4 else 0.0
        costs.add(rows, rows, 0.0042 + 0.0008 * rows + late)
    assert 0.1 < costs.row_ratio() < 0.4, "0.19 without delays"
    for _ in range(500):
        costs.add(16, 16, 0.017)
    assert 0.1 < costs.row_ratio() < 0.4, "steps of one size take nothing back"


@pytest.mark.parametrize("slower", [(3.0, 3.0), (3.0, 1.0), (1.0, 3.0), (1 / 3, 1.0), (1.0, 1 / 3)])
@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_costs_of_another_machine_are_learned_soon(
    slower: tuple[float, float], delay: float
) -> None:
    """It becomes slower or faster, as a whole or in a part: it takes as many steps."""
    costs, rng = StepCosts(), random.Random(5)

    def learns(num_steps: int, fixed: float, row: float) -> None:
        for _ in range(num_steps):
            rows = rng.choice([1, 5, 16, 16, 16, 24, 40])
            costs.add(rows, rows, fixed + row * rows + rng.random() * delay)
        assert costs.row_ratio() == pytest.approx(row / (fixed + delay / 2), rel=0.3)

    learns(1000, 0.0042, 0.0008)
    learns(200, 0.0042 * slower[0], 0.0008 * slower[1])


def test_costs_are_right_again_after_slow_steps_of_one_size() -> None:
    costs = StepCosts()
    for rows in [1, 2, 5, 9] * 50:
        costs.add(rows, rows, 0.008 + 0.002 * rows)
    for _ in range(500):
        costs.add(5, 5, 0.054)
    for rows in [1, 2, 5, 9] * 50:
        costs.add(rows, rows, 0.024 + 0.006 * rows)
    assert costs.row_ratio() == pytest.approx(0.25, rel=0.1)


def seconds_of(num_sequences: int, num_rows: int) -> float:
    """Sixteen rows are cheap and the first draft is dear, as with tiles of sixteen rows."""
    return 0.008 + 0.001 * num_rows + (0.008 if num_rows > num_sequences else 0.0)


def test_a_batch_pays_for_its_first_draft_only_where_many_follow() -> None:
    costs, rng = StepCosts(), random.Random(1)
    for _ in range(400):
        num_sequences = rng.choice([1, 2, 4, 8, 16, 16, 16])
        num_rows = num_sequences * rng.choice([1, 1, 2, 5])
        costs.add(num_sequences, num_rows, seconds_of(num_sequences, num_rows))
    assert costs.least_chance(16) == pytest.approx(16 * 0.001 / 0.024, rel=0.1)
    for num_sequences, num_drafts in [(1, 4), (4, 16), (16, 4), (16, 12), (16, 100), (8, 200)]:
        plain = seconds_of(num_sequences, num_sequences)
        cost = seconds_of(num_sequences, num_sequences + num_drafts) - plain
        worth = cost * num_sequences / plain
        assert costs.pays(num_sequences, num_drafts, 1.4 * worth)
        assert not costs.pays(num_sequences, num_drafts, worth), "nothing would be gained"
    assert not costs.pays(16, 4, 4.0), "although each is sure to be right"


def test_bands_of_sizes_have_lines_of_their_own() -> None:
    """Few rows wait for the weights, many for arithmetic."""
    costs, rng = StepCosts(), random.Random(2)
    for _ in range(600):
        rows = rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128])
        costs.add(rows, rows, max(0.010, 0.001 * rows))
    assert costs.least_chance(1) < 0.05
    assert costs.least_chance(64) > 0.9


def test_steps_of_one_size_tell_how_fast_the_machine_is_now() -> None:
    costs = StepCosts()
    for speed in (1.0, 3.0, 0.5):
        for _ in range(100):
            costs.add(16, 16, 0.024 * speed)
        for _ in range(100):
            costs.add(16, 32, 0.040 * speed)
        assert costs.pays(16, 16, 14.5)
        assert not costs.pays(16, 16, 13.0)
