"""Outputs that begin with given bytes and then go on freely: what token healing asks for.

    bytes left "ca" ─▶ allowed: the tokens "c", "ca" and all that begin with "ca", as "cat"

Once the bytes are spelled there is no constraint any more. Under a constraint, the bytes are a part
of its grammar instead. Knows the bytes of tokens; no grammars and no steps.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np


class TokenBytes(Protocol):
    """What is asked of a tokenizer; special tokens have no bytes."""

    @property
    def vocab_size(self) -> int: ...
    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes: ...


class TokenTexts:
    """The tokens of a vocabulary in the order of their bytes."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        every = ((tokenizer.token_bytes(i), i) for i in range(tokenizer.vocab_size))
        pairs = sorted(pair for pair in every if pair[0])
        self._texts = [data for data, _ in pairs]
        self._ids = [token_id for _, token_id in pairs]
        self.bytes_of = dict(zip(self._ids, self._texts, strict=True))

    def beginning_with(self, data: bytes) -> list[int]:
        """Ids of the tokens that `data` is, or begins."""
        low = bisect_left(self._texts, data)
        after = data.rstrip(b"\xff")  # the first text that sorts behind all that begin with data
        if not after:
            return self._ids[low:]
        after = after[:-1] + bytes((after[-1] + 1,))
        return self._ids[low : bisect_left(self._texts, after)]

    def beginnings_of(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Tokens shorter than `data` that it begins with, and what is left behind them."""
        for size in range(1, len(data)):
            place = bisect_left(self._texts, data[:size])
            while place < len(self._texts) and self._texts[place] == data[:size]:
                yield self._ids[place], data[size:]
                place += 1

    def num_needed(self, data: bytes) -> float:
        """The fewest tokens that spell `data`, or begin with its end; infinite if none do."""
        if not data or self.beginning_with(data):
            return int(bool(data))
        return 1 + min((self.num_needed(left) for _, left in self.beginnings_of(data)), default=1e9)


class BeginsWith:
    """Matches tokens until they have spelled `data`; see `radixgen.schedule.request.GrammarMatcher`
    for the methods."""

    def __init__(self, texts: TokenTexts, data: bytes) -> None:
        self.error: str | None = None
        self._texts = texts
        self._left = data

    def accept_token(self, token_id: int, /) -> bool:
        data = self._texts.bytes_of.get(token_id, b"")
        if not data or not (data.startswith(self._left) or self._left.startswith(data)):
            return False
        self._left = self._left[len(data) :]
        return True

    def fill_bitmask(self, bitmask: Any, row: int, budget: int | None = None) -> None:
        """bitmask: [n, words] int32; `budget`: tokens that may still come."""
        allowed = np.zeros(bitmask.shape[1] * 32, bool)
        allowed[self._texts.beginning_with(self._left)] = True
        for token_id, left in self._texts.beginnings_of(self._left):
            allowed[token_id] |= budget is None or self._texts.num_needed(left) < budget
        bitmask[row] = np.packbits(allowed, bitorder="little").view(np.int32)

    def fork(self) -> "BeginsWith":
        return BeginsWith(self._texts, self._left)

    def is_finished(self) -> bool:
        return not self._left
