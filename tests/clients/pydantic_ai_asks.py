"""pydantic-ai, with both of OpenAI's APIs."""

from typing import Any

import pytest
from asks import ASK, BASE, KEY, MAX_TOKENS, MODEL, TEMPERATURE, City, weather
from pydantic_ai import Agent, NativeOutput, RunContext, Tool, ToolDefinition, ToolOutput
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

OPTIONS: Any = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "parallel_tool_calls": False}

both_apis = pytest.mark.parametrize("api", [OpenAIChatModel, OpenAIResponsesModel])
both_outputs = pytest.mark.parametrize("output", [NativeOutput, ToolOutput])


def agent(api: Any, **options: Any) -> Any:
    provider = OpenAIProvider(base_url=BASE, api_key=KEY)
    return Agent(api(MODEL, provider=provider), **{"model_settings": OPTIONS, **options})


@both_apis
def test_a_text_streamed_is_the_text(api: Any) -> None:
    options = {"temperature": TEMPERATURE, "max_tokens": 12}
    whole = agent(api, model_settings=options).run_sync(ASK)
    assert whole.usage.output_tokens == 12
    with agent(api, model_settings=options).run_stream_sync(ASK) as stream:
        texts = list(stream.stream_text(debounce_by=None))
    assert texts[-1] == whole.output


@both_apis
@both_outputs
def test_a_type_comes_at_once_and_streamed(api: Any, output: Any) -> None:
    whole = agent(api, output_type=output(City)).run_sync(ASK).output
    assert isinstance(whole, City)
    with agent(api, output_type=output(City)).run_stream_sync(ASK) as stream:
        assert stream.get_output() == whole


@both_apis
def test_a_tool_is_called_and_its_result_is_sent(api: Any) -> None:
    def settings(context: RunContext) -> Any:
        return OPTIONS | ({"tool_choice": ["weather"]} if context.run_step == 1 else {})

    async def once(context: RunContext, tool: ToolDefinition) -> ToolDefinition | None:
        return tool if context.run_step == 1 else None

    tool = Tool(weather, prepare=once)
    run = agent(api, tools=[tool], output_type=ToolOutput(City), model_settings=settings)
    result = run.run_sync(ASK)
    assert isinstance(result.output, City)
    returned = [
        part
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, ToolReturnPart) and part.tool_name == "weather"
    ]
    assert [str(part.content).endswith(": sunny") for part in returned] == [True]
