"""What routes say of themselves in `/openapi.json`, and of a constraint's name in errors."""

import contextlib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from radixgen.errors import InvalidGrammar, InvalidRequest
from radixgen.serve.constraints import Constraint
from radixgen.serve.schemas import ErrorAnswer

Answers = dict[int | str, dict[str, Any]]

_ERRORS = {
    400: "the request cannot be honoured",
    401: "a valid API key is needed",
    404: "there is no such thing",
    408: "the body did not come",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "too many open requests",
    499: "aborted",
    500: "the server failed",
    503: "the runtime is not available",
    504: "the time limit was reached",
}


def answers(
    model: type[BaseModel] | None,
    *,
    stream: bool = False,
    media_type: str | None = None,
    error: type[BaseModel] = ErrorAnswer,
) -> Answers:
    """The answers of a route: one that succeeds, perhaps as events, and the errors. `media_type`:
    of an answer that is text and no JSON."""
    found: Answers = {
        status: {"model": error, "description": text} for status, text in _ERRORS.items()
    }
    found[422] = found[400]  # takes the place of FastAPI's own
    success: dict[str, Any] = {"description": "done"}
    if model is not None:
        success["model"] = model
    kind = "text/event-stream" if stream else media_type
    if kind is not None:
        success["content"] = {kind: {"schema": {} if stream else {"type": "string"}}}
    found[200] = success
    return found


@contextlib.contextmanager
def renamed(constraint: Constraint | None, **names: str) -> Iterator[None]:
    """An error names the field of the request that it came from. `names`: ours to the request's."""
    try:
        yield
    except InvalidGrammar as error:
        if constraint is not None:
            error.param = constraint.param
        raise
    except InvalidRequest as error:
        error.param = names.get(error.param or "", error.param)
        raise
