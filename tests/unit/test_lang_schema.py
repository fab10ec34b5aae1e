"""Python types as constraints, values read back, and functions as tools."""

import asyncio
import dataclasses
import enum
import json
import re
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel
from scripted_backend import ScriptedBackend

from radixgen.errors import InvalidRequest
from radixgen.lang.api import function, gen
from radixgen.lang.ir import ToolCall
from radixgen.lang.schema import constraint_of
from radixgen.lang.tools import Tool, call, describe


class Person(BaseModel):
    name: str
    age: int


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Options(TypedDict):
    deep: bool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (Person, '{"name": "Ann", "age": 3}', Person(name="Ann", age=3)),
        (Point, '{"x": 1, "y": 2.5}', Point(1.0, 2.5)),
        (Options, '{"deep": true}', {"deep": True}),
        (Colour, '"red"', Colour.RED),
        (Literal["a", "b"], '"b"', "b"),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (int, "3", 3),
        ({"type": "string"}, '"x"', "x"),
        ('{"type": "string"}', '"x"', "x"),
        (True, "[]", []),
    ],
)
def test_types_become_constraints_and_texts_values(schema: Any, text: str, value: Any) -> None:
    spec, parse = constraint_of(schema)
    assert spec.kind == "json_schema"
    json.loads(spec.source)
    assert parse(text) == value
    assert type(parse(text)) is type(value)


def test_classes_are_closed() -> None:
    for schema in (Person, Point, Options):
        assert json.loads(constraint_of(schema)[0].source)["additionalProperties"] is False


@pytest.mark.parametrize("schema", [object(), 3, "not json", "[1]", lambda: 1, type])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest):
        constraint_of(schema)


def weather(city: str, days: int = 1) -> dict[str, Any]:
    """The weather of a city."""
    if city == "Nowhere":
        raise LookupError("no such city")
    return {"city": city, "days": days}


async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


def test_a_call_is_carried_out_and_told() -> None:
    backend = ScriptedBackend(lambda _: '{"name": "weather", "arguments": {"city": "Oslo"}}')

    @function
    def program(s: Any) -> None:
        s += "Do: " + call([weather, wait], "c") + "so " + gen("x")

    try:
        state = program.run(backend=backend)
    finally:
        backend.close()
    made = state["c"]
    assert isinstance(made, ToolCall)
    assert (made.function, made.result) == ("weather", {"city": "Oslo", "days": 1})
    assert '}}\n{"city":"Oslo","days":1}\nso ' in state.text()


def test_a_tools_failure_is_news_for_the_model() -> None:
    async def run(text: str) -> ToolCall:
        node: Any = call([weather, wait])
        outcome: ToolCall = await node.run(text)
        return outcome

    said = asyncio.run(run('{"name": "weather", "arguments": {"city": "Nowhere"}}'))
    assert said.result == {"error": "LookupError: no such city"}
    said = asyncio.run(run('{"name": "weather", "arguments": {"city": 3}}'))
    assert "wrong arguments" in said.text
    said = asyncio.run(run('{"name": "wait", "arguments": {"seconds": 0}}'))
    assert said.text == "done"


def test_a_tool_that_would_end_the_process_fails_alone() -> None:
    def leave() -> None:
        raise SystemExit(4)

    node: Any = call([leave])
    outcome = asyncio.run(node.run('{"name": "leave", "arguments": {}}'))
    assert outcome.result == {"error": "RuntimeError: SystemExit: 4"}


def test_tools_need_describable_functions() -> None:
    def loose(x) -> None: ...  # type: ignore[no-untyped-def]

    def starred(*xs: int) -> None: ...

    with pytest.raises(InvalidRequest, match="type annotation"):
        Tool(loose)
    with pytest.raises(InvalidRequest, match="cannot be described"):
        Tool(starred)
    with pytest.raises(InvalidRequest, match="different names"):
        call([weather, weather])
    assert json.loads(describe([weather]))["description"] == "The weather of a city."


@pytest.mark.parametrize(
    ("schema", "name"), [(Point, "Point"), (list[Point], "list[")], ids=["class", "list"]
)
def test_a_text_that_is_no_value_is_told_by_the_name_of_its_class(schema: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"it is no {re.escape(name)}"):
        constraint_of(schema)[1]("{")
