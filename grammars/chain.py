"""Words that come in one order, each before a rest of its own, some of which may be left out.

The members of most objects are one. An automaton may read a chain as the rules it stands for, or
put the same together by itself from its words and the parts that it asks for (`native/chains.c`).
Knows no JSON and no automaton.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from radixgen.grammars.expr import Node, Rule

START = -1  # the place of a whole chain, its opening included
MAX_STRANDS = 16  # orders of a braid


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """What stands between the parts of a chain. `quote` is what all words begin and end with,
    `inside` what any word may have within."""

    opening: Node
    empty: Node
    colon: Node
    comma: Node
    close: Node
    quote: Node
    inside: Node


class Listed(Protocol):
    """What a chain and a braid have alike: listed words, each with a value, and maybe others."""

    @property
    def marks(self) -> Marks: ...
    @property
    def words(self) -> Sequence[bytes]: ...
    @property
    def needed(self) -> Sequence[bool]: ...
    @property
    def has_others(self) -> bool: ...

    def value(self, index: int) -> Node:
        """What comes behind the colon of a word. Not empty where `is_open` says so."""
        ...

    def is_open(self, index: int) -> bool | None:
        """Whether a word has any value; None where only a look at the grammar tells."""
        ...

    def end(self) -> Node: ...

    def other_value(self) -> Node:
        """The value of any other word. Not empty, and asked for only with `has_others`."""
        ...


class Chain(Listed, Protocol):
    """An opening mark, then words. After `words[i]` come a colon, `value(i)`, and either the
    closing mark, once no needed word is left out, or a comma and a later word. Without any word
    the empty mark closes. No word begins another.

    Behind the last word, `end()` may come after a comma in the place of one. Where `has_others`,
    that is any other word before an `other_value()` and the like; then each listed word is spelled
    in one way.
    """

    def part(self, index: int) -> Node:
        """A word and all that may follow; it tells what `is_open` does not."""
        ...


class Braid(Listed, Protocol):
    """Words as of a chain, but in several orders, each kept: strands of words up to each of `ends`,
    MAX_STRANDS at most, that mix freely. Other words, or `end()`, may come once no needed word is
    left out, and behind them none that is listed. `native/braids.c` puts it together.

    A word of which `is_open` does not tell has a value if its `value` is not empty.
    """

    @property
    def ends(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """An opening mark, then `low` to `high` values of one kind with commas between, then the
    closing mark; without any value the empty mark closes. `item` gives a value, and is asked when
    a text gets there."""

    marks: Marks
    item: Callable[[], Node]
    low: int
    high: int | None

    def value(self, index: int) -> Node:
        """The value of any index."""
        return self.item()


class ListRule(Rule):
    """A listing, which an automaton may put together by itself as it does a chain."""

    __slots__ = ("listing",)

    def __init__(
        self, key: Hashable, expand: Callable[[], Node], productive: bool | None, listing: Listing
    ) -> None:
        super().__init__(key, expand, productive)
        self.listing = listing

    @property
    def has_begun(self) -> bool:
        """The opening mark is not empty."""
        return True


class ChainRule(Rule):
    """The words of a chain from `place` on: one of them up to the first that is needed, and all
    that may follow it. At START: the whole chain."""

    __slots__ = ("chain", "place")

    def __init__(
        self, chain: Chain, place: int, expand: Callable[[], Node], productive: bool | None
    ) -> None:
        super().__init__(("chain", chain, place), expand, productive)
        self.chain = chain
        self.place = place

    @property
    def has_begun(self) -> bool:
        """The opening mark of a whole chain is not empty."""
        return self.place == START


class BraidRule(Rule):
    """A whole braid, which has a text, that an automaton may put together by itself."""

    __slots__ = ("braid",)

    def __init__(self, braid: Braid, expand: Callable[[], Node]) -> None:
        super().__init__(("braid", braid), expand, True)
        self.braid = braid

    @property
    def has_begun(self) -> bool:
        """The opening mark is not empty."""
        return True
