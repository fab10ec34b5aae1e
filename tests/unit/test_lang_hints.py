"""What programs tell the cache: what follows, how wide, how long a tool takes, and for whom."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_backend import ScriptedBackend

from radixgen.errors import InvalidRequest
from radixgen.lang import call, function, gen, select
from radixgen.lang.habits import Habits
from radixgen.lang.place import Place


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    made = ScriptedBackend()
    yield made
    made.close()


def test_a_fork_that_follows_is_announced(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a")
        forks = s.fork(5)
        forks += gen("x")
        forks.join()

    backend.delay = 0.01
    program.run(backend=backend)
    program.run(backend=backend)
    first, warm, *branches = backend.hints[len(backend.hints) // 2 :]
    assert (first.forks, first.last_use) == (5, False)
    assert warm.forks == 5
    assert all(hint.last_use for hint in branches)
    assert {hint.program for hint in backend.hints} == {"program"}


def test_a_line_that_was_once_not_the_last_is_never_called_so(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any, turns: int) -> None:
        for _ in range(turns):
            s += gen("a")
            s["a"]

    for turns in (1, 1, 2, 1):
        program.run(turns=turns, backend=backend)
    assert [hint.last_use for hint in backend.hints] == [False, True, True, False, False]


def test_appended_branches_are_not_called_done(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += gen("x")
        forks.join("concate_and_append")
        s += gen("y")

    for _ in range(2):
        program.run(backend=backend)
    assert not any(hint.last_use for hint in backend.hints[-3:-1])


def test_a_tools_time_is_learned_or_given(backend: ScriptedBackend) -> None:
    def slow(word: str) -> str:
        """Take your time."""
        time.sleep(0.05)
        return word

    backend.answer = lambda text: '{"name": "slow", "arguments": {"word": "x"}}'

    @function
    def program(s: Any, seconds: float | None) -> None:
        s += call([slow], "c", tool_seconds=seconds)
        s += gen("a")

    program.run(seconds=None, backend=backend)
    program.run(seconds=None, backend=backend)
    state = program.run(seconds=7.5, backend=backend)
    times = [hint.tool_seconds for hint in backend.hints][::2]
    assert times[0] == 0
    assert times[1] > 0.04
    assert times[2] == state.get_meta_info("c")["hint"].tool_seconds == 7.5
    with pytest.raises(InvalidRequest, match="tool_seconds=-1"):
        call([slow], tool_seconds=-1)


def test_select_and_program_names(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "x" + select("a", ["b", "c"]) + gen("d")

    state = program.run(backend=backend, program="mine")
    assert state.get_meta_info("a")["hint"].program == "mine"
    assert state.get_meta_info("d")["hint"].program == "mine"


def test_habits_are_of_a_line() -> None:
    habits, here, there = Habits(), Place("p", "f.py", 1), Place("p", "f.py", 2)
    assert not habits.is_last(here)
    assert not habits.is_last(None)
    habits.ended_after(here)
    habits.went_on_after(there, forks=3)
    assert habits.is_last(here)
    assert not habits.is_last(there)
    assert (habits.forks(there), habits.forks(here)) == (3, 0)
    habits.went_on_after(here)
    habits.ended_after(here)
    assert not habits.is_last(here)
