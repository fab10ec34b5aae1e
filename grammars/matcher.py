"""One text under one grammar: what may come next, and what has come.

A matcher is a list of states, so a fork is a copy of it and a rollback cuts it. It knows its
grammar and the engine's states. It knows no sampling: a token is given to it, or refused by it. A
limit met on the way is a state of the matcher too (`error`), never an exception in a loop over
requests.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from radixgen.errors import InvalidGrammar
from radixgen.grammars.engine import Engine
from radixgen.grammars.following import Following

if TYPE_CHECKING:
    from radixgen.grammars.compiler import CompiledGrammar

Words = NDArray[np.int32]
T = TypeVar("T")


class Account:
    """What a text and its forks may add to the engine that it shares with others, in bytes."""

    __slots__ = ("_left",)

    def __init__(self, most: int) -> None:
        self._left = most

    def charge(self, grown: int) -> None:
        """Raises InvalidGrammar when more was added than allowed."""
        self._left -= grown
        if self._left < 0:
            raise InvalidGrammar(
                "the constraint takes more memory than one text may; simplify its patterns or "
                "bounds, or raise the compiler's max_bytes"
            )


class GrammarMatcher:
    """Follows one text. Not thread-safe; matchers of one grammar may run in different threads."""

    __slots__ = (
        "_account",
        "_ends",
        "_engine",
        "_error",
        "_following",
        "_states",
        "_terminated",
        "_text",
        "grammar",
    )

    def __init__(self, grammar: "CompiledGrammar") -> None:
        self.grammar = grammar
        self._engine: Engine = grammar.engine
        self._account = Account(grammar.max_growth)
        self._states = [grammar.start]
        self._terminated = False
        self._error: str | None = None
        # Where what may follow depends on the text: that text, and its length at each state.
        self._following = grammar.following
        self._text, self._ends = bytearray(), [0]

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, or None. Then only the end is allowed."""
        return self._error

    @property
    def num_steps(self) -> int:
        """Tokens and byte strings accepted, the end token included."""
        return len(self._states) - 1 + self._terminated

    def accept_token(self, token_id: int) -> bool:
        """Go on by a token; False, and nothing changes, when the grammar does not allow it."""
        if self._terminated or self._error is not None:
            return False
        vocabulary = self._engine.vocabulary
        if token_id in vocabulary.end_ids:
            self._terminated = self.is_accepting()
            return self._terminated
        if not 0 <= token_id < vocabulary.size:
            return False
        if self._following is not None:
            data = vocabulary.tokens[token_id]
            return data is not None and self._follow(self._following, data)
        before = self._engine.num_bytes
        try:
            state = self._engine.after_token(self._states[-1], token_id)
            self._account.charge(self._engine.num_bytes - before)
        except InvalidGrammar as error:
            self._error = str(error)
            return False
        if state:
            self._states.append(state)
        return state != 0

    def accept_bytes(self, data: bytes) -> bool:
        """Go on by some bytes, as one step; False, and nothing changes, when they do not fit."""
        if self._terminated or self._error is not None:
            return False
        if self._following is not None:
            return self._follow(self._following, data)
        before = self._engine.num_bytes
        try:
            state = self._engine.after_bytes(self._states[-1], data)
            self._account.charge(self._engine.num_bytes - before)
        except InvalidGrammar as error:
            self._error = str(error)
            return False
        if state:
            self._states.append(state)
        return state != 0

    def _follow(self, following: Following, data: bytes) -> bool:
        """`accept_bytes` where what may follow depends on the text."""
        before = self._engine.num_bytes
        try:
            state = following.after(self._states[-1], self._text, data)
            self._account.charge(self._engine.num_bytes - before)
        except InvalidGrammar as error:
            self._error = str(error)
            return False
        if state:
            self._states.append(state)
            self._text += data
            self._ends.append(len(self._text))
        return state != 0

    def fill_bitmask(self, bitmask: Words, row: int, budget: int | None = None) -> None:
        """Write which tokens may come next. bitmask: [rows, words] int32, bit 1 = allowed

        `budget`: how many tokens may still come, the end token not counted. Then only those are
        allowed after which `shortest_completion` is below it, so that a text that starts with
        enough of a budget is complete, or can be ended, when the budget is used up.
        """
        if not self._terminated and self._error is None:
            before = self._engine.num_bytes
            try:
                self._engine.fill_row(self._states[-1], bitmask, row)
                if budget is not None:
                    self._engine.restrict_row(self._states[-1], bitmask, row, budget)
                if self._following is not None:
                    self._following.strike(self._states[-1], self._text, bitmask[row], budget)
                self._account.charge(self._engine.num_bytes - before)
                return
            except InvalidGrammar as error:
                self._error = str(error)
        self._only_end(bitmask[row])

    def _filled(self, words: Words, error: str | None, grown: int) -> None:
        """Take note of a mask that was filled with others."""
        try:
            self._account.charge(grown)
        except InvalidGrammar as over:
            error = error or str(over)
        if error is not None:
            self._error = error
            self._only_end(words)

    def _strike(self, bitmask: Words, row: int, budget: int | None) -> None:
        """Take from a mask that is within its budget what the text so far forbids."""
        if self._error is not None or self._following is None:
            return
        before = self._engine.num_bytes
        try:
            self._following.strike(self._states[-1], self._text, bitmask[row], budget)
            self._account.charge(self._engine.num_bytes - before)
        except InvalidGrammar as error:
            self._error = str(error)
            self._only_end(bitmask[row])

    def _only_end(self, words: Words) -> None:
        words[:] = 0
        for token_id in self._engine.vocabulary.end_ids:
            words.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))

    def forced_bytes(self) -> bytes:
        """The longest byte string that every completion begins with, up to 4096 bytes."""
        if self._terminated or self._error is not None:
            return b""
        return self._charged(partial(self._engine.forced_bytes, self._states[-1]), b"")

    def shortest_completion(self) -> int:
        """How many tokens complete the text from here, the end token not counted.

        The fewest that spell the text with the fewest bytes: an upper bound that can be kept, and
        exact unless a longer text takes fewer tokens; its bytes, where those are over 65536.
        """
        if self._terminated or self._error is not None:
            return 0
        return self._charged(partial(self._engine.fewest_tokens, self._states[-1]), 0)

    def shortest_tokens(self) -> list[int]:
        """The tokens that `shortest_completion` counts, in order; where an item must differ from
        those before it, a few more if that takes a token apart."""
        if self._terminated or self._error is not None:
            return []
        if self._following is not None:
            ask = partial(self._following.shortest, self._states[-1], self._text)
        else:
            ask = partial(self._engine.shortest_tokens, self._states[-1])
        return self._charged(ask, [])

    def _charged(self, ask: Callable[[], T], failed: T) -> T:
        """What an engine answers, with what that adds to it on the account; `failed` where it does
        not answer."""
        before = self._engine.num_bytes
        try:
            answer = ask()
            self._account.charge(self._engine.num_bytes - before)
            return answer
        except InvalidGrammar as error:
            self._error = str(error)
            return failed

    def rollback(self, num_steps: int) -> None:
        """Undo the last steps, an error with them. Raises ValueError for more than there are."""
        if not 0 <= num_steps <= self.num_steps:
            raise ValueError(f"cannot undo {num_steps} of {self.num_steps} steps")
        if num_steps and self._terminated:
            self._terminated = False
            num_steps -= 1
        if num_steps:
            del self._states[-num_steps:]
            if self._following is not None:
                del self._ends[-num_steps:]
                del self._text[self._ends[-1] :]
            self._error = None

    def fork(self) -> "GrammarMatcher":
        """An independent matcher at the same place."""
        other = GrammarMatcher(self.grammar)
        other._states, other._account = self._states.copy(), self._account
        other._terminated, other._error = self._terminated, self._error
        if self._following is not None:
            other._text, other._ends = self._text.copy(), self._ends.copy()
        return other

    def is_terminated(self) -> bool:
        """Whether the end token has been accepted."""
        return self._terminated

    def is_finished(self) -> bool:
        """Whether the text is over: ended, or complete with nothing that may follow."""
        if self._terminated or not self.is_accepting():
            return self._terminated
        try:
            return not self._engine.next_bytes(self._states[-1])
        except InvalidGrammar as error:
            self._error = str(error)
            return False

    def is_accepting(self) -> bool:
        """Whether the text so far is complete."""
        if self._error is not None:
            return False
        try:
            return self._terminated or self._engine.is_accepting(self._states[-1])
        except InvalidGrammar as error:
            self._error = str(error)
            return False


def fill_bitmasks(
    matchers: list[GrammarMatcher],
    bitmask: Words,
    rows: list[int],
    budgets: list[int | None] | None = None,
) -> None:
    """`fill_bitmask` for many matchers, those of one engine in one native call.

    bitmask: [n, words] int32; matcher i writes row rows[i], with budgets[i] if there are any.
    """
    groups: dict[int, list[int]] = {}
    for index, matcher in enumerate(matchers):
        if matcher._terminated or matcher._error is not None:
            matcher.fill_bitmask(bitmask, rows[index])
        else:
            groups.setdefault(id(matcher._engine), []).append(index)
    for group in groups.values():
        engine = matchers[group[0]]._engine
        states = [matchers[i]._states[-1] for i in group]
        left = [-1 if budgets is None or (b := budgets[i]) is None else max(b, 0) for i in group]
        filled = engine.fill_many(states, bitmask, [rows[i] for i in group], left)
        for index, budget, (error, grown) in zip(group, left, filled, strict=True):
            matcher = matchers[index]
            if error is not None or grown:
                matcher._filled(bitmask[rows[index]], error, grown)
            if matcher._following is not None:
                matcher._strike(bitmask, rows[index], None if budget < 0 else budget)


def allocate_bitmask(num_rows: int, vocabulary_size: int) -> Words:
    """A mask that allows nothing yet. [num_rows, ceil(vocabulary_size / 32)] int32"""
    return np.zeros((num_rows, (vocabulary_size + 31) // 32), np.int32)
