"""Chats with the shared live server through OpenAI's client."""

from typing import Any

import openai
import pytest
from live_server import shared_server

MODEL = "tiny"
ASK: list[Any] = [{"role": "user", "content": "How are you?"}]


def connect() -> openai.OpenAI:
    """To be closed by who asks for it."""
    url = f"{shared_server().url}/v1"
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=200)


def chat(client: openai.OpenAI, **options: Any) -> Any:
    options = {"model": MODEL, "messages": ASK, "max_tokens": 12, **options}
    return client.chat.completions.create(**options)


def refused(client: openai.OpenAI, **options: Any) -> Any:
    """The body of the 400 that a chat request gets."""
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **options)
    return caught.value.body
