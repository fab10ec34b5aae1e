"""What backends that speak to somebody else's API share: a loop, refusals, errors, messages.

An API takes messages or text, no token ids, and offers fewer settings and constraints than the
language has. Whatever it does not offer is refused at the line that asks for it.
"""

import importlib
import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from radixgen.errors import (
    ConfigError,
    InvalidRequest,
    Overloaded,
    RadixgenError,
    RuntimeUnavailable,
)
from radixgen.lang.constraints import is_kept
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen, GenOptions, Select, as_texts, max_tokens_of
from radixgen.threads import LoopThread
from radixgen.types import shown

_OFF: dict[str, tuple[Any, ...]] = {  # values that ask for nothing
    "min_tokens": (0,),
    "n": (1,),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "ignore_eos": (False,),
    "token_healing": (False,),
    "constrained_law": ("masked",),
    "grammar_mass": (False,),
}


def optional_import(module: str, package: str, what: str) -> Any:
    """A library that only this backend needs. Raises ConfigError that names its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the package {package!r}: pip install {package} ({error})"
        ) from error


def running_thread(name: str) -> LoopThread:
    """An event loop in a thread that runs."""
    thread = LoopThread(name)
    thread.run(_nothing())
    return thread


async def _nothing() -> None: ...


def refuse_options(options: GenOptions, offered: Collection[str], who: str) -> None:
    """Raises InvalidRequest for a setting that an API does not have. `program` is only a hint."""
    for name in (f.name for f in fields(GenOptions)):
        value = getattr(options, name)
        asks = value is not None and value not in _OFF.get(name, ()) and name != "program"
        if asks and name not in offered:
            raise InvalidRequest(
                f"{name}={value!r}: {who} has no such setting; leave it out, or run on a radixgen "
                "runtime",
                name,
            )


def refuse_select(select: Select, who: str) -> NoReturn:
    """Raises InvalidRequest: most APIs do not score given texts."""
    listed = ", ".join(map(repr, select.choices))
    raise InvalidRequest(
        f"select compares log-probabilities of its choices, which {who} does not give; "
        f"use gen(schema=Literal[{listed}])",
        "choices",
    )


def stops(gen: Gen) -> list[str]:
    """Of the options and of the dtype."""
    return list(dict.fromkeys((*as_texts(gen.options.stop or ()), *gen.extra_stop)))


def limit(gen: Gen) -> int:
    """Tokens of the output, at most."""
    return max_tokens_of(gen)


def messages_of(conversation: Conversation, who: str, *, prefill: bool) -> list[dict[str, str]]:
    """The messages to answer. Raises InvalidRequest unless the assistant has the word.

    `prefill`: the beginning of the answer may be given; it is the last message then.
    """
    if conversation.role != "assistant":
        raise InvalidRequest(
            f"{who} answers messages: put gen inside an assistant message, as in "
            "s += assistant(gen('x'))",
            "role",
        )
    messages = [dict(message) for message in conversation.messages]
    if conversation.content.strip():
        if not prefill:
            raise InvalidRequest(
                f"{who} cannot continue an assistant message that has begun: begin a new one, or "
                "run on a radixgen runtime",
                "role",
            )
        messages.append({"role": "assistant", "content": conversation.content})
    if not messages:
        raise InvalidRequest(f"{who} needs a message to answer: s += user('…') first", "messages")
    return messages


def json_schema_of(gen: Gen) -> dict[str, Any] | None:
    """The schema of a gen's constraint as an object, None for another kind or for no constraint."""
    if gen.grammar is None or gen.grammar.kind != "json_schema":
        return None
    source = json.loads(gen.grammar.source)
    return source if isinstance(source, dict) else {}


def translated(error: Exception, who: str) -> RadixgenError:
    """An SDK's or HTTP client's error as one of ours."""
    status = getattr(error, "status_code", None)
    said = f"{who}: {error}"
    if status == 429:
        return Overloaded(said, _retry_after(getattr(error, "response", None)))
    if isinstance(status, int) and status in (400, 404, 409, 413, 422):
        return InvalidRequest(said)
    if isinstance(status, int) and status < 500:
        return ConfigError(said)  # the key, the account
    unreachable = any(word in type(error).__name__ for word in ("Connect", "Timeout", "Protocol"))
    return (
        RuntimeUnavailable(said) if isinstance(status, int) or unreachable else RadixgenError(said)
    )


def _retry_after(response: Any) -> float:
    headers: Mapping[str, str] = getattr(response, "headers", {})
    try:
        return max(float(headers.get("retry-after", 1.0)), 0.0)
    except ValueError:
        return 1.0


def refuse_broken(gen: Gen, text: str, finish: str | None, who: str) -> None:
    """Raises RadixgenError for an answer that was declined, cut before it was whole, or does not
    keep its constraint: what an API ignores is not passed on. An answer that a stop string may have
    ended is only looked at when it was cut."""
    if finish in ("content_filter", "refusal"):
        raise RadixgenError(f"{who} declined to answer ({finish})")
    cut = finish in ("length", "max_tokens")
    if gen.grammar is None or (stops(gen) and not cut) or is_kept(gen.grammar, text):
        return
    if cut:
        raise RadixgenError(
            f"{who} stopped at max_tokens={limit(gen)} before the answer met its constraint: give "
            "it more"
        )
    raise RadixgenError(f"{who} did not keep the constraint; it answered {shown(text)}")


class RefusedResponse(Exception):
    """A response with an error's status, in the shape of an SDK's error."""

    def __init__(self, response: Any) -> None:
        self.status_code, self.response = response.status_code, response
        super().__init__(f"{response.status_code}: {_said(response)}")


def _said(response: Any) -> str:
    try:
        body = response.json()
    except ValueError:
        return str(response.text[:500])
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
