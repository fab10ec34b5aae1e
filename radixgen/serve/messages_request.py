"""A request of Anthropic's Messages API as turns, tools and a choice among them."""

import base64
import hashlib
from typing import Any, Literal

from pydantic import Field

from radixgen.serve.constraints import Constraint, schema_spec
from radixgen.serve.conversation import Call, Turn, text_of, text_of_part
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import Closed, RoutingFields
from radixgen.serve.reasoning import ThinkingOptions, Wish, effort_wish, options_wish
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
    thinking: ThinkingOptions | None = None
    output_config: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = Field(
        None, description="taken and not used: every prefix is cached"
    )
    speed: Literal["standard"] | None = None


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
    results, texts, calls, thoughts = [], [], [], ""
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
        elif kind in ("thinking", "redacted_thinking") and message.role == "assistant":
            thoughts += _thoughts(block, where)
        else:
            texts.append(text_of_part(block, where))
    if not texts and not calls:
        return list(results)
    return [*results, Turn(message.role, "".join(texts), tuple(calls), thoughts=thoughts)]


def signature_of(thoughts: str) -> str:
    """What tells whether a block of thoughts came back as it was answered."""
    digest = hashlib.blake2b(thoughts.encode("utf-8", "surrogatepass"), digest_size=24).digest()
    return _SIGNED + base64.urlsafe_b64encode(digest).decode()


_SIGNED = "radixgen-1-"


def _thoughts(block: dict[str, Any], param: str) -> str:
    """Of an earlier answer. Without their text, or signed by somebody else, they say nothing here.

    Raises ApiError for a block of ours that was changed.
    """
    text, signature = block.get("thinking"), block.get("signature", "")
    if block["type"] == "redacted_thinking" or text == "":
        return ""
    if not isinstance(text, str) or not isinstance(signature, str):
        raise bad_request(f"{param} needs a text as thinking and as signature", param)
    if not signature.startswith(_SIGNED):
        return ""
    if signature != signature_of(text):
        message = f"{param} is not as it was answered: send thinking blocks unchanged, or none"
        raise bad_request(message, f"{param}.signature")
    return text


def wish_of(body: CountRequest) -> Wish:
    """What is said of thoughts; nothing is none, if the model can do without. Raises ApiError."""
    effort = (body.output_config or {}).get("effort")
    given = body.thinking
    if effort is not None and effort not in _EFFORTS:
        known = ", ".join(_EFFORTS)
        raise bad_request(f"output_config.effort is one of {known}", "output_config.effort")
    if given is not None and given.type == "enabled" and given.budget_tokens is None:
        message = "thinking.budget_tokens is required: the most tokens to think"
        raise bad_request(message, "thinking.budget_tokens")
    most = getattr(body, "max_tokens", None)
    if given is not None and given.budget_tokens and most and given.budget_tokens >= most:
        message = "thinking.budget_tokens must be below max_tokens, which counts thoughts as well"
        raise bad_request(message, "thinking.budget_tokens")
    wish = options_wish(given)
    if effort is None or wish.on is False:
        return wish
    if given is None:
        message = "output_config.effort is a budget of thoughts: give thinking {type: adaptive}"
        raise bad_request(message, "output_config.effort")
    return wish.also(effort_wish(_EFFORTS[effort], "output_config.effort"))


_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "max": "xhigh"}


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
    given = {k: v for k, v in (body.output_config or {}).items() if k != "effort"}
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
