"""Every exception radixgen raises on purpose.

    RadixgenError
    ├── InvalidRequest(ValueError)      the caller's arguments: `param` names the one at fault
    │   ├── PromptTooLong               more tokens than the context, or than all pages, can hold
    │   ├── InvalidGrammar              a constraint that cannot be enforced; `path` points into it
    │   └── UnsetVariable(KeyError)     a program reads what it has not set
    ├── ModelError                      weights, tokenizer or config cannot be used
    │   ├── ModelNotFound               no such directory, file or hub id, or the fetch failed
    │   └── UnsupportedModel            an architecture, quantisation or option we do not run
    ├── ConfigError(ValueError)         a setting or environment variable
    ├── KernelError(ValueError)         an operation was given tensors it does not take
    ├── RuntimeUnavailable              the runtime process did not start or has died
    │   └── RuntimeDraining             it finishes what is open, and has not begun this request
    ├── Overloaded                      the queue is full; `retry_after` in seconds
    └── RequestAborted                  the request was cancelled by its caller

A message names the thing, the limit and the way out. On the wire an error is `(code, message)`;
`code` is the attribute below and `from_code` rebuilds the exception on the caller's side.
"""

from collections.abc import Iterable
from typing import ClassVar


class RadixgenError(Exception):
    """The root: catch this to catch everything radixgen raises on purpose."""

    code: ClassVar[str] = "internal"


class InvalidRequest(RadixgenError, ValueError):
    """An argument that cannot be honoured. `param` names it; None: several are at fault."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context or the KV pages."""

    code = "prompt_too_long"


class InvalidGrammar(InvalidRequest):
    """A constraint that cannot be enforced. `path` points into the schema or grammar."""

    code = "invalid_grammar"

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{message} (at {path})" if path else message, "grammar")
        self.path = path


class UnsetVariable(InvalidRequest, KeyError):
    """A program reads a variable that it has not set."""

    code = "unset_variable"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        listed = ", ".join(map(repr, known)) or "none"
        super().__init__(f"the program has set no variable {name!r}; it has: {listed}", name)

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it in quotes


class ModelError(RadixgenError):
    """The model's files cannot be used."""

    code = "model_error"


class ModelNotFound(ModelError):
    """No model under that name, path or hub id, or it could not be fetched."""

    code = "model_not_found"


class UnsupportedModel(ModelError):
    """An architecture, quantisation or option that radixgen does not run."""

    code = "unsupported_model"


class ConfigError(RadixgenError, ValueError):
    """A setting or an environment variable with an impossible value."""

    code = "config_error"


class KernelError(RadixgenError, ValueError):
    """An operation was called with shapes, types or indices it does not take, or where a GPU has no
    room for its kernel."""

    code = "kernel_error"


class RuntimeUnavailable(RadixgenError):
    """The runtime process did not start, died, or is shutting down."""

    code = "runtime_unavailable"


class RuntimeDraining(RuntimeUnavailable):
    """The runtime is shutting down and has not begun the request: another may be asked."""

    code = "runtime_draining"


class Overloaded(RadixgenError):
    """The queue is full. `retry_after` is a hint in seconds."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestAborted(RadixgenError):
    """The request was cancelled before it finished."""

    code = "aborted"


_BY_CODE: dict[str, type[RadixgenError]] = {
    cls.code: cls
    for cls in (
        RadixgenError,
        InvalidRequest,
        PromptTooLong,
        InvalidGrammar,
        ModelError,
        ModelNotFound,
        UnsupportedModel,
        ConfigError,
        KernelError,
        RuntimeUnavailable,
        RuntimeDraining,
        Overloaded,
        RequestAborted,
    )
}


def from_code(code: str, message: str, param: str | None = None) -> RadixgenError:
    """The exception for an error that came over the wire; an unknown code gives the root."""
    error = _BY_CODE.get(code, RadixgenError)(message)
    if isinstance(error, InvalidRequest) and param is not None:
        error.param = param
    return error
