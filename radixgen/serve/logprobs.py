"""Log-probabilities in the two shapes of OpenAI's API, in step with the text.

A token that ended the text has no text, the tokens of a stop string were taken back from it, and
thoughts are told apart: of none of them is told. Knows the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from radixgen.tokenizer import Tokenizer
from radixgen.types import Choice, Piece, TokenLogprob

LOWEST = -9999.0  # in place of minus infinity, which JSON cannot say


@dataclass(slots=True)
class LogprobFeed:
    """Those of one choice as they come; what a stop string may take back is held."""

    tokenizer: Tokenizer
    stops: Sequence[str]
    keeps_stop: bool = False
    keeps_end: bool = False  # the token that ended the text has a row, though it has no text
    _held: list[TokenLogprob] = field(default_factory=list)

    def push(self, piece: Piece | Choice) -> list[TokenLogprob]:
        """What is certain after a piece."""
        entries = list(piece.logprobs[piece.num_thought_tokens :])
        if entries and isinstance(piece.stop_reason, int) and not self.keeps_end:
            entries.pop()
        self._held += entries
        if piece.finish_reason is not None:
            return self._last(piece.stop_reason)
        longest = max((len(stop.encode()) for stop in self.stops), default=0)
        keep, num_bytes = len(self._held), 0
        while keep and num_bytes < longest:
            keep -= 1
            num_bytes += len(self._bytes(self._held[keep]))
        given, self._held = self._held[:keep], self._held[keep:]
        return given

    def _last(self, stop: str | int | None) -> list[TokenLogprob]:
        held, self._held = self._held, []
        if not isinstance(stop, str) or self.keeps_stop:
            return held
        pieces = [self._bytes(entry) for entry in held]
        # The last place: the text ended when the string was complete for the first time.
        place, start, kept = b"".join(pieces).rfind(stop.encode()), 0, []
        for entry, data in zip(held, pieces, strict=True):
            if place >= 0 and start >= place:
                break
            kept.append(entry)
            start += len(data)
        return kept

    def _bytes(self, entry: TokenLogprob) -> bytes:
        return self.tokenizer.token_bytes(entry.token_id)


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """The shape of chat completions."""
    content = [
        _entry(entry.token_id, entry.logprob, tokenizer)
        | {"top_logprobs": [_entry(i, value, tokenizer) for i, value in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id, special_text=True)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": finite(logprob),
        "bytes": list(data),
    }


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


class CompletionLogprobs:
    """The shape of text completions; `offset`: of the next token in the choice's text."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def table(
        self, entries: Sequence[TokenLogprob | None], ids: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Columns, one row a token. An entry of None is a first token, which follows nothing;
        `ids` then says which it was."""
        tokens: list[str] = []
        offsets: list[int] = []
        for number, entry in enumerate(entries):
            token_id = ids[number] if entry is None else entry.token_id
            text = token_text(token_id, self._tokenizer)
            tokens.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [None if e is None else finite(e.logprob) for e in entries],
            "top_logprobs": [None if e is None else self._top(e) for e in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """By text; the sampled token is among them, as in OpenAI's API."""
        top = {token_text(i, self._tokenizer): finite(value) for i, value in reversed(entry.top)}
        top = dict(reversed(top.items()))
        top.setdefault(token_text(entry.token_id, self._tokenizer), finite(entry.logprob))
        return top


def token_text(token_id: int, tokenizer: Tokenizer) -> str:
    """The text of one token; bytes that are a part of a character are written out."""
    data = tokenizer.token_bytes(token_id, special_text=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def merged(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tables that follow one another as one."""
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}
