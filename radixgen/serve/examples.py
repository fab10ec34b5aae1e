"""A body for each route that takes one, as `/openapi.json` and `/docs` show it: each is answered.

Knows the names of the schemas and no route. `MODEL` stands for the model that is served.
"""

from typing import Any

MODEL = "$MODEL"

_SAID = [{"role": "user", "content": "The capital of France is"}]
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
_FUNCTION = {"name": "weather", "description": "Of a city.", "parameters": _SCHEMA}

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "ChatRequest": [
        {"model": MODEL, "messages": _SAID, "max_tokens": 8},
        {"model": MODEL, "messages": _SAID, "max_tokens": 60, "response_format": _FORMAT},
        {
            "model": MODEL,
            "messages": _SAID,
            "max_tokens": 100,
            "tools": [{"type": "function", "function": _FUNCTION}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ],
    "CompletionRequest": [
        {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8},
        {"model": MODEL, "prompt": "Is it?", "structured_outputs": {"choice": ["yes", "no"]}},
    ],
    "ResponsesRequest": [
        {"model": MODEL, "input": "The capital of France is", "max_output_tokens": 8},
    ],
    "DecisionRequest": [
        {
            "model": MODEL,
            "input": "My package has not come yet.",
            "questions": [{"type": "predicate", "instructions": "The customer is waiting."}],
        },
    ],
    "MessagesRequest": [{"model": MODEL, "messages": _SAID, "max_tokens": 8}],
    "CountRequest": [{"model": MODEL, "messages": _SAID}],
    "GenerateBody": [
        {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 8}},
    ],
    "TokenizeBody": [{"prompt": "The capital of France is"}, {"messages": _SAID}],
    "DetokenizeBody": [{"tokens": [72, 105]}],
    "TemplateRequest": [{"messages": _SAID}],
    "AbortBody": [{"rid": "mine"}],
}


def examples_of(schema: str, model: str) -> list[dict[str, Any]]:
    """The examples of a schema, with the model's name; none for a schema of no body."""
    return [
        body | {"model": model} if "model" in body else body for body in EXAMPLES.get(schema, [])
    ]
