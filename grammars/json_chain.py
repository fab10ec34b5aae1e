"""The members of an object whose names are declared in one order, or in several that mix, when the
place in each is all that matters: no counting, no members that have to exist under a pattern,
nothing to differ from.

Most objects are so. Knows how such members follow each other; what comes behind them and what
their values are, `json_objects.py` and `json_values.py` say.
"""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Protocol

from radixgen.grammars.chain import START, ChainRule, Marks
from radixgen.grammars.expr import EMPTY, Node, Rule, concat, literal, union
from radixgen.grammars.json_keys import PLAIN_INSIDE, is_spelled_once
from radixgen.grammars.json_layout import QUOTE, Layout
from radixgen.grammars.json_shapes import Goal
from radixgen.grammars.json_texts import all_spelled

STRIDE = 8  # names that each place of a long chain lists itself


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def layout(self) -> Layout: ...
    def value(self, wanted: Goal) -> Node: ...


@lru_cache(64)
def member_marks(layout: Layout) -> Marks:
    return Marks(
        layout.opened(b"{"),
        literal(b"}"),
        layout.colon,
        layout.comma,
        layout.closed(b"}"),
        QUOTE,
        PLAIN_INSIDE,
    )


class _Members:
    """The names of members, spelled, which of them are needed, and what other members there are."""

    def __init__(
        self,
        context: Context,
        names: Sequence[str],
        needed: Collection[str],
        end: Callable[[], Node],
        others: Goal | None,
    ) -> None:
        sought = frozenset(needed)
        self._context = context
        self._others = others
        self.end = end
        self.words = all_spelled(names)
        self.needed = [name in sought for name in names]
        self.marks = member_marks(context.layout)

    @property
    def has_others(self) -> bool:
        """Whether any other name is a member, and no name has two spellings."""
        return self._others is not None and is_spelled_once(b"".join(self.words))

    def other_value(self) -> Node:
        """The value of a member of another name."""
        assert self._others is not None
        return self._context.value(self._others)


class MemberChain(_Members):
    """See `chain.Chain`.

    `value`: the value of the name of an index, asked when a text may get there. `may_be`: whether
    it has one; None where only a look at the grammar tells. `end`: one more member when all names
    were passed. `sure`: True where the needed names are known to have values. `others`: the goal of
    every member of another name, None where there are several or none.
    """

    def __init__(
        self,
        context: Context,
        names: Sequence[str],
        needed: Collection[str],
        *,
        value: Callable[[int], Node],
        may_be: Callable[[int], bool | None],
        end: Callable[[], Node],
        sure: bool | None,
        others: Goal | None,
    ) -> None:
        super().__init__(context, names, needed, end, others)
        self.value = value
        self._may_be = may_be
        self._sure = sure
        self._places: dict[int, ChainRule] = {}
        self._afters: dict[int, Rule] = {}
        self._parts: dict[int, Node] = {}
        self._last = len(names) - 1 - self.needed[::-1].index(True) if True in self.needed else -1

    def is_open(self, index: int) -> bool | None:
        """Whether a member has a value; None where only a look at the grammar tells."""
        return self._may_be(index) if self._sure else None

    def whole(self) -> ChainRule:
        """The object."""
        sure = True if self._last < 0 else self._sure
        return ChainRule(self, START, self._opened, sure)

    def _opened(self) -> Node:
        empty = self.marks.empty if self._last < 0 else EMPTY
        return concat(self.marks.opening, union(empty, self.more(0)))

    def more(self, place: int) -> Node:
        """One more member, and what follows, when `place` names were passed."""
        if place == len(self.words):
            return self.end()
        found = self._places.get(place)
        if found is None:
            sure = self._sure if place <= self._last else None
            found = ChainRule(self, place, partial(self._next_or_later, place), sure)
            self._places[place] = found
        return found

    def _next_or_later(self, place: int) -> Node:
        """The next name or a later one, up to the first that is needed.

        Behind every STRIDE names a rule stands for the later ones, which all places share.
        """
        stop = min(len(self.words), (place // STRIDE + 1) * STRIDE)
        found: list[Node] = []
        for index in range(place, stop):
            found.append(self.part(index))
            if self.needed[index]:
                return union(*found)
        found.append(self.more(stop))
        return union(*found)

    def part(self, index: int) -> Node:
        """The member of a name and what follows; that waits for the name where this can."""
        found = self._parts.get(index)
        if found is None:
            found = self._parts[index] = self._part(index)
        return found

    def _part(self, index: int) -> Node:
        is_open, begun = self.is_open(index), literal(self.words[index])
        if is_open is False:
            return EMPTY
        if is_open is None:
            return concat(begun, self.marks.colon, self.value(index), self._after(index + 1))
        behind = ("behind", self, index)
        return concat(begun, Rule(behind, partial(self._behind, index), True))

    def _behind(self, index: int) -> Node:
        return concat(self.marks.colon, self.value(index), self._rest(index + 1))

    def _after(self, place: int) -> Rule:
        found = self._afters.get(place)
        if found is None:
            found = Rule(("after member", self, place), partial(self._rest, place), self._sure)
            self._afters[place] = found
        return found

    def _rest(self, place: int) -> Node:
        """What follows a member: the end of the object, or one more."""
        close = self.marks.close if place > self._last else EMPTY
        return union(close, concat(self.marks.comma, self.more(place)))


class MemberBraid(_Members):
    """See `chain.Braid`: the members of an object that is known to have a value, whose names are
    declared in several orders, when the places in these are all that matters. Arguments as above;
    `strands`: the names of each order."""

    def __init__(
        self,
        context: Context,
        strands: Sequence[Sequence[str]],
        needed: Collection[str],
        *,
        value: Callable[[str], Node],
        may_be: Callable[[str], bool | None],
        end: Callable[[], Node],
        others: Goal | None,
    ) -> None:
        names = [name for strand in strands for name in strand]
        super().__init__(context, names, needed, end, others)
        self._names, self._value, self._may_be = names, value, may_be
        self.ends = list(accumulate(map(len, strands)))

    def value(self, index: int) -> Node:
        """The value of the member of an index."""
        return self._value(self._names[index])

    def is_open(self, index: int) -> bool | None:
        """Whether a member has a value; None where only a look at the grammar tells."""
        return self._may_be(self._names[index])
