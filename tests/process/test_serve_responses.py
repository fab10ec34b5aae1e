"""The Responses API through OpenAI's client, against a live server on a tiny random model."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live_server import shared_server
from pydantic import BaseModel, ConfigDict

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
SAY: dict[str, Any] = {
    "type": "custom",
    "name": "say",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "hello" | "bye"'},
}


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{shared_server().url}/v1", api_key="none", max_retries=0, timeout=200
    ) as client:
        yield client


def create(client: openai.OpenAI, **options: Any) -> Any:
    options = {"model": "tiny", "input": "How are you?", "max_output_tokens": 20, **options}
    return client.responses.create(**options)


def test_an_answer_and_what_it_cost(client: openai.OpenAI) -> None:
    first = create(client, instructions="Be kind.", temperature=0)
    again = create(client, instructions="Be kind.", temperature=0)
    assert first.output_text == again.output_text
    assert first.status == "incomplete"
    assert first.incomplete_details.reason == "max_output_tokens"
    assert first.usage.output_tokens == 20
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_parse_gives_the_clients_own_type(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model="tiny", input="a point", text_format=Point, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, Point)
    assert answer.status == "completed"


def test_a_type_comes_as_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="tiny", input="a point", text_format=Point, max_output_tokens=100
    ) as stream:
        kinds = {event.type for event in stream}
        assert isinstance(stream.get_final_response().output_parsed, Point)
    assert {"response.output_text.delta", "response.completed"} <= kinds


def test_the_tokens_of_an_input_are_counted(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "input": "How are you?", "instructions": "Be kind."}
    options["tools"] = [TOOL]
    counted = client.responses.input_tokens.count(**options)
    include = ["reasoning.encrypted_content"]
    answer = create(client, include=include, store=False, **options)
    assert counted.input_tokens == answer.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(**options | {"input": []})
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [TOOL, SAY], "tool_choice": {"type": "custom", "name": "say"}},
    ],
)
def test_a_stream_adds_up_to_the_answer(client: openai.OpenAI, options: Any) -> None:
    options = {"temperature": 0, "max_output_tokens": 150, **options}
    whole = create(client, **options)
    events = list(create(client, stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == f"response.{whole.status}"
    final = events[-1].response
    assert final.output_text == whole.output_text
    names = ("type", "text", "arguments", "input", "name", "status")

    def told(response: Any) -> Any:
        return [{n: v for n, v in i.model_dump().items() if n in names} for i in response.output]

    assert told(final) == told(whole)
    deltas = "".join(event.delta for event in events if event.type.endswith(".delta"))
    item = final.output[0]
    text = final.output_text or getattr(item, "arguments", None) or getattr(item, "input", None)
    assert deltas == text
    kinds = [event.type for event in events]
    assert kinds.count("response.output_item.added") == len(final.output)
    assert kinds.count("response.output_item.done") == len(final.output)


@pytest.mark.parametrize("most", [90, 130])
def test_whole_calls_are_a_complete_answer(client: openai.OpenAI, most: int) -> None:
    options: Any = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": most}
    assert create(client, **options).status == "completed"
    assert list(create(client, stream=True, **options))[-1].type == "response.completed"


def test_calls_are_valid_and_their_results_are_taken(client: openai.OpenAI) -> None:
    answer = create(
        client, tools=[TOOL], tool_choice={"type": "function", "name": "add"}, max_output_tokens=150
    )
    (call,) = answer.output
    assert 0 <= json.loads(call.arguments)["a"] <= 9
    again = create(
        client,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Add."}]},
            call.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
        ],
        tools=[TOOL],
        tool_choice="none",
    )
    assert all(item.type == "message" for item in again.output)
    assert again.usage.input_tokens > answer.usage.input_tokens


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "objct"}}}},
         "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"extra_body": {"thoughts": 1}}, "thoughts"),
    ],
)  # fmt: skip
def test_faults(client: openai.OpenAI, options: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, **options)
    body: Any = caught.value.body
    assert body["param"] == param
