"""A request of OpenAI's Responses API as turns, tools and a choice among them. Nothing is stored,
so what speaks of earlier responses is refused."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from radixgen.serve.chat_request import allowed_name, custom_tool
from radixgen.serve.constraints import Constraint, schema_spec
from radixgen.serve.conversation import Call, Turn, parsed_arguments, text_of
from radixgen.serve.errors import bad_request, unknown_field
from radixgen.serve.fields import Bookkeeping, Closed, RoutingFields
from radixgen.serve.reasoning import Effort, ThinkingOptions, Wish, effort_wish, options_wish
from radixgen.serve.schemas import CustomDefinition
from radixgen.serve.tools import Tool, ToolChoice, check_tools


class FlatTool(Closed):
    type: Literal["function", "custom"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None


class TextOptions(Closed):
    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Closed):
    effort: Effort | None = None
    summary: None = Field(None, description="thoughts are told as they are, none are summarised")
    generate_summary: None = None


class ResponsesRequest(RoutingFields, Bookkeeping):
    """`POST /v1/responses`"""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    background: bool | None = Field(None, description="only false: nothing is stored")
    include: list[Literal["reasoning.encrypted_content"]] | None = Field(
        None, description="taken and not used: nothing is encrypted"
    )
    previous_response_id: None = Field(None, description="nothing is stored")
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | None = None


def turns_of(body: ResponsesRequest) -> list[Turn]:
    """Raises ApiError, naming the item, for what is no text, call or result of one."""
    if body.background:
        raise bad_request("nothing is stored, so there is no background", "background")
    turns = [Turn("system", body.instructions)] if body.instructions else []
    return [*turns, *input_turns(body.input)]


def input_turns(given: str | list[dict[str, Any]]) -> list[Turn]:
    """The turns of an `input`: a text, or messages, calls and their results."""
    if isinstance(given, str):
        return [Turn("user", given)]
    if not given:
        raise bad_request("input must hold at least one item", "input")
    turns: list[Turn] = []
    thoughts = ""
    for number, item in enumerate(given):
        if item.get("type") == "reasoning":
            thoughts += _thoughts(item, f"input[{number}]")
            continue
        turn = _turn(item, f"input[{number}]")
        if turn.role == "assistant":
            turn = replace(turn, thoughts=thoughts)
        thoughts = ""  # those of an answer that never came are nobody's
        if turn.calls and turns and turns[-1].role == "assistant":
            last = turns.pop()  # text and calls of one answer are one turn
            both = last.thoughts + turn.thoughts
            turn = Turn("assistant", last.content, (*last.calls, *turn.calls), thoughts=both)
        turns.append(turn)
    if not turns:
        raise bad_request("input must hold an item beside reasoning", "input")
    return turns


def _thoughts(item: dict[str, Any], param: str) -> str:
    """Of an answer that follows, as this server told them."""
    parts = item.get("content") or []
    if not isinstance(parts, list):
        raise bad_request(f"{param}.content must be a list of parts", f"{param}.content")
    text = ""
    for number, part in enumerate(parts):
        said = part.get("text") if isinstance(part, dict) else None
        if not isinstance(said, str) or part.get("type") != "reasoning_text":
            where = f"{param}.content[{number}]"
            raise bad_request(f"{where} must be of type reasoning_text, with a text", where)
        text += said
    return text


def wish_of(body: ResponsesRequest) -> Wish:
    """What is said of thoughts. Raises ApiError for a contradiction."""
    effort = body.reasoning.effort if body.reasoning else None
    return effort_wish(effort, "reasoning.effort").also(options_wish(body.thinking))


def _turn(item: dict[str, Any], param: str) -> Turn:
    match item.get("type", "message"):
        case "message":
            return _message(item, param)
        case "function_call":
            arguments = parsed_arguments(item.get("arguments"), f"{param}.arguments")
            call = Call(_text(item, "call_id", param), _text(item, "name", param), arguments)
            return Turn("assistant", "", (call,))
        case "custom_tool_call":
            name, given = _text(item, "name", param), _text(item, "input", param)
            return Turn("assistant", "", (Call(_text(item, "call_id", param), name, given, True),))
        case "function_call_output" | "custom_tool_call_output":
            text = text_of(item.get("output"), f"{param}.output")
            return Turn("tool", text, call_id=_text(item, "call_id", param))
    raise bad_request(f"{param}.type {str(item['type'])[:32]!r} is not supported", f"{param}.type")


def _message(item: dict[str, Any], param: str) -> Turn:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise bad_request(f"{param}.role is none of system, developer, user, assistant", param)
    if item.get("content") is None:
        raise bad_request(f"{param}.content is required", f"{param}.content")
    content = text_of(item["content"], f"{param}.content")
    return Turn("system" if role == "developer" else role, content)


def _text(item: dict[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{param}.{name} must be text", f"{param}.{name}")
    return value


def tools_of(body: ResponsesRequest) -> list[Tool]:
    tools = [_tool(item, f"tools[{i}]") for i, item in enumerate(body.tools or ())]
    check_tools(tools)
    return tools


def _tool(item: FlatTool, param: str) -> Tool:
    if item.type == "custom":
        custom = CustomDefinition(name=item.name, description=item.description, format=item.format)
        return custom_tool(custom, param)
    if item.format is not None:
        raise bad_request(f"{param}.format goes with custom tools", f"{param}.format")
    return Tool(item.name, item.description or "", item.parameters)


def choice_of(body: ResponsesRequest) -> ToolChoice:
    """Raises ApiError for a tool_choice that is malformed."""
    once = body.parallel_tool_calls is False
    match body.tool_choice:
        case None | "auto":
            return ToolChoice("auto", once=once)
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required", once=once)
        case {"type": "function" | "custom", "name": str(name)}:
            return ToolChoice("required", frozenset({name}), once=True)
        case {"type": "allowed_tools", "mode": "auto", "tools": [*tools]} if tools:
            return ToolChoice("auto", frozenset(map(allowed_name, tools)), once)
        case {"type": "allowed_tools", "mode": "required", "tools": [*tools]} if tools:
            return ToolChoice("required", frozenset(map(allowed_name, tools)), once)
    raise bad_request("tool_choice must be auto, none, required, or name a tool", "tool_choice")


def constraint_of(body: ResponsesRequest) -> Constraint | None:
    """`text: {format: …}`. Raises ApiError for a format that is none."""
    form = (body.text and body.text.format) or {"type": "text"}
    known = {"type", "name", "schema", "strict", "description"}
    where = "text.format"
    extra = sorted(form.keys() - known)
    if extra:
        raise unknown_field(where, extra[0], known)
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return Constraint(schema_spec({"type": "object"}, where), where)
        case "json_schema" if form.get("schema") is not None:
            return Constraint(schema_spec(form["schema"], f"{where}.schema"), where)
    raise bad_request(f"{where} is text, json_object, or json_schema with a schema", where)
