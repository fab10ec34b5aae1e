"""A structured-generation engine with a radix prefix cache.

from radixgen import Runtime

with Runtime() as rt:
    print(rt.generate("The capital of France is", max_tokens=8).text)

The language is here as well: `import radixgen as rg`, then `@rg.function`, `rg.gen`, `rg.select` …
"""

from typing import TYPE_CHECKING, Any

from radixgen.errors import (
    ConfigError,
    InvalidGrammar,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RadixgenError,
    RequestAborted,
    RuntimeDraining,
    RuntimeUnavailable,
    UnsupportedModel,
)
from radixgen.types import (
    CacheHint,
    Choice,
    FinishReason,
    GenerateResult,
    GrammarSpec,
    Piece,
    SamplingParams,
    ScoreResult,
    Thinking,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from radixgen.blocking import BlockingClient
    from radixgen.client import EngineClient
    from radixgen.engine import Engine
    from radixgen.lang import (
        AsyncProgramState,
        Program,
        ProgramState,
        ProgramStateGroup,
        ToolCall,
        assistant,
        assistant_begin,
        assistant_end,
        call,
        describe,
        flush_cache,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        greedy_token_selection,
        image,
        select,
        separate_reasoning,
        set_default_backend,
        system,
        system_begin,
        system_end,
        token_length_normalized,
        unconditional_likelihood_normalized,
        user,
        user_begin,
        user_end,
        video,
    )
    from radixgen.lang.backends.anthropic_api import Anthropic
    from radixgen.lang.backends.endpoint import RuntimeEndpoint
    from radixgen.lang.backends.openai_api import LiteLLM, OpenAI
    from radixgen.launch import AsyncRuntime, Runtime

__all__ = [
    "Anthropic",
    "AsyncProgramState",
    "AsyncRuntime",
    "BlockingClient",
    "CacheHint",
    "Choice",
    "ConfigError",
    "Engine",
    "EngineClient",
    "FinishReason",
    "GenerateResult",
    "GrammarSpec",
    "InvalidGrammar",
    "InvalidRequest",
    "LiteLLM",
    "ModelError",
    "ModelNotFound",
    "OpenAI",
    "Overloaded",
    "Piece",
    "Program",
    "ProgramState",
    "ProgramStateGroup",
    "PromptTooLong",
    "RadixgenError",
    "RequestAborted",
    "Runtime",
    "RuntimeDraining",
    "RuntimeEndpoint",
    "RuntimeUnavailable",
    "SamplingParams",
    "ScoreResult",
    "Thinking",
    "TokenLogprob",
    "ToolCall",
    "UnsupportedModel",
    "Usage",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "call",
    "describe",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

# Their modules load sockets and event loops, which `import radixgen` alone does not need.
_LATE = {
    "Anthropic": "radixgen.lang.backends.anthropic_api",
    "AsyncRuntime": "radixgen.launch",
    "BlockingClient": "radixgen.blocking",
    "Engine": "radixgen.engine",
    "EngineClient": "radixgen.client",
    "LiteLLM": "radixgen.lang.backends.openai_api",
    "OpenAI": "radixgen.lang.backends.openai_api",
    "Runtime": "radixgen.launch",
    "RuntimeEndpoint": "radixgen.lang.backends.endpoint",
}
_LANGUAGE = frozenset(
    {
        "AsyncProgramState",
        "Program",
        "ProgramState",
        "ProgramStateGroup",
        "ToolCall",
        "assistant",
        "assistant_begin",
        "assistant_end",
        "call",
        "describe",
        "flush_cache",
        "function",
        "gen",
        "gen_int",
        "gen_string",
        "get_server_info",
        "greedy_token_selection",
        "image",
        "select",
        "separate_reasoning",
        "set_default_backend",
        "system",
        "system_begin",
        "system_end",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
        "user",
        "user_begin",
        "user_end",
        "video",
    }
)


def __getattr__(name: str) -> Any:
    module = "radixgen.lang" if name in _LANGUAGE else _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'radixgen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
