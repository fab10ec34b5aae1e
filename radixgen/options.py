"""What callers may say of a request, typed in one place, and the checks made before it leaves."""

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from radixgen.errors import InvalidRequest, PromptTooLong
from radixgen.messages import MAX_RID_CHARS, Ready
from radixgen.types import (
    CacheHint,
    ConstrainedLaw,
    GrammarSpec,
    SamplingParams,
    Thinking,
    check_text,
    sampling_params,
    shown,
    unknown_name,
)

Prompt = str | list[int] | tuple[int, ...]
"""Text, or the ids of its tokens."""

LONG_IDS = 1000  # ids; more are looked through as one array

Prompts = list[str] | list[list[int]] | list[tuple[int, ...]] | list[Prompt]


class RequestOptions(TypedDict, total=False):
    """How a request is treated; but for `lora` none of it changes what comes out."""

    hint: CacheHint | None
    priority: int  # higher goes first
    namespace: str  # prefixes are shared within one namespace only
    client: str  # who to be fair between; the default is the connection
    rid: str  # the request's name, for `abort`
    lora: str  # the adapter to compute with, by its name in `Runtime(adapters=…)`; "": none


class GenerateOptions(RequestOptions, total=False):
    """`RequestOptions`, the constraint, and every field of SamplingParams by its name."""

    grammar: GrammarSpec | None
    thinking: Thinking | None
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    seed: int | None
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool
    grammar_mass: bool
    constrained_law: ConstrainedLaw
    token_healing: bool


_TYPES: dict[str, tuple[type, ...]] = {
    "hint": (CacheHint, type(None)),
    "grammar": (GrammarSpec, type(None)),
    "thinking": (Thinking, type(None)),
    "priority": (int,),
    "namespace": (str,),
    "client": (str,),
    "rid": (str,),
    "lora": (str,),
}
_WAYS_OUT = {
    "grammar": ': give radixgen.GrammarSpec("regex", "[0-9]+"), or "json_schema", "lark", …',
}
_SAMPLING = frozenset(f.name for f in fields(SamplingParams))


def split_options(
    sampling: SamplingParams | None, options: Mapping[str, Any]
) -> tuple[SamplingParams, dict[str, Any]]:
    """Sampling parameters, and the options of the request itself. Raises InvalidRequest."""
    request = {name: value for name, value in options.items() if name in _TYPES}
    params = {name: value for name, value in options.items() if name in _SAMPLING}
    for name in options.keys() - request.keys() - params.keys():
        message = unknown_name("option", name, {*_TYPES, *_SAMPLING, "stream"})
        raise InvalidRequest(message, name)
    check_request_options(request)
    return sampling_params(sampling, **params), request


def check_request_options(options: Mapping[str, Any]) -> None:
    """Names, types and text of the options that are not sampling parameters."""
    for name, value in options.items():
        wanted = _TYPES.get(name)
        if wanted is None:
            raise InvalidRequest(unknown_name("option", name, _TYPES), name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            message = f"{name}={shown(value)} is not of type {wanted[0].__name__}"
            raise InvalidRequest(message + _WAYS_OUT.get(name, ""), name)
        if isinstance(value, str):
            check_text(name, value)
    if not 0 < len(options.get("rid", "x")) <= MAX_RID_CHARS:
        raise InvalidRequest(f"rid has 1 to {MAX_RID_CHARS} characters", "rid")
    if not -(2**31) <= options.get("priority", 0) < 2**31:
        raise InvalidRequest("priority is not within 32 bits", "priority")


def token_ids(name: str, ids: Sequence[int]) -> "array[int]":
    """Ids as int32, as they are if they are that. Raises InvalidRequest for what is no id."""
    if isinstance(ids, array) and ids.typecode == "i":
        return ids
    try:
        return array("i", ids)
    except (TypeError, OverflowError):
        bad = next(i for i in ids if not isinstance(i, int) or not -(2**31) <= i < 2**31)
        message = f"{name} holds {shown(bad)}, which is neither text nor a token id"
        raise InvalidRequest(message, name) from None


def check_prompt(name: str, ids: "array[int]", ready: Ready, num_more: int) -> None:
    """Whether the model can take these ids, and `num_more` after them.

    Raises InvalidRequest for no ids and for one outside the vocabulary, PromptTooLong for too many.
    """
    if not ids:
        raise InvalidRequest(f"{name} is empty; give at least one token", name)
    low, high = _bounds(ids)
    if low < 0 or high >= ready.vocab_size:
        bad = low if low < 0 else high
        message = f"{name} holds token id {bad}; the vocabulary is 0 to {ready.vocab_size - 1}"
        raise InvalidRequest(message, name)
    check_length(name, len(ids), ready, num_more)


def _bounds(ids: "array[int]") -> tuple[int, int]:
    """The least and the largest."""
    if len(ids) < LONG_IDS:
        return min(ids), max(ids)
    import numpy as np  # a client of short prompts starts without it

    numbers = np.frombuffer(ids, dtype=np.intc)
    return int(numbers.min()), int(numbers.max())


def check_length(name: str, num_tokens: int, ready: Ready, num_more: int = 0) -> None:
    """Raises PromptTooLong when `num_tokens` (at least so many) and `num_more` do not fit."""
    limit = ready.max_context - num_more
    if num_tokens > limit:
        raise PromptTooLong(
            f"{name} has at least {num_tokens} tokens and {limit} fit the context of "
            f"{ready.max_context}; shorten it, or start the runtime with a larger max_context, "
            "num_pages or max_total_tokens, whichever is the limit",
            name,
        )


def check_adapter(name: str, known: Collection[str]) -> None:
    """Raises InvalidRequest for an adapter that the runtime does not have; "" is none."""
    if name and name not in known:
        have = ", ".join(map(repr, sorted(known))) or "none; start it with adapters={name: folder}"
        message = f"lora={shown(name)} is no adapter of this runtime; it has: {have}"
        raise InvalidRequest(message, "lora")


def check_in_vocabulary(sampling: SamplingParams, vocab_size: int) -> None:
    """Ids named by parameters. Raises InvalidRequest."""
    named = {
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": [token_id for token_id, _ in sampling.logit_bias],
    }
    for name, ids in named.items():
        if max(ids, default=0) >= vocab_size:
            message = (
                f"{name} names token id {shown(max(ids))}; the vocabulary is 0 to {vocab_size - 1}"
            )
            raise InvalidRequest(message, name)
