"""Tools: what the model is told of them, and the grammar that makes every call a valid one.

A call is written as

    <tool_call>                                      <tool_call name="NAME">
    {"name": "NAME", "arguments": {…}}               the input of a custom tool
    </tool_call>                                     </tool_call>

which is the form that Hermes and Qwen models were trained on. A template that knows it is given the
tools; for any other model the same is said in its system message. Arguments always satisfy the
tool's schema, be it strict or not. Knows no HTTP and no model.

Neither arguments nor free text can hold what ends a call. The input of a custom tool with a grammar
may, whatever its grammar lets it hold; so such a call is the answer's last thing, and ends with it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixgen.serve.constraints import as_format, format_spec
from radixgen.serve.errors import bad_request
from radixgen.types import GrammarSpec

OPENING = "<tool_call"  # of every call
FUNCTION_BEGIN = '<tool_call>\n{{"name": "{name}", "arguments": '
FUNCTION_END = "}\n</tool_call>"
CUSTOM_BEGIN = '<tool_call name="{name}">\n'
CUSTOM_END = "\n</tool_call>"

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.:/\-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with a JSON schema, or a custom tool whose input is text of a format."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | bool | None = None
    input_format: Mapping[str, Any] | None = None  # of a custom tool, as a structural tag's format

    @property
    def is_custom(self) -> bool:
        return self.input_format is not None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows a call of it."""
        return self.input_format is not None and self.input_format.get("type") != "any_text"

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments, which are an object whatever it says."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        if isinstance(self.parameters, bool):
            return {"type": "object"} if self.parameters else {"type": "object", "not": {}}
        return {"type": "object"} | dict(self.parameters) | {"type": "object"}

    def tag(self) -> dict[str, Any]:
        """The call as a tag of structural tags."""
        if self.input_format is not None:
            begin, end, content = CUSTOM_BEGIN, CUSTOM_END, dict(self.input_format)
        else:
            begin, end = FUNCTION_BEGIN, FUNCTION_END
            content = {"type": "json_schema", "json_schema": self.schema}
        return {
            "type": "tag",
            "begin": begin.format(name=self.name),
            "content": content,
            "end": end,
        }

    def described(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function: dict[str, Any] = {"name": self.name, "description": self.description}
        if not self.is_custom:
            function["parameters"] = self.schema
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether calls may, must or must not be made; `names`: of these tools only."""

    mode: Literal["auto", "required", "none"] = "auto"
    names: frozenset[str] | None = None
    once: bool = False  # at most one call


def check_tools(tools: Sequence[Tool]) -> None:
    """Raises ApiError for names that are malformed or used twice, for too many, and for arguments
    that are to be no object."""
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"tools holds {len(tools)} tools, at most {MAX_TOOLS}", "tools")
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            message = f"tools[{number}].name must be 1 to 128 letters, digits or any of _ . : / -"
            raise bad_request(message, "tools")
        if tool.name in seen:
            raise bad_request(f"tools has two of the name {tool.name!r}", "tools")
        seen.add(tool.name)
        kinds = tool.parameters.get("type") if isinstance(tool.parameters, Mapping) else None
        if kinds is not None and "object" not in (kinds if isinstance(kinds, list) else [kinds]):
            message = f"tools[{number}]: the arguments of a tool are an object, so the type of its "
            raise bad_request(message + f"schema must be object, not {str(kinds)[:64]}", "tools")


def constrain(
    tools: Sequence[Tool], choice: ToolChoice, content: GrammarSpec | None
) -> GrammarSpec | None:
    """The grammar of an answer: calls, and `content` where none is made.

    With `required` there is no content, so `content` holds of nothing. Raises ApiError for a
    choice among tools that are not there.
    """
    if not tools:
        if choice.mode == "required":
            raise bad_request("tool_choice asks for a call, and there are no tools", "tool_choice")
        return content
    if choice.mode == "none":
        return content or format_spec({"type": "any_text", "excludes": [OPENING]})
    chosen = _chosen(tools, choice)
    if choice.mode == "required":
        return format_spec(_calls(chosen, once=choice.once))
    if content is not None:
        calls = _calls(chosen, once=choice.once)
        return format_spec({"type": "or", "elements": [as_format(content), calls]}, content.options)
    return format_spec(_text_with_calls(chosen, once=choice.once))


def _calls(tools: Sequence[Tool], *, once: bool) -> dict[str, Any]:
    """At least one call and nothing else, as a format."""
    inner = [tool.tag() for tool in tools if not tool.is_last]
    if once or len(inner) == len(tools):
        return {
            "type": "tags_with_separator",
            "tags": [tool.tag() for tool in tools],
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": once,
        }
    any_call = {"type": "or", "elements": [tool.tag() for tool in tools]}
    if not inner:
        return any_call
    gap = {"type": "const_string", "value": "\n"}
    before = {"type": "sequence", "elements": [{"type": "or", "elements": inner}, gap]}
    return {"type": "sequence", "elements": [{"type": "star", "content": before}, any_call]}


def _text_with_calls(tools: Sequence[Tool], *, once: bool) -> dict[str, Any]:
    """Free text in which calls may be made, as a format."""
    inner = tools if once else [tool for tool in tools if not tool.is_last]
    text: dict[str, Any] = {"type": "any_text", "excludes": [OPENING]}
    if inner:
        text = {
            "type": "triggered_tags",
            "triggers": [OPENING],
            "tags": [tool.tag() for tool in inner],
            "stop_after_first": once,
        }
    last = [tool.tag() for tool in tools if tool not in inner]
    if not last:
        return text
    end = {"type": "optional", "content": {"type": "or", "elements": last}}
    return {"type": "sequence", "elements": [text, end]}


def _chosen(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    if choice.names is None:
        return list(tools)
    missing = choice.names - {tool.name for tool in tools}
    if missing:
        message = f"tool_choice names {sorted(missing)[0]!r}, which is not in tools"
        raise bad_request(message, "tool_choice")
    return [tool for tool in tools if tool.name in choice.names]


def instructions(tools: Sequence[Tool]) -> str:
    """What a model is told of its tools whose template has no words for them."""
    functions = [json.dumps(tool.described()["function"]) for tool in tools if not tool.is_custom]
    custom = [f'- "{tool.name}": {tool.description}' for tool in tools if tool.is_custom]
    parts = ["You can call tools."]
    if functions:
        parts += [
            "Functions, one a line, with the JSON schema of their arguments:",
            *functions,
            "To call one, write:",
            '<tool_call>\n{"name": "NAME", "arguments": {…}}\n</tool_call>',
        ]
    if custom:
        parts += [
            "Tools that take text:",
            *custom,
            "To call one, write:",
            '<tool_call name="NAME">\nthe text\n</tool_call>',
        ]
    return "\n".join(parts)


def written_call(name: str, arguments: Any, *, custom: bool = False) -> str:
    """A call of an earlier turn, in the form in which the model makes them."""
    if custom:
        return f"{CUSTOM_BEGIN.format(name=name)}{arguments}{CUSTOM_END}"
    begin = FUNCTION_BEGIN.format(name=name)
    return f"{begin}{json.dumps(arguments, ensure_ascii=False)}{FUNCTION_END}"
