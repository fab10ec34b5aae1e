"""The ready-made programs against a scripted backend: what they ask, and what they make of it."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from scripted_backend import ScriptedBackend

from radixgen.lang import ToolCall
from radixgen.lang.programs import (
    chat,
    extract,
    few_shot,
    judge,
    rag,
    react,
    self_consistency,
    skeleton_of_thought,
    tree_of_thought,
)
from radixgen.lang.programs.extract import Item, Order


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedBackend]]:
    made: list[ScriptedBackend] = []

    def make(answer: Callable[[str], str]) -> ScriptedBackend:
        made.append(ScriptedBackend(answer))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


Scripted = Callable[..., ScriptedBackend]


def generated(backend: ScriptedBackend) -> list[str]:
    return [text for kind, text in backend.calls if kind == "generate"]


def test_chat(scripted: Scripted) -> None:
    backend = scripted(lambda text: f"answer {text.count('<|user|>')}")
    state = chat.chat.run(chat.QUESTIONS, backend=backend)
    assert state.ret_value == ["answer 1", "answer 2", "answer 3"]
    first, second, third = generated(backend)
    assert second.startswith(first)
    assert third.startswith(second)
    assert [m["role"] for m in state.messages()] == ["system"] + ["user", "assistant"] * 3


def test_few_shot(scripted: Scripted) -> None:
    backend = scripted(lambda text: "")
    backend.logprob = lambda text, option: (
        [-0.1 if option == ("negative" if "torn" in text else "positive") else -3.0] * len(option)
    )
    states = few_shot.classify.run_batch([(text,) for text in few_shot.TEXTS], backend=backend)
    assert [state.ret_value for state in states] == ["positive", "negative", "positive"]
    warmed = [text for kind, text in backend.calls if kind == "warm"]
    assert len(warmed) == 1
    assert warmed[0].endswith("Sentiment: neutral\n\nReview: ")


def test_extract(scripted: Scripted) -> None:
    order = {"customer": "Ada", "urgency": "high", "items": [{"name": "hammer", "quantity": 2}]}
    backend = scripted(lambda text: json.dumps(order))
    state = extract.extract.run(extract.MAIL, Order, backend=backend)
    assert state.ret_value == Order(
        customer="Ada", urgency="high", items=[Item(name="hammer", quantity=2)]
    )


def steps(*said: str) -> Callable[[str], str]:
    """Says one thing after the other."""
    left = list(said)
    return lambda text: left.pop(0)


def made(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_react(scripted: Scripted) -> None:
    backend = scripted(
        steps(
            "I look it up.",
            made("look_up", topic="Eiffel Tower"),
            "I subtract.",
            made("calculate", expression="330-96"),
            "Done.",
            made("finish", answer="234 metres"),
        )
    )
    state = react.react.run("How much higher?", backend=backend)
    assert state.ret_value == "234 metres"
    assert isinstance(state["action_1"], ToolCall)
    assert state["action_1"].result == 234
    assert "Result: The Eiffel Tower in Paris is 330 metres high." in state.text()
    assert state.messages()[-1]["role"] == "assistant"
    prompts = generated(backend)
    assert all(later.startswith(earlier) for earlier, later in pairwise(prompts))


def test_react_gives_up(scripted: Scripted) -> None:
    calls = [text for _ in range(2) for text in ("hm", made("look_up", topic="x"))]
    assert react.react.run("?", max_turns=2, backend=scripted(steps(*calls))).ret_value is None


@pytest.mark.parametrize("text", ["__import__('os')", "2 ** 9", "a + 1", "'x' * 3"])
def test_calculate_takes_numbers_only(text: str) -> None:
    with pytest.raises(ValueError, match="only numbers"):
        react.calculate(text)
    assert react.calculate("-(2 + 4) * 3 / 2 - 1") == -10


def test_tree_of_thought(scripted: Scripted) -> None:
    def answer(text: str) -> str:
        if text.endswith("from 1 to 9? "):
            return "9" if "good" in text.rsplit("Step", 1)[1] else "2"
        if text.endswith("Answer: "):
            return "31"
        backend.count += 1  # type: ignore[attr-defined]
        return "good" if backend.count % 3 == 0 else "bad"  # type: ignore[attr-defined]

    backend = scripted(answer)
    backend.count = 0  # type: ignore[attr-defined]
    state = tree_of_thought.tree_of_thought.run("How many?", depth=2, backend=backend)
    assert state.ret_value == "31"
    assert "Step 1: good\nStep 2: good\nAnswer: 31" in state.text()
    assert len(generated(backend)) == 3 * 2 + 6 * 2 + 1


def test_skeleton_of_thought(scripted: Scripted) -> None:
    def answer(text: str) -> str:
        return '["Rest", "Dark", "Quiet"]' if text.count("<|assistant|>") == 1 else "Do it."

    backend = scripted(answer)
    state = skeleton_of_thought.skeleton_of_thought.run("How?", backend=backend)
    assert state.ret_value == "1. Rest: Do it.\n2. Dark: Do it.\n3. Quiet: Do it."
    assert state.messages()[-1]["content"] == state.ret_value + "\n"
    assert len(set(generated(backend))) == 4


def test_judge(scripted: Scripted) -> None:
    def answer(text: str) -> str:
        if "Sum them up" in text:
            return "Fine."
        return json.dumps({"reason": "because", "score": 7 if "style" in text else 4})

    backend = scripted(answer)
    state = judge.judge.run(judge.ESSAY, backend=backend)
    assert state.ret_value == {"clarity": 4, "correctness": 4, "style": 7, "structure": 4}
    assert state["verdict"] == "Fine."
    assert "style: 7/10. because" in state.text()


def test_self_consistency(scripted: Scripted) -> None:
    answers = iter(["38", "48", "38", "38", "5"])
    backend = scripted(
        lambda text: next(answers) if text.endswith("The answer is ") else " Count them."
    )
    state = self_consistency.self_consistency.run("How many?", backend=backend)
    assert state.ret_value == 38
    assert state["votes"] == {38: 3, 48: 1, 5: 1}


def test_rag(scripted: Scripted) -> None:
    names = rag.retrieve("How long is the Seine in Paris?", rag.LIBRARY)
    assert names == sorted(names)
    assert "seine" in names
    backend = scripted(lambda text: json.dumps({"answer": "777 km", "citations": ["seine"] * 2}))
    documents = {name: rag.LIBRARY[name] for name in names}
    state = rag.rag.run("How long?", documents, backend=backend)
    assert state.ret_value == rag.Answer("777 km", ("seine",))
    assert rag.answer_schema(names)["properties"]["citations"]["items"] == {"enum": names}
