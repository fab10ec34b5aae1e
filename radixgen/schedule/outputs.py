"""Takes in sampled tokens and says when a sequence is over. Knows no pages and no order."""

from collections.abc import Sequence
from dataclasses import dataclass

from radixgen.errors import InvalidGrammar, RadixgenError
from radixgen.schedule.request import SequenceState
from radixgen.types import FinishReason


@dataclass(frozen=True, slots=True)
class Taken:
    """How many of the offered tokens were taken, and whether that was the end."""

    num_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


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
        terminated = self._accept(sequence, token_id)
        stop_string = sequence.stop_watch(token_id) if sequence.stop_watch else None
        num_outputs = len(sequence.outputs)
        if num_outputs >= sampling.min_tokens:
            if token_id in self.end_token_ids and not sampling.ignore_eos:
                return FinishReason.STOP, token_id
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP, token_id
            if stop_string is not None:
                return FinishReason.STOP, stop_string
        if terminated:
            return FinishReason.STOP, None
        if sampling.max_tokens is not None and num_outputs >= sampling.max_tokens:
            return FinishReason.LENGTH, None
        return (FinishReason.LENGTH, None) if sequence.num_known >= self.max_known else None

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
        return matcher.is_finished()

    def max_drafts(self, sequence: SequenceState) -> int:
        """Drafts that could all be used before a limit ends the sequence."""
        room = self.max_known - sequence.num_known - 1
        limit = sequence.request.sampling.max_tokens
        return room if limit is None else min(room, limit - len(sequence.outputs) - 1)
