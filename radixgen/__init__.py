"""A structured-generation engine with a radix prefix cache.

from radixgen import Runtime

with Runtime() as rt:
    print(rt.generate("The capital of France is", max_tokens=8).text)
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
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from radixgen.blocking import BlockingClient
    from radixgen.client import EngineClient
    from radixgen.launch import AsyncRuntime, Runtime

__all__ = [
    "AsyncRuntime",
    "BlockingClient",
    "CacheHint",
    "Choice",
    "ConfigError",
    "EngineClient",
    "FinishReason",
    "GenerateResult",
    "GrammarSpec",
    "InvalidGrammar",
    "InvalidRequest",
    "ModelError",
    "ModelNotFound",
    "Overloaded",
    "Piece",
    "PromptTooLong",
    "RadixgenError",
    "RequestAborted",
    "Runtime",
    "RuntimeUnavailable",
    "SamplingParams",
    "ScoreResult",
    "TokenLogprob",
    "UnsupportedModel",
    "Usage",
]

# Their modules load sockets and event loops, which `import radixgen` alone does not need.
_LATE = {
    "AsyncRuntime": "radixgen.launch",
    "BlockingClient": "radixgen.blocking",
    "EngineClient": "radixgen.client",
    "Runtime": "radixgen.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'radixgen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
