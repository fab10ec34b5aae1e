"""Thoughts before answers: apart from them everywhere, and in a conversation only where it keeps
them. A scripted model writes `<think>…</think>` and then its answer."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_backend import ScriptedBackend, chatml, generating

from radixgen.errors import InvalidRequest
from radixgen.lang import (
    assistant,
    assistant_begin,
    assistant_end,
    call,
    function,
    gen,
    select,
    separate_reasoning,
    user,
)
from radixgen.lang.chat import ChatFormat
from radixgen.lang.shared import Shared
from radixgen.lang.transcript import segments
from radixgen.messages import GenerateRequest, decode_to_runtime, encode
from radixgen.thoughts import Tags
from radixgen.types import SamplingParams, Thinking

Messages = list[dict[str, str]]


class Answer(BaseModel):
    city: str


def forgetful(messages: Messages, generation: bool) -> str:
    """A template that drops the thoughts of earlier answers, as Qwen's and DeepSeek's do."""
    kept = [m | {"content": m["content"].rpartition("</think>")[2]} for m in messages]
    return chatml(kept, generation)


def opening(messages: Messages, generation: bool) -> str:
    """As `forgetful`; and where an answer is asked for, the thoughts have begun."""
    return forgetful(messages, generation) + "<think>\n" * generation


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    made = ScriptedBackend(lambda _: '<think>\nwhy?\n</think>{"city": "Paris"}')
    yield made
    made.close()


def test_the_value_is_parsed_from_what_comes_after_the_thoughts(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += user("Where?")
        s += assistant(gen("x", schema=Answer, thinking=50))

    state = program.run(backend=backend)
    assert state["x"] == Answer(city="Paris")
    assert state.text("x") == '{"city": "Paris"}'
    assert state["x_reasoning_content"] == "why?"
    assert "".join(state.text_iter("x_reasoning_content")) == "why?"
    meta = state.get_meta_info("x")
    assert (meta["reasoning_content"], meta["reasoning_tokens"]) == ("why?", 21)
    assert state.text().endswith('<think>\nwhy?\n</think>{"city": "Paris"}<|end|>\n')
    assert "".join(state.text_iter()) == state.text()


@pytest.mark.parametrize("template", [forgetful, opening])
def test_thoughts_that_the_template_drops_end_with_their_message(
    backend: ScriptedBackend, template: Callable[[Messages, bool], str]
) -> None:
    backend.chat = ChatFormat(template)
    begins = "" if template is opening else "<think>"
    backend.answer = lambda text: (
        f"{begins}so\n</think>\n\nParis"
        if text.endswith("assistant|>" + "<think>\n" * (not begins))
        else "!"
    )

    @function
    def program(s: Any) -> None:
        s += user("Where?")
        s += assistant(gen("x", thinking=50) + ", " + gen("more"))
        s += user("Sure?")
        s += assistant(gen("y", thinking=50))

    state = program.run(backend=backend)
    assert (state["x"], state["x_reasoning_content"], state["more"]) == ("Paris", "so", "!")
    first = template([{"role": "user", "content": "Where?"}], True)
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "Paris, !"},
        {"role": "user", "content": "Sure?"},
    ]
    assert generating(backend) == [
        first,
        first + begins + "so\n</think>\n\nParis, ",  # within a message the model sees its thoughts
        template(messages, True),  # and after it, what the template renders
    ]
    assert state.messages()[:3] == messages
    everything = template([*messages, {"role": "assistant", "content": "Paris"}], False)
    assert state.text() == "".join(state.text_iter()) == everything
    ids = bytes(list(state.executor.conversation.prompt()))
    assert ids.decode() == everything


def test_a_conversation_that_keeps_thoughts_only_grows(backend: ScriptedBackend) -> None:
    backend.answer = lambda text: f"<think>{len(text)}</think>\n yes"

    @function
    def program(s: Any) -> None:
        for turn in range(3):
            s += user(f"Question {turn}")
            s += assistant(gen(f"x{turn}", thinking=20))

    state = program.run(backend=backend)
    asked = generating(backend)
    for earlier, later in itertools.pairwise(asked):
        assert later.startswith(earlier + f"<think>{len(earlier)}</think>\n yes")
    assert [state[f"x{turn}"] for turn in range(3)] == ["yes"] * 3


def test_choices_are_scored_after_the_thoughts(backend: ScriptedBackend) -> None:
    backend.answer = lambda _: "<think>red</think>"
    backend.logprob = lambda text, option: [0.0 if option in text else -9.0] * len(option)

    @function
    def program(s: Any) -> None:
        s += "Color: " + gen("x", choices=["blue", "red"], thinking=20)

    state = program.run(backend=backend)
    assert (state["x"], state["x_reasoning_content"]) == ("red", "red")
    assert state.get_meta_info("x")["reasoning_content"] == "red"
    assert state.text() == "Color: <think>red</think>red"


def test_a_tool_is_called_after_the_thoughts(backend: ScriptedBackend) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    made = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    backend.answer = lambda _: f'<think>{{"name": "no"}}</think>{made}'

    @function
    def program(s: Any) -> None:
        s += call([add], "sum", thinking=40)

    state = program.run(backend=backend)
    assert state["sum"].result == 3
    assert state["sum_reasoning_content"] == '{"name": "no"}'


def test_thoughts_before_choices_are_not_those_of_the_run(backend: ScriptedBackend) -> None:
    backend.answer = lambda _: "<think>red</think>"

    @function
    def program(s: Any) -> None:
        s += gen("x", choices=["blue", "red"], thinking=20)

    state = program.run(backend=backend, min_tokens=100, max_tokens=200, n=2)
    assert state["x"] in ("blue", "red")


def test_tags_of_ones_own_and_those_of_the_model(backend: ScriptedBackend) -> None:
    backend.answer = lambda text: "[[a]]b" if text.endswith("1") else "◁think▷c◁/think▷d"
    backend.chat = ChatFormat(chatml, Tags("◁think▷", "◁/think▷"))

    @function
    def program(s: Any) -> None:
        s += "1" + gen("x", thinking=Thinking(9, "[[", "]]"))
        s += "2" + gen("y", thinking="low")
        s += separate_reasoning(gen("z", thinking=30))

    state = program.run(backend=backend)
    names = ("x", "x_reasoning_content", "y", "y_reasoning_content", "z", "z_reasoning_content")
    assert [state[name] for name in names] == ["b", "a", "d", "c", "d", "c"]


def test_forks_batches_and_async_programs_think(backend: ScriptedBackend) -> None:
    backend.answer = lambda text: f"<think>{text[-1]}</think>{text[-1]}!"

    @function
    def forking(s: Any) -> None:
        s += "Letters: "
        forks = s.fork(2)
        forks += lambda i: "ab"[i] + gen("x", thinking=20)
        forks.join()

    @function
    async def waiting(s: Any, letter: str) -> str:
        s += letter + gen("x", thinking=20)
        return str(await s["x"] + await s["x_reasoning_content"])

    joined = forking.run(backend=backend)
    assert (joined["x"], joined["x_reasoning_content"]) == (["a!", "b!"], ["a", "b"])
    states = waiting.run_batch([{"letter": "c"}, {"letter": "d"}], backend=backend)
    assert [state.ret_value for state in states] == ["c!c", "d!d"]
    assert asyncio.run(waiting.arun("e", backend=backend)).ret_value == "e!e"


def test_a_fork_within_a_message_sees_its_thoughts_and_forgets_them_apart(
    backend: ScriptedBackend,
) -> None:
    backend.chat = ChatFormat(forgetful)
    backend.answer = lambda text: "<think>so</think>A" if text.endswith("assistant|>") else "B"

    @function
    def program(s: Any) -> None:
        s += user("Where?")
        s += assistant_begin()
        s += gen("x", thinking=50)
        forks = s.fork(2)
        forks += lambda i: [str(i) + gen("y"), assistant_end()]
        s += assistant_end()
        s["ends"] = [bytes(list(fork.executor.conversation.prompt())) for fork in synced(forks)]

    def synced(forks: Any) -> Any:
        for fork in forks:
            fork.sync()
        return forks

    state = program.run(backend=backend)
    base = forgetful([{"role": "user", "content": "Where?"}], True)
    assert generating(backend)[1:] == [f"{base}<think>so</think>A{i}" for i in range(2)]
    assert [end.decode() for end in state["ends"]] == [f"{base}A{i}B<|end|>\n" for i in range(2)]
    assert state.text() == f"{base}A<|end|>\n"


def test_several_choices_have_several_thoughts(backend: ScriptedBackend) -> None:
    state = function(_several).run(backend=backend)
    assert state["x_reasoning_content"] == ["why?"] * 2
    assert len(state["x"]) == 2


def _several(s: Any) -> None:
    s += gen("x", n=2, thinking=20)


def test_a_transcript_tells_thoughts_from_what_was_forced(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "Q" + gen("x", schema=Answer, thinking=50)

    found = segments(program.run(backend=backend).executor)
    assert found[1] == ("thought", "<think>\nwhy?\n</think>")
    assert found[2] == ("forced", "{")


def _tool(a: int) -> int:
    return a


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: gen("x", thinking=-3), "is not between 0 and"),
        (lambda: gen("x", thinking=True), "no number of tokens"),
        (lambda: gen("x", thinking="much"), "minimal, low, medium, high"),
        (lambda: call([_tool], thinking=False), "no number of tokens"),
        (lambda: Thinking(5, end=""), "end is empty"),
    ],
)
def test_what_is_no_budget_is_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        make()


@pytest.mark.parametrize("thinking", [0, Thinking(0), Thinking(0, "<t>", "</t>")])
def test_a_budget_of_nothing_is_no_thoughts(thinking: int | Thinking) -> None:
    assert gen("x", thinking=thinking) == gen("x")
    if isinstance(thinking, Thinking):
        request = GenerateRequest("r", SamplingParams(), thinking=thinking)
        assert request.thinking is None
        assert decode_to_runtime(encode(request, [1]))[0] == request


def test_thinking_is_said_where_the_model_writes(backend: ScriptedBackend) -> None:
    with pytest.raises(InvalidRequest, match="no sampling option 'thinking'"):
        function(_several).run(backend=backend, thinking=20)
    with pytest.raises(TypeError):
        select("x", ["a", "b"], thinking=20)  # type: ignore[call-arg]  # pyright: ignore


def test_a_fork_shares_its_past(backend: ScriptedBackend) -> None:
    """Nothing of a long conversation is copied for a fork, nor when forks fork."""

    @function
    def program(s: Any) -> None:
        s += "word " * 10_000
        for _ in range(300):
            s = s.fork(1)[0]
            s += "."
        s += gen("x", thinking=30)
        s.sync()
        s["deepest"] = s.text()

    made: list[int] = []
    whole = Shared.since

    def counted(self: Shared[Any], start: int) -> Any:
        found = whole(self, start)
        made.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shared, "since", counted)
        function(program.function).run(backend=backend)
    assert len(generating(backend)[0]) == 50_000 + 300
    assert sum(size > 100 for size in made) <= 300 // 64 + 1 + 3


def test_shared_sequences_are_independent() -> None:
    first: Shared[int] = Shared(list)
    first.extend(range(5))
    second = first.copy()
    third = second.copy()
    first.append(5)
    second.append(6)
    assert (first.since(0), second.since(0), third.since(0)) == (
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 6],
        [0, 1, 2, 3, 4],
    )
    assert (first.since(5), first.since(9), len(third)) == ([5], [], 5)


def test_an_exception_that_escapes_ends_the_state(backend: ScriptedBackend) -> None:
    """Of a backend that is broken beyond what its requests may raise."""

    class Escape(BaseException):
        pass

    def broken(_: str) -> str:
        raise Escape

    backend.answer = broken

    @function
    def program(s: Any) -> None:
        s += gen("x")

    with pytest.raises(Escape):
        program.run(backend=backend)


def test_thoughts_before_choices_have_their_budget_alone() -> None:
    with pytest.raises(InvalidRequest, match="max_tokens=4 bounds nothing here"):
        gen("x", choices=["blue", "red"], thinking=20, max_tokens=4)
    gen("x", choices=["blue", "red"], max_tokens=4)  # as programs for SGLang do
