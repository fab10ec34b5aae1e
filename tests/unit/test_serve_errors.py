"""What a body that is not of its schema is told: which field, and what it may be."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from radixgen.serve.errors import validation_error
from radixgen.serve.messages_request import MessagesRequest
from radixgen.serve.native import GenerateBody
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
