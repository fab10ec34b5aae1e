"""What users and messages speak of: sampling, constraints, hints, results. Knows no model."""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, get_args

from radixgen.errors import InvalidRequest

# Read by pydantic where these types cross the wire: no unknown field, no silent conversion.
WIRE: dict[str, Any] = {"extra": "forbid", "strict": True}

GrammarKind = Literal["json_schema", "regex", "lark", "gbnf", "choice", "structural_tag"]
OptionValue = str | int | float | bool | None
_GRAMMAR_KINDS: tuple[str, ...] = get_args(GrammarKind)
ConstrainedLaw = Literal["masked", "faithful"]
"""What a constrained output is drawn from. `masked`: tokens are forbidden one by one, which prefers
texts that begin likely and go on unlikely. `faithful`: the model's own law, given that the text
obeys; it is told when it is complete (`abort` or a time limit leaves it), and depends on what was
drawn under the constraint before."""
_LAWS: tuple[str, ...] = get_args(ConstrainedLaw)


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

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    kind: GrammarKind
    source: str
    options: tuple[tuple[str, OptionValue], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _GRAMMAR_KINDS:
            known = ", ".join(_GRAMMAR_KINDS)
            raise InvalidRequest(f"grammar kind={shown(self.kind)} is none of {known}", "grammar")
        given: Any = self  # what the types say, callers need not have kept
        if not isinstance(given.source, str):
            text = f"grammar source={shown(given.source)} is not text; a schema is JSON text here"
            raise InvalidRequest(text, "grammar")
        check_text("grammar", given.source)
        options: Any = given.options if isinstance(given.options, tuple) else (None,)
        if options and not (all(map(_is_option, options)) and len(dict(options)) == len(options)):
            text = f"grammar options={shown(given.options)} is no tuple of pairs, each name once"
            raise InvalidRequest(text, "grammar")


def _is_option(pair: object) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    name, value = pair
    return isinstance(name, str) and isinstance(value, str | int | float | bool | None)


@dataclass(frozen=True, slots=True)
class CacheHint:
    """What a program knows about the future of a request's KV pages. Hints never change results.

    `last_use`: nothing will continue this sequence. `forks`: how many requests will soon share it.
    `tool_seconds`: expected pause before the continuation. `program`: groups a program's requests.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE

    program: str = ""
    last_use: bool = False
    forks: int = 0
    tool_seconds: float = 0.0

    def __post_init__(self) -> None:
        program: Any = self.program
        if not isinstance(program, str) or not isinstance(self.last_use, bool):
            message = f"hint={shown(self)} needs a text as program and True or False as last_use"
            raise InvalidRequest(message, "hint")
        check_text("hint", self.program)
        _check_range("forks", self.forks, int, 0, 2**31 - 1, param="hint")
        _check_range("tool_seconds", self.tool_seconds, float, 0.0, 1e9, param="hint")


@dataclass(frozen=True, slots=True)
class Thinking:
    """Free text before the answer, which a constraint leaves alone.

    The output begins with `begin` (if the prompt does not end with it already) and any text up to
    `end`; within `budget` tokens, `begin` and `end` among them, the text is brought to its end.
    Then comes the answer, under the request's constraint if it has one. What stops an output (stop
    strings, stop tokens) is looked for in the answer only, strings from its first non-blank on.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE

    budget: int  # tokens; 0: no thoughts, as without a Thinking
    begin: str = ""
    end: str = "</think>"

    def __post_init__(self) -> None:
        _check_range("budget", self.budget, int, 0, 2**31 - 1, param="thinking")
        for name in ("begin", "end"):
            value: Any = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_STOP_CHARS:
                limit = f"a text of at most {MAX_STOP_CHARS} characters"
                message = f"thinking {name}={shown(value)} is not {limit}"
                raise InvalidRequest(message, "thinking")
            check_text("thinking", value)
        if not self.end:
            raise InvalidRequest("thinking end is empty, so the thoughts would be too", "thinking")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop; names and meanings as in the OpenAI API and vLLM.

    With `constrained_law="faithful"` what a request draws depends on its seed and on what was
    learnt from earlier draws under the same constraint: the same seed may give another text.
    Raises InvalidRequest, naming the parameter, for any value out of range (NaN included).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE

    max_tokens: int | None = None  # None: until the context is full
    min_tokens: int = 0
    temperature: float = 1.0  # below LEAST_TEMPERATURE: greedy, and taken as 0
    top_p: float = 1.0  # below LEAST_TOP_P: taken as that, the likeliest token alone
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
    grammar_mass: bool = False  # report the probability that the constraint leaves, a token
    constrained_law: ConstrainedLaw = "masked"
    token_healing: bool = False  # draw the prompt's last tokens again if a longer one begins so

    def __post_init__(self) -> None:
        self._normalise()
        for name, kind, low, high in RANGES:
            _check_range(name, getattr(self, name), kind, low, high)
        if self.temperature < LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        if self.top_p < LEAST_TOP_P:
            object.__setattr__(self, "top_p", LEAST_TOP_P)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(
                    f"{name}={shown(getattr(self, name))} is not True or False", name
                )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}", "min_tokens"
            )
        self._check_law()
        _check_stops(self.stop)
        _check_token_ids("stop_token_ids", self.stop_token_ids)
        _check_bias(self.logit_bias)

    def _check_law(self) -> None:
        if self.constrained_law not in _LAWS:
            message = f"constrained_law={shown(self.constrained_law)} is none of masked, faithful"
            raise InvalidRequest(message, "constrained_law")
        cut = self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0
        if self.is_faithful and (cut or self.temperature == 0):
            message = (
                "constrained_law='faithful' draws from the model's whole law: it goes with a "
                "temperature above 0 and without top_p, top_k and min_p"
            )
            raise InvalidRequest(message, "constrained_law")

    @property
    def is_faithful(self) -> bool:
        return self.constrained_law == "faithful"

    def _normalise(self) -> None:
        """Lists, sets, one string and a mapping of biases become the tuples that are declared."""
        given: Any = self.stop
        given = () if given is None else given  # as the OpenAI API spells none
        stop = (given,) if isinstance(given, str) else _tuple("stop", given)
        object.__setattr__(self, "stop", stop)
        ids = _tuple("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)
        bias: Any = self.logit_bias
        pairs = bias.items() if isinstance(bias, Mapping) else _tuple("logit_bias", bias)
        try:
            pairs = tuple((token_id, value) for token_id, value in pairs)
        except (TypeError, ValueError):
            message = f"logit_bias={shown(bias)} is not a mapping of token id to bias"
            raise InvalidRequest(message, "logit_bias") from None
        object.__setattr__(self, "logit_bias", pairs)


def sampling_params(base: SamplingParams | None = None, **params: Any) -> SamplingParams:
    """`base`, or the defaults, with the given parameters replaced.

    Raises InvalidRequest for a name that SamplingParams does not have, with the nearest one.
    """
    if base is not None and not isinstance(base, SamplingParams):
        raise InvalidRequest(f"sampling={shown(base)} is not a SamplingParams", "sampling")
    if not params:
        return base or SamplingParams()
    known = [f.name for f in dataclasses.fields(SamplingParams)]
    for name in params:
        if name not in known:
            raise InvalidRequest(unknown_name("sampling parameter", name, known), name)
    return dataclasses.replace(base or SamplingParams(), **params)


MAX_ADAPTER_CHARS = 256  # of the name of an adapter
MAX_SHOWN = 80  # characters of a caller's value in a message


def shown(value: object) -> str:
    """A value for a message: its repr, cut when it is long; its type when it has no repr."""
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits, or a caller's own class
        return f"<a value of type {type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """A message for a name nobody declared: the nearest one, else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(names)}"
    return f"there is no {what} {shown(name)}; {hint}"


LEAST_TEMPERATURE = 1e-5  # the law of less is greedy but for exact ties, and ends in 0 / 0
LEAST_TOP_P = 1e-9  # above 0, so that a token is left; the likeliest has more
MAX_STOPS = 64  # stop strings or stop token ids of one request
MAX_STOP_CHARS = 1000  # of one stop string

RANGES: tuple[tuple[str, type, float, float], ...] = (
    ("max_tokens", int, 0, 2**31 - 1),
    ("min_tokens", int, 0, 2**31 - 1),
    ("temperature", float, 0, 100),
    ("top_p", float, 0, 1),
    ("top_k", int, 0, 2**31 - 1),
    ("min_p", float, 0, 1),
    ("repetition_penalty", float, 1e-3, 100),
    ("frequency_penalty", float, -2, 2),
    ("presence_penalty", float, -2, 2),
    ("seed", int, 0, 2**64 - 1),
    ("n", int, 1, 1024),
    ("logprobs", int, 0, 100),
    ("prompt_logprobs", int, 0, 100),
)
_FLAGS = ("ignore_eos", "skip_special_tokens", "grammar_mass", "token_healing")
_OPTIONAL = frozenset({"max_tokens", "seed", "logprobs", "prompt_logprobs"})


def _check_range(
    name: str, value: Any, kind: type, low: float, high: float, param: str = ""
) -> None:
    param = param or name
    if value is None and name in _OPTIONAL:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name}={shown(value)} is not a number", param)
    if kind is int and not isinstance(value, int):
        raise InvalidRequest(f"{name}={shown(value)} is not a whole number", param)
    if not low <= value <= high:  # NaN compares false
        raise InvalidRequest(f"{name}={shown(value)} is not between {low} and {high}", param)


def _tuple(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{name}={shown(values)} is not a list", name)
    return tuple(values)


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop holds {len(stops)} strings, at most {MAX_STOPS}", "stop")
    for stop in stops:
        if not isinstance(stop, str):
            raise InvalidRequest(f"stop holds {shown(stop)}, which is not a string", "stop")
        if not stop:
            raise InvalidRequest("stop holds an empty string, which would stop at once", "stop")
        if len(stop) > MAX_STOP_CHARS:
            message = f"stop holds a string of {len(stop)} characters, at most {MAX_STOP_CHARS}"
            raise InvalidRequest(message, "stop")
        check_text("stop", stop)


def _check_token_ids(name: str, token_ids: tuple[int, ...]) -> None:
    if len(token_ids) > MAX_STOPS:
        raise InvalidRequest(f"{name} holds {len(token_ids)} ids, at most {MAX_STOPS}", name)
    for token_id in token_ids:
        _check_token_id(name, token_id)


def _check_token_id(name: str, token_id: Any) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
        raise InvalidRequest(f"{name} holds {shown(token_id)}, which is not a token id", name)


def _check_bias(pairs: tuple[tuple[int, float], ...]) -> None:
    for token_id, bias in pairs:
        _check_token_id("logit_bias", token_id)
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not number or not -100 <= bias <= 100:  # NaN compares false
            message = f"logit_bias of token {token_id} is {shown(bias)}, not within -100 and 100"
            raise InvalidRequest(message, "logit_bias")


def check_text(name: str, text: str) -> None:
    """Raises InvalidRequest when `text` holds a lone surrogate, which is no character in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = (
            f"{name} holds a lone surrogate (U+{ord(text[error.start]):04X} at character "
            f"{error.start}), which no encoding of text allows; replace or remove it"
        )
        raise InvalidRequest(message, name) from None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural log) of one token, with the most probable ones in falling order."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost, in tokens and seconds."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE

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
    grammar_masses: tuple[float, ...] = ()  # with `grammar_mass`: a token's, in [0, 1]
    thoughts: str = ""  # with `thinking`: the text before `text`, without its tags
    num_thought_tokens: int = 0  # the first of `token_ids`, tags included

    @property
    def grammar_mass(self) -> float:
        """The product of `grammar_masses`: how much of the model's own law the constraint left on
        the way to this text. Near 1: the model would have obeyed by itself. 1.0 if not asked for.
        """
        return math.prod(self.grammar_masses[self.num_thought_tokens :])


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
    def thoughts(self) -> str:
        return self.choices[0].thoughts

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice gained in a stream. `text` is whole characters; pieces join to the text.

    `prompt` is the position of the prompt in the list given to `generate`. The last piece of a
    choice has a `finish_reason`; the last piece of a prompt holds its `result` and may be empty.
    The first piece of a choice says how many `cached_tokens` of the prompt came from the tree.
    """

    rid: str
    prompt: int
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    grammar_masses: tuple[float, ...] = ()
    cached_tokens: int | None = None
    result: GenerateResult | None = None
    thoughts: str = ""  # with `thinking`: of the text before `text`, without its tags
    num_thought_tokens: int = 0  # the first of `token_ids`


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Log-probabilities of given continuations of one prefix, one tuple a continuation."""

    rid: str
    logprobs: tuple[tuple[float, ...], ...]  # natural log, one a token of the continuation
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))

    @property
    def totals(self) -> tuple[float, ...]:
        """The log-probability of each continuation as a whole."""
        return tuple(math.fsum(row) for row in self.logprobs)
