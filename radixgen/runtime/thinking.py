"""What a request's thoughts may be: any text up to its end, which a budget brings about in time.

The text has a matcher of its own. Its mask never leaves a state that cannot be closed within the
tokens left of the budget, as with any constraint, so the end comes by itself. Where the end is one
special token, which no grammar spells, `TokenThinking` matches tokens instead of bytes.
Knows grammars and a tokenizer's special tokens; no steps.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from radixgen.errors import InvalidRequest
from radixgen.grammars.compiler import CompiledGrammar
from radixgen.grammars.matcher import GrammarMatcher
from radixgen.types import GrammarSpec, Thinking


class SpecialTokens(Protocol):
    """What is asked of a tokenizer. A special token is not text; ids end at `vocab_size`."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def special_ids(self) -> Collection[int]: ...
    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes: ...


def thinking_spec(thinking: Thinking) -> GrammarSpec:
    """The thoughts as a constraint: `begin`, any text, the first `end`."""
    tag = {"type": "tag", "begin": thinking.begin, "content": {"type": "any_text"}}
    return GrammarSpec("structural_tag", json.dumps(tag | {"end": thinking.end}))


@dataclass(frozen=True, slots=True)
class ThinkingTokens:
    """Thoughts between special tokens; `begin` is None when the prompt has begun them."""

    begin: int | None
    end: int
    allowed: "NDArray[np.int32]"  # bit 1: a token that thoughts may hold

    @classmethod
    def find(cls, thinking: Thinking, text: SpecialTokens) -> "ThinkingTokens | None":
        """None when `end` is no special token. Raises InvalidRequest when only `end` is one."""
        special = {text.token_bytes(i, True): i for i in text.special_ids}
        end, begin = special.get(thinking.end.encode()), special.get(thinking.begin.encode())
        if end is None:
            return None
        if begin is None and thinking.begin:
            message = (
                f"thinking end={thinking.end!r} is a special token of this model, and "
                f"begin={thinking.begin!r} is not; leave it out and end the prompt with it"
            )
            raise InvalidRequest(message, "thinking")
        return cls(begin, end, _all_but(text.special_ids, text.vocab_size))


def _all_but(token_ids: Collection[int], vocab_size: int) -> "NDArray[np.int32]":
    allowed = np.zeros(-(-vocab_size // 32) * 32, bool)
    allowed[:vocab_size] = True
    allowed[[i for i in token_ids if i < vocab_size]] = False
    return np.packbits(allowed, bitorder="little").view(np.int32)


class TokenThinking:
    """Matches thoughts between special tokens."""

    def __init__(self, tokens: ThinkingTokens) -> None:
        self.error: str | None = None
        self._tokens = tokens
        self._begins = tokens.begin is not None
        self._is_over = False

    @property
    def num_needed(self) -> int:
        """Tokens that the shortest thoughts take from here."""
        return self._begins + (not self._is_over)

    def accept_token(self, token_id: int, /) -> bool:
        if self._is_over or (self._begins and token_id != self._tokens.begin):
            return False
        self._is_over = not self._begins and token_id == self._tokens.end
        self._begins = False
        return True

    def fill_bitmask(self, bitmask: Any, row: int, budget: int | None = None) -> None:
        """bitmask: [n, words] int32; `budget`: tokens that thoughts may still have."""
        words, tokens = bitmask[row], self._tokens
        words[:] = 0
        if tokens.begin is not None and self._begins:
            _allow(words, tokens.begin)
            return
        if budget is None or budget > self.num_needed:
            words[: len(tokens.allowed)] = tokens.allowed
        _allow(words, tokens.end)

    def fork(self) -> "TokenThinking":
        other = TokenThinking(self._tokens)
        other._begins, other._is_over = self._begins, self._is_over
        return other

    def is_finished(self) -> bool:
        return self._is_over


def _allow(words: "NDArray[np.int32]", token_id: int) -> None:
    words[token_id // 32] |= np.uint32(1 << (token_id % 32)).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Makes the matchers of a request's thoughts, one a choice."""

    thinking: Thinking
    tokens: ThinkingTokens | None  # or else:
    grammar: CompiledGrammar | None

    @property
    def num_needed(self) -> int:
        """Tokens of the shortest thoughts."""
        if self.tokens is not None:
            return TokenThinking(self.tokens).num_needed
        assert self.grammar is not None
        return self.grammar.matcher().shortest_completion()

    def check(self, max_tokens: int | None, answer_tokens: int) -> None:
        """Raises InvalidRequest when thoughts cannot be as short as their budget, or leave too few
        tokens for an answer of `answer_tokens`."""
        needed = self.num_needed
        if self.thinking.budget < needed:
            message = (
                f"thinking budget={self.thinking.budget} is too few tokens: the shortest thoughts, "
                f"{self.thinking.begin + self.thinking.end!r}, take {needed}"
            )
            raise InvalidRequest(message, "thinking")
        if max_tokens and needed + answer_tokens > max_tokens:
            message = (
                f"max_tokens={max_tokens} is too few: the shortest thoughts take {needed} tokens "
                f"and the shortest answer {answer_tokens}"
            )
            raise InvalidRequest(message, "max_tokens")

    def matcher(self) -> GrammarMatcher | TokenThinking:
        if self.tokens is not None:
            return TokenThinking(self.tokens)
        assert self.grammar is not None
        return self.grammar.matcher()
