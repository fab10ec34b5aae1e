"""Thoughts over HTTP, by OpenAI's and Anthropic's own clients, on a tiny random model whose
template thinks, and on one that does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from helpers import write_byte_tokenizer, write_tiny_model
from live_server import LiveServer, is_idle, shared_server, wait_until
from pydantic import BaseModel

import radixgen as rg
from radixgen.serve.schemas import ChatAnswer
from radixgen.types import Thinking

# As Qwen3's: thoughts are on unless turned off, and earlier answers are told without them.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
ASK: list[Any] = [{"role": "user", "content": "How are you?"}]
BUDGET = 40
SHORT: dict[str, Any] = {"ignore_eos": True, "thinking_token_budget": BUDGET}
OK: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
}
OK |= {"additionalProperties": False}
TOOL = {"name": "add", "parameters": OK}


class Answer(BaseModel):
    ok: bool


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    model = write_tiny_model(tmp_path_factory.mktemp("m") / "thinker", max_position_embeddings=2048)
    write_byte_tokenizer(model, TEMPLATE)
    server = LiveServer(model, "--set", "num_pages=600")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=200
    ) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def chat(client: Any, **options: Any) -> Any:
    body = SHORT | options.pop("extra_body", {})
    options = {"model": "thinker", "messages": ASK, "max_tokens": 60, "seed": 1, **options}
    return client.chat.completions.create(**options, extra_body=body)


def test_a_thinking_model_tells_its_thoughts_apart(client: openai.OpenAI) -> None:
    answer = chat(client)
    message = answer.choices[0].message
    assert message.reasoning_content == message.reasoning != ""
    assert "think>" not in message.content + message.reasoning
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens <= BUDGET < answer.usage.completion_tokens == 60
    ChatAnswer.model_validate(answer.model_dump())
    plain = chat(client, extra_body={"thinking_token_budget": 0})
    assert "reasoning" not in plain.choices[0].message.model_extra
    assert plain.usage.completion_tokens_details.reasoning_tokens == 0
    assert plain.usage.prompt_tokens > answer.usage.prompt_tokens  # the template says so


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"logprobs": True}, {"stop": ["e", "a"]}])
def test_a_stream_says_what_an_answer_says(client: openai.OpenAI, options: Any) -> None:
    whole = chat(client, **options)
    usage = {"include_usage": True}
    chunks = list(chat(client, stream=True, stream_options=usage, **options))
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        deltas = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        extra = [c.delta.model_extra or {} for c in deltas]
        thoughts = "".join(e.get("reasoning_content", "") for e in extra)
        assert thoughts == choice.message.reasoning_content
        assert thoughts == "".join(e.get("reasoning", "") for e in extra)
        assert "".join(c.delta.content or "" for c in deltas) == choice.message.content
        if choice.logprobs:
            told = [e for c in deltas if c.logprobs for e in c.logprobs.content]
            assert told == choice.logprobs.content
            spelled = b"".join(bytes(entry.bytes) for entry in told).decode("utf-8", "replace")
            assert spelled.lstrip() == choice.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_holds_after_the_thoughts(client: openai.OpenAI, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": OK}}
    got = chat(client, response_format=form, stream=stream, max_tokens=100)
    if stream:
        text = "".join(c.delta.content or "" for chunk in got for c in chunk.choices)
    else:
        text = got.choices[0].message.content
        assert got.choices[0].message.reasoning
    Answer.model_validate_json(text)


def test_tools_are_called_after_the_thoughts(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": TOOL}]
    answer = chat(
        client, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    (made,) = answer.choices[0].message.tool_calls[:1]
    Answer.model_validate_json(made.function.arguments)
    assert answer.choices[0].message.reasoning
    assert answer.choices[0].finish_reason == "tool_calls"


def test_thoughts_in_the_content_and_none_at_all(client: openai.OpenAI) -> None:
    apart = chat(client).choices[0].message
    inline = chat(client, extra_body={"separate_reasoning": False}).choices[0].message
    thought, _, answer = inline.content.partition("</think>")
    assert thought.removeprefix("<think>").strip() == apart.reasoning
    assert answer.lstrip() == apart.content
    hidden = chat(client, extra_body={"include_reasoning": False}).choices[0].message
    assert hidden.content == apart.content
    assert "reasoning" not in (hidden.model_extra or {})
    chunks = chat(client, stream=True, extra_body={"stream_reasoning": False})
    told = [(c.delta.model_extra or {}).get("reasoning") for chunk in chunks for c in chunk.choices]
    assert [text for text in told if text] == [apart.reasoning]


def test_earlier_thoughts_go_to_the_template(client: openai.OpenAI, server: LiveServer) -> None:
    said = [{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    body = {"model": "thinker", "messages": [*ASK, *said], "add_generation_prompt": False}
    with server.client() as http:
        last = http.post("/v1/chat/completions/render", json=body).json()["prompt"]
        body["messages"] = [*ASK, *said, *ASK]
        earlier = http.post("/v1/chat/completions/render", json=body).json()["prompt"]
        off = http.post(
            "/v1/chat/completions/render",
            json={"model": "thinker", "messages": ASK, "reasoning_effort": "none"},
        ).json()["prompt"]
    assert "<think>hm</think>yes" in last
    assert "hm" not in earlier
    assert off.endswith("<think>\n\n</think>\n\n")


def test_a_stream_that_is_left_in_the_thoughts_is_aborted(server: LiveServer) -> None:
    body = {"model": "thinker", "messages": ASK, "stream": True, "max_tokens": 1900}
    body |= {"thinking_token_budget": 1800}
    with server.client() as http:
        path = "/v1/chat/completions"
        with http.stream("POST", path, json=body) as response:
            assert any("reasoning" in line for line in response.iter_lines())
        wait_until(lambda: is_idle(http))


# ---- the Responses API ----


def test_responses_have_reasoning_items(client: Any) -> None:
    asked: dict[str, Any] = {
        "model": "thinker",
        "input": "How are you?",
        "max_output_tokens": 120,
        "temperature": 0,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": OK}},
        "extra_body": {"thinking": {"budget_tokens": BUDGET}},
    }
    answer = client.responses.create(**asked)
    thought, message = answer.output
    assert thought.type == "reasoning"
    assert thought.status == "completed"
    assert thought.content is not None
    assert thought.content[0].text
    Answer.model_validate_json(answer.output_text)
    assert message.type == "message"
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens <= BUDGET
    events = list(client.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    (done,) = [event for event in events if event.type == "response.reasoning_text.done"]
    assert "".join(deltas) == done.text == thought.content[0].text
    final = events[-1]
    assert final.type == "response.completed"
    assert [item.model_dump(exclude={"id"}) for item in final.response.output] == [
        item.model_dump(exclude={"id"}) for item in answer.output
    ]
    again = [{"role": "user", "content": "x"}, *(item.model_dump() for item in answer.output)]
    more = client.responses.create(**asked | {"input": [*again, {"role": "user", "content": "y"}]})
    assert more.output_text
    off = client.responses.create(**asked | {"extra_body": {}, "reasoning": {"effort": "none"}})
    assert [item.type for item in off.output] == ["message"]
    with pytest.raises(openai.BadRequestError, match=r"reasoning\.summary"):
        client.responses.create(**asked, reasoning={"summary": "auto"})


# ---- Anthropic's API ----


def test_messages_have_thinking_blocks(claude: Any) -> None:
    asked: dict[str, Any] = {
        "model": "thinker",
        "messages": ASK,
        "max_tokens": 120,
        "thinking": {"type": "enabled", "budget_tokens": BUDGET},
        "extra_body": {"temperature": 0},
    }
    answer = claude.messages.create(**asked)
    thought, text = answer.content
    assert thought.type == "thinking"
    assert thought.signature
    assert text.type == "text"
    with claude.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [b.to_dict() for b in final.content] == [b.to_dict() for b in answer.content]
    assert kinds.index("thinking") < kinds.index("signature") < kinds.index("text")
    history: list[Any] = [*ASK, {"role": "assistant", "content": answer.content}, *ASK]
    assert claude.messages.create(**asked | {"messages": history}).content
    thought.thinking += "!"
    with pytest.raises(anthropic.BadRequestError, match="unchanged"):
        claude.messages.create(**asked | {"messages": history})
    plain = claude.messages.create(**asked | {"thinking": {"type": "disabled"}})
    silent = claude.messages.create(**{k: v for k, v in asked.items() if k != "thinking"})
    assert [block.type for block in plain.content] == ["text"]
    assert plain.content == silent.content
    prefilled: list[Any] = [*ASK, {"role": "assistant", "content": "I"}]
    with pytest.raises(anthropic.BadRequestError, match="is continued"):
        claude.messages.create(**asked | {"messages": prefilled})


# ---- a model that does not think ----


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx2.Client]:
    with shared_server().client() as client:
        yield client


def test_any_model_thinks_between_tags_of_the_clients(plain: httpx2.Client) -> None:
    thinking = {"budget_tokens": 30, "begin": "<t>", "end": "</t>"}
    body = {"model": "tiny", "messages": ASK, "max_tokens": 100, "seed": 4, "thinking": thinking}
    body["response_format"] = {"type": "json_schema", "json_schema": {"schema": OK}}
    got = plain.post("/v1/chat/completions", json=body).json()
    message = got["choices"][0]["message"]
    Answer.model_validate_json(message["content"])
    assert got["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 30
    assert message["reasoning"] == message["reasoning_content"]
    none = plain.post(
        "/v1/chat/completions",
        json={"model": "tiny", "messages": ASK, "max_tokens": 4}
        | {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "none"},
    )
    assert none.status_code == 200


@pytest.mark.parametrize(
    ("path", "said", "param"),
    [
        ("/v1/chat/completions", {"thinking_token_budget": 20}, "thinking_token_budget"),
        ("/v1/chat/completions", {"thinking": {"budget_tokens": 4, "end": "</t>"}, "max_tokens": 3},
         "max_tokens"),
        ("/v1/chat/completions", {"thinking": {"budget_tokens": 3, "end": "</t>"}}, "thinking"),
        ("/v1/chat/completions", {"thinking": {"budget_tokens": -1}}, "thinking.budget_tokens"),
        ("/v1/chat/completions", {"thinking": {"end": "<|im_end|>"}}, "thinking"),
        ("/v1/chat/completions", {"hint": {"forks": -1}}, "hint"),
        ("/v1/chat/completions", {"hint": {"width": 1}}, "hint.width"),
        ("/v1/chat/completions",
         {"thinking": {"end": "</t>"}, "constrained_law": "faithful", "regex": "a"}, "thinking"),
        ("/generate", {"thinking": {"budget": -1, "end": "</t>"}}, "thinking"),
        ("/generate", {"thinking": {"budget": 9}}, "thinking.end"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_think_is_refused(
    plain: httpx2.Client, path: str, said: dict[str, Any], param: str
) -> None:
    of_chat = {"model": "tiny", "messages": ASK, "max_tokens": 50}
    body = ({"text": "x"} if path == "/generate" else of_chat) | said
    answer = plain.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


# ---- programs against a server ----


def test_a_program_on_a_server_is_that_of_a_runtime(server: LiveServer, tmp_path: Path) -> None:
    model = tmp_path / "thinker"
    write_tiny_model(model, max_position_embeddings=2048)
    write_byte_tokenizer(model, TEMPLATE)

    @rg.function
    def program(s: Any) -> None:
        s += rg.user("Is it?")
        s += rg.assistant(rg.gen("x", schema=Answer, thinking=30, max_tokens=60, temperature=0))
        s += rg.user("Which?")
        s += rg.assistant(
            rg.gen("y", choices=["red", "blue"], thinking=Thinking(20, "<t>", "</t>"))
        )
        s += " " + rg.gen("z", thinking=25, max_tokens=40, temperature=0)

    remote = rg.RuntimeEndpoint(server.url, tokenizer=model)
    try:
        with rg.Runtime(model, num_pages=600, threads=1, check=True) as runtime:
            here = program.run(backend=runtime, temperature=0)
        there = program.run(backend=remote, temperature=0)
    finally:
        remote.close()
    for name in ("x", "y", "z"):
        assert there[name] == here[name]
        assert there[f"{name}_reasoning_content"] == here[f"{name}_reasoning_content"]
        assert "".join(there.text_iter(name)) == there.text(name) == here.text(name)
    assert there.text() == here.text() == "".join(there.text_iter())
    assert there.executor.conversation.ids == here.executor.conversation.ids
    assert here.text().count("<think>") == 1  # outside messages: the template drops them
    assert "<t>" in here.text()  # and keeps what it does not know


def test_hints_reach_a_server(server: LiveServer) -> None:
    body = {"text": "word " * 30, "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    with server.client() as http:
        before = http.get("/server_info").json()["runtime"]
        hint = {"program": "p", "last_use": True}
        assert http.post("/generate", json=body | {"hint": hint}).status_code == 200
        after = http.get("/server_info").json()["runtime"]
        assert json.dumps(http.get("/model_info").json()["features"])
    grown = {k for k in after if "hint" in k and after[k] > before.get(k, 0)}
    assert grown
