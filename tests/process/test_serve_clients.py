"""Libraries that people talk to servers with, where they are installed: they pin versions of one
another, so none of them is among the project's own.

    pip install pydantic-ai-slim[openai] langchain-openai
    pip install instructor          # another environment
"""

import json
from typing import Any, Literal

import pytest
from live_server import shared_server
from pydantic import BaseModel, ConfigDict, Field

# Their warnings are theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

ASK = "Paris is the capital of France."


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    kind: Literal["capital", "town"]


def url() -> str:
    return f"{shared_server().url}/v1"


# ---- pydantic-ai ----


@pytest.mark.parametrize("api", ["OpenAIChatModel", "OpenAIResponsesModel"])
@pytest.mark.parametrize("output", ["NativeOutput", "ToolOutput"])
def test_pydantic_ai_gets_its_type(api: str, output: str) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=url(), api_key="none")
    model = getattr(models, api)("tiny", provider=provider)
    options = {"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False}
    agent = ai.Agent(model, output_type=getattr(ai, output)(City), model_settings=options)
    assert isinstance(agent.run_sync(ASK).output, City)


# ---- instructor ----


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_instructor_gets_its_type(mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    inner = openai.OpenAI(base_url=url(), api_key="none")
    client = instructor.from_openai(inner, mode=getattr(instructor.Mode, mode))
    found = client.chat.completions.create(
        model="tiny", response_model=City, max_retries=0, max_tokens=200, temperature=0,
        messages=[{"role": "user", "content": ASK}],
    )  # fmt: skip
    assert isinstance(found, City)


# ---- langchain ----


def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: sunny"


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_gets_its_type_and_calls(responses: bool) -> None:
    langchain: Any = pytest.importorskip("langchain_openai")
    messages: Any = pytest.importorskip("langchain_core.messages")
    model = langchain.ChatOpenAI(
        base_url=url(), api_key="none", model="tiny", temperature=0, max_tokens=200,
        max_retries=0, use_responses_api=responses,
    )  # fmt: skip
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(City, method=method).invoke(ASK), City)
    asks = [messages.HumanMessage("Weather in Paris?")]
    answer = model.bind_tools([weather], tool_choice="required").invoke(asks)
    (first, *_) = answer.tool_calls
    assert isinstance(first["args"]["city"], str)
    results = [messages.ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert model.invoke([*asks, answer, *results]) is not None


# ---- litellm ----


def test_litellm_gets_its_schema() -> None:
    litellm = pytest.importorskip("litellm")
    form = {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": City.model_json_schema()},
    }
    answer = litellm.completion(
        model="hosted_vllm/tiny", api_base=url(), api_key="none", response_format=form,
        messages=[{"role": "user", "content": ASK}], max_tokens=200, temperature=0,
    )  # fmt: skip
    City.model_validate(json.loads(answer.choices[0].message.content))
