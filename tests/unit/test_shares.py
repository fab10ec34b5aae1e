"""How a step is shared among prompts: nobody waits for the end of a much longer one, which goes on
meanwhile, and prompts of about the same length do not get in each other's way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import (
    VOCAB,
    HashModel,
    ask,
    drive,
    drive_engine,
    expect_empty,
    expect_tokens,
    make,
    overlapped,
    prompt_of,
    score,
    take_step,
    terminals_of,
    tokens_of,
)

from radixgen.config import Policy, ScheduleConfig
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import Event
from radixgen.schedule.scheduler import Scheduler
from radixgen.schedule.shares import nested, shares

LONG = 400  # tokens: 12 steps and a half of 32
works = st.lists(st.integers(0, 300), max_size=8)


@given(works, st.integers(0, 200))
def test_shares_are_the_budget_or_all_that_is_left(left: list[int], budget: int) -> None:
    found = shares(left, budget)
    assert all(0 <= share <= num for share, num in zip(found, left, strict=True))
    assert sum(found) == min(sum(left), budget)


@given(works.filter(bool), st.integers(0, 200))
def test_the_oldest_has_half_and_each_shorter_one_half_of_the_rest(
    left: list[int], budget: int
) -> None:
    found = shares(left, budget)
    for depth, place in enumerate(nested(left)):
        assert found[place] >= min(left[place], (budget >> depth) - (budget >> (depth + 1)))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([], []),
        ([1000], [64]),
        ([1000, 1000], [64, 0]),
        ([1000, 500], [32, 32]),
        ([1000, 10], [54, 10]),
        ([1000, 500, 100], [32, 16, 16]),
        ([1000, 501, 100], [32, 0, 32]),
        ([20, 1000], [20, 44]),
    ],
)
def test_shares_of_64(left: list[int], expected: list[int]) -> None:
    assert shares(left, 64) == expected


def steps_until(scheduler: Scheduler, model: HashModel, rid: str, events: list[Event]) -> int:
    steps = 0
    while rid not in terminals_of(events):
        events += scheduler.update(*take_step(scheduler, model))
        steps += 1
    return steps


def behind_a_long_prompt(policy: Policy = "fair") -> tuple[Scheduler, HashModel, list[Event]]:
    """A scheduler that has computed one step of it."""
    config = ScheduleConfig(policy=policy, max_step_tokens=32)
    scheduler, model = make(200, config=config, max_context=LONG + 10)
    scheduler.add(ask("long", prompt_of(LONG, 1), 2))
    return scheduler, model, list(scheduler.update(*take_step(scheduler, model)))


def expect_long(scheduler: Scheduler, model: HashModel, events: list[Event]) -> None:
    assert "long" not in terminals_of(events), "it goes on"
    events += drive(scheduler, model)
    assert tokens_of(events)["long", 0] == expect_tokens(prompt_of(LONG, 1), 7, 2, VOCAB)
    expect_empty(scheduler)


@pytest.mark.parametrize("policy", ["fair", "fcfs", "lpm", "sjf", "priority", "dfs"])
@pytest.mark.parametrize("length", [5, 40])
def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one(
    policy: Policy, length: int
) -> None:
    scheduler, model, events = behind_a_long_prompt(policy)
    scheduler.add(ask("short", prompt_of(length, 2), 3))
    assert steps_until(scheduler, model, "short", events) == 3 + length // 16
    assert tokens_of(events)["short", 0] == expect_tokens(prompt_of(length, 2), 7, 3, VOCAB)
    expect_long(scheduler, model, events)


def test_a_shorter_one_still_does_not_wait_for_a_short_one() -> None:
    scheduler, model, events = behind_a_long_prompt()
    scheduler.add(ask("short", prompt_of(100, 2), 1))
    events += scheduler.update(*take_step(scheduler, model))
    scheduler.add(ask("shorter", prompt_of(8, 3), 1))
    assert steps_until(scheduler, model, "shorter", events) == 1
    assert "short" not in terminals_of(events)
    steps_until(scheduler, model, "short", events)
    expect_long(scheduler, model, events)


def test_choices_and_continuations_of_a_short_prompt_do_not_wait_either() -> None:
    scheduler, model, events = behind_a_long_prompt()
    scheduler.add(ask("choices", prompt_of(5, 2), 2, n=3))
    scheduler.add(score(prompt_of(5, 3), [[1, 2], [3, 4], [5, 6]]))
    steps_until(scheduler, model, "choices", events)
    steps_until(scheduler, model, "s", events)
    expect_long(scheduler, model, events)


def test_short_prompts_without_end_take_half_of_the_steps() -> None:
    scheduler, model, events = behind_a_long_prompt()
    steps = 1
    while not tokens_of(events).get(("long", 0)):
        for i in range(3):
            scheduler.add(ask(f"{steps} {i}", prompt_of(12, 3 * steps + i), 1))
        events += scheduler.update(*take_step(scheduler, model))
        steps += 1
    assert LONG / 32 < steps <= 2 * LONG / 32
    expect_long(scheduler, model, events)


def test_prompts_of_one_length_are_computed_one_after_the_other() -> None:
    scheduler, model, events = behind_a_long_prompt()
    scheduler.add(ask("twin", prompt_of(LONG, 2), 2))
    while not tokens_of(events).get(("long", 0)):
        batch, result = take_step(scheduler, model)
        first = batch.rows[0]
        assert first.rid == "long"
        assert first.sample or len(batch.rows) == 1, "what its end leaves goes to the next"
        events += scheduler.update(batch, result)
    expect_long(scheduler, model, events)


def test_steps_planned_ahead_share_alike() -> None:
    """Nobody waits outside, so steps may be planned while others are under way."""
    config = ScheduleConfig(policy="fair", max_step_tokens=32)
    scheduler, model = make(200, config=config, max_context=LONG + 10)
    engine = overlapped(Engine(scheduler, model))
    scheduler.add(ask("long", prompt_of(LONG, 1), 2))
    events = engine.step()
    scheduler.add(ask("short", prompt_of(100, 2), 1))
    while "short" not in terminals_of(events):
        events += engine.step()
    assert engine.stats()["overlapped_steps"] > 4
    assert not tokens_of(events).get(("long", 0))
    events += drive_engine(engine)
    assert tokens_of(events)["long", 0] == expect_tokens(prompt_of(LONG, 1), 7, 2, VOCAB)
    expect_empty(scheduler)
