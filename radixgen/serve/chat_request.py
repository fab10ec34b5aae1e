"""A chat request in OpenAI's words as turns, tools and a choice among them. Knows no runtime."""

from typing import Any

from radixgen.serve.constraints import grammar_spec
from radixgen.serve.conversation import Call, Layout, Turn, parsed_arguments, text_of
from radixgen.serve.errors import bad_request
from radixgen.serve.reasoning import Plan, Thinker, chat_wish, plan
from radixgen.serve.schemas import ChatMessage, ChatRequest, CustomDefinition, ToolDefinition
from radixgen.serve.tools import Tool, ToolChoice, check_tools


def turns_of(messages: list[ChatMessage]) -> list[Turn]:
    """Raises ApiError, naming the message, for content that is no text."""
    return [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _turn(message: ChatMessage, param: str) -> Turn:
    role = "system" if message.role == "developer" else message.role
    content = text_of(message.content, f"{param}.content")
    if message.content is None and role != "assistant":
        raise bad_request(f"{param}.content is required", f"{param}.content")
    if role == "tool" and message.tool_call_id is None:
        raise bad_request(f"{param}.tool_call_id is required", f"{param}.tool_call_id")
    if message.tool_calls and role != "assistant":
        raise bad_request(f"{param} has tool_calls and is not the assistant's", param)
    calls = tuple(
        _call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ())
    )
    if role == "assistant" and message.content is None and not calls:
        raise bad_request(f"{param} has neither content nor tool_calls", f"{param}.content")
    thoughts = message.reasoning_content or message.reasoning or ""
    call_id, name = message.tool_call_id or "", message.name or ""
    return Turn(role, content, calls, call_id, name, thoughts)


def _call(call: dict[str, Any], param: str) -> Call:
    custom = call.get("type") == "custom"
    inner = call.get("custom" if custom else "function")
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise bad_request(f"{param} is no call of a function or custom tool", param)
    call_id = str(call.get("id") or "")
    if custom:
        text = inner.get("input")
        if not isinstance(text, str):
            raise bad_request(f"{param}.custom.input must be text", param)
        return Call(call_id, inner["name"], text, custom=True)
    arguments = parsed_arguments(inner.get("arguments"), f"{param}.function.arguments")
    return Call(call_id, inner["name"], arguments)


def tools_of(definitions: list[ToolDefinition] | None) -> list[Tool]:
    """Raises ApiError for definitions that are malformed."""
    tools = [_tool(item, f"tools[{i}]") for i, item in enumerate(definitions or ())]
    check_tools(tools)
    return tools


def _tool(item: ToolDefinition, param: str) -> Tool:
    if item.type == "custom":
        if item.custom is None:
            raise bad_request(f"{param}.custom is required", f"{param}.custom")
        return custom_tool(item.custom, f"{param}.custom")
    function = item.function
    if function is None:
        raise bad_request(f"{param}.function is required", f"{param}.function")
    return Tool(function.name, function.description or "", function.parameters)


def custom_tool(custom: CustomDefinition, param: str) -> Tool:
    """A tool whose input is free text, or text of a grammar."""
    where, form = f"{param}.format", custom.format or {"type": "text"}
    if form.get("type") == "text":
        content: dict[str, Any] = {"type": "any_text"}
    elif form.get("type") == "grammar":
        content = _grammar(form.get("grammar", form), where)
    else:
        raise bad_request(f"{where}.type must be text or grammar", where)
    return Tool(custom.name, custom.description or "", input_format=content)


def _grammar(grammar: Any, param: str) -> dict[str, Any]:
    definition = grammar.get("definition") if isinstance(grammar, dict) else None
    if not isinstance(definition, str):
        raise bad_request(f"{param}.definition must be text", param)
    if grammar.get("syntax") == "regex":
        return {"type": "regex", "pattern": definition}
    if grammar.get("syntax") == "lark":
        return {"type": "lark", "grammar": grammar_spec(definition, param).source}
    raise bad_request(f"{param}.syntax must be lark or regex", param)


def choice_of(body: ChatRequest) -> ToolChoice:
    """Raises ApiError for a tool_choice that is malformed or speaks of no tool."""
    once = body.parallel_tool_calls is False
    if body.tools is None and body.parallel_tool_calls is not None:
        raise bad_request("parallel_tool_calls goes with tools only", "parallel_tool_calls")
    given = body.tool_choice
    match given:
        case None | "auto":
            return ToolChoice("auto", once=once)
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required", once=once)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", frozenset({name}), once=True)
        case {"type": "custom", "custom": {"name": str(name)}}:
            return ToolChoice("required", frozenset({name}), once=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            if mode not in ("auto", "required") or not tools:
                message = "allowed_tools needs a mode, auto or required, and tools"
                raise bad_request(message, "tool_choice")
            names = frozenset(map(allowed_name, tools))
            return ToolChoice("auto" if mode == "auto" else "required", names, once)
    raise bad_request(
        "tool_choice must be auto, none, required, or name a tool: "
        '{"type": "function", "function": {"name": …}}',
        "tool_choice",
    )


def allowed_name(tool: Any) -> str:
    """The name of a tool in a list of allowed ones, in any form of it."""
    match tool:
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
            return name
        case {"name": str(name)}:
            return name
    raise bad_request("allowed_tools.tools must name tools", "tool_choice")


def plan_of(body: ChatRequest, thinker: Thinker) -> Plan:
    """The thoughts, and the layout of the prompt that they ask for. Raises ApiError."""
    layout = Layout(
        body.add_generation_prompt, body.continue_final_message, body.chat_template_kwargs or {}
    )
    return plan(chat_wish(body, layout.variables, thinker), thinker, layout)
