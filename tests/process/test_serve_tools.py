"""Constraints and tools through OpenAI's client, against a live server on a tiny random model."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai_chat import ASK, MODEL, chat, connect, refused
from pydantic import BaseModel, ConfigDict


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with connect() as client:
        yield client


# ---- every spelling of a constraint ----

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}
LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}


def is_schema(text: str) -> bool:
    return json.loads(text) in ({"a": "x"}, {"a": "y"})


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def is_choice(text: str) -> bool:
    return text in ("yes", "no")


def is_legacy(text: str) -> bool:
    return "<f" not in text or '"a"' in text


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
SPELLINGS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": FORMAT}, is_schema),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, is_schema),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, is_schema),
    ({"response_format": TAG}, is_choice),
    ({"response_format": LEGACY}, is_legacy),
    ({"response_format": {"type": "regex", "value": "yes|no"}}, is_choice),
    ({"structured_outputs": {"json": SCHEMA}}, is_schema),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, is_schema),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, is_schema),
    ({"structured_outputs": {"json_object": True}}, is_object),
    ({"structured_outputs": {"regex": "yes|no"}}, is_choice),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, is_choice),
    ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, is_choice),
    ({"structured_outputs": {"grammar": 'start: "yes" | "no"'}}, is_choice),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, is_choice),
    ({"guided_json": SCHEMA}, is_schema),
    ({"guided_regex": "yes|no", "guided_decoding_backend": "xgrammar"}, is_choice),
    ({"guided_choice": ["yes", "no"]}, is_choice),
    ({"guided_grammar": 'root ::= "yes" | "no"'}, is_choice),
    ({"guided_json_object": True}, is_object),
    ({"regex": "yes|no"}, is_choice),
    ({"ebnf": 'root ::= "yes" | "no"'}, is_choice),
    ({"json_schema": json.dumps(SCHEMA)}, is_schema),
    ({"json_schema": SCHEMA}, is_schema),
    ({"grammar": 'root ::= "yes" | "no"'}, is_choice),
    ({"grammar": {"type": "regex", "value": "yes|no"}}, is_choice),
    ({"grammar": {"type": "json", "value": SCHEMA}}, is_schema),
    ({"format": "json"}, is_object),
    ({"format": SCHEMA}, is_schema),
]


@pytest.mark.parametrize(("spelling", "holds"), SPELLINGS)
def test_every_spelling_is_enforced(client: openai.OpenAI, spelling: Any, holds: Any) -> None:
    answer = chat(client, max_tokens=250, temperature=1.3, extra_body=spelling)
    assert holds(answer.choices[0].message.content)
    text = client.completions.create(
        model=MODEL, prompt="x", max_tokens=250, temperature=1.3, extra_body=spelling
    )
    assert holds(text.choices[0].text)


@pytest.mark.parametrize(
    ("spelling", "param"),
    [
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 123}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "foo": 1}}, "response_format.foo"),
        ({"response_format": TAG | {"format": {"type": "x"}}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
         "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
         "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_json": {"type": "objct"}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "a", "regex": "b"}, "regex"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": r"(a)\1"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_grammar": "root ::= undefined"}, "guided_grammar"),
        ({"guided_grammar": " "}, "guided_grammar"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"grammar": {"type": "xml", "value": 1}}, "grammar.type"),
        ({"format": "yaml"}, "format"),
        ({"json_schema": {"not": {}}}, "json_schema"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(client: openai.OpenAI, spelling: Any, param: str) -> None:
    body = refused(client, extra_body=spelling, max_tokens=200)
    assert body["param"] == param
    assert chat(client, max_tokens=1).choices  # and the server goes on


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int
    kind: str


def test_parse_gives_the_clients_own_type(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Point, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Point)
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, response_format=Point, max_tokens=200
    ) as stream:
        assert "content.done" in {event.type for event in stream}
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Point)


def test_parse_gives_arguments_of_the_clients_own_type(client: openai.OpenAI) -> None:
    options: Any = {
        "model": MODEL, "messages": ASK, "tools": [openai.pydantic_function_tool(Point)],
        "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300,
    }  # fmt: skip
    (call,) = client.chat.completions.parse(**options).choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Point)
    with client.chat.completions.stream(**options) as stream:
        assert "tool_calls.function.arguments.done" in {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Point)


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
SUB = {"type": "function", "function": {"name": "sub"}}
BROKEN = {"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}
LISTED = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
SAY = {"type": "custom", "custom": {"name": "say", "format": {"type": "grammar", "grammar": {
    "syntax": "regex", "definition": "(hello|bye)"}}}}  # fmt: skip


def test_a_required_call_is_made(client: openai.OpenAI) -> None:
    answer = chat(
        client, tools=[ADD], tool_choice="required", max_tokens=300, parallel_tool_calls=False
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "add"
    assert 0 <= json.loads(call.function.arguments)["a"] <= 9


def test_a_named_tool_is_called_once(client: openai.OpenAI) -> None:
    for name, tool in (("add", ADD), ("say", SAY)):
        kind = str(tool["type"])
        answer = chat(
            client,
            tools=[ADD, SAY],
            tool_choice={"type": kind, kind: {"name": name}},
            max_tokens=300,
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.type == kind
        assert getattr(call, kind).name == name
    assert call.custom.input in ("hello", "bye")


def test_an_input_that_holds_the_end_of_a_call_is_whole(client: openai.OpenAI) -> None:
    """Of grammars in both syntaxes, streamed or not."""
    text = "<b>\n</tool_call>\n</b>"
    pattern = {"syntax": "regex", "definition": "<b>\\n</tool_call>\\n</b>"}
    rules = {"syntax": "lark", "definition": f"start: {json.dumps(text)}"}
    for grammar in (pattern, rules):
        tool = {"type": "custom", "custom": {"name": "say", "format": {
            "type": "grammar", "grammar": grammar}}}  # fmt: skip
        options: Any = {"tools": [tool], "tool_choice": "required", "max_tokens": 300, "seed": 1,
                        "parallel_tool_calls": False}  # fmt: skip
        (call,) = chat(client, **options).choices[0].message.tool_calls
        assert call.custom.input == text
        said = ""
        for chunk in chat(client, **options, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or ():
                said += (delta.model_extra or delta.model_dump())["custom"]["input"]
        assert said == text


def test_streamed_calls_add_up(client: openai.OpenAI) -> None:
    options: Any = {"tools": [ADD, SAY], "tool_choice": "required", "max_tokens": 300, "seed": 5}
    whole = chat(client, **options)
    calls: dict[int, Any] = {}
    reasons = []
    for chunk in chat(client, **options, stream=True):
        choice = chunk.choices[0]
        reasons += [choice.finish_reason] if choice.finish_reason else []
        assert not choice.delta.content
        for delta in choice.delta.tool_calls or ():
            raw = delta.model_dump(exclude_none=True)
            own = calls.setdefault(delta.index, {"text": ""})
            own["name"] = own.get("name") or (raw.get("function") or raw["custom"]).get("name")
            inner = raw.get("function") or raw["custom"]
            own["text"] += inner.get("arguments", inner.get("input", ""))
    assert reasons == [whole.choices[0].finish_reason]
    assert len(calls) == len(whole.choices[0].message.tool_calls)
    for index, call in enumerate(whole.choices[0].message.tool_calls):
        raw = call.model_dump()
        inner = raw.get("function") or raw["custom"]
        assert calls[index]["name"] == inner["name"]
        assert calls[index]["text"] == inner.get("arguments", inner.get("input"))


def test_stops_leave_a_required_call_whole(client: openai.OpenAI) -> None:
    options: Any = {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False,
                    "max_tokens": 300, "seed": 5}  # fmt: skip
    whole = chat(client, **options).choices[0]
    stops = ["<tool", "arguments", "{", "}"]
    stopped = chat(client, stop=stops, **options).choices[0]
    assert stopped.finish_reason == whole.finish_reason == "tool_calls"
    written = [choice.message.tool_calls[0].function.arguments for choice in (whole, stopped)]
    assert written[0] == written[1]
    streamed = ""
    for chunk in chat(client, stop=stops, stream=True, **options):
        for call in chunk.choices[0].delta.tool_calls or ():
            streamed += call.function.arguments
    assert streamed == written[0]


@pytest.mark.parametrize("max_tokens", [90, 130])
def test_whole_calls_are_no_cut_answer(client: openai.OpenAI, max_tokens: int) -> None:
    """However many tokens there are: a required answer is whole calls, and is told as that."""
    options: Any = {"tools": [ADD], "tool_choice": "required", "max_tokens": max_tokens, "seed": 3}
    assert chat(client, **options).choices[0].finish_reason == "tool_calls"
    *_, last = (chunk.choices[0] for chunk in chat(client, stream=True, **options))
    assert last.finish_reason == "tool_calls"


@pytest.mark.parametrize("stop", ["tool", "arguments", "}"])
def test_a_call_that_a_stop_cut_is_no_call(client: openai.OpenAI, stop: str) -> None:
    options: Any = {"tools": [ADD], "response_format": {"type": "json_object"}, "stop": stop,
                    "max_tokens": 300, "seed": 5, "logit_bias": {str(ord("<")): 100}}  # fmt: skip
    choice = chat(client, **options).choices[0]
    assert choice.finish_reason == "stop"
    assert not choice.message.tool_calls
    assert choice.message.content == ""
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **options)]
    assert not any(chunk.delta.tool_calls for chunk in chunks)
    assert chunks[-1].finish_reason == "stop"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content


def test_auto_and_none(client: openai.OpenAI) -> None:
    for mode in ("auto", "none"):
        answer = chat(
            client, tools=[ADD], tool_choice=mode, max_tokens=40, extra_body={"ignore_eos": True}
        )
        message = answer.choices[0].message
        assert mode == "auto" or not message.tool_calls
        assert message.content or message.tool_calls
    beside = chat(
        client, tools=[ADD], response_format={"type": "json_object"}, max_tokens=300
    ).choices[0].message  # fmt: skip
    assert beside.tool_calls or isinstance(json.loads(beside.content), dict)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": SUB}, "tool_choice"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [BROKEN]}, "tools"),
        ({"tools": [LISTED]}, "tools"),
        ({"tools": [ADD], "tool_choice": "required", "stop": [""]}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_faults_of_tools(client: openai.OpenAI, options: Any, param: str) -> None:
    assert refused(client, **options)["param"] == param
