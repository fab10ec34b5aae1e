"""What crosses between the frontend and the runtime process: frozen dataclasses, encode, decode.

A message is one or two ZMQ frames: JSON with a literal `kind`, and, where the message speaks of
tokens, their ids as raw little-endian int32. Nothing is pickled; a wrong type, an unknown field or
columns that do not agree are refused on arrival, and the refusal names the request if it can.

The law: every message that carries a `rid` to the runtime is answered by any number of `StepOutput`
rows and then exactly one terminal message (`RequestFinished`, `RequestFailed`, `ScoreOutput`,
`Stats`, `CacheTree`, `Ack`, `Ready`).
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.types import (
    WIRE,
    CacheHint,
    FinishReason,
    GrammarSpec,
    SamplingParams,
    Thinking,
    TokenLogprob,
    Usage,
)

MAX_RID_CHARS = 256
MAX_JSON_BYTES = 32 << 20  # grammars are the only large thing in a JSON frame
MAX_IDS_BYTES = 64 << 20  # 16 million tokens

# ---- to the runtime ----


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a client; answered with `Ready`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue the prompt in the ids frame, `sampling.n` times."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    hint: CacheHint | None = None
    priority: int = 0  # higher goes first
    namespace: str = ""  # prefixes are shared within one namespace only
    client: str = ""  # who to be fair between
    thinking: Thinking | None = None
    healed: str = ""  # bytes, as Latin-1, that the output is to begin with; no part of its text
    lora: str = ""  # the adapter to compute with; "": none
    kind: Literal["generate"] = "generate"

    def __post_init__(self) -> None:
        """A budget of nothing is no thoughts, however it was spelled."""
        if self.thinking is not None and self.thinking.budget == 0:
            object.__setattr__(self, "thinking", None)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Log-probabilities of continuations of one prefix.

    The ids frame holds the prefix and then the continuations, whose lengths are given in order.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    num_prefix_tokens: int
    lengths: tuple[int, ...]
    hint: CacheHint | None = None
    priority: int = 0
    namespace: str = ""
    client: str = ""
    lora: str = ""
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Cancel `target`; both get their terminal message."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    target: str
    kind: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True)
class FlushCache:
    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    kind: Literal["flush"] = "flush"


@dataclass(frozen=True, slots=True)
class GetStats:
    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    kind: Literal["get_stats"] = "get_stats"


@dataclass(frozen=True, slots=True)
class GetCacheTree:
    """Describe the radix tree: its largest nodes, with the first tokens of each edge."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    max_nodes: int
    max_preview: int  # tokens
    kind: Literal["get_cache_tree"] = "get_cache_tree"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop taking requests; `drain`: finish the running ones first."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    drain: bool = True
    kind: Literal["shutdown"] = "shutdown"


# ---- to the frontend ----


@dataclass(frozen=True, slots=True)
class Ready:
    """The handshake: what the runtime serves."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    model: str
    vocab_size: int
    max_context: int  # tokens
    num_pages: int
    page_size: int  # tokens
    pid: int
    forms: str = ""  # in which numbers it computes, for people
    adapters: tuple[str, ...] = ()  # that a request's `lora` may name
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class StepOutput:
    """New tokens of one step, in columns: one row a choice that advanced.

    `counts[i]` tokens of the ids frame belong to row i, in order. `finish_reasons[i]` is set on the
    last row of a choice, `cached_tokens[i]` on its first: tokens of the prompt found in the tree.
    The first `num_thoughts[i]` tokens of a row are thoughts.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rids: tuple[str, ...]
    indices: tuple[int, ...]
    counts: tuple[int, ...]
    finish_reasons: tuple[FinishReason | None, ...]
    stop_reasons: tuple[str | int | None, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()  # empty: nobody asked
    grammar_masses: tuple[tuple[float, ...], ...] = ()  # likewise
    cached_tokens: tuple[int | None, ...] = ()  # empty: no choice begins here
    num_thoughts: tuple[int, ...] = ()  # empty: none are
    kind: Literal["step"] = "step"


@dataclass(frozen=True, slots=True)
class RequestFinished:
    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """`code` is an exception's code in `radixgen.errors`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    code: str
    message: str
    param: str | None = None  # the argument at fault
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage
    kind: Literal["scored"] = "scored"


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and gauges by name; units are in the names (`_tokens`, `_pages`, `_seconds`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    values: dict[str, float] = field(default_factory=dict)
    kind: Literal["stats"] = "stats"


@dataclass(frozen=True, slots=True)
class CacheNode:
    """An edge of the radix tree. `parent`: its place among the nodes of the answer; -1: a root.

    `hits`: requests that computed or used it. `idle`: uses of the tree since its own last one.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    parent: int
    namespace: str  # a digest; "": the one that is shared by all
    num_tokens: int
    num_locks: int
    hits: int
    idle: int
    nodes_below: int
    tokens_below: int
    preview: tuple[int, ...]  # its first token ids


@dataclass(frozen=True, slots=True)
class CacheTree:
    """Parents before children; those that are left out have the fewest tokens."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    nodes: tuple[CacheNode, ...]
    kind: Literal["cache_tree"] = "cache_tree"


@dataclass(frozen=True, slots=True)
class Ack:
    """`FlushCache`, `AbortRequest` or `Shutdown` is done."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    rid: str
    kind: Literal["ack"] = "ack"


Control = Hello | AbortRequest | FlushCache | GetStats | GetCacheTree
ToRuntime = GenerateRequest | ScoreRequest | Control | Shutdown
Terminal = Ready | RequestFinished | RequestFailed | ScoreOutput | Stats | CacheTree | Ack
ToFrontend = Terminal | StepOutput

_TO_RUNTIME: TypeAdapter[ToRuntime] = TypeAdapter(Annotated[ToRuntime, Field(discriminator="kind")])
_TO_FRONTEND: TypeAdapter[ToFrontend] = TypeAdapter(
    Annotated[ToFrontend, Field(discriminator="kind")]
)
_WITH_IDS = (GenerateRequest, ScoreRequest, StepOutput)

_Message = TypeVar("_Message", bound=ToRuntime | ToFrontend)


class DecodeError(Exception):
    """Frames that are no message. `rid` is the request they speak of, if that can be read."""

    def __init__(self, error: RadixgenError, rid: str | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.rid = rid


def encode(message: ToRuntime | ToFrontend, ids: Sequence[int] | None = None) -> list[bytes]:
    """The frames of a message: JSON, and `ids` when it is of a kind that carries them.

    Raises InvalidRequest for an id outside int32 and for text that UTF-8 cannot hold.
    """
    try:
        header = to_json(message, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        raise InvalidRequest(f"the {message.kind} request cannot be encoded: {error}") from None
    if not isinstance(message, _WITH_IDS):
        return [header]
    return [header, _ids_to_bytes(() if ids is None else ids)]


def decode_to_runtime(frames: Sequence[bytes]) -> tuple[ToRuntime, "array[int]"]:
    """A message for the runtime and its ids. Raises DecodeError, and nothing else."""
    message, ids = _decode(_TO_RUNTIME, frames)
    if isinstance(message, ScoreRequest):
        wanted = message.num_prefix_tokens + sum(message.lengths)
        if min((message.num_prefix_tokens, *message.lengths)) < 0 or wanted != len(ids):
            raise _refused(f"lengths add up to {wanted} of {len(ids)} ids", message.rid)
    return message, ids


def decode_to_frontend(frames: Sequence[bytes]) -> tuple[ToFrontend, "array[int]"]:
    """A message for the frontend and its ids. Raises DecodeError, and nothing else."""
    message, ids = _decode(_TO_FRONTEND, frames)
    if isinstance(message, StepOutput):
        _check_columns(message, len(ids))
    return message, ids


def _decode(
    adapter: TypeAdapter[_Message], frames: Sequence[bytes]
) -> tuple[_Message, "array[int]"]:
    if not 1 <= len(frames) <= 2:
        raise _refused(f"{len(frames)} frames, a message has one or two")
    header = frames[0]
    if len(header) > MAX_JSON_BYTES:
        raise _refused(f"a JSON frame of {len(header)} bytes, at most {MAX_JSON_BYTES}")
    try:
        message = adapter.validate_json(header)
    except ValidationError as error:
        raise DecodeError(_explain(error), _read_rid(header)) from None
    rid = getattr(message, "rid", None)
    if rid is not None and not 0 < len(rid) <= MAX_RID_CHARS:
        raise _refused(f"a rid of {len(rid)} characters, 1 to {MAX_RID_CHARS}", None, "rid")
    if isinstance(message, _WITH_IDS) != (len(frames) == 2):
        raise _refused(f"{len(frames)} frames for a message of kind {message.kind}", rid)
    return message, _bytes_to_ids(frames[1], rid) if len(frames) == 2 else array("i")


def _ids_to_bytes(ids: Sequence[int]) -> bytes:
    try:
        raw = array("i", ids)
    except (OverflowError, TypeError):
        bad = next(i for i in ids if not isinstance(i, int) or not -(2**31) <= i < 2**31)
        raise InvalidRequest(f"{bad!r} is not a token id", "token_ids") from None
    if sys.byteorder == "big":
        raw.byteswap()
    return raw.tobytes()


def _bytes_to_ids(frame: bytes, rid: str | None) -> "array[int]":
    if len(frame) % 4 or len(frame) > MAX_IDS_BYTES:
        raise _refused(
            f"an ids frame of {len(frame)} bytes, a multiple of 4 up to {MAX_IDS_BYTES}", rid
        )
    ids = array("i")
    ids.frombytes(frame)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def _check_columns(message: StepOutput, num_ids: int) -> None:
    rows = len(message.rids)
    columns = (message.indices, message.counts, message.finish_reasons, message.stop_reasons)
    if any(len(column) != rows for column in columns):
        raise _refused("columns of a step output differ in length")
    optional = (message.logprobs, message.grammar_masses, message.cached_tokens)
    if any(len(column) not in (0, rows) for column in optional):
        raise _refused("a column of a step output has another length")
    if min(message.counts, default=0) < 0 or sum(message.counts) != num_ids:
        raise _refused(f"counts of a step output do not add up to its {num_ids} ids")


def _refused(reason: str, rid: str | None = None, param: str | None = None) -> DecodeError:
    return DecodeError(InvalidRequest(f"malformed message: {reason}", param), rid)


def _explain(error: ValidationError) -> RadixgenError:
    """The first fault: our own exception if a type raised one, else where it is and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RadixgenError):
        return cause
    path = [str(part) for part in first["loc"][1:]]  # the first part is the kind
    where = f" at {'.'.join(path)}" if path else ""
    param = path[-1] if path else None
    return InvalidRequest(f"malformed message{where}: {first['msg']}", param)


def _read_rid(header: bytes) -> str | None:
    """The rid of a message that is refused; None when it cannot be read or answered to."""
    try:
        value = from_json(header)
    except ValueError:
        return None
    rid = value.get("rid") if isinstance(value, dict) else None
    return rid if isinstance(rid, str) and 0 < len(rid) <= MAX_RID_CHARS else None
