"""What the language refuses, where it does, and the line of the program that the error names."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_backend import ScriptedBackend

from radixgen.errors import InvalidRequest
from radixgen.lang.api import function
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
