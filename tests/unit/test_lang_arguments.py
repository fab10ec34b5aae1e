"""What is wrong with an argument of the language is said in its own errors, by its name."""

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from scripted_backend import ScriptedBackend

from radixgen.errors import InvalidRequest, RadixgenError, RuntimeUnavailable
from radixgen.lang.api import function, gen, select
from radixgen.lang.backends.endpoint import RuntimeEndpoint
from radixgen.lang.choices import greedy_token_selection
from radixgen.lang.ir import Call, Gen, GenOptions, Select, ToolCall
from radixgen.lang.options import MEMO_SIZE
from radixgen.lang.tools import call, describe

CIRCULAR: dict[str, Any] = {}
CIRCULAR["properties"] = CIRCULAR
DEEP: dict[str, Any] = {}
for _ in range(3000):
    DEEP = {"items": DEEP}


class Hooked:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise ZeroDivisionError("mine")


def tool(x: int) -> Any:
    """Give back what is asked for."""
    return RETURNED[x]()


def positional(x: int, /) -> None: ...
def underscored(_x: int) -> None: ...
def unresolved(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def undescribed(x: Callable[[], int]) -> None: ...


@function
def empty(s: Any) -> None: ...


@function
def named(s: Any, name: str) -> None: ...


class Callable_:
    def __call__(self, x: int) -> None: ...


def circular() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def failing() -> Any:
    raise ValueError("\ud800")


RETURNED: list[Callable[[], Any]] = [
    object,
    circular,
    lambda: b"\xff",
    lambda: "\ud800",
    lambda: ["\ud800"],
    failing,
]

WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("temprature", lambda: gen("a", choices=["x"], temprature=0)),
    ("max_tokens", lambda: gen("a", "x", choices=["x"])),  # type: ignore[arg-type]
    ("stop", lambda: gen("a", choices=["x"], stop=5)),
    ("stop", lambda: gen("a", choices=["x"], stop="\n")),
    ("n", lambda: gen("a", choices=["x"], n=3)),
    ("logprobs", lambda: gen("a", choices=["x"], logprobs=2)),
    ("grammar_mass", lambda: gen("a", choices=["x"], grammar_mass=True)),
    ("constrained_law", lambda: gen("a", choices=["x"], constrained_law="faithful")),
    ("temperature", lambda: gen("a", choices=["x"], temperature="x")),
    ("temperature", lambda: gen("a", choices=["x"], temperature=0.5)),
    ("temperature", lambda: select("a", ["x"], temperature="x")),  # type: ignore[arg-type]
    ("lora", lambda: select("a", ["x"], lora=5)),  # type: ignore[arg-type]
    ("choices_method", lambda: gen("a", choices=["x"], choices_method="x")),  # type: ignore[arg-type]
    ("choices_method", lambda: select("a", ["x"], 0.0, "x")),  # type: ignore[arg-type]
    ("choices_method", lambda: gen("a", choices_method=greedy_token_selection)),
    ("choices", lambda: select("a", None)),
    ("choices", lambda: select("a", 5)),  # type: ignore[arg-type]
    ("choices", lambda: select("a", {"x": 1})),
    ("choices", lambda: select("a", ["x", 5])),  # type: ignore[list-item]
    ("choices", lambda: select("a", ["x", "\ud800"])),
    ("stop", lambda: gen("a", stop=5)),
    ("stop_token_ids", lambda: gen("a", stop_token_ids=5)),
    ("logit_bias", lambda: gen("a", logit_bias="x")),
    ("logit_bias", lambda: gen("a", logit_bias=[1, 2])),
    ("max_tokens", lambda: gen("a", max_tokens="x")),  # type: ignore[arg-type]
    ("priority", lambda: gen("a", priority="x")),
    ("program", lambda: gen("a", program=5)),
    ("name", lambda: gen(["a"])),  # type: ignore[arg-type]
    ("name", lambda: gen(5)),  # type: ignore[arg-type]
    ("name", lambda: gen("")),
    ("name", lambda: select("", ["x"])),
    ("grammar", lambda: gen("a", grammar=5)),  # type: ignore[arg-type]
    ("regex", lambda: gen("a", regex=5)),  # type: ignore[arg-type]
    ("dtype", lambda: gen("a", dtype=[])),  # type: ignore[arg-type]
    ("json_schema", lambda: gen("a", json_schema=5)),  # type: ignore[arg-type]
    ("json_schema", lambda: gen("a", json_schema="[" * 100_000)),
    ("schema", lambda: gen("a", schema="[" * 100_000)),
    ("schema", lambda: gen("a", schema={"default": object()})),
    ("schema", lambda: gen("a", schema=CIRCULAR)),
    ("schema", lambda: gen("a", schema=DEEP)),
    ("schema", lambda: gen("a", schema=Annotated[str, Field(pattern="(?=a)a")])),
    ("schema", lambda: gen("a", schema=BaseModel)),
    ("schema", lambda: gen("a", schema=Hooked)),
    ("functions", lambda: call([])),
    ("functions", lambda: call("tool")),  # type: ignore[arg-type]
    ("functions", lambda: call(5)),  # type: ignore[arg-type]
    ("functions", lambda: call([5])),  # type: ignore[list-item]
    ("functions", lambda: call([functools.partial(tool, 1)])),
    ("functions", lambda: call([Callable_()])),
    ("functions", lambda: call([dict])),
    ("functions", lambda: call([positional])),
    ("functions", lambda: call([underscored])),
    ("functions", lambda: call([unresolved])),
    ("functions", lambda: call([undescribed])),
    ("functions", lambda: describe([5])),  # type: ignore[list-item]
    ("name", lambda: call([tool], 5)),  # type: ignore[arg-type]
    ("before", lambda: call([tool], before=5)),  # type: ignore[arg-type]
    ("after", lambda: call([tool], after=None)),  # type: ignore[arg-type]
    ("hint", lambda: call([tool], tool_seconds="x")),  # type: ignore[arg-type]
    ("n", lambda: call([tool], n=2)),
    ("batch", lambda: empty.run_batch(5)),  # type: ignore[arg-type]
    ("batch", lambda: empty.run_batch(None)),  # type: ignore[arg-type]
    ("batch", lambda: empty.run_batch({"x": 1})),  # type: ignore[arg-type]
    ("name", lambda: named.run_batch([{}, {}], name="Ann")),
    ("base_url", lambda: RuntimeEndpoint(5)),  # type: ignore[arg-type]
    ("base_url", lambda: RuntimeEndpoint(" ")),
    ("func", lambda: function(5)),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("param", "say"), WRONG)
def test_a_wrong_argument_is_refused_by_name(param: str, say: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        say()
    assert caught.value.param == param
    assert len(str(caught.value)) < 1000


def test_what_programs_write_beside_choices_is_accepted() -> None:
    said = gen("a", 16, choices=iter("ab"), temperature=0, priority=2, return_logprob=False)
    assert isinstance(said, Select)
    assert said.choices == ("a", "b")
    assert said.options.priority == 2
    assert said.options.temperature is None
    assert select("a", (c for c in "ab")) == select("a", ["a", "b"])


def test_lists_of_any_kind_are_read_once() -> None:
    said = gen("a", stop=(c for c in "xy"), stop_token_ids=iter([3]), logit_bias=[(5, 1.0), (2, 3)])
    assert isinstance(said, Gen)
    assert said.options.stop == ("x", "y")
    assert said.options.logit_bias == {2: 3, 5: 1.0}
    for _ in range(2):
        sampling = said.options.sampling()
        assert (sampling.stop, sampling.stop_token_ids) == (("x", "y"), (3,))
        assert sampling.logit_bias == ((2, 3), (5, 1.0))


def test_what_was_said_before_lets_nothing_wrong_through() -> None:
    """Options are kept by what they mean, and True is not 1."""
    said = gen("a", max_tokens=1, stop_token_ids=[1], temperature=1)
    again = gen("b", max_tokens=1, stop_token_ids=(1,), temperature=1.0)
    assert isinstance(said, Gen)
    assert isinstance(again, Gen)
    assert said.options.sampling() == again.options.sampling()
    wrongs: list[dict[str, Any]]
    wrongs = [{"max_tokens": True}, {"max_tokens": 1.0}, {"stop_token_ids": [True]}]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest):
            gen("a", **wrong)
    for number in range(2 * MEMO_SIZE):  # and are forgotten, not confused
        other = gen("a", seed=number)
        assert isinstance(other, Gen)
        assert other.options.sampling().seed == number


def test_the_options_of_two_runs_are_kept_apart() -> None:
    mine = GenOptions(temperature=0.5)
    one, two = GenOptions(temperature=1.0, n=2), GenOptions(seed=3)
    for _ in range(2):
        assert mine.over(one) == GenOptions(temperature=0.5, n=2)
        assert mine.over(two) == GenOptions(temperature=0.5, seed=3)
        assert mine.over(GenOptions()) == mine
        assert mine.over(one).sampling().n == 2
        assert mine.sampling(n=3).n == 3
        assert mine.sampling().n == 1


def carried_out(number: int) -> ToolCall:
    node = call(tool, "c")
    assert isinstance(node, Call)
    text = json.dumps({"name": "tool", "arguments": {"x": number}})

    async def run() -> ToolCall:
        return await node.run(text)

    return asyncio.run(run())


@pytest.mark.parametrize("number", range(len(RETURNED)))
def test_what_a_tool_cannot_tell_is_told_as_an_error(number: int) -> None:
    made = carried_out(number)
    made.text.encode()
    assert list(json.loads(made.text)) == ["error"]
    assert json.loads(made.text) == made.result


class Point(BaseModel):
    x: float
    n: int = 0


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"schema": float}, "9.1E699"),
        ({"schema": float}, "1" * 400),
        ({"schema": list[float]}, "[1, -1e+309]"),
        ({"schema": Point}, '{"x": 1e400}'),
        ({"schema": int}, "1" * 5000),
        ({"schema": int}, '"x"'),
        ({"schema": {"type": "number"}}, "9.1E699"),
        ({"schema": {"type": "integer"}}, "1" * 5000),
        ({"schema": {}}, "[" * 100_000 + "]" * 100_000),
        ({"schema": {}}, "[1"),
        ({"dtype": float}, "1" * 400),
        ({"dtype": int}, "-" + "1" * 5000),
        ({"dtype": int}, ""),
    ],
)
def test_what_cannot_be_read_names_its_variable(constraint: Any, text: str) -> None:
    backend = ScriptedBackend(lambda _: text)

    @function
    def program(s: Any) -> Any:
        s += gen("deep", **constraint)
        return s["deep"]

    try:
        with pytest.raises(RadixgenError, match="'deep'") as caught:
            program.run(backend=backend)
    finally:
        backend.close()
    assert 'gen("deep"' in caught.value.__notes__[0]
    assert len(str(caught.value)) < 400


def test_large_numbers_that_can_be_held_are_read() -> None:
    largest = "1" * 308
    for schema, text, value in (
        (float, "1.7e308", 1.7e308),
        (float, "1e-999", 0.0),
        (int, largest, int(largest)),
        (str, '"9e999"', "9e999"),
        ({"type": "integer"}, largest, int(largest)),
    ):
        said = gen("a", schema=schema)
        assert isinstance(said, Gen)
        assert said.parse is not None
        assert said.parse(text) == value


def test_an_address_may_lack_its_scheme() -> None:
    pytest.importorskip("httpx2")
    with pytest.raises(RuntimeUnavailable, match=r"http://127\.0\.0\.1:1"):
        RuntimeEndpoint("127.0.0.1:1/")
