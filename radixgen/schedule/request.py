"""A request and its sequences as the scheduler sees them: tokens known, tokens computed, pages.

    tokens     |---------------- prompt ----------------|--- outputs ---|
    computed   |------------------------------>                  (the rest catches up, step by step)
    page_ids   |-- in the tree, locked --|-- held --|

Only the scheduler writes these. Knows messages and pages' ids; no cache, no model, no sockets.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from radixgen.cache.node import Node
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished, ScoreOutput
from radixgen.messages import ScoreRequest as ScoreMessage
from radixgen.schedule.law import Law, LawFactory
from radixgen.types import CacheHint, FinishReason, SamplingParams, Thinking, TokenLogprob


class GrammarMatcher(Protocol):
    """The state of one sequence under its constraint."""

    @property
    def error(self) -> str | None:
        """Why the constraint cannot be followed any further, or None."""
        ...

    def accept_token(self, token_id: int, /) -> bool: ...
    def fill_bitmask(self, bitmask: Any, row: int, budget: int | None = None) -> None: ...
    def fork(self) -> "GrammarMatcher": ...
    def is_finished(self) -> bool:
        """Whether the text is over: ended, or complete with nothing that may follow."""
        ...


class Drafter(Protocol):
    """Guesses what follows in any sequence. What it guesses changes the number of steps only."""

    def propose(self, sequence: "SequenceState", limit: int, num_rows: int) -> Sequence[int]:
        """At most `limit` tokens; `num_rows`: sequences in the step."""
        ...

    def pays(self, sequences: Sequence["SequenceState"], num_rows: int) -> bool:
        """Whether what was proposed last for these is worth its rows, taken together."""
        ...

    def foresees(self, sequence: "SequenceState", limit: int, num_rows: int) -> bool:
        """Whether there will be guesses once the next token is known, worth waiting for it."""
        ...

    def jump(self, sequence: "SequenceState", limit: int) -> Sequence[int]:
        """At most `limit` tokens to be taken unverified, if that was asked for."""
        ...

    def learn(self, sequence: "SequenceState", drafts: Sequence[int], num_accepted: int) -> None:
        """What became of the tokens proposed last, or of the first of them."""
        ...


MatcherFactory = Callable[[], GrammarMatcher]
StopWatch = Callable[[int, bool], str | None]
"""Takes each output token in turn; returns the stop string that is now complete, if one is."""
StopFactory = Callable[[SamplingParams, int], StopWatch]
"""For a request with stop strings, and bytes at the beginning of its output that are no part of the
text. They match only from min_tokens on, in the text that skip_special_tokens leaves, so that both
sides of the wire agree."""
Propose = Callable[[Sequence[int], int], Sequence[int]]
"""(known tokens, limit) -> at most `limit` guesses of what follows."""


class Status(StrEnum):
    """Where a sequence is. One that waits for its grammar is not looked at by the scheduler."""

    WAITING_FOR_GRAMMAR = "waiting_for_grammar"
    WAITING = "waiting"
    HELD = "held"  # a twin computes the prefix it is about to need
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """New tokens of one choice; `finish_reason` is set on its last, `cached_tokens` on its first:
    tokens of the prompt that came from the tree."""

    rid: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    grammar_masses: tuple[float, ...] = ()
    cached_tokens: int | None = None
    num_thoughts: int = 0  # of the tokens, the first ones, that are thoughts


Event = SequenceOutput | RequestFinished | RequestFailed | ScoreOutput


@dataclass(frozen=True, slots=True)
class ThoughtRules:
    """Of free text before the constrained one: at most `budget` tokens, and so few that an answer
    of `answer_tokens` still fits."""

    make_matcher: MatcherFactory
    budget: int
    answer_tokens: int


def model_namespace(namespace: str, lora: str) -> str:
    """Where prefixes are shared: within a namespace and, since KV is the adapter's, an adapter.

    No two pairs share one; a namespace without an adapter is itself, but for one that begins as
    those of adapters do.
    """
    if not lora and not namespace.startswith(_OF_ADAPTER):
        return namespace
    return f"{_OF_ADAPTER}{lora}{_OF_ADAPTER}{namespace}"


_OF_ADAPTER = "\0"  # which no adapter's name holds


@dataclass(slots=True, eq=False)
class Request:
    """What was asked for, and when. Build it with `from_generate` or `from_score`.

    `continuations` is set for scoring: sequence i is prompt_ids + continuations[i], and nothing is
    sampled. `make_matcher` gives one matcher a sequence; with `waiting_for_grammar` it comes later,
    through `Scheduler.grammar_ready`.
    """

    rid: str
    prompt_ids: "array[int]"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    namespace: str = ""
    client: str = ""
    hint: CacheHint | None = None
    thinking: Thinking | None = None
    continuations: "tuple[array[int], ...] | None" = None
    waiting_for_grammar: bool = False
    make_matcher: MatcherFactory | None = None
    make_law: LawFactory | None = None
    thoughts: "ThoughtRules | None" = None  # of the text before the constrained one
    propose: Propose | None = None
    num_healed: int = 0  # bytes at the beginning of the output that are no part of its text
    lora: str = ""  # the adapter that its tokens are computed with; "": none

    # the scheduler's
    order: int = 0  # of arrival
    arrival: float = 0.0  # seconds on the scheduler's clock, like those below
    first_scheduled: float | None = None
    first_token: float | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    seed: int = 0
    forked: bool = False
    sequences: "list[SequenceState]" = field(default_factory=list)
    open_choices: set[int] = field(default_factory=set)  # without a finish reason, or not begun

    @classmethod
    def from_generate(cls, message: GenerateRequest, prompt_ids: Sequence[int]) -> "Request":
        return cls(
            message.rid,
            array("i", prompt_ids),
            message.sampling,
            message.priority,
            model_namespace(message.namespace, message.lora),
            message.client,
            message.hint,
            message.thinking,
            waiting_for_grammar=message.grammar is not None or message.thinking is not None,
            lora=message.lora,
        )

    @classmethod
    def from_score(cls, message: ScoreMessage, token_ids: Sequence[int]) -> "Request":
        """`token_ids`: the prefix and then the continuations, as in the message's ids frame."""
        ids = array("i", token_ids)
        start, continuations = message.num_prefix_tokens, []
        for length in message.lengths:
            continuations.append(ids[start : start + length])
            start += length
        return cls(
            message.rid,
            ids[: message.num_prefix_tokens],
            SamplingParams(n=1),
            message.priority,
            model_namespace(message.namespace, message.lora),
            message.client,
            message.hint,
            continuations=tuple(continuations),
            lora=message.lora,
        )

    @property
    def is_hinted(self) -> bool:
        """Whether its hint says anything of the future."""
        hint = self.hint
        return hint is not None and bool(hint.last_use or hint.forks or hint.tool_seconds)

    @property
    def num_choices(self) -> int:
        return self.sampling.n if self.continuations is None else len(self.continuations)


@dataclass(slots=True)
class HeldOutput:
    """What belongs to output tokens that may still be taken back."""

    logprobs: list[TokenLogprob] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SequenceState:
    """One choice of a request: what is known of it, and how much of that is computed."""

    request: Request
    index: int
    tokens: "array[int]"  # known
    num_given: int  # of them, not sampled by us
    seed: int
    matcher: GrammarMatcher | None = None
    is_thinking: bool = False  # `matcher` is that of the text before the constrained one
    answer: GrammarMatcher | None = None  # meanwhile the matcher of the constrained one
    num_thoughts: int = 0  # output tokens that are thoughts
    law: Law | None = None  # with one, tokens are told when the choice is over, not before
    stop_watch: StopWatch | None = None
    status: Status = Status.WAITING
    outputs: "array[int]" = field(default_factory=lambda: array("i"))
    held: "HeldOutput" = field(default_factory=lambda: HeldOutput())
    given_logprobs: list[TokenLogprob] = field(default_factory=list)
    given_from: int | None = None  # first position whose log-probability is wanted
    drafting: object = None  # what the drafter remembers of this sequence

    # pages
    num_computed: int = 0
    page_ids: list[int] = field(default_factory=list)
    num_tree_pages: int = 0  # the first of page_ids, owned by the tree and locked through `node`
    node: Node | None = None
    plain_ids: list[int] = field(default_factory=list)
    """Where pages are of few bits: the plain ones of the last of page_ids, which are not full."""

    # the queue's
    num_preemptions: int = 0
    matched: int = 0  # tokens believed to be in the tree
    ticket: int = 0  # names the one entry of a queue that is still true

    def begin_again(self, attempt: int) -> None:
        """Forget the output; the draws of each attempt are others."""
        del self.tokens[self.num_given :]
        self.outputs = array("i")
        self.held = HeldOutput()
        self.seed = (self.seed + attempt * 0x9E3779B97F4A7C15) % 2**64

    @property
    def is_scored(self) -> bool:
        return self.request.continuations is not None

    @property
    def num_known(self) -> int:
        return len(self.tokens)

    @property
    def num_left(self) -> int:
        """Known tokens still to be computed. A scored sequence's last token predicts nothing."""
        return len(self.tokens) - self.num_computed - self.is_scored

    @property
    def is_decoding(self) -> bool:
        return len(self.outputs) > 0 and self.num_left == 1

    @property
    def next_given(self) -> int | None:
        """The first position whose wanted log-probability has not come yet."""
        if self.given_from is None:
            return None
        position = self.given_from + len(self.given_logprobs)
        return position if position < self.num_given else None

    @property
    def max_match(self) -> int:
        """The last known token is computed again, since its logits are not kept; so is whatever
        a wanted log-probability needs."""
        wanted = self.next_given
        return min(len(self.tokens), len(self.tokens) if wanted is None else wanted) - 1
