"""Words that come in one order, each before a rest of its own, some of which may be left out.

The members of most objects are one. An automaton may read a chain as the rules it stands for, or
put the same together by itself from its words and the parts that it asks for (`native/chains.c`).
Knows no JSON and no automaton.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from radixgen.grammars.expr import Node, Rule


class Chain(Protocol):
    """After `words[i]` come `colon`, `value(i)`, and either `close`, once no needed word is left
    out, or `comma` and a later word. No word begins another.

    Behind the last word, `end()` may come after a comma in the place of one. That is any other word
    before a value and the like, where `others` is not None: the quote that all words begin and end
    with, then what may stand within, where each listed word is spelled in one way.
    """

    @property
    def words(self) -> Sequence[bytes]: ...
    @property
    def needed(self) -> Sequence[bool]: ...
    @property
    def colon(self) -> Node: ...
    @property
    def comma(self) -> Node: ...
    @property
    def close(self) -> Node: ...
    @property
    def others(self) -> tuple[Node, Node] | None: ...

    def value(self, index: int) -> Node:
        """What comes behind the colon of a word. Not empty where `is_open` says so."""
        ...

    def is_open(self, index: int) -> bool | None:
        """Whether a word has any value; None where only a look at its `part` tells."""
        ...

    def part(self, index: int) -> Node:
        """A word and all that may follow."""
        ...

    def end(self) -> Node: ...

    def other_value(self) -> Node:
        """The value of any other word. Not empty, and asked for only with `others`."""
        ...


class ChainRule(Rule):
    """The words of a chain from `place` on: one of them up to the first that is needed, and all
    that may follow it."""

    __slots__ = ("chain", "place")

    def __init__(
        self, chain: Chain, place: int, expand: Callable[[], Node], productive: bool | None
    ) -> None:
        super().__init__(("chain", chain, place), expand, productive)
        self.chain = chain
        self.place = place
