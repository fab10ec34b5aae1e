"""litellm, as it talks to servers of open models."""

import json
from typing import Any

import litellm
from asks import ASK, BASE, KEY, MAX_TOKENS, MESSAGES, MODEL, TEMPERATURE, City

OPTIONS: Any = {"model": f"hosted_vllm/{MODEL}", "api_base": BASE, "api_key": KEY,
                "temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "num_retries": 0}  # fmt: skip
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat(**options: Any) -> Any:
    return litellm.completion(**{**OPTIONS, "messages": MESSAGES, **options})


def test_a_text_streamed_is_the_text() -> None:
    whole = chat(max_tokens=12)
    assert whole.usage.completion_tokens == 12
    chunks = chat(max_tokens=12, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""


def test_a_type_comes() -> None:
    answer = chat(response_format=City)
    assert City.model_validate_json(answer.choices[0].message.content)


def test_a_tool_is_called_at_once_and_streamed() -> None:
    options = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = chat(**options).choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    whole = litellm.stream_chunk_builder(list(chat(**options, stream=True)))
    (streamed,) = whole.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    said = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]  # fmt: skip
    assert chat(messages=said, max_tokens=3).usage.prompt_tokens > 0


def test_a_prompt_is_continued() -> None:
    answer = litellm.text_completion(**OPTIONS | {"prompt": ASK, "max_tokens": 5})
    assert answer.usage.completion_tokens == 5
