"""One step's plan and its result: what the scheduler says to the model runner, and back.

Plain ints and lists, no tensors and no device. A *sequence* is one choice of one request, named by
(rid, index). A step computes, for each row, the tokens at positions start .. start +
len(token_ids) - 1:

    position   0            start                       start + len(token_ids)
               |  computed  |  token_ids: computed now  |  (next token: sampled if `sample`)
               |  KV in page_ids, page_size tokens a page, in order                      |

Prefill chunks, cached prefixes, decodes, drafts and recomputation after preemption are all this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from radixgen.types import SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the KV of the first `num_tokens` tokens of page `source` into page `target`.

    Where pages are of few bits, both are plain ones (see ScheduledRow.plain_ids).
    """

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TokenMass:
    """Of a draw, in the law without mask (after temperature, bias and penalties).

    `legal`: the probability of all tokens that the mask allows. `own`: of the token drawn.
    """

    legal: float
    own: float


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One sequence's share of a step. The runner reads it and keeps no reference after the step."""

    rid: str
    index: int
    token_ids: Sequence[int]
    start: int
    page_ids: Sequence[int]  # pages covering [0, start + len(token_ids)), in order
    sample: bool  # draw a token after the last of token_ids
    sampling: SamplingParams
    seed: int  # key of the sequence's random stream; the counter is the position of the drawn token
    prompt_ids: Sequence[int] = ()  # for penalties
    output_ids: Sequence[int] = ()  # for penalties and min_tokens; drafts not included
    num_drafts: int = 0  # the last num_drafts of token_ids are guesses to be verified
    mask_row: int | None = (
        None  # row of the step's bitmask; with drafts, rows mask_row .. + num_drafts
    )
    logprobs_from: int | None = None  # first position whose own log-probability is wanted
    num_top_logprobs: int = 0  # for those positions
    next_id: int | None = None  # the known token after the row, when its log-probability is wanted
    weights: Sequence[tuple[int, float]] = ()  # (token id, natural log of its weight in the draw)
    lora: str = ""  # the adapter that its tokens are computed with; "": none
    plain_ids: Sequence[int] = ()
    """Where pages are of few bits: the plain page, in full precision, that each page from the one
    at `start` on is written to until it is full; as many as page_ids has left there."""
    follows: int | None = (
        None  # the row of the step before whose drawn token is the one of token_ids, there unknown
    )


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """A step: copies happen before the forward pass; each page is written by at most one row."""

    rows: Sequence[ScheduledRow]
    copies: Sequence[PageCopy] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What came of a row.

    `token_ids`: accepted drafts and then the drawn token; empty when nothing was sampled.
    `logprobs` and `masses`: one a token of `token_ids`, when sampling asked for them.
    `given_logprobs`: only when logprobs_from is set; one each of the given tokens at positions
    max(logprobs_from, start + 1) .. start + len(token_ids) - 1, and of `next_id` at position
    start + len(token_ids) when that is set. (A token's log-probability comes from the logits of its
    predecessor, so the token at `start` was the step before's `next_id`: nothing is carried over.)
    """

    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    given_logprobs: Sequence[TokenLogprob] = ()
    masses: Sequence[TokenMass] = ()  # one a token of `token_ids`, when sampling asked for them
    error: str | None = None  # this row alone failed (NaN logits, say)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One RowResult a row of the batch, in order, and what the forward pass took."""

    rows: Sequence[RowResult]
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
