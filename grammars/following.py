"""Follows texts where what may come next depends on what stands before: see `hook.py`.

A hook stands directly behind a comma. When a text has reached one, what the hook finds for that
text takes its place in the state, so states on which a text stands have no hook in front. A mask
is filled as if the text before did not matter, which allows too much to tokens that pass a comma;
these few are then followed one by one.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from radixgen.errors import InvalidGrammar
from radixgen.grammars.engine import Engine
from radixgen.grammars.hook import Hook
from radixgen.grammars.python_engine import UNSPELLABLE
from radixgen.grammars.vocabulary import TokenCuts, Vocabulary

Words = NDArray[np.int32]
MAX_KEPT = 4096  # states of which the passing tokens are known
BLANKS = b" \t\n\r"
_ENDS = frozenset(b'"]}0123456789el')  # how JSON values end


@dataclass(frozen=True, slots=True)
class Passing:
    """Tokens that come to hooks behind the bytes that they all begin with.

    Of each: its id, its bytes, and what of them is left for the hooks, blanks apart. Those of
    which nothing is left fit behind any text, and only a budget can forbid them.
    """

    begun: bytes
    hooks: list[Hook]
    tokens: list[tuple[int, bytes, bytes]]
    going_on: list[tuple[int, bytes, bytes]]  # those of which something is left


@dataclass(slots=True)
class Following:
    """What the matchers of one grammar with hooks share."""

    engine: Engine
    _passing: dict[int, list[Passing]] = field(default_factory=dict)

    def after(self, state: int, text: bytes | bytearray, data: bytes) -> int:
        """The state behind `data`, where `text` is what stands before it; 0 if it does not fit."""
        start = 0
        while state and (comma := data.find(b",", start)) >= 0:
            state = self.engine.after_bytes(state, data[start : comma + 1])
            start = comma + 1
            hooks = self.engine.hooks(state)
            if hooks:
                so_far = bytes(text) + data[:start]
                found = {hook: hook.resolve(so_far) for hook in hooks}
                state = self.engine.resolved(state, found)
        return (
            self.engine.after_bytes(state, data[start:]) if state and start < len(data) else state
        )

    def strike(self, state: int, text: bytes | bytearray, words: Words, budget: int | None) -> None:
        """Take from a mask the tokens that pass a hook in a way that this text does not allow.

        words: [ceil(vocab / 32)] int32. `budget`: as of `GrammarMatcher.fill_bitmask`.
        """
        bits = words.view(np.uint32).data
        for group in self._passing_at(state):
            tokens = group.going_on if budget is None else group.tokens
            allowed = [one for one in tokens if bits[one[0] >> 5] >> (one[0] & 31) & 1]
            for token, data in self._unsure(state, text, group, allowed, budget):
                if not self._fits(state, text, data, budget):
                    bits[token >> 5] &= ~(1 << (token & 31))

    def _passing_at(self, state: int) -> list[Passing]:
        found = self._passing.get(state)
        if found is None:
            if len(self._passing) >= MAX_KEPT:
                self._passing.clear()
            found = self._passing[state] = self._find_passing(state)
        return found

    def _find_passing(self, state: int) -> list[Passing]:
        vocabulary, groups = self.engine.vocabulary, dict[bytes, Passing]()
        cuts, hooks = with_commas(vocabulary), dict[int, list[Hook]]()
        for index, cut in self.engine.passing(state, cuts):
            token = cuts.tokens[index]
            data = vocabulary.tokens[token] or b""
            begun = data[:cut]
            group = groups.get(begun)
            if group is None:
                there = self.engine.after_bytes(state, begun)
                if there not in hooks:  # many tokens lead to one place
                    hooks[there] = self.engine.hooks(there)
                group = groups[begun] = Passing(begun, hooks[there], [], [])
            rest = data[cut:].lstrip(BLANKS)
            group.tokens.append((token, data, rest))
            if rest:
                group.going_on.append((token, data, rest))
        return list(groups.values())

    def _unsure(
        self,
        state: int,
        text: bytes | bytearray,
        group: Passing,
        tokens: list[tuple[int, bytes, bytes]],
        budget: int | None,
    ) -> Iterator[tuple[int, bytes]]:
        """Those of which it takes more than a look to know whether they fit."""
        if not tokens:
            return
        so_far = bytes(text) + group.begun
        surely = [hook.surely(so_far) for hook in group.hooks]
        for token, data, rest in tokens:
            is_sure = not rest or all(fits(rest) for fits in surely)
            if not is_sure or not (budget is None or self._is_ample(state, group, data, budget)):
                yield token, data

    def _fits(self, state: int, text: bytes | bytearray, data: bytes, budget: int | None) -> bool:
        """Whether a token can be followed to the end, within a budget."""
        after = self.after(state, text, data)
        if not after or budget is None:
            return after != 0
        return self._fewest(after) < budget

    def _is_ample(self, state: int, group: Passing, data: bytes, budget: int) -> bool:
        """Whether a budget plainly suffices, whatever stands before the hooks."""
        needed = self._fewest(self.engine.after_bytes(state, data))
        known = [hook.spare() for hook in group.hooks]
        spare = max(needed + 64 if one is None else one for one in known)
        return needed + spare < budget

    def shortest(self, state: int, text: bytes | bytearray) -> list[int]:
        """Tokens that complete a text."""
        tokens = self.engine.vocabulary.tokens
        found: list[int] = []
        done = bytearray(text)
        while True:
            taken, left = len(found), self.engine.shortest_tokens(state)
            for token in left:
                data = tokens[token] or b""
                after = self.after(state, done, data)
                if not after:
                    break
                state, done = after, done + data
                found.append(token)
            else:
                return found
            if len(found) > taken:
                continue  # what was taken passed a hook: another way leads on from there
            # The token passes one itself: byte by byte to the first comma that may be it.
            for byte in data[: data.index(b",") + 1]:
                one = bytes((byte,))
                if one not in tokens:
                    raise InvalidGrammar(UNSPELLABLE)
                state = self.after(state, done, one)
                done += one
                found.append(tokens.index(one))

    def _fewest(self, state: int) -> int:
        try:
            return self.engine.fewest_tokens(state)
        except InvalidGrammar:
            return 1 << 30


@lru_cache(8)
def with_commas(vocabulary: Vocabulary) -> TokenCuts:
    """The tokens with a comma that may stand behind a JSON value, and where those commas end."""
    tokens, first, places = array("I"), array("I", [0]), array("I")
    for token, data in enumerate(vocabulary.tokens):
        if data is not None and b"," in data:
            cuts = [place + 1 for place, byte in enumerate(data) if byte == 0x2C]
            cuts = [cut for cut in cuts if _may_end_value(data[: cut - 1])]
            if cuts:
                tokens.append(token)
                places.extend(cuts)
                first.append(len(places))
    return TokenCuts(tokens, first, places)


def _may_end_value(before: bytes) -> bool:
    before = before.rstrip(BLANKS)
    return not before or before[-1] in _ENDS
