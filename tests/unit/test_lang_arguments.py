"""What is wrong with an argument of the language is said in its own errors, by its name."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from radixgen.errors import InvalidRequest
from radixgen.lang.api import function, gen, select
from radixgen.lang.choices import greedy_token_selection
from radixgen.lang.ir import Gen, Select

CIRCULAR: dict[str, Any] = {}
CIRCULAR["properties"] = CIRCULAR
DEEP: dict[str, Any] = {}
for _ in range(3000):
    DEEP = {"items": DEEP}


class Hooked:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise ZeroDivisionError("mine")


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
