"""`call`: the model chooses a Python function and its arguments, under a constraint; it is run.

A function's signature and docstring become a JSON schema; the text is
`{"name": …, "arguments": {…}}`, which always parses and always names one of the functions.
"""

import asyncio
import inspect
import json
import time
import typing
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError, create_model

from radixgen.errors import InvalidRequest
from radixgen.lang.ir import Call, Gen, Node, ToolCall
from radixgen.lang.options import gen_options
from radixgen.types import GrammarSpec


class Tool:
    """A function that a model may call. Raises InvalidRequest when its signature has no schema."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
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
    found = _known.get(function)
    if found is None:
        found = _known[function] = Tool(function)
    return found


def _arguments_of(function: Callable[..., Any]) -> TypeAdapter[Any]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidRequest(f"{function.__name__}: *{name} cannot be described to a model")
        if name not in hints:
            raise InvalidRequest(f"{function.__name__}: parameter {name!r} needs a type annotation")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], default)
    model = create_model(function.__name__, __config__={"extra": "forbid"}, **fields)
    return TypeAdapter(model)


def describe(functions: Sequence[Callable[..., Any]]) -> str:
    """The functions as text for a prompt: one JSON object a line."""
    return "\n".join(json.dumps(tool_of(function).describe()) for function in functions)


def call(
    functions: Sequence[Callable[..., Any]],
    name: str | None = None,
    *,
    before: str = "\n",
    after: str = "\n",
    tool_seconds: float | None = None,
    **options: Any,
) -> Node:
    """Let the model call one of the functions, here; its result is added as JSON text.

    `before` and `after` are literals around the result. The variable `name` becomes a `ToolCall`.
    What a function raises is told to the model as `{"error": …}`, so that it may try again.
    `tool_seconds`: what running one takes, for the cache; learned from earlier calls if not given.
    """
    if tool_seconds is not None and not 0 <= tool_seconds < float("inf"):
        raise InvalidRequest(f"tool_seconds={tool_seconds}: at least 0", "tool_seconds")
    tools = {tool.name: tool for tool in map(tool_of, functions)}
    if not tools or len(tools) != len(functions):
        raise InvalidRequest("call needs functions with different names, at least one", "functions")
    schema: dict[str, Any] = {"anyOf": [tool.call_schema() for tool in tools.values()]}
    grammar = GrammarSpec("json_schema", json.dumps(schema))

    async def run(text: str) -> ToolCall:
        said = json.loads(text)
        return await _carry_out(tools[said["name"]], said["arguments"])

    def seconds() -> float:
        if tool_seconds is not None:
            return tool_seconds
        return max(tool.seconds for tool in tools.values())

    return Call(name, Gen(None, gen_options(options), grammar), run, before, after, seconds)


async def _carry_out(tool: Tool, arguments: dict[str, Any]) -> ToolCall:
    try:
        result = await tool.run(arguments)
    except ValidationError as error:
        result = {"error": f"{error.error_count()} wrong arguments: {error.errors()[0]['msg']}"}
    except Exception as error:  # the tool's own failure is news for the model, not the end
        result = {"error": f"{type(error).__name__}: {error}"}
    return ToolCall(tool.name, arguments, result, _as_text(result))


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    return TypeAdapter(Any).dump_json(result).decode()
