"""Token healing: which last tokens of a prompt are backed off, to be drawn again with what follows.

    "http:" ─▶ ["http", ":"] ─▶ prompt ["http"], output begins with the bytes ":", so it may be "://"

A prompt that ends inside what the model would write as one token leads it astray. The output begins
with the bytes that were backed off, and its text is what comes behind them. Knows a tokenizer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

MAX_BACKED_OFF = 8  # tokens


class TokenBytes(Protocol):
    """What is asked of a tokenizer; special tokens have no bytes."""

    @property
    def vocab_size(self) -> int: ...
    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes: ...


class Healer:
    """Knows which byte strings are the beginning of a longer token."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._bytes = tokenizer.token_bytes
        self._tokens = sorted(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))

    def back_off(self, token_ids: Sequence[int]) -> bytes:
        """What the last tokens of a prompt spell that are to be drawn again: the most of them, at
        most `MAX_BACKED_OFF`, that a longer token begins with. The first of all stays."""
        found = data = b""
        for token_id in token_ids[: -MAX_BACKED_OFF - 1 : -1][: len(token_ids) - 1]:
            piece = self._bytes(token_id)
            if not piece:
                break
            data = piece + data
            found = data if self._has_longer(data) else found
        return found

    def _has_longer(self, data: bytes) -> bool:
        place = bisect_right(self._tokens, data)
        return place < len(self._tokens) and self._tokens[place].startswith(data)

    def heal(self, token_ids: Sequence[int]) -> tuple[int, bytes]:
        """How many tokens a prompt keeps, and the bytes of those behind."""
        data, num_kept = self.back_off(token_ids), len(token_ids)
        left = len(data)
        while left:
            num_kept -= 1
            left -= len(self._bytes(token_ids[num_kept]))
        return num_kept, data
