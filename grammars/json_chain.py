"""The members of an object whose names are declared in one order, when the place among them is all
that matters: no counting, no members that have to exist under a pattern, nothing to differ from.

Most objects are so. Knows how such members follow each other; what comes behind them and what
their values are, `json_objects.py` and `json_values.py` say.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from radixgen.grammars.chain import ChainRule
from radixgen.grammars.expr import EMPTY, Node, Rule, concat, literal, union
from radixgen.grammars.json_keys import PLAIN_INSIDE, is_spelled_once
from radixgen.grammars.json_layout import QUOTE, Layout
from radixgen.grammars.json_shapes import Goal
from radixgen.grammars.json_texts import spelled

STRIDE = 8  # names that each place of a long chain lists itself


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def layout(self) -> Layout: ...
    def value(self, wanted: Goal) -> Node: ...
    def productive(self, wanted: Goal) -> bool | None: ...


class MemberChain:
    """See `chain.Chain`. `sure`: True where the needed names are known to have values. `others`: the
    goal of every member of another name, None where there are several or none."""

    def __init__(
        self,
        context: Context,
        goals: Mapping[str, Goal],
        names: Sequence[str],
        needed: Collection[str],
        end: Callable[[], Node],
        sure: bool | None,
        others: Goal | None,
    ) -> None:
        self._context = context
        self._goals = [goals[name] for name in names]
        self._end = end
        self._sure = sure
        self._others = others
        self._places: dict[int, ChainRule] = {}
        self._afters: dict[int, Rule] = {}
        self._parts: dict[int, Node] = {}
        self.words = [*map(spelled, names)]
        self.needed = [name in needed for name in names]
        self._last = max((i for i, must in enumerate(self.needed) if must), default=-1)
        self.colon, self.comma = context.layout.colon, context.layout.comma
        self.close = context.layout.closed(b"}")

    def end(self) -> Node:
        """One more member when all names were passed."""
        return self._end()

    @property
    def others(self) -> tuple[Node, Node] | None:
        """The quote, and what other names are inside of it."""
        spelled_once = is_spelled_once(b"".join(self.words))
        return (QUOTE, PLAIN_INSIDE) if self._others is not None and spelled_once else None

    def other_value(self) -> Node:
        """The value of a member of another name."""
        assert self._others is not None
        return self._context.value(self._others)

    def value(self, index: int) -> Node:
        """The value of a member."""
        return self._context.value(self._goals[index])

    def is_open(self, index: int) -> bool | None:
        """Whether a member has a value; None where only a look at the grammar tells."""
        return self._context.productive(self._goals[index]) if self._sure else None

    def more(self, place: int) -> Node:
        """One more member, and what follows, when `place` names were passed."""
        if place == len(self.words):
            return self._end()
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
            return concat(begun, self.colon, self.value(index), self._after(index + 1))
        behind = ("behind", self, index)
        return concat(begun, Rule(behind, partial(self._behind, index), True))

    def _behind(self, index: int) -> Node:
        return concat(self.colon, self.value(index), self._rest(index + 1))

    def _after(self, place: int) -> Rule:
        found = self._afters.get(place)
        if found is None:
            found = Rule(("after member", self, place), partial(self._rest, place), self._sure)
            self._afters[place] = found
        return found

    def _rest(self, place: int) -> Node:
        """What follows a member: the end of the object, or one more."""
        close = self.close if place > self._last else EMPTY
        return union(close, concat(self.comma, self.more(place)))
