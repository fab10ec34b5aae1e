"""langchain-openai, with both of OpenAI's APIs."""

from typing import Any

import pytest
from asks import ASK, BASE, KEY, MAX_TOKENS, MODEL, TEMPERATURE, City, weather
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

both_apis = pytest.mark.parametrize("responses", [False, True])


def chat(responses: bool, max_tokens: int = MAX_TOKENS) -> Any:
    return ChatOpenAI(
        base_url=BASE, api_key=KEY, model=MODEL, temperature=TEMPERATURE, max_tokens=max_tokens,
        max_retries=0, use_responses_api=responses,
    )  # fmt: skip


@both_apis
def test_a_text_streamed_is_the_text(responses: bool) -> None:
    whole = chat(responses, 12).invoke(ASK)
    assert whole.usage_metadata["output_tokens"] == 12
    chunks = list(chat(responses, 12).stream(ASK))
    assert "".join(chunk.text for chunk in chunks) == whole.text != ""


@both_apis
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_type_comes(responses: bool, method: Any) -> None:
    found = chat(responses).with_structured_output(City, method=method).invoke(ASK)
    assert isinstance(found, City)


@both_apis
def test_a_tool_is_called_at_once_and_streamed_and_its_result_is_sent(responses: bool) -> None:
    model, ask = chat(responses), HumanMessage("Weather in Paris?")
    caller = model.bind_tools([weather], tool_choice="required")
    answer = caller.invoke([ask])
    chunks = list(caller.stream([ask]))
    streamed = sum(chunks[1:], chunks[0])
    for calls in (answer.tool_calls, streamed.tool_calls):
        assert calls
        assert all(isinstance(call["args"]["city"], str) for call in calls)
    assert [c["args"] for c in streamed.tool_calls] == [c["args"] for c in answer.tool_calls]
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert model.invoke([ask, answer, *results]).usage_metadata["input_tokens"] > 0
