"""`call`: the model chooses a Python function and its arguments, under a constraint; it is run.

A function's signature and docstring become a JSON schema; the text is
`{"name": …, "arguments": {…}}`, which always parses and always names one of the functions.
"""

import asyncio
import inspect
import json
import time
import typing
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError, create_model

from radixgen.errors import InvalidRequest
from radixgen.lang.ir import Call, Gen, Node, ToolCall
from radixgen.lang.options import checked_name, checked_text, gen_options, thoughts_from
from radixgen.lang.schema import json_value, reader_of
from radixgen.types import CacheHint, GrammarSpec, Thinking, shown

Functions = Callable[..., Any] | Iterable[Callable[..., Any]]


class Tool:
    """A function that a model may call. Raises InvalidRequest when its signature has no schema."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = _name_of(function)
        self.description = inspect.getdoc(function) or ""
        self.seconds = 0.0  # that a call has taken of late
        self._arguments = _arguments_of(function)
        self.schema = self._arguments.json_schema()

    def describe(self) -> dict[str, Any]:
        """Name, description and parameters, as chat APIs and prompts spell them."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
        }

    def call_schema(self) -> dict[str, Any]:
        """The JSON schema of a call of this function."""
        return {
            "type": "object",
            "properties": {"name": {"const": self.name}, "arguments": self.schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }

    async def run(self, arguments: dict[str, Any]) -> Any:
        """Call it with validated arguments; a plain function runs in a thread."""
        values = self._arguments.validate_python(arguments)
        named = {name: getattr(values, name) for name in type(values).model_fields}
        began = time.perf_counter()
        try:
            if inspect.iscoroutinefunction(self.function):
                return await self.function(**named)
            return await asyncio.to_thread(self.function, **named)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop of everybody
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            took = time.perf_counter() - began
            self.seconds += (took - self.seconds) * (SMOOTHING if self.seconds else 1.0)


SMOOTHING = 0.3  # weight of the newest call in the mean of what a tool takes
_known: WeakKeyDictionary[Callable[..., Any], Tool] = WeakKeyDictionary()


def tool_of(function: Callable[..., Any]) -> Tool:
    """The function as a tool: one for all programs, so that what its calls take is learned."""
    _name_of(function)
    found = _known.get(function)
    if found is None:
        found = _known[function] = Tool(function)
    return found


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if callable(function) and isinstance(name, str):
        return name
    raise InvalidRequest(
        f"{shown(function)} is no function with a name: give one written with def", "functions"
    )


def _arguments_of(function: Callable[..., Any]) -> TypeAdapter[Any]:
    name = function.__name__
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except Exception as error:  # whatever an annotation raises when it is looked up
        message = f"{name}: its signature cannot be read: {error}"
        raise InvalidRequest(message, "functions") from error
    fields = {key: _field_of(name, parameters[key], hints) for key in parameters}
    try:
        adapter = TypeAdapter(create_model(name, __config__={"extra": "forbid"}, **fields))
        adapter.json_schema()
    except Exception as error:  # of pydantic, or of a type's own
        reason = str(error).partition("\n")[0]
        message = f"{name}: its parameters cannot be described to a model: {reason}"
        raise InvalidRequest(message, "functions") from error
    return adapter


def _field_of(function: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """A parameter's type and default. Raises InvalidRequest for one that a call cannot name."""
    name, kind = parameter.name, parameter.kind
    if kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise InvalidRequest(f"{function}: *{name} cannot be described to a model", "functions")
    if kind is parameter.POSITIONAL_ONLY:
        message = f"{function}: {name!r} is positional only, and a model names its arguments"
        raise InvalidRequest(message, "functions")
    if name.startswith("_"):
        message = f"{function}: {name!r} begins with an underscore: name it without"
        raise InvalidRequest(message, "functions")
    if name not in hints:
        message = f"{function}: parameter {name!r} needs a type annotation"
        raise InvalidRequest(message, "functions")
    return hints[name], ... if parameter.default is parameter.empty else parameter.default


def _tools_of(functions: Any) -> dict[str, Tool]:
    """By name, of several functions or of one. Raises InvalidRequest."""
    if isinstance(functions, str | bytes):
        raise InvalidRequest(f"functions={shown(functions)}: give the functions", "functions")
    listed = list(functions) if isinstance(functions, Iterable) else [functions]
    tools = {tool.name: tool for tool in map(tool_of, listed)}
    if not tools or len(tools) != len(listed):
        raise InvalidRequest("call needs functions with different names, at least one", "functions")
    return tools


def describe(functions: Functions) -> str:
    """The functions as text for a prompt: one JSON object a line."""
    return "\n".join(json.dumps(tool.describe()) for tool in _tools_of(functions).values())


def call(
    functions: Functions,
    name: str | None = None,
    *,
    before: str = "\n",
    after: str = "\n",
    tool_seconds: float | None = None,
    thinking: int | str | Thinking | None = None,
    **options: Any,
) -> Node:
    """Let the model call the function, or one of several, here; its result is added as JSON text.

    `before` and `after` are literals around the result. The variable `name` becomes a `ToolCall`.
    What a function raises is told to the model as `{"error": …}`, so that it may try again.
    `tool_seconds`: what running one takes, for the cache; learned from earlier calls if not given.
    `thinking`: before the call is made, as for `gen`.
    Raises InvalidRequest.
    """
    checked_name(name)
    checked_text("before", before)
    checked_text("after", after)
    if tool_seconds is not None:
        CacheHint(tool_seconds=tool_seconds)  # a number within its range
    said = gen_options(options)
    if (said.n or 1) > 1:
        raise InvalidRequest(f"n={said.n}: one call is made and carried out", "n")
    tools = _tools_of(functions)
    schema: dict[str, Any] = {"anyOf": [tool.call_schema() for tool in tools.values()]}
    grammar = GrammarSpec("json_schema", json.dumps(schema))

    read = reader_of(name, json_value)

    async def run(text: str) -> ToolCall:
        made = read(text)
        return await _carry_out(tools[made["name"]], made["arguments"])

    def seconds() -> float:
        if tool_seconds is not None:
            return tool_seconds
        return max(tool.seconds for tool in tools.values())

    gen = Gen(None, said, grammar, thoughts=thoughts_from(thinking))
    return Call(name, gen, run, before, after, seconds)


async def _carry_out(tool: Tool, arguments: dict[str, Any]) -> ToolCall:
    try:
        result = await tool.run(arguments)
    except ValidationError as error:
        result = {"error": f"{error.error_count()} wrong arguments: {error.errors()[0]['msg']}"}
    except Exception as error:  # the tool's own failure is news for the model, not the end
        result = {"error": _reason(error)}
    try:
        text = _as_text(result)
    except Exception as error:  # of what is no JSON, and of texts that are none
        result = {"error": f"what it returned cannot be told: {_reason(error)}"}
        text = _as_text(result)
    return ToolCall(tool.name, arguments, result, text)


def _reason(error: Exception) -> str:
    """What was raised, in characters that can be encoded."""
    return f"{type(error).__name__}: {error}".encode(errors="replace").decode()


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        result.encode()  # raises for a lone surrogate
        return result
    return TypeAdapter(Any).dump_json(result).decode()
