"""The engine in Python: masks by a plain walk of the trie, kept by state.

Exact and slow: milliseconds for a new mask over a large vocabulary. What `native/` is tested
against, and what runs without a compiler.
"""

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from radixgen.errors import InvalidGrammar
from radixgen.grammars.automaton import Automaton, State
from radixgen.grammars.derivative import is_empty, lowest_bit
from radixgen.grammars.expr import Expr, Node
from radixgen.grammars.hook import Hook
from radixgen.grammars.shortest import MAX_TRIED, Shortest
from radixgen.grammars.vocabulary import TokenCuts, Vocabulary

Words = NDArray[np.int32]
Filled = tuple[str | None, int]

MAX_FORCED = 4096
UNSPELLABLE = (
    "no tokens spell the shortest completion: single bytes are missing in the vocabulary, or it is "
    "longer than any text"
)
UNKNOWN = f"a text of a pattern takes over {MAX_TRIED} states to find; simplify it"
STATE_BYTES = 2000  # about what a state with its stacks and moves takes


class PythonEngine:
    """See `engine.Engine`."""

    def __init__(self, vocabulary: Vocabulary, max_bytes: int) -> None:
        self.vocabulary = vocabulary
        self._max_bytes = max_bytes
        self._automaton = Automaton()
        self._states: list[State | None] = [None]
        self._ids: dict[State, int] = {}
        self._masks: OrderedDict[int, Words] = OrderedDict()
        self._shortest = Shortest(self._automaton, vocabulary)
        self._lock = threading.RLock()
        trie = vocabulary.trie
        self._trie = tuple(a.tolist() for a in (trie.byte, trie.depth, trie.size, trie.token))
        self._same = vocabulary.same

    @property
    def num_bytes(self) -> int:
        return len(self._states) * STATE_BYTES + len(self._masks) * self.vocabulary.num_words * 4

    def is_empty(self, node: Expr) -> bool:
        with self._lock:
            return is_empty(node, self._automaton.decide)

    def start(self, node: Node) -> int:
        with self._lock:
            return self._id(self._automaton.start(node))

    def after_bytes(self, state: int, data: bytes) -> int:
        with self._lock:
            return self._id(self._automaton.run(self._states[state], data))

    def after_token(self, state: int, token_id: int) -> int:
        data = self.vocabulary.tokens[token_id]
        return self.after_bytes(state, data) if data else 0

    def is_accepting(self, state: int) -> bool:
        with self._lock:
            known = self._states[state]
            return known is not None and self._automaton.is_accepting(known)

    def next_bytes(self, state: int) -> int:
        with self._lock:
            known = self._states[state]
            return 0 if known is None else self._automaton.next_bytes(known)

    def forced_bytes(self, state: int) -> bytes:
        forced = bytearray()
        with self._lock:
            while len(forced) < MAX_FORCED and not self.is_accepting(state):
                mask = self.next_bytes(state)
                if mask.bit_count() != 1:
                    break
                forced.append(lowest_bit(mask))
                state = self.after_bytes(state, bytes(forced[-1:]))
        return bytes(forced)

    def fill_row(self, state: int, bitmask: Words, row: int) -> None:
        with self._lock:
            mask = self._masks.get(state)
            if mask is None:
                mask = self._masks[state] = self._walk(state)
                if len(self._masks) > 1 and self.num_bytes > self._max_bytes:
                    self._masks.popitem(last=False)
        bitmask[row, : len(mask)] = mask
        bitmask[row, len(mask) :] = 0

    def fill_many(
        self, states: list[int], bitmask: Words, rows: list[int], budgets: list[int]
    ) -> list[Filled]:
        filled: list[Filled] = []
        for state, row, budget in zip(states, rows, budgets, strict=True):
            before, error = self.num_bytes, None
            try:
                self.fill_row(state, bitmask, row)
                if budget >= 0:
                    self.restrict_row(state, bitmask, row, budget)
            except InvalidGrammar as raised:
                error = str(raised)
            filled.append((error, max(self.num_bytes - before, 0)))
        return filled

    def shortest_tokens(self, state: int) -> list[int]:
        with self._lock:
            known = self._states[state]
            tokens = None if known is None else self._shortest.tokens(known)
        if tokens is None:
            raise self._endless()
        return tokens

    def fewest_tokens(self, state: int) -> int:
        with self._lock:
            known = self._states[state]
            number = None if known is None else self._shortest.number(known)
        if number is None:
            raise self._endless()
        return number

    def _endless(self) -> InvalidGrammar:
        """Why no tokens complete a state."""
        return InvalidGrammar(UNKNOWN if self._shortest.has_lost else UNSPELLABLE)

    def restrict_row(self, state: int, bitmask: Words, row: int, budget: int) -> None:
        bits = np.unpackbits(bitmask[row].view(np.uint8), bitorder="little")
        with self._lock:
            for token_id in np.flatnonzero(bits[: self.vocabulary.size]).tolist():
                if token_id not in self.vocabulary.end_ids:
                    after = self._states[self.after_token(state, token_id)]
                    number = None if after is None else self._shortest.number(after)
                    bits[token_id] = number is not None and number < budget
        bitmask[row] = np.packbits(bits, bitorder="little").view(np.int32)

    def hooks(self, state: int) -> list[Hook]:
        known = self._states[state]
        return [] if known is None else self._automaton.hooks(known)

    def passing(self, state: int, cuts: TokenCuts) -> list[tuple[int, int]]:
        found = []
        for index, token in enumerate(cuts.tokens):
            data = self.vocabulary.tokens[token] or b""
            for cut in cuts.places[cuts.first[index] : cuts.first[index + 1]]:
                after = self.after_bytes(state, data[:cut])
                if after and self.hooks(after):
                    found.append((index, cut))
                if not after or self.hooks(after):
                    break
        return found

    def resolved(self, state: int, found: dict[Hook, Node]) -> int:
        with self._lock:
            known = self._states[state]
            return 0 if known is None else self._id(self._automaton.resolved(known, found))

    def _id(self, state: State | None) -> int:
        if state is None:
            return 0
        found = self._ids.get(state)
        if found is None:
            if self.num_bytes > self._max_bytes and not self._masks:
                raise InvalidGrammar(
                    f"the grammars in use need over {self._max_bytes} bytes of states; "
                    f"raise the compiler's max_bytes"
                )
            found = self._ids[state] = len(self._states)
            self._states.append(state)
        return found

    def _walk(self, state: int) -> Words:
        """The mask of a state by a walk of the whole trie, an end token where it accepts."""
        bits = np.zeros(self.vocabulary.num_words * 32, np.uint8)
        start = self._states[state]
        if start is not None:
            bits[self._allowed(start)] = 1
            if self._automaton.is_accepting(start):
                bits[list(self.vocabulary.end_ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _allowed(self, start: State) -> list[int]:
        byte, depth, size, token = self._trie
        step, allowed = self._automaton.step, []
        path: list[State] = [start] * (self.vocabulary.max_length + 1)
        node = 1
        while node < len(byte):
            following = step(path[depth[node] - 1], byte[node])
            if following is None:
                node += size[node]
                continue
            path[depth[node]] = following
            found = token[node]
            while found >= 0:
                allowed.append(found)
                found = int(self._same[found])
            node += 1
        return allowed
