"""The embedded model behind the server: what the engine says, and the README's examples."""

import json
import subprocess
from collections.abc import Iterator

import openai
import pytest
from live_server import LiveServer

from radixgen import Runtime

pytestmark = pytest.mark.model
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    server = LiveServer("", "--set", "max_context=2048", "--api-key", "secret")
    yield server
    server.kill()


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_http_changes_nothing_of_what_the_engine_says(client: openai.OpenAI) -> None:
    questions = ["What is the capital of France?", "Name three rivers.", "Write a haiku."]
    asked = [[{"role": "user", "content": question}] for question in questions]
    answers = [
        client.chat.completions.create(
            model=MODEL,
            messages=messages,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=24,
        )
        for messages in asked
    ]
    with Runtime(threads=1, max_context=2048) as runtime:
        for messages, answer in zip(asked, answers, strict=True):
            alone = runtime.chat(messages, temperature=0, max_tokens=24)
            assert answer.choices[0].message.content == alone.text
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == alone.usage.prompt_tokens


def test_the_curl_of_the_readme(server: LiveServer) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "The capital of France, as JSON."}],
        "max_tokens": 60,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    done = subprocess.run(
        ["curl", "-s", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json",
         "-H", "Authorization: Bearer secret", "-d", json.dumps(body)],
        capture_output=True, check=True,
    )  # fmt: skip
    content = json.loads(done.stdout)["choices"][0]["message"]["content"]
    assert "Paris" in json.loads(content)["city"]


def test_a_key_is_asked_for(server: LiveServer) -> None:
    with server.client() as http:
        assert http.get("/v1/models").status_code == 401
        assert http.get("/health").status_code == 200
        secrets = [line for line in server.lines if "secret" in line]
    assert not secrets


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather in a city.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "maxLength": 30}},
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                },
            }
        ],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=80,
    )
    call = (answer.choices[0].message.tool_calls or [])[0]
    assert call.type == "function"
    assert "Paris" in json.loads(call.function.arguments)["city"]
