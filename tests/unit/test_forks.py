"""Which fork enters next: few choices do not wait for the end of many continuations."""

import random

import pytest
from scheduling import (
    VOCAB,
    ask,
    drive,
    expect_empty,
    expect_tokens,
    make,
    prompt_of,
    score,
    take_step,
    terminals_of,
    tokens_of,
)

from radixgen.config import ScheduleConfig
from radixgen.schedule.forks import Forks
from radixgen.schedule.request import Event, Request, SequenceState


def forks_of(rid: str, count: int) -> list[SequenceState]:
    request = ask(rid, prompt_of(1))
    tokens = prompt_of(1)
    return [SequenceState(request, index, tokens, 1, 0) for index in range(1, count + 1)]


def entering(forks: Forks, count: int) -> str:
    rids = ""
    for _ in range(count):
        fork = forks.first()
        forks.enter(fork)
        rids += fork.request.rid
    return rids


def test_the_oldest_and_the_fewest_take_turns() -> None:
    forks = Forks()
    for rid, count in (("a", 8), ("b", 4), ("c", 2)):
        forks.add(forks_of(rid, count))
    assert entering(forks, 14) == "acac" + "abababab" + "aa"
    assert not forks


def test_as_many_enter_one_request_after_the_other() -> None:
    forks = Forks()
    for rid in "abc":
        forks.add(forks_of(rid, 3))
    assert entering(forks, 9) == "aaabbbccc"


@pytest.mark.parametrize("seed", range(20))
def test_forks_that_come_enter_and_leave(seed: int) -> None:
    rng, forks, turn = random.Random(seed), Forks(), 0
    expected: dict[Request, list[SequenceState]] = {}
    for number in range(200):
        match rng.randrange(3):
            case 0:
                added = forks_of(str(number), rng.randrange(6))
                forks.add(added)
                if added:
                    expected[added[0].request] = list(added)
            case 1 if expected:
                request = rng.choice(list(expected))
                gone = rng.choice(expected[request])
                assert forks.discard(gone)
                assert not forks.discard(gone)
                expected[request].remove(gone)
            case 2 if expected:
                fewest = min(map(len, expected.values()))
                fork = forks.first()
                if turn % 2:
                    assert len(expected[fork.request]) == fewest
                else:
                    assert fork.request is next(iter(expected))
                assert fork is expected[fork.request].pop(0)
                forks.enter(fork)
                turn += 1
        expected = {request: left for request, left in expected.items() if left}
        assert list(forks) == [fork for left in expected.values() for fork in left]
        assert bool(forks) == bool(expected)
        assert all(map(forks.awaits, expected))


@pytest.mark.parametrize("kind", ["choices", "continuations"])
def test_few_do_not_wait_for_the_end_of_many(kind: str) -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fair", max_step_tokens=16))
    scheduler.add(score(prompt_of(8), [[i % 90, 1, 2, 3] for i in range(200)]))
    events: list[Event] = list(scheduler.update(*take_step(scheduler, model)))
    few = ask("few", prompt_of(20, seed=5), 1, n=3)
    if kind == "continuations":
        few = score(prompt_of(20, seed=5), [[1, 2], [3, 4], [5, 6]])
        few.rid = "few"
    scheduler.add(few)
    steps = 0
    while "few" not in terminals_of(events):
        events += scheduler.update(*take_step(scheduler, model))
        steps += 1
    assert steps <= 4
    assert "s" not in terminals_of(events), "of 200, few were scored meanwhile"
    events += drive(scheduler, model)
    assert "s" in terminals_of(events)
    if kind == "choices":
        for index in range(3):
            expected = expect_tokens(prompt_of(20, seed=5), 7 + index, 1, VOCAB)
            assert tokens_of(events)["few", index] == expected
    expect_empty(scheduler)


def test_an_aborted_request_leaves_no_fork() -> None:
    scheduler, model = make(config=ScheduleConfig(policy="fair", max_step_tokens=16))
    scheduler.add(score(prompt_of(8), [[i % 90, 1, 2, 3] for i in range(200)]))
    scheduler.update(*take_step(scheduler, model))
    assert scheduler.planner.forks
    scheduler.abort("s")
    assert not scheduler.planner.forks
    drive(scheduler, model)
    expect_empty(scheduler)
