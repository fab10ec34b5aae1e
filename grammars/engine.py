"""What a matcher needs of an automaton over a vocabulary, and which one runs here.

States are small integers, 0 is the one without a way on. There are two engines with the same
answers: `NativeEngine` in C, and `PythonEngine`, which runs where there is no compiler.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import Expr, Node
from radixgen.grammars.hook import Hook
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import TokenCuts, Vocabulary

Words = NDArray[np.int32]
Filled = tuple[str | None, int]


class Engine(Protocol):
    """States and masks of any number of grammars over one vocabulary. Safe to share by threads.

    Every method may raise InvalidGrammar: a rule that cannot be expanded, or a limit of time or
    memory that one grammar has met.
    """

    @property
    def vocabulary(self) -> Vocabulary: ...

    def is_empty(self, node: Expr) -> bool:
        """Whether a regular expression has no string."""
        ...

    def start(self, node: Node) -> int:
        """The first state of a grammar; 0 when it derives nothing."""
        ...

    def after_bytes(self, state: int, data: bytes) -> int:
        """The state after some bytes, 0 if they cannot be continued to a complete text."""
        ...

    def after_token(self, state: int, token_id: int) -> int:
        """The state after the bytes of a token; 0 for a token without bytes."""
        ...

    def is_accepting(self, state: int) -> bool:
        """Whether the text is complete here."""
        ...

    def next_bytes(self, state: int) -> int:
        """Bit b is set when byte b may come next."""
        ...

    def forced_bytes(self, state: int) -> bytes:
        """The longest byte string that every completion begins with, up to a few thousand."""
        ...

    def fill_row(self, state: int, bitmask: Words, row: int) -> None:
        """Write the mask of a state as one row of [n, words] int32: bit 1 is an allowed token."""
        ...

    def fill_many(
        self, states: list[int], bitmask: Words, rows: list[int], budgets: list[int]
    ) -> list[Filled]:
        """The same for many states, with `restrict_row` where a budget is not negative. Of each, an
        error message or None, and the bytes it took."""
        ...

    def shortest_tokens(self, state: int) -> list[int]:
        """The fewest tokens that spell a shortest text (in bytes) that completes a state; a short
        text where an intersection takes too many states to say which is shortest."""
        ...

    def fewest_tokens(self, state: int) -> int:
        """How many tokens complete a state: those of `shortest_tokens`, or, where a hook lies on
        the way, as many as suffice whatever stands before it."""
        ...

    def restrict_row(self, state: int, bitmask: Words, row: int, budget: int) -> None:
        """Take from a state's mask what leaves more than `budget` - 1 tokens to complete.

        What stays can be completed: `fewest_tokens` is a bound from above, of which one token of a
        shortest text takes one. It is exact where each token is one byte; a longer text, or another
        as short, may be spelled by fewer tokens.
        """
        ...

    def hooks(self, state: int) -> list[Hook]:
        """The hooks that a state stands before: what follows depends on the text so far."""
        ...

    def passing(self, state: int, cuts: TokenCuts) -> list[tuple[int, int]]:
        """The tokens, by their place in `cuts`, that come to a hook, and the first cut at one."""
        ...

    def resolved(self, state: int, found: dict[Hook, Node]) -> int:
        """The state with what was found in the place of its hooks; 0 where nothing is left."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        ...


def make_engine(vocabulary: Vocabulary, max_bytes: int) -> Engine:
    """The native engine, or the Python one where no compiler is at hand."""
    library = load_library()
    if library is None:
        return PythonEngine(vocabulary, max_bytes)
    return NativeEngine(vocabulary, library, max_bytes)


__all__ = ["Engine", "InvalidGrammar", "NativeEngine", "PythonEngine", "make_engine"]
