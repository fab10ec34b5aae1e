"""What a body that is not of its schema is told: which field, and what it may be."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from radixgen.serve.errors import ApiError, api_error, validation_error
from radixgen.serve.messages_request import MessagesRequest, turns_of
from radixgen.serve.native import GenerateBody
from radixgen.serve.responses_request import ResponsesRequest
from radixgen.serve.schemas import ChatRequest, CompletionRequest

HI: dict[str, Any] = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"model": "m", "messages": [HI]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "x"}
SAID: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [HI]}
PROMPTS = "text, a list of whole numbers, a list of texts or a list of lists of whole numbers"


@pytest.mark.parametrize(
    ("kind", "body", "param", "told"),
    [
        (CompletionRequest, {"model": "m"}, "prompt", "prompt is required"),
        (CompletionRequest, TEXT | {"prompt": 5}, "prompt", f"must be {PROMPTS}"),
        (CompletionRequest, TEXT | {"prompt": ["a", [1]]}, "prompt", f"must be {PROMPTS}"),
        (CompletionRequest, TEXT | {"stop": [5]}, "stop", "must be text or a list of texts"),
        (CompletionRequest, TEXT | {"guided_json": 5}, "guided_json",
         "must be an object, true or false or text"),
        (CompletionRequest, TEXT | {"temperature": "hot"}, "temperature", "valid number"),
        (CompletionRequest, TEXT | {"tempature": 1}, "tempature", "did you mean 'temperature'"),
        (ChatRequest, CHAT | {"tool_choice": 4}, "tool_choice", "must be text or an object"),
        (ChatRequest, CHAT | {"messages": [HI | {"content": 5}]}, "messages[0].content",
         "must be text or a list"),
        (ChatRequest, CHAT | {"messages": [HI, {"role": "king"}]}, "messages[1].role", "'system'"),
        (ChatRequest, CHAT | {"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        (MessagesRequest, SAID | {"tools": [{"type": "web_search", "name": "w"}]},
         "tools[0].type", "'custom'"),
        (CompletionRequest, TEXT | {"suffix": "x"}, "suffix", "not served here"),
        (ResponsesRequest, {"model": "m", "input": "x", "previous_response_id": "r"},
         "previous_response_id", "nothing is stored here"),
        (ChatRequest, CHAT | {"guided_whitespace_pattern": " "}, "guided_whitespace_pattern",
         "must be left out"),
        (GenerateBody, {"input_ids": ["a"]}, "input_ids", "must be a list of whole numbers or"),
        (GenerateBody, {"text": [1, "a"]}, "text", "must be text or a list of texts"),
    ],
)  # fmt: skip
def test_the_field_is_named_and_what_it_may_be(
    kind: type[BaseModel], body: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in caught.value.errors()]
    error = validation_error(faults, list(kind.model_fields))
    assert error.param == param
    assert told in error.message
    assert error.status_code == 400


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("9" * 5000, "more than 4300 digits"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_python_does_not_read_is_told_why(body: str, told: str) -> None:
    answer = HTTPException(400, "There was an error parsing the body")
    with pytest.raises((ValueError, RecursionError)) as caught:
        json.loads(body)
    answer.__cause__ = caught.value  # as FastAPI raises it
    assert told in api_error(answer).message


def test_a_part_is_named_once() -> None:
    image = HI | {"content": [{"type": "image"}]}
    body = MessagesRequest.model_validate(SAID | {"messages": [image]})
    with pytest.raises(ApiError) as caught:
        turns_of(body)
    assert caught.value.param == "messages[0].content[0]"
