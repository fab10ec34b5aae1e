"""instructor, over the clients of OpenAI and Anthropic."""

from typing import Any

import anthropic
import instructor
import openai
import pytest
from asks import BASE, KEY, MAX_TOKENS, MESSAGES, MODEL, TEMPERATURE, URL, City
from instructor import Mode

OPTIONS: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": MAX_TOKENS,
                "temperature": TEMPERATURE, "max_retries": 0}  # fmt: skip


def client(mode: Mode = Mode.TOOLS) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY), mode=mode)


def test_a_text_streamed_is_the_text() -> None:
    options = OPTIONS | {"response_model": None, "max_tokens": 12}
    whole = client().chat.completions.create(**options)
    chunks = client().chat.completions.create(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA])
def test_a_type_comes_at_once_and_streamed(mode: Mode) -> None:
    whole = client(mode).chat.completions.create(response_model=City, **OPTIONS)
    assert isinstance(whole, City)
    *_, last = client(mode).chat.completions.create_partial(response_model=City, **OPTIONS)
    assert City.model_validate(last.model_dump())  # of another name, so not the same city


def test_a_type_comes_from_the_responses_api() -> None:
    found = client(Mode.RESPONSES_TOOLS).responses.create(
        model=MODEL, input=MESSAGES, response_model=City, max_output_tokens=MAX_TOKENS,
        temperature=TEMPERATURE, max_retries=0,
    )  # fmt: skip
    assert isinstance(found, City)


def test_a_type_comes_from_anthropics_api() -> None:
    inner = anthropic.Anthropic(base_url=URL, api_key=KEY)
    client = instructor.from_anthropic(inner, mode=Mode.ANTHROPIC_TOOLS)
    found = client.messages.create(
        model=MODEL, messages=MESSAGES, response_model=City, max_tokens=MAX_TOKENS, max_retries=0
    )
    assert isinstance(found, City)
