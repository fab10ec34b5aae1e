"""Errors as HTTP: which status, which body. Knows exceptions and the two shapes of bodies.

OpenAI      {"error": {"message", "type", "param", "code"}}
Anthropic   {"type": "error", "error": {"type", "message"}, "request_id"}
"""

import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from radixgen.errors import (
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    RadixgenError,
    RequestAborted,
    RuntimeUnavailable,
)
from radixgen.types import unknown_name

logger = logging.getLogger(__name__)

MAX_SHOWN = 500  # characters of a message that come from the request
RETRY_SECONDS = 2

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "request_aborted",
    500: "internal_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STANDARD = {
    400: "the body cannot be read as JSON",
    404: "there is no such route; /docs lists them",
    405: "the route does not have this method; /docs lists them",
}
_ANTHROPIC_TYPES = {413: "request_too_large", 499: "api_error", 500: "api_error"}


class ApiError(HTTPException):
    """An answer that is an error. `param` names the field of the request that is at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.message = message
        self.param = param
        self.code = code

    @property
    def type(self) -> str:
        return _TYPES.get(self.status_code, "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """The body that OpenAI's clients read."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def anthropic_body(self, request_id: str) -> dict[str, Any]:
        """The body that Anthropic's clients read."""
        kind = _ANTHROPIC_TYPES.get(self.status_code, self.type)
        error = {"type": kind, "message": self.message}
        return {"type": "error", "error": error, "request_id": request_id}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unknown_field(param: str, name: Any, known: Iterable[str]) -> ApiError:
    """The answer to a field that the object at `param` cannot have: the nearest that it can."""
    what = f"parameter of {param}" if param else "parameter"
    where = ".".join(filter(None, (param, str(name)[:64])))
    return bad_request(unknown_name(what, str(name)[:64], known), where, "unknown_parameter")


def api_error(error: BaseException, rename: Mapping[str, str] | None = None) -> ApiError:
    """The answer for an exception; `rename`: names of our parameters to those of the request.

    What is no error of ours is logged and told without its insides.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        message = _unread(error) or _STANDARD.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers)
    if isinstance(error, InvalidRequest):
        param = (rename or {}).get(error.param or "", error.param)
        code = "context_length_exceeded" if isinstance(error, PromptTooLong) else error.code
        return bad_request(_shown(error), param, code)
    if isinstance(error, Overloaded):
        retry = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
        return ApiError(429, _shown(error), code=error.code, headers=retry)
    if isinstance(error, RuntimeUnavailable):
        return unavailable("the model's runtime is not available; try again soon")
    if isinstance(error, RequestAborted):
        return ApiError(499, "the request was aborted", code=error.code)
    if isinstance(error, TimeoutError):
        return ApiError(504, "the request ran into the server's time limit", code="timeout")
    if isinstance(error, RadixgenError):
        logger.error("a request failed: %s", error)
    else:
        logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed to answer this request", code="internal")


def _unread(error: HTTPException) -> str:
    """What kept a body of valid JSON from being read; empty for anything else."""
    cause = error.__cause__
    if isinstance(cause, RecursionError):
        return "the body cannot be read: objects and lists are nested too deeply in it"
    if type(cause) is ValueError:  # Python's limit on the digits of a whole number
        limit = sys.get_int_max_str_digits()
        return f"the body cannot be read: a whole number in it has more than {limit} digits"
    return ""


def unavailable(message: str) -> ApiError:
    retry = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(503, message, code=RuntimeUnavailable.code, headers=retry)


def _shown(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def validation_error(faults: Sequence[Mapping[str, Any]], schema: Any = None) -> ApiError:
    """The answer to a body that is not of its schema: the first fault, where it is, what it is.

    `schema`: the body's type, to name the nearest field of one that is unknown.
    """
    fault = _telling(faults)
    path = [part for part in fault["loc"] if part not in ("body", "query", "path")]
    if fault["type"] == "json_invalid":
        where = f" (at character {path[0]})" if path else ""
        why = fault.get("ctx", {}).get("error", "")
        return bad_request(f"the body is not valid JSON{where}: {why}")
    if not path:
        return bad_request("the body must be a JSON object")
    param = _dotted(path)
    if fault["type"] == "extra_forbidden":
        known = _names_at(schema, path[:-1])
        if known:
            return unknown_field(_dotted(path[:-1]), path[-1], known)
        return bad_request(f"{str(path[-1])[:64]!r} is not known here", param, "unknown_parameter")
    if fault["type"] == "none_required" or param in _REFUSED:
        why = _REFUSED.get(param, "it is not served here")
        return bad_request(f"{param} must be left out: {why}", param, "unsupported_parameter")
    if fault["type"] == "missing":
        return bad_request(f"{param} is required", param, "missing_required_parameter")
    place = next((i for i, part in enumerate(fault["loc"]) if _form(part)), 0)
    if place and len(forms := _forms(faults, fault["loc"][:place])) > 1:
        param = _dotted([part for part in fault["loc"][:place] if part != "body"])
        message = f"{param} must be {', '.join(forms[:-1])} or {forms[-1]}"
        return bad_request(message, param, "invalid_type")
    return bad_request(f"{param}: {fault['msg'][:MAX_SHOWN]}", param, "invalid_type")


_REFUSED = {
    "previous_response_id": "nothing is stored here; send the whole conversation as input",
    "suffix": "text is continued at its end, and not filled in; this is not served here",
}


def _schemas_in(annotation: Any) -> list[type[BaseModel]]:
    """The schemas of objects that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [schema for part in get_args(annotation) for schema in _schemas_in(part)]


def _names_at(schema: Any, path: Sequence[Any]) -> list[str]:
    """The names of the fields that an object may have at a fault's place in a body.

    pydantic names the branches of unions there too: by their class, or by what tells them apart.
    """
    found = _schemas_in(schema)
    for part in path:
        named = [one for one in found if one.__name__ == part]
        inner = [one.model_fields[part] for one in found if part in one.model_fields]
        found = named or [s for field in inner for s in _schemas_in(field.annotation)] or found
    return sorted({name for one in found for name in one.model_fields})


def _telling(faults: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The fault that says most: that of a wrong `type`, if there is one, since the others come of
    it; else the first."""
    wrong = (f for f in faults if f["loc"][-1] == "type" and f["type"] == "literal_error")
    return next(wrong, faults[0])


def _forms(faults: Sequence[Mapping[str, Any]], place: Sequence[Any]) -> list[str]:
    """The forms that the value at a place may have, where it has none of them."""
    depth = len(place)
    parts = (f["loc"][depth] for f in faults if f["loc"][:depth] == place and f["loc"][depth:])
    return list(dict.fromkeys(filter(None, map(_form, parts))))


_FORMS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list[str]": "a list of texts",
    "list[int]": "a list of whole numbers",
    "list[list[int]]": "a list of lists of whole numbers",
}


def _form(part: Any) -> str:
    """A part of a fault's place in words, where it is pydantic's name of a branch of a union."""
    if not isinstance(part, str):
        return ""
    form = {"list[": "a list", "dict[": "an object"}.get(part[:5], "")
    return _FORMS.get(part, form)


_BRANCHES = frozenset(
    {"str", "int", "float", "bool", "dict", "none", "nullable", "predicate", "choice", "score"}
)


def _dotted(path: Sequence[Any]) -> str:
    """messages[0].content, without the names that pydantic gives to the branches of a union."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not text:
            text = part[:64]
        elif part not in _BRANCHES and part.isidentifier() and part[0].islower():
            text += f".{part[:64]}"
    return text
