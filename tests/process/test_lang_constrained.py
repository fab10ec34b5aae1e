"""The ready-made programs on a random model: constraints are kept, whatever it would rather say."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from helpers import write_tiny_model
from pydantic import BaseModel, Field

import radixgen as rg
from radixgen import Runtime
from radixgen.lang.programs import (
    extract,
    judge,
    rag,
    react,
    self_consistency,
    skeleton_of_thought,
    tree_of_thought,
)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    model = write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=8192)
    with Runtime(model, num_pages=2000, threads=1) as runtime:
        yield runtime


class Record(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=99)
    names: list[Literal["Tom", "Rex"]] = Field(max_length=2)


@pytest.mark.parametrize("seed", range(3))
def test_extract(runtime: Runtime, seed: int) -> None:
    state = extract.extract.run("A cat.", Record, backend=runtime, seed=seed)
    assert isinstance(state.ret_value, Record)


def test_a_call_names_a_tool_and_its_arguments(runtime: Runtime) -> None:
    def paint(colour: Literal["red", "blue"], times: Literal[1, 2]) -> str:
        """Paint it."""
        return f"{colour} {times}"

    def stop(reason: Literal["done", "tired"]) -> str:
        """Stop."""
        return reason

    state = react.react.run(
        "Paint!", (paint, stop), max_turns=3, thought_tokens=4, backend=runtime, seed=5
    )
    made = [state.get(f"action_{turn}", rg.ToolCall) for turn in range(3)]
    assert {call.function for call in made} <= {"paint", "stop"}
    assert all("error" not in str(call.result) for call in made)


def test_documents(runtime: Runtime) -> None:
    found = rag.rag.run("How long?", rag.LIBRARY, backend=runtime, seed=1).ret_value
    assert set(found.citations) <= set(rag.LIBRARY)
    assert found.text


def test_forking_programs(runtime: Runtime) -> None:
    options: dict[str, Any] = {"backend": runtime, "temperature": 1.0, "seed": 3}
    scores = judge.judge.run("A text.", verdict_tokens=4, **options).ret_value
    assert set(scores) == set(judge.QUALITIES)
    assert all(1 <= score <= 10 for score in scores.values())
    points = skeleton_of_thought.skeleton_of_thought.run("How?", point_tokens=4, **options)
    assert 3 <= len(points["outline"]) <= 5
    voted = self_consistency.self_consistency.run("How many?", thought_tokens=4, **options)
    assert sum(voted["votes"].values()) == 5
    tree = tree_of_thought.tree_of_thought.run("How?", step_tokens=4, answer_tokens=4, **options)
    assert isinstance(tree.ret_value, str)


def test_a_constraint_that_cannot_be_kept_is_refused_at_its_line(runtime: Runtime) -> None:
    @rg.function
    def program(s: Any, schema: Any) -> None:
        s += "x" + rg.gen("a", schema=schema)

    before = runtime.stats()["generated_tokens"]
    with pytest.raises(rg.InvalidRequest) as caught:
        program.run({"type": "string", "minLength": 5, "maxLength": 2}, backend=runtime)
    assert any("s += " in str(entry) for entry in caught.traceback)
    with pytest.raises(rg.InvalidRequest):
        program.run({"type": "nonsense"}, backend=runtime)
    assert runtime.stats()["generated_tokens"] == before
