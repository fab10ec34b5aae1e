"""Plans a step before the one under way has told what it draws: what may be computed meanwhile.

    step N       | decode a | decode b | prefill c, ends |  prefill d, part  |
    step N + 1   | decode a | decode b | decode c        |  prefill d, more  |
                   a, b, c: their token is the one that N draws, read where N leaves it

How far each sequence is then is known without knowing the tokens. What is not known is whether a
token ends its sequence: then a row of N + 1 is computed in vain, drawn from by nobody, and what it
writes is behind all that the sequence keeps.

This is the one place that says when N is to be waited for instead: when somebody may enter or must
give way, when guesses are worth more than time, and when N's results decide more than a token.
Knows sequences and pages; no device.
"""

from radixgen.schedule.planner import Planner
from radixgen.schedule.request import SequenceState, Status
from radixgen.schedule.shares import shares
from radixgen.schedule.step import PlannedRow, Step


def plan_ahead(planner: Planner, step: Step) -> Step | None:
    """What follows `step`, which is under way; None where its results are to be waited for."""
    going = [seq for seq in planner.running if seq.status is Status.RUNNING]
    if planner.may_admit() or any(map(_decides, going)):
        return None
    if any(row.drafts for row in step.rows.values()):
        return None
    places = {sequence: place for place, sequence in enumerate(step.rows)}
    decoding = [seq for seq in going if _draws(seq, step)]
    prefilling = [seq for seq in going if not _draws(seq, step)]
    decoding = [seq for seq in decoding if planner.rules.max_drafts(seq) > 0]  # not its last token
    if any(planner.foresees(seq, len(going)) for seq in decoding):
        return None
    ahead = Step(planner.config.max_step_tokens)
    for sequence in decoding:
        row = PlannedRow(sequence, 1, start=_end(sequence, step), follows=places[sequence])
        if _room(planner, row) < 1:
            return None
        ahead.put(row)
    starts = [_end(sequence, step) for sequence in prefilling]
    left = [seq.num_known - start for seq, start in zip(prefilling, starts, strict=True)]
    given = shares(left, ahead.left)
    for sequence, start, share in zip(prefilling, starts, given, strict=True):
        row = PlannedRow(sequence, share, start=start)
        row.num_tokens = _room(planner, row)
        if row.num_tokens > 0:
            if row.samples and planner.foresees(sequence, len(going)):
                return None
            ahead.put(row)
    return ahead if ahead.rows else None


def _decides(sequence: SequenceState) -> bool:
    """Whether results of a sequence's rows say more than which token comes next."""
    return sequence.law is not None or sequence.next_given is not None


def _draws(sequence: SequenceState, step: Step) -> bool:
    row = step.rows.get(sequence)
    return row is not None and row.samples


def _end(sequence: SequenceState, step: Step) -> int:
    """The tokens that are computed of a sequence when the step is over."""
    row = step.rows.get(sequence)
    return sequence.num_computed if row is None else row.start + row.num_tokens


def _room(planner: Planner, row: PlannedRow) -> int:
    """For how many of a row's tokens there are pages, which the sequence then has."""
    before = row.start - row.sequence.num_computed
    return planner.memory.grow(row.sequence, before + row.num_tokens) - before
