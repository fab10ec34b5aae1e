"""What requests say of thoughts, in every spelling, against what models and templates have."""

from typing import Any

import pytest

from radixgen.errors import ConfigError
from radixgen.serve.conversation import Layout
from radixgen.serve.errors import ApiError
from radixgen.serve.messages_request import MessagesRequest, signature_of, turns_of, wish_of
from radixgen.serve.reasoning import (
    ReasoningFields,
    Show,
    Split,
    Thinker,
    Wish,
    chat_wish,
    plan,
    show_of,
    thinker_of,
)
from radixgen.serve.responses_request import input_turns
from radixgen.serve.settings import ServeConfig
from radixgen.thoughts import THINK, UNLIMITED, Tags, Trimmed
from radixgen.types import Choice, FinishReason, Piece, Thinking

QWEN = "{{ enable_thinking }} <think></think>"
DEEPSEEK = "{{ thinking }} <think></think>"
ALWAYS = "<think></think>"
MAX_TOKENS = 6000
PLAIN = "{{ content }}"


class Bytes:
    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        assert not skip_special_tokens
        return bytes(ids).decode()


def planned(
    template: str,
    prompt: str = "<user>",
    parser: str = "auto",
    layout: Layout | None = None,
    **said: Any,
) -> tuple[Thinking | None, dict[str, Any]]:
    thinker, layout = thinker_of(parser, template), layout or Layout()
    body = ReasoningFields.model_validate(said)
    found = plan(chat_wish(body, layout.variables, thinker), thinker, layout)
    tokenizer: Any = Bytes()
    thinking = found.thinking(tokenizer, list(prompt.encode()), MAX_TOKENS)
    return thinking, dict(found.layout.variables)


def test_models_that_think_do_so_unless_told_otherwise() -> None:
    whole = Thinking(UNLIMITED, "<think>", "</think>")
    assert planned(QWEN) == (whole, {})
    assert planned(QWEN, enable_thinking=False) == (None, {"enable_thinking": False})
    assert planned(QWEN, thinking={"type": "disabled"}) == (None, {"enable_thinking": False})
    assert planned(QWEN, reasoning_effort="none") == (None, {"enable_thinking": False})
    assert planned(QWEN, thinking_budget=0) == (None, {"enable_thinking": False})
    assert planned(DEEPSEEK) == (None, {})
    assert planned(DEEPSEEK, thinking={"type": "enabled"}) == (whole, {"thinking": True})
    assert planned(ALWAYS, "<user><think>\n") == (Thinking(UNLIMITED, "", "</think>"), {})
    assert planned(QWEN, "<user><think>\n\n</think>\n\n") == (None, {})
    assert planned(PLAIN) == (None, {})
    assert planned(PLAIN, parser="kimi") == (Thinking(UNLIMITED, "◁think▷", "◁/think▷"), {})
    assert planned(QWEN, parser="none") == (None, {})


@pytest.mark.parametrize(
    ("said", "budget"),
    [
        ({"reasoning_effort": "low"}, 1024),
        ({"reasoning_effort": "high"}, MAX_TOKENS // 2),
        ({"thinking": {"budget_tokens": 77}}, 77),
        ({"thinking_token_budget": 78}, 78),
        ({"thinking_budget": 79, "enable_thinking": True}, 79),
        ({"thinking": {"type": "adaptive"}, "thinking_token_budget": 80}, 80),
        ({"enable_thinking": True}, UNLIMITED),
    ],
)
def test_every_spelling_of_a_budget(said: dict[str, Any], budget: int) -> None:
    thinking, variables = planned(QWEN, **said)
    assert thinking is not None
    assert thinking.budget == budget
    assert variables == {"enable_thinking": True}


def test_variables_of_the_template_are_switches_too() -> None:
    off = Layout(variables={"enable_thinking": False})
    assert planned(QWEN, layout=off) == (None, {"enable_thinking": False})
    assert planned(PLAIN, layout=off) == (None, {})  # there is nothing to turn off
    assert planned(PLAIN, parser="qwen3", layout=off) == (None, {})
    assert planned(QWEN, parser="none", layout=off) == (None, {"enable_thinking": False})
    other = Layout(variables={"style": "brief"})
    assert planned(QWEN, layout=other)[1] == {"style": "brief"}
    with pytest.raises(ApiError, match="does not think"):
        planned(PLAIN, layout=Layout(variables={"enable_thinking": True}))


def test_tags_of_ones_own_let_any_model_think() -> None:
    said: dict[str, Any] = {"thinking": {"budget_tokens": 9, "begin": "<a>", "end": "</a>"}}
    assert planned(PLAIN, **said) == (Thinking(9, "<a>", "</a>"), {})
    assert planned(PLAIN, "<user><a>", **said) == (Thinking(9, "", "</a>"), {})


@pytest.mark.parametrize(
    ("template", "prompt", "said", "param"),
    [
        (PLAIN, "", {"reasoning_effort": "high"}, "reasoning_effort"),
        (PLAIN, "", {"thinking": {"type": "enabled"}}, "thinking"),
        (PLAIN, "", {"thinking_token_budget": 5}, "thinking_token_budget"),
        (PLAIN, "", {"thinking": {"begin": "<a>"}}, "thinking.end"),
        (QWEN, "", {"enable_thinking": False, "thinking_budget": 5}, "enable_thinking"),
        (QWEN, "", {"reasoning_effort": "low", "thinking_budget": 5}, "thinking_budget"),
        (QWEN, "", {"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking"),
        (ALWAYS, "<think>\n", {"enable_thinking": False}, "enable_thinking"),
        (ALWAYS, "</think>", {"enable_thinking": True}, "enable_thinking"),
    ],
)
def test_what_cannot_be_is_refused(
    template: str, prompt: str, said: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        planned(template, prompt, **said)
    assert caught.value.param == param


def test_an_answer_that_is_continued_has_no_thoughts() -> None:
    layout = Layout(open_answer=False, continue_last=True)
    assert planned(QWEN, layout=layout) == (None, {})
    with pytest.raises(ApiError, match="is continued"):
        planned(QWEN, layout=layout, thinking_budget=5)


def test_parsers_are_checked_when_the_server_starts() -> None:
    for name in ("auto", "none", "deepseek_r1", "qwen3"):
        assert ServeConfig(reasoning_parser=name).reasoning_parser == name
    with pytest.raises(ConfigError, match="reasoning_parser='gpt-oss' is none of auto, none, "):
        ServeConfig(reasoning_parser="gpt-oss")
    assert thinker_of("deepseek_r1", PLAIN) == Thinker(THINK, (), True)


# ---- how they are told ----

PIECES = [
    Piece("r", 0, 0, thoughts="\n a", num_thought_tokens=3),
    Piece("r", 0, 0, thoughts=" b\n", num_thought_tokens=2),
    Piece("r", 0, 0, text="\n\nYes"),
    Piece("r", 0, 0, text=" no", finish_reason=FinishReason.STOP),
]
WHOLE = Choice(0, "\n\nYes no", (), FinishReason.STOP, thoughts="\n a b\n", num_thought_tokens=5)
TAGGED = Thinking(9, "<t>", "</t>")


@pytest.mark.parametrize(
    ("said", "told", "whole"),
    [
        ({}, [("a", ""), (" b", ""), ("", "Yes"), ("", " no")], ("a b", "Yes no")),
        (
            {"stream_reasoning": False},
            [("", ""), ("", ""), ("a b", "Yes"), ("", " no")],
            ("a b", "Yes no"),
        ),
        (
            {"separate_reasoning": False},
            [("", "<t>\n a"), ("", " b\n"), ("", "</t>\n\nYes"), ("", " no")],
            ("", "<t>\n a b\n</t>\n\nYes no"),
        ),
        (
            {"separate_reasoning": False, "stream_reasoning": False},
            [("", ""), ("", ""), ("", "<t>\n a b\n</t>\n\nYes"), ("", " no")],
            ("", "<t>\n a b\n</t>\n\nYes no"),
        ),
        (
            {"include_reasoning": False},
            [("", ""), ("", ""), ("", "Yes"), ("", " no")],
            ("", "Yes no"),
        ),
    ],
)
def test_thoughts_are_told_as_asked(said: Any, told: Any, whole: Any) -> None:
    show = show_of(ReasoningFields.model_validate(said))
    stream = Split(TAGGED, show)
    assert [stream.push(piece) for piece in PIECES] == told
    assert stream.num_tokens == 5
    assert Split(TAGGED, show).push(WHOLE) == whole


def test_a_constrained_answer_keeps_its_blanks() -> None:
    assert Split(TAGGED, Show(), is_free=False).push(WHOLE) == ("a b", "\n\nYes no")
    assert Split(None).push(WHOLE) == ("", "\n\nYes no")


def test_thoughts_that_are_not_told_are_not_in_the_content_either() -> None:
    with pytest.raises(ApiError, match="separate_reasoning"):
        show_of(
            ReasoningFields.model_validate(
                {"include_reasoning": False, "separate_reasoning": False}
            )
        )


@pytest.mark.parametrize("end", [False, True])
def test_trimmed_text_is_the_same_in_any_pieces(end: bool) -> None:
    text = " \n a  b \n"
    want = text.strip() if end else text.lstrip()
    for cut in range(len(text)):
        trim = Trimmed(end=end)
        assert trim.push(text[:cut]) + trim.push(text[cut:]) == want


# ---- Anthropic's blocks, and items of the Responses API ----


def request_of(**fields: Any) -> MessagesRequest:
    base = {"model": "m", "max_tokens": 5000, "messages": [{"role": "user", "content": "x"}]}
    return MessagesRequest.model_validate(base | fields)


def block(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def test_blocks_of_thoughts_come_back_as_they_were() -> None:
    def thoughts(*blocks: dict[str, Any]) -> str:
        answer = [*blocks, {"type": "text", "text": "hi"}]
        body = request_of(
            messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": answer}]
        )
        return turns_of(body)[-1].thoughts

    assert thoughts(block("so", signature_of("so"))) == "so"
    assert thoughts(block("so", "of-somebody-else")) == ""
    assert thoughts({"type": "redacted_thinking", "data": "xx"}) == ""
    with pytest.raises(ApiError, match="send thinking blocks unchanged"):
        thoughts(block("other", signature_of("so")))
    with pytest.raises(ApiError, match="needs a text"):
        thoughts({"type": "thinking", "thinking": 5})


def test_anthropics_words_for_thinking() -> None:
    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert wish_of(request_of(thinking=enabled)) == Wish(True, 1024)
    assert wish_of(request_of()) == Wish()
    adaptive = request_of(thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert wish_of(adaptive).most(None) == 1024
    for fields, param in (
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": enabled | {"budget_tokens": 5000}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ):
        with pytest.raises(ApiError) as caught:
            wish_of(request_of(**fields))
        assert caught.value.param == param


def test_reasoning_items_belong_to_the_answer_that_follows() -> None:
    item = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "a"}],
    }
    said = {"role": "assistant", "content": "b"}
    turns = input_turns(
        [{"role": "user", "content": "x"}, item, said, item, {"role": "user", "content": "y"}, said]
    )
    assert [turn.thoughts for turn in turns] == ["", "a", "", ""]
    with pytest.raises(ApiError, match="reasoning_text"):
        input_turns([{"type": "reasoning", "content": [{"type": "text"}]}, said])
    with pytest.raises(ApiError, match="beside reasoning"):
        input_turns([item])
    assert Tags("a", "b") != THINK
