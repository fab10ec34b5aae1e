"""Too few pages: preemption, no livelock, two budgets."""

from typing import Any

import pytest
from scheduling import (
    PAGE,
    VOCAB,
    ask,
    drive,
    expect_empty,
    expect_tokens,
    make,
    prompt_of,
    take_step,
    tokens_of,
)

from radixgen.config import ScheduleConfig
from radixgen.schedule.planner import Planner
from radixgen.schedule.request import SequenceState
from radixgen.schedule.step import Step


def test_zero_pages_left_preempts_and_everyone_ends_right() -> None:
    scheduler, model = make(num_pages=10)
    prompts = {str(i): prompt_of(8, i) for i in range(4)}
    for rid, prompt in prompts.items():
        scheduler.add(ask(rid, prompt, 20))
    tokens = tokens_of(drive(scheduler, model))
    for rid, prompt in prompts.items():
        assert tokens[rid, 0] == expect_tokens(prompt, 7, 20, VOCAB)
    assert scheduler.stats()["preemptions"] > 0
    expect_empty(scheduler)


@pytest.mark.parametrize("max_preemptions", [0, 1, 3])
@pytest.mark.parametrize("num_pages", [2, 3, 5, 9])
def test_no_livelock_however_few_the_pages(num_pages: int, max_preemptions: int) -> None:
    config = ScheduleConfig(
        policy="fair", max_step_tokens=16, max_preemptions=max_preemptions, max_running=6
    )
    scheduler, model = make(num_pages=num_pages, config=config)
    limit = num_pages * PAGE
    prompts = {str(i): prompt_of(1 + (i * 5) % (limit - 1), i) for i in range(12)}
    for rid, prompt in prompts.items():
        scheduler.add(ask(rid, prompt, None, n=1 + (int(rid) % 3)))
    tokens = tokens_of(drive(scheduler, model))
    for rid, prompt in prompts.items():
        for index in range(1 + int(rid) % 3):
            count = limit - len(prompt)
            assert tokens[rid, index] == expect_tokens(prompt, 7 + index, count, VOCAB)
    expect_empty(scheduler)


@pytest.mark.parametrize("policy", ["fair", "fcfs"])
def test_preemption_at_every_step_changes_nothing(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = {str(i): prompt_of(6 + 5 * i, i) for i in range(3)}
    plan = Planner.plan

    def preempt_all(self: Planner, now: float) -> Step:
        for sequence in list(self.running):
            self.preempt(sequence, Step(1))
        return plan(self, now)

    monkeypatch.setattr(Planner, "plan", preempt_all)
    scheduler, model = make(config=ScheduleConfig(policy=policy, max_step_tokens=8))
    for rid, prompt in prompts.items():
        scheduler.add(ask(rid, prompt, 8, n=2))
    tokens = tokens_of(drive(scheduler, model))
    for rid, prompt in prompts.items():
        for index in range(2):
            assert tokens[rid, index] == expect_tokens(prompt, 7 + index, 8, VOCAB)
    assert scheduler.stats()["preemptions"] > 20
    expect_empty(scheduler)


def test_kv_tokens_in_total_are_a_budget_of_their_own() -> None:
    config = ScheduleConfig(policy="fcfs", max_step_tokens=64, max_total_tokens=40)
    scheduler, model = make(num_pages=64, config=config)
    for i in range(6):
        scheduler.add(ask(str(i), prompt_of(12, i), 10))
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch is not None
        assert scheduler.memory.num_used <= 10
        scheduler.update(batch, model.run(batch))
    expect_empty(scheduler)


def test_the_victim_is_of_low_priority_and_cheap_to_return() -> None:
    scheduler, model = make(num_pages=14)
    scheduler.add(ask("high", prompt_of(8, 1), 30, priority=1))
    scheduler.add(ask("low", prompt_of(16, 2), 30))
    preempted: list[str] = []
    original = scheduler.planner.preempt

    def preempt(victim: SequenceState, step: Step) -> None:
        preempted.append(victim.request.rid)
        original(victim, step)

    scheduler.planner.preempt = preempt  # type: ignore[method-assign]
    drive(scheduler, model)
    assert preempted
    assert set(preempted) == {"low"}


def test_the_often_preempted_are_immune_until_all_are() -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fcfs", max_preemptions=2))
    for i, length in enumerate((20, 12, 16)):
        scheduler.add(ask(str(i), prompt_of(length, i), 30))
    scheduler.update(*take_step(scheduler, model))
    first, cheap, last = running = scheduler.planner.running
    assert scheduler.planner._victim(first) is cheap
    cheap.num_preemptions = 2
    assert scheduler.planner._victim(first) is last
    last.num_preemptions = first.num_preemptions = 2
    assert scheduler.planner._victim(first) is last, "the last to arrive, when all are immune"
    assert running == [first, cheap, last]
    drive(scheduler, model)
    expect_empty(scheduler)


def test_entering_leaves_room_for_those_who_run() -> None:
    scheduler, model = make(num_pages=10)
    scheduler.add(ask("a", prompt_of(14, 1), 6))  # 4 pages now, 5 in the end
    scheduler.update(*take_step(scheduler, model))
    scheduler.add(ask("b", prompt_of(24, 2), 2))  # 6 pages are free, and it needs them all
    drive(scheduler, model)
    assert scheduler.stats()["preemptions"] == 0
    expect_empty(scheduler)


def test_prefills_that_are_all_short_of_pages_make_room_among_themselves() -> None:
    config = ScheduleConfig(policy="fcfs", max_step_tokens=8, max_running=4)
    scheduler, model = make(num_pages=20, config=config)
    scheduler._check = False  # some pages will be nobody's
    prompts = {str(i): prompt_of(36, i) for i in range(2)}
    for rid, prompt in prompts.items():
        scheduler.add(ask(rid, prompt, 3))
    events = list(scheduler.update(*take_step(scheduler, model)))
    second = scheduler.requests["1"].sequences[0]
    scheduler.planner._start(second, scheduler.memory.find(second), Step(8), 0)
    pool = scheduler.cache.pool
    lost = pool.allocate(pool.num_free)
    for _ in range(8):
        batch = scheduler.schedule()
        assert batch is not None, "neither can go on"
        events += scheduler.update(batch, model.run(batch))
        if scheduler.stats()["preemptions"]:
            break
    assert scheduler.stats()["preemptions"] >= 1
    pool.release(lost)
    tokens = tokens_of(events + drive(scheduler, model))
    for rid, prompt in prompts.items():
        assert tokens[rid, 0] == expect_tokens(prompt, 7, 3, VOCAB)
    expect_empty(scheduler)
