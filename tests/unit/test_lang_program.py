"""Programs against a scripted backend: values, roles, forks, errors."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_backend import ScriptedBackend

from radixgen.errors import InvalidRequest, UnsetVariable
from radixgen.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    select,
    separate_reasoning,
    system,
    user,
)


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    scripted = ScriptedBackend()
    yield scripted
    scripted.close()


def test_text_gen_and_value(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any, name: str) -> str:
        s += "Hello " + name + ": " + gen("a")
        s += "; again " + gen("b", max_tokens=3)
        return str(s["a"] + s["b"])

    state = program.run(name="Ann", backend=backend)
    assert state["a"] == "(11)"
    assert state.text() == "Hello Ann: (11); again (23)"
    assert state.ret_value == "(11)(23)"
    assert [text for _, text in backend.calls] == ["Hello Ann: ", "Hello Ann: (11); again "]
    assert state.get_meta_info("b")["options"].max_tokens == 3
    assert "a" in state
    assert "c" not in state


def test_run_options_are_defaults_that_gen_wins_over(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a") + gen("b", temperature=0.5)

    state = program.run(temperature=0.1, max_new_tokens=7, backend=backend)
    a, b = (state.get_meta_info(name)["options"] for name in "ab")
    assert (a.temperature, b.temperature, a.max_tokens, b.max_tokens) == (0.1, 0.5, 7, 7)


def test_roles_use_the_template_and_grow_by_prefix(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += system("Be brief.")
        for turn in range(3):
            s += user(f"question {turn}")
            s += assistant(gen(f"a{turn}"))

    state = program.run(backend=backend)
    prompts = [text for kind, text in backend.calls if kind == "generate"]
    assert prompts[0] == "<|system|>Be brief.<|end|>\n<|user|>question 0<|end|>\n<|assistant|>"
    for earlier, later in itertools.pairwise(prompts):
        assert later.startswith(earlier)
    assert [m["role"] for m in state.messages()] == ["system"] + ["user", "assistant"] * 3
    assert state.messages()[2]["content"] == state["a0"]
    assert state.text().endswith("<|end|>\n")


def test_default_system_message_comes_from_the_template(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        with s.user():
            s += "hi"
        s += assistant_begin() + gen("a") + assistant_end()

    assert program.run(backend=backend).text().startswith("<|system|>Be kind.<|end|>\n<|user|>hi")


def test_nested_roles_are_an_error_with_the_line(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += user(assistant("no"))

    with pytest.raises(InvalidRequest, match="do not nest") as caught:
        program.run(backend=backend)
    assert any("s += user(assistant(" in str(entry) for entry in caught.traceback)


def test_fork_shares_the_past_and_join_gathers(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "shared "
        forks = s.fork(3)
        forks += lambda index: f"branch {index} "
        forks += gen("x")
        forks.join()
        s += "|" + "".join(s["x"])

    state = program.run(backend=backend)
    assert state["x"] == ["(16)"] * 3
    assert state.text() == "shared |(16)(16)(16)"
    assert ("warm", "shared ") in backend.calls
    assert backend.calls.count(("warm", "shared ")) == 1


def test_join_appends_what_children_said(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "a"
        forks = s.fork(2)
        forks += ["b", "c"]
        forks.join("concate_and_append")
        with pytest.raises(InvalidRequest, match="joined already"):
            forks.join()

    assert program.run(backend=backend).text() == "abc"


def test_forks_keep_their_order_and_role(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += user("q")
        s += assistant_begin()
        forks = s.fork(2)
        forks += ["one", "two"]
        forks += assistant_end()
        forks.join("concate_and_append")

    text = program.run(backend=backend).text()
    assert text.endswith("<|assistant|>one<|end|>\ntwo<|end|>\n")


def test_empty_fork_and_copy(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += gen("x")
        forks.join()
        with s.copy() as t:
            t += "only here" + gen("y")
            assert t["y"] == "(9)"
        s += "end"

    state = program.run(backend=backend)
    assert state["x"] == ["(0)", "(0)"]
    assert state.text() == "end"
    assert "y" not in state


def test_select_takes_the_likeliest(backend: ScriptedBackend) -> None:
    backend.logprob = lambda _, option: [-0.1 if option == "yes" else -2.0] * len(option)

    @function
    def program(s: Any) -> None:
        s += "Is it? " + select("a", ["no", "yes", "maybe"]) + " then"

    state = program.run(backend=backend)
    assert state["a"] == "yes"
    assert state.text() == "Is it? yes then"
    assert bytes(list(state.executor.conversation.prompt())).decode() == "Is it? yes then"
    assert len(state.get_meta_info("a")["normalized_prompt_logprobs"]) == 3


def test_gen_choices_is_select(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("a", choices=["x", "y"])

    assert program.run(backend=backend)["a"] == "x"


def test_typed_values_and_their_text(backend: ScriptedBackend) -> None:
    backend.answer = lambda _: '{"n": 3}'

    @function
    def program(s: Any) -> None:
        s += gen("a", schema=dict[str, int]) + gen("b", json_schema={"type": "object"})

    state = program.run(backend=backend)
    assert state["a"] == {"n": 3}
    assert state.text("a") == '{"n": 3}'
    assert state["b"] == '{"n": 3}'


def test_dtype_int(backend: ScriptedBackend) -> None:
    backend.answer = lambda _: "42"

    @function
    def program(s: Any) -> None:
        s += gen("a", dtype=int)

    assert program.run(backend=backend)["a"] == 42


def test_n_gives_a_list(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        s += "x" + gen("a", n=3) + "y"

    state = program.run(backend=backend)
    assert state["a"] == ["(1)"] * 3
    assert state.text() == "x(1)y"


def test_var_scope_and_set_var(backend: ScriptedBackend) -> None:
    @function
    def program(s: Any) -> None:
        with s.var_scope("all"):
            s += "one " + gen("a") + " two"
        s["mine"] = 7
        s += str(s["mine"])

    state = program.run(backend=backend)
    assert state["all"] == "one (4) two"
    assert state["mine"] == 7


def test_separate_reasoning(backend: ScriptedBackend) -> None:
    backend.answer = lambda _: "<think>hm</think> 4"

    @function
    def program(s: Any) -> None:
        s += separate_reasoning(gen("a"))

    state = program.run(backend=backend)
    assert (state["a"], state["a_reasoning_content"]) == ("4", "hm")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_type": "qwen3"}, "<think>hm</think> 4"),
        ({"model_type": "kimi"}, "◁think▷hm◁/think▷4"),
        ({"delimiters": ("[", "]")}, "[hm]4"),
    ],
)
def test_reasoning_is_found_by_its_models_delimiters(
    backend: ScriptedBackend, options: Any, said: str
) -> None:
    backend.answer = lambda _: said

    @function
    def program(s: Any) -> None:
        s += separate_reasoning(gen("a"), **options)

    state = program.run(backend=backend)
    assert (state["a"], state["a_reasoning_content"]) == ("4", "hm")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"model_type": "qwen"}, "model_type"),
        ({"delimiters": "[]"}, "delimiters"),
        ({"delimiters": ["a"]}, "delimiters"),
    ],
)
def test_delimiters_of_nobody_are_refused(options: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        separate_reasoning(gen("a"), **options)
    assert caught.value.param == param


def test_errors_reach_values_as_themselves(backend: ScriptedBackend) -> None:
    def broken(_: str) -> str:
        raise ZeroDivisionError("in the backend")

    backend.answer = broken

    @function
    def program(s: Any) -> None:
        s += gen("a")
        with pytest.raises(ZeroDivisionError):
            s["a"]
        s += gen("b")
        s["b"]

    with pytest.raises(ZeroDivisionError, match="in the backend") as caught:
        program.run(backend=backend)
    assert 's += gen("a")' in "".join(caught.value.__notes__)


def test_child_errors_reach_join(backend: ScriptedBackend) -> None:
    def sometimes(text: str) -> str:
        if text.endswith("1"):
            raise OSError("one")
        return "ok"

    backend.answer = sometimes

    @function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += ["0", "1"]
        forks += gen("x")
        forks.join()

    with pytest.raises(OSError, match="one"):
        program.run(backend=backend)


def test_bad_programs_are_told_why(backend: ScriptedBackend) -> None:
    with pytest.raises(InvalidRequest, match="named s"):
        function(lambda state: None)
    with pytest.raises(InvalidRequest, match="one constraint"):
        gen("a", regex="x", schema=int)
    with pytest.raises(InvalidRequest, match="'temperature'"):
        gen("a", temprature=1)
    with pytest.raises(InvalidRequest, match="at least one"):
        select("a", [])

    @function
    def reads_unset(s: Any) -> None:
        s["nope"]

    with pytest.raises(UnsetVariable, match="has set no variable 'nope'; it has: none"):
        reads_unset.run(backend=backend)

    @function
    def adds_none(s: Any) -> None:
        s += None

    with pytest.raises(InvalidRequest, match="None"):
        adds_none.run(backend=backend)

    @function
    def takes_one(s: Any, x: int) -> None: ...

    with pytest.raises(InvalidRequest, match="missing a required argument: 'x'"):
        takes_one.run(backend=backend)
    with pytest.raises(InvalidRequest, match="no argument and no sampling option 'y'"):
        takes_one.run(x=1, y=2, backend=backend)
    with pytest.raises(InvalidRequest, match="item 0"):
        takes_one.run_batch([(1, 2)], backend=backend)

    async def inner(s: Any) -> None: ...

    @function
    def returns_coroutine(s: Any) -> Any:
        return inner(s)

    with pytest.raises(InvalidRequest, match="async def"):
        returns_coroutine.run(backend=backend)


def test_one_state_in_two_threads_is_refused(backend: ScriptedBackend) -> None:
    caught: list[Exception] = []

    @function
    def program(s: Any) -> None:
        s += "mine"

        def other() -> None:
            try:
                s.__iadd__("theirs")
            except InvalidRequest as error:
                caught.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert program.run(backend=backend).text() == "mine"
    assert "two threads" in str(caught[0])


def test_program_calls_program(backend: ScriptedBackend) -> None:
    @function
    def inner(s: Any, x: str) -> None:
        s += x + gen("a")

    @function
    def outer(s: Any) -> None:
        s += "o"
        inner(s, x="i")

    assert outer.run(backend=backend).text() == "oi(2)"
