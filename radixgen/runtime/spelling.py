"""How a text that must follow is spelled: as a tokenizer would, or as the model did the last time.

Knows bytes and token ids; no grammars and no guesses.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

MAX_TAIL = 16  # tokens of the text so far that are spelled again together with forced text
MAX_SPELLINGS = 4096  # kept


class Text(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes: ...


class Speller:
    """Spells text that must follow as the tokenizer would spell it in its place."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._known: OrderedDict[tuple[tuple[int, ...], bytes], list[int]] = OrderedDict()

    def spell(self, known: Sequence[int], forced: bytes) -> list[int]:
        """The tokens of `forced` behind `known`; [] where no token begins between the two."""
        key = (self._tail(known), forced)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._spell(*key)
            if len(self._known) > MAX_SPELLINGS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found

    def _tail(self, known: Sequence[int]) -> tuple[int, ...]:
        """The last tokens, from one that begins a word: what is before has no say in how a
        tokenizer that splits text into words spells what comes behind."""
        tail: list[int] = []
        for token in reversed(known[-MAX_TAIL:]):
            piece = self._text.token_bytes(token)
            if not piece:
                break
            tail.append(token)
            if piece[:1] == b" " and piece.strip():
                break
        return tuple(reversed(tail))

    def _spell(self, tail: tuple[int, ...], forced: bytes) -> list[int]:
        before = b"".join(map(self._text.token_bytes, tail))
        for context in (before, b"\n"):  # the second: where the text so far is spelled otherwise
            tokens = self._behind(context, forced)
            if tokens:
                return tokens
        return []

    def _behind(self, context: bytes, forced: bytes) -> list[int]:
        try:
            text = (context + forced).decode()
        except UnicodeDecodeError as error:
            if error.start <= len(context) or error.end < len(context + forced):
                return []
            text = (context + forced)[: error.start].decode()  # it ends within a character
        ids = self._text.encode(text, False)
        pieces = [self._text.token_bytes(token) for token in ids]
        # Some vocabularies put a blank before a text: count from the end.
        ends = list(
            accumulate(map(len, pieces), initial=len(text.encode()) - sum(map(len, pieces)))
        )
        return ids[ends.index(len(context)) :] if len(context) in ends else []


class Habits:
    """How the model spelled forced text behind a token, once it has: not always as a tokenizer
    would, above all where the text surprises it."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._known: OrderedDict[tuple[int, bytes], list[int]] = OrderedDict()

    def spell(self, last: int, forced: bytes) -> list[int]:
        """The tokens of the last time, without one that went beyond the forced text."""
        return self._known.get((last, forced), [])

    def is_over(self, forced: bytes, tokens: Sequence[int]) -> bool:
        """Whether `tokens` have left the text that was forced when they began."""
        return not forced.startswith(b"".join(map(self._text.token_bytes, tokens)))

    def learn(self, last: int, forced: bytes, tokens: Sequence[int]) -> None:
        """`tokens` followed `last` where `forced` had to; also noted from each token on."""
        inside: list[tuple[int, bytes]] = []
        for token in tokens:
            piece = self._text.token_bytes(token)
            if not piece or not forced.startswith(piece):
                break
            inside.append((last, forced))
            last, forced = token, forced[len(piece) :]
        for place, key in enumerate(inside):
            self._known[key] = list(tokens[place : len(inside)])
            self._known.move_to_end(key)
        while len(self._known) > MAX_SPELLINGS:
            self._known.popitem(last=False)
