"""Anthropic's own client against a live server on a tiny random model."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from live_server import shared_server

ASK: list[Any] = [{"role": "user", "content": "How are you?"}]
GREEDY = {"temperature": 0}
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=shared_server().url, api_key="none", max_retries=0, timeout=200
    ) as client:
        yield client


def create(client: anthropic.Anthropic, **options: Any) -> Any:
    options = {"model": "tiny", "messages": ASK, "max_tokens": 20, **options}
    return client.messages.create(**options)


def test_an_answer_and_what_it_cost(client: anthropic.Anthropic) -> None:
    first = create(client, system="Be kind.", extra_body=GREEDY)
    again = create(client, system="Be kind.", extra_body=GREEDY)
    assert first.type == "message"
    assert first.content[0].text == again.content[0].text
    assert first.stop_reason in ("max_tokens", "end_turn")
    total = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == total
    assert again.usage.cache_read_input_tokens > 0
    marked = create(
        client,
        system="Be kind.",
        cache_control={"type": "ephemeral"},
        speed="standard",
        extra_body=GREEDY,
    )
    assert marked.content[0].text == first.content[0].text
    counted = client.messages.count_tokens(model="tiny", messages=ASK, system="Be kind.")
    assert counted.input_tokens == total


def test_a_stream_adds_up_to_the_answer(client: anthropic.Anthropic) -> None:
    whole = create(client, extra_body=GREEDY)
    with client.messages.stream(
        model="tiny", messages=ASK, max_tokens=20, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_tools_are_called_as_asked(client: anthropic.Anthropic) -> None:
    for choice in (
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "add"},
    ):
        answer = create(client, tools=[TOOL], tool_choice=choice, max_tokens=200)
        assert answer.stop_reason == "tool_use"
        (call,) = answer.content
        assert call.name == "add"
        assert 0 <= call.input["a"] <= 9
    with client.messages.stream(
        model="tiny", messages=ASK, max_tokens=200, tools=[TOOL],  # type: ignore[list-item]
        tool_choice={"type": "tool", "name": "add"},
    ) as stream:  # fmt: skip
        streamed: list[Any] = list(stream.get_final_message().content)
    assert len(streamed) == 1
    assert 0 <= streamed[0].input["a"] <= 9
    answer = create(client, tools=[TOOL], tool_choice={"type": "none"})
    assert all(block.type == "text" for block in answer.content)


def test_a_conversation_with_results_of_tools(client: anthropic.Anthropic) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "2"}],
    }
    messages = [
        *ASK,
        {"role": "assistant", "content": [{"type": "text", "text": "So:"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    assert create(client, messages=messages, tools=[TOOL], max_tokens=5).content is not None


def test_a_last_turn_of_the_assistant_is_continued(client: anthropic.Anthropic) -> None:
    begun = [*ASK, {"role": "assistant", "content": "I am"}]
    counted = client.messages.count_tokens(model="tiny", messages=begun)
    opened = client.messages.count_tokens(model="tiny", messages=ASK)
    assert counted.input_tokens == opened.input_tokens + len("I am")
    assert create(client, messages=begun).type == "message"


def test_stops_leave_a_call_whole_and_models_are_told(client: anthropic.Anthropic) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": TOOL["name"]}):
        options: Any = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 300,
                        "extra_body": GREEDY}  # fmt: skip
        whole, stopped = (
            create(client, **options, **more) for more in ({}, {"stop_sequences": ["{", "<tool"]})
        )
        assert stopped.stop_reason == whole.stop_reason
        assert stopped.content[0].input == whole.content[0].input
    (model,) = client.models.list()
    assert (model.type, model.display_name) == ("model", model.id)
    assert client.models.retrieve(model.id).created_at == model.created_at


def test_schemas_and_stops(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    answer = create(
        client, max_tokens=200, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert json.loads(answer.content[0].text)["ok"] in (True, False)
    text = create(client, extra_body=GREEDY).content[0].text
    # Of the greedy answer itself, so that the same answer is sure to reach it; no half of a letter.
    stop = next(letter for letter in reversed(text) if letter != "\N{REPLACEMENT CHARACTER}")
    answer = create(client, stop_sequences=["\N{SNOWMAN}", stop], extra_body=GREEDY)
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence == stop
    assert answer.content[0].text == text[: text.index(stop)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": -1},
        {"messages": []},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"extra_body": {"temperature": 1000}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}},
        {"tools": [TOOL], "tool_choice": {"type": "all"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"extra_body": {"output_config": {"format": {"type": "xml"}}}},
        {"extra_body": {"container": "x"}},
    ],
)
def test_faults_have_anthropics_shape(client: anthropic.Anthropic, options: Any) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(client, **options)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        create(client, model="claude")
