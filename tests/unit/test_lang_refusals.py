"""What the language refuses, where it does, and the line of the program that the error names."""

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from scripted_backend import ScriptedBackend

from radixgen.errors import InvalidRequest
from radixgen.lang.api import function, gen, user_begin
from radixgen.lang.state import AsyncProgramState


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    scripted = ScriptedBackend()
    yield scripted
    scripted.close()


@pytest.mark.parametrize("wrong", ["x", math.nan, math.inf, 0, -1, True, 10**400])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_no_time_limit_is_refused_at_the_call(
    backend: ScriptedBackend, wrong: Any, is_async: bool
) -> None:
    ran = []

    @function
    def program(s: Any) -> None:
        ran.append(1)

    @function
    async def async_program(s: AsyncProgramState) -> None:
        ran.append(1)

    chosen = async_program if is_async else program
    said = r"time_limit=.*: a number of seconds above 0"
    with pytest.raises(InvalidRequest, match=said):
        chosen.run(backend=backend, time_limit=wrong)
    with pytest.raises(InvalidRequest, match=said):
        chosen.run(backend=backend, time_limit=wrong, stream=True)
    with pytest.raises(InvalidRequest, match=said):
        asyncio.run(chosen.arun(backend=backend, time_limit=wrong))
    with pytest.raises(InvalidRequest, match=said):
        chosen.run_batch([{}], backend=backend, time_limit=wrong)
    assert not ran


def lines_of(error: BaseException) -> list[str]:
    """The source of the lines that an error's notes name."""
    return [note.partition(": ")[2] for note in error.__notes__]


def test_an_error_of_a_with_block_names_the_users_line(backend: ScriptedBackend) -> None:
    """Not that of contextlib, which enters the block."""

    @function
    def nested(s: Any) -> None:
        s += user_begin()
        with s.user():
            pass

    with pytest.raises(InvalidRequest, match="do not nest") as caught:
        nested.run(backend=backend)
    assert lines_of(caught.value) == ["with s.user():"]

    @function
    def ended(s: Any, what: str) -> None:
        with s.copy() as child:
            pass
        if what == "copy":
            with child.copy():
                pass
        with child.var_scope("x"):
            pass

    with pytest.raises(InvalidRequest, match="has ended") as caught:
        ended.run(what="copy", backend=backend)
    assert lines_of(caught.value) == ["with child.copy():"]
    with pytest.raises(InvalidRequest, match="has ended") as caught:
        ended.run(what="scope", backend=backend)
    assert lines_of(caught.value) == ['with child.var_scope("x"):']


def test_an_error_met_by_waiting_names_the_users_line(backend: ScriptedBackend) -> None:
    """Not that of concurrent.futures, which raises it."""

    @function
    def program(s: Any) -> None:
        s.set_var("x", 1)
        s.executor.variables["x"].value = failed = Future[Any]()
        failed.set_exception(InvalidRequest("far away"))
        s["x"]

    with pytest.raises(InvalidRequest, match="far away") as caught:
        program.run(backend=backend)
    assert lines_of(caught.value) == ['s["x"]']


@pytest.mark.parametrize("is_async", [False, True])
def test_one_fork_is_added_to_and_not_replaced(backend: ScriptedBackend, is_async: bool) -> None:
    @function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks[0] += "a"
        forks[-1] += "bb"
        forks += gen("x")
        with pytest.raises(InvalidRequest, match="cannot be replaced by another"):
            forks[0] = forks[1]

    @function
    async def async_program(s: AsyncProgramState) -> None:
        program.function(s)

    (async_program if is_async else program).run(backend=backend)
    assert sorted(backend.calls) == [("generate", "a"), ("generate", "bb")]


@pytest.mark.parametrize("name", ["backend", "stream", "use_thread", "time_limit", "self"])
def test_a_parameter_that_run_takes_itself_is_refused(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def program(s, question, {name}=None): ...", space)
    with pytest.raises(InvalidRequest, match=f"a parameter cannot be named {name}, which run"):
        function(space["program"])
