"""Takes in sampled tokens and says when a sequence is over. Knows no pages and no order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from radixgen.batch import RowResult
from radixgen.errors import InvalidGrammar, InvalidRequest, RadixgenError
from radixgen.messages import RequestFailed, RequestFinished, ScoreOutput
from radixgen.schedule.request import Request, SequenceOutput, SequenceState
from radixgen.types import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Taken:
    """How many of the offered tokens were taken, and whether that was the end."""

    num_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def then(self, more: "Taken") -> "Taken":
        return replace(more, num_tokens=self.num_tokens + more.num_tokens)


def output(sequence: SequenceState, row: RowResult, taken: Taken) -> SequenceOutput | None:
    """What is told of a row now. With a law nothing is, until the choice is over and stays."""
    count = taken.num_tokens
    token_ids, logprobs = tuple(row.token_ids[:count]), tuple(row.logprobs[:count])
    masses = tuple(mass.legal for mass in row.masses[:count])
    if sequence.law is not None:
        held = sequence.held
        held.logprobs += logprobs
        held.masses += masses
        if taken.finish_reason is None:
            return None
        token_ids, logprobs = tuple(sequence.outputs), tuple(held.logprobs)
        masses = tuple(held.masses)
    request = sequence.request
    num_before = len(sequence.outputs) - len(token_ids)
    return SequenceOutput(
        request.rid,
        sequence.index,
        token_ids,
        logprobs,
        taken.finish_reason,
        taken.stop_reason,
        masses if request.sampling.grammar_mass else (),
        request.cached_tokens if num_before == 0 else None,
        min(max(sequence.num_thoughts - num_before, 0), len(token_ids)),
    )


def finished(request: Request, now: float) -> RequestFinished:
    """The end of a request, with what scores of its prompt were asked for."""
    given = request.sequences[0].given_logprobs if request.sequences else []
    wanted = request.sampling.prompt_logprobs is not None
    return RequestFinished(request.rid, usage(request, now), (None, *given) if wanted else ())


def scored(request: Request, now: float) -> ScoreOutput:
    """The end of a request for scores."""
    scores = (seq.given_logprobs for seq in request.sequences)
    found = tuple(tuple(token.logprob for token in given) for given in scores)
    return ScoreOutput(request.rid, found, usage(request, now))


def failed(request: Request, error: Exception) -> RequestFailed:
    """The end of a request that something went wrong with."""
    code = error.code if isinstance(error, RadixgenError) else RadixgenError.code
    param = error.param if isinstance(error, InvalidRequest) else None
    return RequestFailed(request.rid, code, str(error) or type(error).__name__, param)


def usage(request: Request, now: float) -> Usage:
    """What a request that ends now has cost."""
    arrival = request.arrival
    scheduled = now if request.first_scheduled is None else request.first_scheduled
    first = now if request.first_token is None else request.first_token
    scored = sum(len(ids) for ids in request.continuations or ())
    return Usage(
        prompt_tokens=len(request.prompt_ids) + scored,
        cached_tokens=request.cached_tokens,
        completion_tokens=request.completion_tokens,
        queue_seconds=scheduled - arrival,
        first_token_seconds=first - arrival,
        total_seconds=now - arrival,
    )


class StopRules:
    """End tokens and the context limit of a model, applied with each request's own parameters."""

    def __init__(self, end_token_ids: Sequence[int], max_known: int) -> None:
        self.end_token_ids = frozenset(end_token_ids)
        self.max_known = max_known  # tokens a sequence may have in all

    def take(self, sequence: SequenceState, token_ids: Sequence[int]) -> Taken:
        """Append tokens until one ends the sequence; what follows it is dropped.

        Raises RadixgenError when the constraint refuses a token, which sampling should have masked.
        """
        for count, token_id in enumerate(token_ids, start=1):
            sequence.tokens.append(token_id)
            sequence.outputs.append(token_id)
            reason = self._end(sequence, token_id)
            if reason is not None:
                return Taken(count, *reason)
        return Taken(len(token_ids))

    def _end(
        self, sequence: SequenceState, token_id: int
    ) -> tuple[FinishReason, str | int | None] | None:
        sampling = sequence.request.sampling
        is_thought = sequence.is_thinking and sequence.request.thinking is not None
        sequence.num_thoughts += is_thought
        terminated = self._accept(sequence, token_id)
        stop_string = sequence.stop_watch(token_id, is_thought) if sequence.stop_watch else None
        num_outputs = len(sequence.outputs)
        if num_outputs >= sampling.min_tokens and not is_thought:
            if token_id in self.end_token_ids and not sampling.ignore_eos:
                return FinishReason.STOP, token_id
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP, token_id
            if stop_string is not None:
                return FinishReason.STOP, stop_string
        is_full = num_outputs == sampling.max_tokens or sequence.num_known >= self.max_known
        # A law speaks of whole texts, so the end is drawn like any token as long as there is room.
        if terminated and (sequence.law is None or sampling.ignore_eos or is_full):
            return FinishReason.STOP, None
        return (FinishReason.LENGTH, None) if is_full else None

    def _accept(self, sequence: SequenceState, token_id: int) -> bool:
        matcher = sequence.matcher
        if matcher is None:
            return False
        if not matcher.accept_token(token_id):
            if matcher.error is not None:  # a limit of the grammar, met on the way
                raise InvalidGrammar(matcher.error)
            raise RadixgenError(
                f"token {token_id} after {len(sequence.outputs) - 1} output tokens breaks the "
                "request's grammar, although the mask should have ruled it out"
            )
        if sequence.is_thinking and matcher.is_finished():
            sequence.matcher, sequence.is_thinking = sequence.answer, False
            return False
        return matcher.is_finished()

    def mask_budget(self, sequence: SequenceState) -> int:
        """Tokens that the text of the matcher may still have."""
        left = self.max_drafts(sequence) + 1
        thoughts = sequence.request.thoughts
        if not sequence.is_thinking or thoughts is None:
            return left
        return min(left - thoughts.answer_tokens, thoughts.budget - len(sequence.outputs))

    def max_drafts(self, sequence: SequenceState) -> int:
        """Drafts that could all be used before a limit ends the sequence."""
        room = self.max_known - sequence.num_known - 1
        limit = sequence.request.sampling.max_tokens
        return room if limit is None else min(room, limit - len(sequence.outputs) - 1)


def obeys_law(sequence: SequenceState, row: RowResult) -> bool:
    """Tell a sequence's law of its draw; False when the choice is to begin anew."""
    return sequence.law is None or sequence.law.take(row.token_ids[0], row.masses[0])
