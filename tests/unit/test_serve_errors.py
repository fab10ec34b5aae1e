"""What a body that is not of its schema is told: which field, and what it may be."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from radixgen.errors import InvalidRequest
from radixgen.serve.constraints import constraint_of
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
        (ChatRequest, CHAT | {"stream_options": {"include_usge": True}},
         "stream_options.include_usge", "did you mean 'include_usage'"),
        (ChatRequest, CHAT | {"tools": [{"type": "function", "function":
         {"name": "f", "paramters": {}}}]}, "tools[0].function.paramters",
         "did you mean 'parameters'"),
        (CompletionRequest, TEXT | {"stream_options": {"x": 1}}, "stream_options.x",
         "it is one of continuous_usage_stats, include_obfuscation, include_usage"),
        (GenerateBody, {"text": "x", "sampling_params": {"tempature": 1}},
         "sampling_params.tempature", "did you mean 'temperature'"),
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
    error = validation_error(faults, kind)
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


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"structured_outputs": {"regex": 0, "choice": ["a"]}}, "structured_outputs",
         "needs exactly one of"),
        ({"structured_outputs": {"json": 0}}, "structured_outputs.json", "is not a JSON schema"),
        ({"structured_outputs": {"json": True, "disable_any_whitespace": "no"}},
         "structured_outputs.disable_any_whitespace", "must be true or false"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "did you mean 'json'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "scema": {}}}},
         "response_format.json_schema.scema", "did you mean 'schema'"),
        ({"response_format": {"type": "json_object", "shema": {}}}, "response_format.shema",
         "did you mean 'schema'"),
        ({"regex": "a\ud800"}, "regex", "regex holds a lone surrogate (U+D800 at character 1)"),
        ({"structured_outputs": {"grammar": "\udfff"}}, "structured_outputs.grammar",
         "structured_outputs.grammar holds a lone surrogate"),
        ({"structural_tag": "\ud800"}, "structural_tag", "structural_tag holds a lone surrogate"),
        ({"structural_tag": ""}, "structural_tag", "must be text, and not empty"),
    ],
)  # fmt: skip
def test_a_constraint_that_is_none_names_its_field(
    fields: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises((ApiError, InvalidRequest)) as caught:
        constraint_of(CompletionRequest.model_construct(**TEXT | fields))
    error: Any = caught.value
    assert error.param == param
    assert told in str(error)


def test_false_turns_a_constraint_off_but_is_a_schema() -> None:
    off = {"json": None, "regex": None, "choice": ["a"], "disable_any_whitespace": False}
    found = constraint_of(
        CompletionRequest(**TEXT, structured_outputs=off | {"json_object": False})
    )
    assert found is not None
    assert (found.spec.kind, found.spec.source) == ("choice", '["a"]')
    found = constraint_of(CompletionRequest(**TEXT, structured_outputs={"json": False}))
    assert found is not None
    assert (found.spec.kind, found.spec.source) == ("json_schema", "false")
