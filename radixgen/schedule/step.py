"""One step while it is planned: which sequence computes how much, and the batch that says so."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from radixgen.batch import PageCopy, RowResult, ScheduledBatch, ScheduledRow
from radixgen.errors import RadixgenError
from radixgen.schedule.outputs import StopRules
from radixgen.schedule.request import GrammarMatcher, SequenceState, Status


@dataclass(slots=True)
class PlannedRow:
    """`num_tokens` known tokens from the first that is not computed, and then `drafts`.

    Or one token that is not known yet, since the row of number `follows` of the step before is only
    to draw it.
    """

    sequence: SequenceState
    num_tokens: int
    drafts: list[int] = field(default_factory=list)
    start: int = 0
    follows: int | None = None

    @property
    def samples(self) -> bool:
        """Whether a token is drawn after the row. A row planned ahead may turn out to be in vain,
        or known text to go on behind it."""
        sequence = self.sequence
        return (
            not sequence.is_scored
            and sequence.request.sampling.max_tokens != 0
            and self.start + self.num_tokens >= sequence.num_known
            and sequence.status is Status.RUNNING
        )

    @property
    def num_given(self) -> int:
        """Log-probabilities of given tokens that this row is to bring."""
        wanted = self.sequence.next_given
        if wanted is None:
            return 0
        last = min(self.start + self.num_tokens, self.sequence.num_given - 1)
        return max(last - max(wanted, self.start + 1) + 1, 0)

    def check(self, row: RowResult) -> None:
        """Raises RadixgenError when a row failed or does not answer what it was asked."""
        if row.error is not None:
            raise RadixgenError(row.error)
        if self.samples and not 1 <= len(row.token_ids) <= 1 + len(self.drafts):
            raise RadixgenError(
                f"the step drew {len(row.token_ids)} tokens, not 1 to {1 + len(self.drafts)}"
            )
        if len(row.given_logprobs) != self.num_given:
            raise RadixgenError(
                f"the step gave {len(row.given_logprobs)} log-probabilities of given tokens, "
                f"not {self.num_given}"
            )


@dataclass(frozen=True, slots=True)
class MaskRequest:
    """Rows `row` .. `row + len(drafts)` of the bitmask are the matcher's, one after each draft.

    `budget`: how many tokens the sequence may still have.
    """

    rid: str
    matcher: GrammarMatcher
    row: int
    drafts: tuple[int, ...] = ()
    budget: int | None = None


class Step:
    """Rows and copies of a step, and the tokens left of its budget."""

    __slots__ = ("copies", "entered", "left", "preempted", "rows")

    def __init__(self, max_tokens: int) -> None:
        self.left = max_tokens
        self.rows: dict[SequenceState, PlannedRow] = {}
        self.copies: list[PageCopy] = []
        self.entered: set[SequenceState] = set()
        self.preempted = False  # for want of pages: nobody new enters

    def add(self, sequence: SequenceState, num_tokens: int) -> None:
        self.put(PlannedRow(sequence, num_tokens, start=sequence.num_computed))

    def put(self, row: PlannedRow) -> None:
        self.rows[row.sequence] = row
        self.left -= row.num_tokens

    def add_drafts(self, sequence: SequenceState, drafts: list[int]) -> None:
        self.rows[sequence].drafts = drafts
        self.left -= len(drafts)

    def drop(self, sequence: SequenceState) -> None:
        row = self.rows.pop(sequence, None)
        if row is not None:
            self.left += row.num_tokens + len(row.drafts)

    def batch(self, page_size: int, rules: StopRules) -> tuple[ScheduledBatch, list[MaskRequest]]:
        """What the runner reads, and which rows of the bitmask are whose."""
        rows: list[ScheduledRow] = []
        masks: list[MaskRequest] = []
        mask_row = 0
        for planned in self.rows.values():
            matcher = planned.sequence.matcher if planned.samples else None
            rows.append(_row(planned, page_size, None if matcher is None else mask_row))
            if matcher is not None:
                rid = planned.sequence.request.rid
                budget = rules.mask_budget(planned.sequence)
                masks.append(MaskRequest(rid, matcher, mask_row, tuple(planned.drafts), budget))
                mask_row += 1 + len(planned.drafts)
        return ScheduledBatch(rows, list(self.copies)), masks


def _row(planned: PlannedRow, page_size: int, mask_row: int | None) -> ScheduledRow:
    sequence, start = planned.sequence, planned.start
    request = sequence.request
    end = start + planned.num_tokens
    is_known = end <= sequence.num_known
    num_pages = -(-(end + len(planned.drafts)) // page_size)
    scores = planned.num_given > 0
    follows = scores and end < sequence.num_given
    sampling = request.sampling
    return ScheduledRow(
        rid=request.rid,
        index=sequence.index,
        token_ids=[*sequence.tokens[start:end], *planned.drafts] if is_known else [0],
        start=start,
        page_ids=sequence.page_ids[:num_pages],
        sample=planned.samples,
        sampling=sampling,
        seed=sequence.seed,
        prompt_ids=request.prompt_ids,
        output_ids=sequence.outputs,
        num_drafts=len(planned.drafts),
        mask_row=mask_row,
        logprobs_from=sequence.next_given if scores else None,
        num_top_logprobs=(sampling.prompt_logprobs or 0) if scores else 0,
        next_id=sequence.tokens[end] if follows else None,
        weights=sequence.law.weights() if planned.samples and sequence.law else (),
        lora=request.lora,
        plain_ids=_plain_ids(sequence, start // page_size, num_pages),
        follows=None if is_known else planned.follows,
    )


def _plain_ids(sequence: SequenceState, first: int, end: int) -> list[int]:
    """Of its pages `first` to `end`, which are not full yet, the plain ones."""
    before = len(sequence.page_ids) - len(sequence.plain_ids)
    return sequence.plain_ids[first - before : end - before]


def total_pages_missing(sequences: Iterable[SequenceState], page_size: int) -> int:
    """Pages that the known tokens of these sequences still need."""
    return sum(max(-(-seq.num_known // page_size) - len(seq.page_ids), 0) for seq in sequences)
