"""Tokens that arrive become pieces of text and, at the end, a result. Knows no sockets, no tasks.

A piece is whole characters, and never holds text that a stop string may still take back: the
decoder keeps such text until that is decided.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from radixgen.messages import RequestFinished
from radixgen.types import Choice, FinishReason, GenerateResult, Piece, TokenLogprob


class Decoder(Protocol):
    """Turns token ids into text bit by bit, up to the first stop string. What may still change is
    kept back, and comes with `finish` if nothing follows."""

    def push(self, ids: Sequence[int]) -> str: ...
    def pass_over(self, num_tokens: int) -> None: ...
    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Row:
    """New tokens of one choice, as they came in a step."""

    index: int
    token_ids: Sequence[int]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] = ()
    grammar_masses: tuple[float, ...] = ()
    cached_tokens: int | None = None
    num_thoughts: int = 0  # of the tokens, the first ones


@dataclass(slots=True)
class _ChoiceText:
    decoder: Decoder
    thinker: Decoder | None = None  # of the thoughts, until they are over
    thoughts: list[str] = field(default_factory=list)
    num_thoughts: int = 0
    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    grammar_masses: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def push(self, row: Row) -> tuple[str, str]:
        """What a row adds to the thoughts, and to the text."""
        self.token_ids.extend(row.token_ids)
        self.logprobs.extend(row.logprobs)
        self.grammar_masses.extend(row.grammar_masses)
        # A token that ended the text, an end token or one of stop_token_ids, has no text itself.
        ended = isinstance(row.stop_reason, int)
        thought = self._think(row)
        rest = row.token_ids[row.num_thoughts :]
        text = self.decoder.push(rest[:-1] if ended else rest)
        if row.finish_reason is not None:
            self.finish_reason, self.stop_reason = row.finish_reason, row.stop_reason
            text += self.decoder.finish()
        self.parts.append(text)
        return thought, text

    def _think(self, row: Row) -> str:
        if self.thinker is None:
            return ""
        thought = self.thinker.push(row.token_ids[: row.num_thoughts])
        self.num_thoughts += row.num_thoughts
        self.decoder.pass_over(row.num_thoughts)
        if row.num_thoughts < len(row.token_ids) or row.finish_reason is not None:
            thought += self.thinker.finish()
            self.thinker = None
        self.thoughts.append(thought)
        return thought


class RequestStream:
    """One request's choices, growing. `make_decoder` is called once a choice, and so is
    `make_thinker`, which decodes thoughts without their tags."""

    def __init__(
        self,
        rid: str,
        prompt: int,
        num_choices: int,
        make_decoder: Callable[[], Decoder],
        make_thinker: Callable[[], Decoder | None] = lambda: None,
    ) -> None:
        self.rid = rid
        self.prompt = prompt
        self._choices = [_ChoiceText(make_decoder(), make_thinker()) for _ in range(num_choices)]

    def push(self, row: Row) -> Piece:
        """The piece that a row of a step output gives; its text may be empty."""
        thoughts, text = self._choices[row.index].push(row)
        return Piece(
            rid=self.rid,
            prompt=self.prompt,
            index=row.index,
            text=text,
            token_ids=tuple(row.token_ids),
            finish_reason=row.finish_reason,
            stop_reason=row.stop_reason,
            logprobs=row.logprobs,
            grammar_masses=row.grammar_masses,
            cached_tokens=row.cached_tokens,
            thoughts=thoughts,
            num_thought_tokens=row.num_thoughts,
        )

    def finish(self, message: RequestFinished) -> Piece:
        """The last piece, with the whole result."""
        choices = tuple(
            Choice(
                index=index,
                text="".join(choice.parts),
                token_ids=tuple(choice.token_ids),
                finish_reason=choice.finish_reason or FinishReason.ABORT,
                stop_reason=choice.stop_reason,
                logprobs=tuple(choice.logprobs),
                grammar_masses=tuple(choice.grammar_masses),
                thoughts="".join(choice.thoughts),
                num_thought_tokens=choice.num_thoughts,
            )
            for index, choice in enumerate(self._choices)
        )
        result = GenerateResult(self.rid, choices, message.usage, message.prompt_logprobs)
        return Piece(self.rid, self.prompt, index=0, result=result)
