"""What users and messages speak of: sampling, constraints, hints, results. Knows no model."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from radixgen.errors import InvalidRequest

GrammarKind = Literal["json_schema", "regex", "lark", "gbnf", "choice", "structural_tag"]
OptionValue = str | int | float | bool | None


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"  # end token, stop string, stop token, or a grammar that is complete
    LENGTH = "length"  # max_tokens or the context is used up
    ABORT = "abort"  # cancelled by the caller, or the runtime is shutting down
    ERROR = "error"  # the request failed; the message says why


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint on the output. Hashable: the key of every cache of grammars.

    `source` is the schema as JSON text, the regex, the grammar text, or for `choice` a JSON list of
    strings. `options` are (name, value) pairs sorted by name, understood by the kind's front end.
    """

    kind: GrammarKind
    source: str
    options: tuple[tuple[str, OptionValue], ...] = ()


@dataclass(frozen=True, slots=True)
class CacheHint:
    """What a program knows about the future of a request's KV pages. Hints never change results.

    `last_use`: nothing will continue this sequence. `forks`: how many requests will soon share it.
    `tool_seconds`: expected pause before the continuation. `program`: groups a program's requests.
    """

    program: str = ""
    last_use: bool = False
    forks: int = 0
    tool_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop; field names and meanings as in the OpenAI and vLLM APIs.

    Raises InvalidRequest, naming the parameter, for any value out of range (NaN included).
    """

    max_tokens: int | None = None  # None: until the context is full
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # None: drawn by the client
    n: int = 1
    logprobs: int | None = None  # None: off; k: the sampled token's and the top k
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            _check_range(name, getattr(self, name), low, high)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}", "min_tokens"
            )
        if any(not text for text in self.stop):
            raise InvalidRequest("stop holds an empty string, which would stop at once", "stop")
        if any(not math.isfinite(bias) or abs(bias) > 100 for _, bias in self.logit_bias):
            raise InvalidRequest("logit_bias values must be within -100 and 100", "logit_bias")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("temperature", 0.0, 100.0),
    ("top_p", 1e-9, 1.0),
    ("top_k", 0, 2**31 - 1),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-3, 100.0),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("seed", 0, 2**64 - 1),
    ("n", 1, 1024),
    ("logprobs", 0, 100),
    ("prompt_logprobs", 0, 100),
)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name}={value!r} is not a number", name)
    if not low <= value <= high:  # NaN compares false
        raise InvalidRequest(f"{name}={value} is not between {low:g} and {high:g}", name)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural log) of one token, with the most probable ones in falling order."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost, in tokens and seconds."""

    prompt_tokens: int
    cached_tokens: int  # prompt tokens whose KV came from the radix tree
    completion_tokens: int  # over all choices
    queue_seconds: float = 0.0  # arrival to first scheduled
    first_token_seconds: float = 0.0  # arrival to first token
    total_seconds: float = 0.0  # arrival to the terminal message


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation of a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or token id that ended it
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """A finished request. `text`, `token_ids` and `finish_reason` are those of the first choice."""

    rid: str
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Log-probabilities of given continuations of one prefix, one tuple a continuation."""

    rid: str
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))
