"""The documented ways to typed values, run here and read by the type checkers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, assert_type

import pytest
from pydantic import BaseModel
from scripted_backend import ScriptedBackend

from radixgen import AsyncProgramState, InvalidRequest, Program, ProgramState, function, gen


class Person(BaseModel):
    name: str


@dataclass
class Point:
    x: int


class Options(TypedDict):
    deep: bool


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    made = ScriptedBackend(
        lambda text: {
            "person ": '{"name": "Ann"}',
            "point ": '{"x": 3}',
            "options ": '{"deep": true}',
            "numbers ": "[1, 2]",
        }[text.rsplit("|", 1)[-1]]
    )
    yield made
    made.close()


def test_get_is_typed(backend: ScriptedBackend) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "|person " + gen("person", schema=Person)
        s += "|point " + gen("point", schema=Point)
        s += "|options " + gen("options", schema=Options)
        s += "|numbers " + gen("numbers", schema=list[int])
        assert_type(s.get("person", Person), Person)
        assert_type(s.get("point", Point), Point)
        assert_type(s.get("numbers", list[int]), list[int])
        assert s.get("options", Options)["deep"] is True
        assert s.get("person", Person).name == "Ann"
        assert s.get("point", Point).x + sum(s.get("numbers", list[int])) == 6

    assert_type(program, Program)
    state = program.run(backend=backend)
    with pytest.raises(InvalidRequest, match=r"s\['point'\] is a Point, not a Person"):
        state.get("point", Person)


def test_async_get_is_typed(backend: ScriptedBackend) -> None:
    @function
    async def program(s: AsyncProgramState) -> str:
        s += "|person " + gen("person", schema=Person)
        person = await s.get("person", Person)
        assert_type(person, Person)
        return person.name

    assert program.run(backend=backend).ret_value == "Ann"
