"""A request of Anthropic's Messages API as turns, tools and a choice among them."""

from typing import Any, Literal

from pydantic import Field

from radixgen.serve.constraints import Constraint, schema_spec
from radixgen.serve.conversation import Call, Turn, text_of
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import Closed, RoutingFields
from radixgen.serve.tools import Tool, ToolChoice, check_tools


class InputMessage(Closed):
    role: Literal["user", "assistant"]
    content: str | list[dict[str, Any]]


class AnthropicTool(Closed):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class CountRequest(Closed):
    """`POST /v1/messages/count_tokens`"""

    model: str
    messages: list[InputMessage]
    system: str | list[dict[str, Any]] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = Field(None, description="only {type: disabled}")
    output_config: dict[str, Any] | None = None


class MessagesRequest(CountRequest, RoutingFields):
    """`POST /v1/messages`"""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


def turns_of(body: CountRequest) -> list[Turn]:
    """Raises ApiError, naming the message, for content that is no text and no call."""
    if body.thinking is not None and body.thinking.get("type") != "disabled":
        raise bad_request("this model does not think apart from its answer", "thinking")
    if not body.messages:
        raise bad_request("messages must hold at least one message", "messages")
    turns = [Turn("system", text_of(body.system, "system"))] if body.system else []
    for number, message in enumerate(body.messages):
        turns += _turns(message, f"messages[{number}].content")
    return turns


def _turns(message: InputMessage, param: str) -> list[Turn]:
    """A message as one turn, the results of tools in it as turns of their own before it."""
    if isinstance(message.content, str):
        return [Turn(message.role, message.content)]
    results, texts, calls = [], [], []
    for number, block in enumerate(message.content):
        where, kind = f"{param}[{number}]", block.get("type")
        if kind == "tool_result" and message.role == "user":
            text = text_of(block.get("content"), f"{where}.content")
            results.append(Turn("tool", text, call_id=str(block.get("tool_use_id", ""))))
        elif kind == "tool_use" and message.role == "assistant":
            name, given = block.get("name"), block.get("input")
            if not isinstance(name, str) or not isinstance(given, dict):
                raise bad_request(f"{where} needs a name and an input", where)
            calls.append(Call(str(block.get("id", "")), name, given))
        else:
            texts.append(text_of([block], where))
    if not texts and not calls:
        return list(results)
    return [*results, Turn(message.role, "".join(texts), tuple(calls))]


def tools_of(body: CountRequest) -> list[Tool]:
    tools = [Tool(t.name, t.description or "", t.input_schema) for t in body.tools or ()]
    check_tools(tools)
    return tools


def choice_of(body: CountRequest) -> ToolChoice:
    """Raises ApiError for a tool_choice that is malformed."""
    given = body.tool_choice or {"type": "auto"}
    once = given.get("disable_parallel_tool_use", False)
    known = {"type", "name", "disable_parallel_tool_use"}
    if isinstance(once, bool) and given.keys() <= known:
        match given.get("type"), given.get("name"):
            case "auto", None:
                return ToolChoice("auto", once=once)
            case "any", None:
                return ToolChoice("required", once=once)
            case "none", None:
                return ToolChoice("none")
            case "tool", str(name):
                return ToolChoice("required", frozenset({name}), once=True)
    raise bad_request("tool_choice is {type: auto, any, none, or tool with a name}", "tool_choice")


def constraint_of(body: CountRequest) -> Constraint | None:
    """`output_config: {format: {type: json_schema, schema}}`. Raises ApiError for anything else."""
    given = body.output_config or {}
    form = given.get("format")
    if form is None and given.keys() <= {"format"}:
        return None
    if (
        given.keys() == {"format"}
        and isinstance(form, dict)
        and form.keys() == {"type", "schema"}
        and form["type"] == "json_schema"
    ):
        return Constraint(
            schema_spec(form["schema"], "output_config.format.schema"), "output_config"
        )
    raise bad_request(
        "output_config takes {format: {type: json_schema, schema: …}}", "output_config"
    )
