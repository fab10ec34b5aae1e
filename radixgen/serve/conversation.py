"""A conversation to a prompt: the messages as the model's chat template wants them, then ids.

Knows the tokenizer; no HTTP, no grammar. Content is text: parts of other kinds are refused.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixgen.client import LONG_TEXT, EngineClient
from radixgen.options import check_length
from radixgen.serve.errors import bad_request
from radixgen.serve.tools import OPENING, Tool, instructions, written_call
from radixgen.tokenizer import Tokenizer
from radixgen.types import check_text

MAX_MESSAGES = 10_000
MAX_TEMPLATE_VALUE = 1000  # characters of a variable given to the template
MAX_TEMPLATE_VARIABLES = 16
THOUGHTS = "reasoning_content"  # of a message, for templates that read it


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an earlier turn. `arguments`: a JSON value, or the text of a custom tool."""

    id: str
    name: str
    arguments: Any
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `role`: system, user, assistant or tool."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""  # of a tool's answer
    name: str = ""
    thoughts: str = ""  # before an answer


@dataclass(frozen=True, slots=True)
class Layout:
    """How the template is used: whether the model's turn is opened, or its last one continued."""

    open_answer: bool = True
    continue_last: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


async def prompt_ids(
    client: EngineClient, turns: Sequence[Turn], tools: Sequence[Tool], layout: Layout
) -> list[int]:
    """The ids of the prompt. Raises InvalidRequest and ApiError, naming `messages`."""
    tokenizer = client.tokenizer
    num_chars = sum(len(turn.content) + len(turn.thoughts) for turn in turns)
    if num_chars < LONG_TEXT and not tools:
        return _ids(tokenizer, turns, tools, layout)
    for turn in turns:
        check_length("messages", tokenizer.fewest_tokens(turn.content), client.ready)
    return await asyncio.to_thread(_ids, tokenizer, turns, tools, layout)


def _ids(
    tokenizer: Tokenizer, turns: Sequence[Turn], tools: Sequence[Tool], layout: Layout
) -> list[int]:
    return tokenizer.encode(render(tokenizer, turns, tools, layout), add_special_tokens=False)


def render(
    tokenizer: Tokenizer, turns: Sequence[Turn], tools: Sequence[Tool], layout: Layout
) -> str:
    """The text of the prompt."""
    if not turns:
        raise bad_request("messages must hold at least one message", "messages")
    if len(turns) > MAX_MESSAGES:
        raise bad_request(f"messages holds more than {MAX_MESSAGES} messages", "messages")
    for number, turn in enumerate(turns):
        check_text(f"messages[{number}].content", turn.content)
        check_text(f"messages[{number}].{THOUGHTS}", turn.thoughts)
    if layout.continue_last and layout.open_answer:
        raise bad_request(
            "continue_final_message needs add_generation_prompt=false", "continue_final_message"
        )
    if layout.continue_last and turns[-1].role != "assistant":
        raise bad_request(
            "continue_final_message needs a last message of the assistant", "continue_final_message"
        )
    template = tokenizer.chat_template
    _check_variables(layout.variables, template)
    variables: dict[str, Any] = dict(layout.variables)
    if layout.continue_last:
        variables["continue_final_message"] = True
    shows_thoughts = THOUGHTS in template
    if OPENING in template and not any(tool.is_custom for tool in tools):
        return tokenizer.render_chat(
            [_for_template(turn, shows_thoughts) for turn in turns],
            layout.open_answer,
            [tool.described() for tool in tools],
            **variables,
        )
    plain = _with_instructions([_plain(turn, shows_thoughts) for turn in turns], tools)
    return tokenizer.render_chat(plain, layout.open_answer, **variables)


def _thoughts(turn: Turn, shown: bool) -> dict[str, str]:
    """For a template that reads thoughts of earlier turns: it decides which are still told."""
    return {THOUGHTS: turn.thoughts} if shown and turn.thoughts else {}


def _for_template(turn: Turn, shows_thoughts: bool) -> dict[str, Any]:
    """The form that templates with tools read: arguments as values, calls beside the content."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    message |= _thoughts(turn, shows_thoughts)
    if turn.name:
        message["name"] = turn.name
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.calls
        ]
    if turn.role == "tool":
        message["tool_call_id"] = turn.call_id
    return message


def _plain(turn: Turn, shows_thoughts: bool) -> dict[str, str]:
    """The form for templates that know roles and content only."""
    if turn.role == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{turn.content}\n</tool_response>",
        }
    parts = [turn.content] if turn.content else []
    parts += [written_call(c.name, c.arguments, custom=c.custom) for c in turn.calls]
    return {"role": turn.role, "content": "\n".join(parts), **_thoughts(turn, shows_thoughts)}


def _with_instructions(
    messages: list[dict[str, str]], tools: Sequence[Tool]
) -> list[dict[str, str]]:
    if not tools:
        return messages
    text = instructions(tools)
    if messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _check_variables(variables: Mapping[str, Any], template: str) -> None:
    """Variables are plain values that the template speaks of."""
    if len(variables) > MAX_TEMPLATE_VARIABLES:
        raise bad_request("chat_template_kwargs has too many entries", "chat_template_kwargs")
    for name, value in variables.items():
        where = f"chat_template_kwargs.{name[:64]}"
        if name not in template:
            raise bad_request(f"the model's chat template has no variable {name[:64]!r}", where)
        if not isinstance(value, str | bool | int | None) or len(str(value)) > MAX_TEMPLATE_VALUE:
            raise bad_request(f"{where} must be a short text, a number or a bool", where)


def text_of(content: Any, param: str) -> str:
    """The text of a message's content: text, or parts of text, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{param} must be text or a list of parts", param)
    return "".join(text_of_part(part, f"{param}[{i}]") for i, part in enumerate(content))


def text_of_part(part: Any, param: str) -> str:
    """The text of one part of a message's content."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_json":
        return _written_json(part.get("data"), f"{param}.data")
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise bad_request(
            f"{param} is of type {str(kind)[:32]!r}; this model reads text only", param
        )
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise bad_request(f"{param}.text must be text", f"{param}.text")
    return text


def _written_json(data: Any, param: str) -> str:
    """An object, or a list of objects, as the text that the model reads."""
    if not isinstance(data, dict | list):
        raise bad_request(f"{param} must be an object or a list of objects", param)
    return json.dumps(data, ensure_ascii=False)


def turn_end(tokenizer: Tokenizer) -> int:
    """The token that the chat template writes behind an answer."""
    mark = "\N{SNOWMAN}"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}]
    rendered = tokenizer.render_chat(messages, add_generation_prompt=False)
    ids = tokenizer.encode(rendered.rpartition(mark)[2], add_special_tokens=False)
    return ids[0] if ids else tokenizer.eos_ids[0]


def parsed_arguments(text: Any, param: str) -> Any:
    """The arguments of an earlier call, which clients send as JSON text."""
    if not isinstance(text, str):
        raise bad_request(f"{param} must be JSON text", param)
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise bad_request(f"{param} is not valid JSON", param) from None
    if not isinstance(value, dict):
        raise bad_request(f"{param} must be a JSON object", param)
    return value
