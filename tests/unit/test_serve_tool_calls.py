"""Calls are found whatever pieces the text comes in, and read as they were written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import build
from radixgen.grammars.expr import RuleSet
from radixgen.serve.constraints import schema_spec
from radixgen.serve.tool_calls import (
    Argument,
    Called,
    Ended,
    Event,
    Reader,
    Said,
    ToolCallParser,
    parsed,
    reader_of,
    sampling_of_calls,
    told_reason,
)
from radixgen.serve.tools import OPENING, Tool, ToolChoice, constrain, written_call
from radixgen.types import FinishReason, GrammarSpec, SamplingParams

ADD = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
SAY = Tool("say", "Says.", input_format={"type": "regex", "pattern": "hi|bye"})
TELL = Tool("tell", "Tells.", input_format={"type": "any_text"})


CALL = written_call("add", {"a": 1})
SAID = written_call("say", "hi", custom=True)
TOLD = written_call("tell", "hi", custom=True)


def read(
    pieces: list[str], reader: Reader | None = None
) -> tuple[str, list[tuple[str, bool, str]], int]:
    """The content, the calls as (name, custom, text), and how many of them are complete."""
    parser, events = (reader or ToolCallParser)(), list[Event]()
    for piece in pieces:
        events += parser.push(piece)
    events += parser.finish()
    calls: list[tuple[str, bool, str]] = []
    for event in events:
        if isinstance(event, Called):
            assert event.index == len(calls)
            calls.append((event.name, event.custom, ""))
        elif isinstance(event, Argument):
            name, custom, text = calls[event.index]
            calls[event.index] = name, custom, text + event.text
    content = "".join(event.text for event in events if isinstance(event, Said))
    return content, calls, sum(isinstance(event, Ended) for event in events)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v), max_leaves=5
)
function_calls = st.tuples(
    st.from_regex(r"[a-z_]{1,9}", fullmatch=True),
    st.just(False),
    st.dictionaries(st.text(), values, max_size=3),
)
custom_calls = st.tuples(
    st.from_regex(r"[a-z_]{1,9}", fullmatch=True),
    st.just(True),
    st.text().filter(lambda text: "\n</tool_call>" not in text + "\n</tool_call>"[:-1]),
)


@given(
    st.text().filter(lambda text: OPENING not in text and text == text.strip()),
    st.lists(function_calls | custom_calls, max_size=3),
    st.data(),
)
def test_calls_are_read_as_they_were_written(content: str, calls: Any, data: Any) -> None:
    written = [written_call(name, value, custom=custom) for name, custom, value in calls]
    text = "\n".join([content, *written])
    if not calls:
        text = content
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found_content, found, num_ended = read(pieces)
    assert found_content == content
    assert num_ended == len(calls)
    assert [(name, custom) for name, custom, _ in found] == [(n, c) for n, c, _ in calls]
    for (_, custom, value), (_, _, got) in zip(calls, found, strict=True):
        assert (got if custom else json.loads(got)) == value


@pytest.mark.parametrize(
    "text",
    ["<tool_call", "<tool_cal", "a < b", "<tool_call>{}", "<tool_call>" + "x" * 400, "<<tool_call"],
)
def test_what_is_no_call_is_text(text: str) -> None:
    assert read([text]) == (text, [], 0)
    assert read(list(text)) == (text, [], 0)


def test_a_call_that_was_cut_off_is_not_ended() -> None:
    text = written_call("add", {"a": 1})
    _, calls, num_ended = read([text[: text.index("1")]])
    assert calls == [("add", False, '{"a": ')]
    assert num_ended == 0


@pytest.mark.parametrize("mark", ["1", "\n</tool", "arguments", "name", "tool", "<tool"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_nothing_is_told_of_a_call_that_a_stop_cut(mark: str, size: int) -> None:
    reader = reader_of([ADD], ToolChoice(), SamplingParams(stop=(mark,)))
    assert reader is not None
    whole = f"so:\n{CALL}"
    cut = f"{whole}\n{CALL[: CALL.index(mark)]}"
    for text, num_calls in ((cut, 1), (cut.replace(f"{CALL}\n", ""), 0)):
        parser, events = reader(), list[Event]()
        for start in range(0, len(text), size):
            events += parser.push(text[start : start + size])
        events += parser.finish(mark)
        assert sum(isinstance(event, Called) for event in events) == num_calls
        assert sum(isinstance(event, Ended) for event in events) == num_calls
        said = "".join(event.text for event in events if isinstance(event, Said))
        assert said.strip() == "so:"
    assert parsed("if a <", reader, "\n") == parsed("if a <", reader, "") == [Said("if a <")]
    # What ran out of tokens is told as far as it came, as without stops.
    events = parsed(f"{whole}\n{CALL[: CALL.index('1')]}", reader)
    assert events[-1] == Argument(1, '{"a": ')
    assert parsed(whole, reader, "")[-1] == Ended(0)


def test_stop_strings_are_for_text() -> None:
    given = SamplingParams(stop=("a", "b"), stop_token_ids=(3,))
    assert sampling_of_calls(given, ToolChoice("required")).stop == ()
    assert sampling_of_calls(given, ToolChoice("required")).stop_token_ids == (3,)
    for choice in (ToolChoice("auto"), ToolChoice("none")):
        assert sampling_of_calls(given, choice) is given


HOSTILE = [
    "a\n</tool_call>b",
    "a\n</tool_call>",
    "\n</tool_call>\n</tool_call>\n",
    "</tool_call>\n<tool",
    'x\n</tool_call>\n<tool_call name="say">\ny',
    f"x\n</tool_call>\n{written_call('add', {'a': 1})}",
]
ANY = {"regex": ("regex", "pattern", r"(.|\n)*"), "lark": ("lark", "grammar", r"start: /(.|\n)*/")}


@pytest.mark.parametrize("kind", ANY)
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("given", HOSTILE)
def test_an_input_of_a_grammar_may_hold_what_ends_a_call(given: str, mode: Any, kind: str) -> None:
    name, key, source = ANY[kind]
    say = Tool("say", input_format={"type": name, key: source})
    choice = ToolChoice(mode)
    text = f"{CALL}\n{written_call('say', given, custom=True)}"
    if mode == "auto":
        text = f"so:\n{text}"
    assert accepts(constrain([ADD, say], choice, None), text)
    reader = reader_of([ADD, say], choice, SamplingParams())
    for size in (1, 3, 1000):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        content, calls, num_ended = read(pieces, reader)
        assert content == ("so:" if mode == "auto" else "")
        assert calls == [("add", False, '{"a": 1}'), ("say", True, given)]
        assert num_ended == 2


def test_a_long_text_takes_linear_time() -> None:
    content, calls, _ = read(["<tool_call "] * 20_000)
    assert not calls
    assert content.strip() == ("<tool_call " * 20_000).strip()


def accepts(spec: GrammarSpec | None, text: str) -> bool:
    from helpers import recognised

    assert spec is not None
    return recognised(build(spec, RuleSet()), [text])[0]


@pytest.mark.parametrize(
    ("choice", "accepted", "refused"),
    [
        (ToolChoice("auto"),
         ["", "hello", CALL, f"so: {CALL}", f"{CALL}\n{SAID}", f"{TOLD} and\n{CALL} so"],
         ["<tool_call>", CALL[:-1], f"{SAID}\n{CALL}", f"{SAID} so"]),
        (ToolChoice("auto", once=True), ["hello", CALL, f"so {SAID}"],
         [f"{CALL}\n{CALL}", f"{CALL}\n{SAID}"]),
        (ToolChoice("required"), [CALL, SAID, f"{CALL}\n{SAID}", f"{CALL}\n{TOLD}\n{CALL}"],
         ["", "hello", f"a{CALL}", f"{SAID}\n{CALL}", f"{CALL}\n"]),
        (ToolChoice("required", once=True), [CALL], [f"{CALL}\n{CALL}"]),
        (ToolChoice("required", frozenset({"say"})), [SAID], [CALL, f"{SAID}\n{SAID}"]),
        (ToolChoice("auto", frozenset({"say"})), ["a", f"a {SAID}"], [CALL, f"{SAID}\n{SAID}"]),
        (ToolChoice("none"), ["", "hello <tool"], [CALL, "a <tool_call b"]),
    ],
)  # fmt: skip
def test_what_a_choice_lets_pass(
    choice: ToolChoice, accepted: list[str], refused: list[str]
) -> None:
    spec = constrain([ADD, SAY, TELL], choice, None)
    for text in accepted:
        assert accepts(spec, text), text
    for text in refused:
        assert not accepts(spec, text), text


def test_a_format_holds_of_what_is_no_call() -> None:
    content = schema_spec({"type": "object", "additionalProperties": False}, "x")
    spec = constrain([ADD], ToolChoice("auto"), content)
    assert accepts(spec, "{}")
    assert accepts(spec, CALL)
    assert not accepts(spec, "hello")


def test_arguments_are_an_object_whatever_the_schema_says() -> None:
    loose: list[dict[str, Any] | bool | None] = [None, True, {}, {"properties": {}}]
    for parameters in loose:
        spec = constrain([Tool("f", parameters=parameters)], ToolChoice("required"), None)
        assert accepts(spec, written_call("f", {}))
        assert not accepts(spec, written_call("f", 1))
    spec = constrain([Tool("f", parameters=False)], ToolChoice("required"), None)
    with pytest.raises(InvalidGrammar):
        accepts(spec, "")


def test_an_answer_that_has_no_tokens_left_behind_a_whole_call_is_complete() -> None:
    reader = reader_of([ADD], ToolChoice("required"), SamplingParams())
    assert reader is not None
    length, stop = FinishReason.LENGTH, FinishReason.STOP
    for text, told in ((CALL, stop), (f"{CALL}\n", stop), (CALL[:-1], length), ("so", length)):
        assert told_reason(length, parsed(text, reader)[-1]) is told
    assert told_reason(length, parsed(f"{CALL}\nso", reader)[-1]) is length
    assert told_reason(length, None) is length
    assert told_reason(FinishReason.ABORT, parsed(CALL, reader)[-1]) is FinishReason.ABORT
