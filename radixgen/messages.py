"""What crosses between the frontend and the runtime process: frozen dataclasses, encode, decode.

A message is two ZMQ frames: JSON with a literal `kind`, and token ids as raw little-endian int32.
Nothing is pickled; a wrong type is refused on arrival.

The law: every message that carries a `rid` to the runtime is answered by any number of `StepOutput`
rows and then exactly one terminal message (`RequestFinished`, `RequestFailed`, `ScoreOutput`,
`Stats`, `Ack`).
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from radixgen.types import CacheHint, FinishReason, GrammarSpec, SamplingParams, TokenLogprob, Usage

# ---- to the runtime ----


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue the prompt in the ids frame, `sampling.n` times."""

    rid: str
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    hint: CacheHint | None = None
    priority: int = 0  # higher goes first
    namespace: str = ""  # prefixes are shared within one namespace only
    client: str = ""  # who to be fair between
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Log-probabilities of continuations of one prefix.

    The ids frame holds the prefix and then the continuations, whose lengths are given in order.
    """

    rid: str
    num_prefix_tokens: int
    lengths: tuple[int, ...]
    hint: CacheHint | None = None
    priority: int = 0
    namespace: str = ""
    client: str = ""
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Cancel `target`; both get their terminal message."""

    rid: str
    target: str
    kind: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True)
class FlushCache:
    rid: str
    kind: Literal["flush"] = "flush"


@dataclass(frozen=True, slots=True)
class GetStats:
    rid: str
    kind: Literal["get_stats"] = "get_stats"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop taking requests; `drain`: finish the running ones first."""

    rid: str
    drain: bool = True
    kind: Literal["shutdown"] = "shutdown"


# ---- to the frontend ----


@dataclass(frozen=True, slots=True)
class Ready:
    """The handshake: what the runtime serves."""

    model: str
    vocab_size: int
    max_context: int  # tokens
    num_pages: int
    page_size: int  # tokens
    pid: int
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class StepOutput:
    """New tokens of one step, in columns: one row a choice that advanced.

    `counts[i]` tokens of the ids frame belong to row i, in order. `finish_reasons[i]` is set on the
    last row of a choice.
    """

    rids: tuple[str, ...]
    indices: tuple[int, ...]
    counts: tuple[int, ...]
    finish_reasons: tuple[FinishReason | None, ...]
    stop_reasons: tuple[str | int | None, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()  # empty: nobody asked
    kind: Literal["step"] = "step"


@dataclass(frozen=True, slots=True)
class RequestFinished:
    rid: str
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """`code` is an exception's code in `radixgen.errors`."""

    rid: str
    code: str
    message: str
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    rid: str
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage
    kind: Literal["scored"] = "scored"


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and gauges by name; units are in the names (`_tokens`, `_pages`, `_seconds`)."""

    rid: str
    values: dict[str, float] = field(default_factory=dict)
    kind: Literal["stats"] = "stats"


@dataclass(frozen=True, slots=True)
class Ack:
    """`FlushCache`, `AbortRequest` or `Shutdown` is done."""

    rid: str
    kind: Literal["ack"] = "ack"


ToRuntime = GenerateRequest | ScoreRequest | AbortRequest | FlushCache | GetStats | Shutdown
ToFrontend = Ready | StepOutput | RequestFinished | RequestFailed | ScoreOutput | Stats | Ack

_TO_RUNTIME: TypeAdapter[ToRuntime] = TypeAdapter(Annotated[ToRuntime, Field(discriminator="kind")])
_TO_FRONTEND: TypeAdapter[ToFrontend] = TypeAdapter(
    Annotated[ToFrontend, Field(discriminator="kind")]
)
