"""The grammar of an array shape.

Without counts the items behind the prefix are one counted repeat. With `contains` or `uniqueItems`
a lazy rule stands for what came so far: how many items, how many of each counted kind, and which
values of a finite set were used. Unique items out of too many values to list: `json_unique.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import EMPTY, Node, RuleSet, concat, literal, repeat, union
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_layout import Layout
from radixgen.grammars.json_listed import MAX_UNIQUE, Drawn
from radixgen.grammars.json_shapes import (
    ANYTHING,
    MAX_ALIKE,
    MAX_COUNTED,
    ArrayShape,
    Count,
    Goal,
    goal,
    too_many,
)
from radixgen.grammars.json_unique import NOTHING, Differing, Taken
from radixgen.grammars.json_unlike import NOBODY, Few, Rivals


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def rules(self) -> RuleSet: ...
    @property
    def layout(self) -> Layout: ...
    def value(self, wanted: Goal) -> Node: ...
    def members(self, wanted: Goal) -> dict[Any, Node] | None: ...
    def at_least(self, wanted: Goal, most: int) -> int: ...
    def strings(self, wanted: Goal, most: int) -> list[int]: ...
    def has_strings(self, wanted: Goal, number: int) -> bool: ...
    def containers(self, wanted: Goal, kind: str, most: int) -> int: ...
    def has_negatives(self, wanted: Goal) -> bool: ...
    def refuse(self, keyword: str, node: Schema, why: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """What came so far, as far as it matters: items, counts reached, and which values: their bits,
    or, where there is no list of values, themselves. `rivals`: the arrays to differ from that have
    all items so far, `matched` of them."""

    items: int = 0
    counts: tuple[int, ...] = ()
    used: int = 0
    taken: Taken = NOTHING
    rivals: Few = NOBODY
    matched: int = 0


class ArrayRules:
    """The rules of one shape."""

    def __init__(self, context: Context, shape: ArrayShape, is_derived: bool) -> None:
        self._context = context
        self._is_derived = is_derived  # from what a value must not be
        self._shape = shape
        self._layout = self._context.layout
        self._drawn: Drawn | None = None
        self._high = shape.high
        self._differing: Differing | None = None
        self._rivals = Rivals(shape.unlike)
        self._cap = max(len(shape.prefix), shape.low if shape.high is None else shape.high)
        for count in shape.counts:
            self._cap = max(self._cap, count.start)

    def start(self) -> Node:
        """The whole array."""
        self._check_counts()
        opened = self._layout.opened(b"[")
        if self._shape.unique is not None and self._shape.high not in (0, 1):
            self._find_values(self._shape.unique)
        independent = self._drawn is None and self._differing is None
        if independent and not (self._shape.counts or self._shape.unlike):
            return concat(opened, self._plain())
        rivals = self._rivals.every
        first = Progress(counts=(0,) * len(self._shape.counts), rivals=rivals)
        empty = literal(b"]") if self._may_close(first) else EMPTY
        return concat(opened, union(empty, self._next(first)))

    def _check_counts(self) -> None:
        """Refuses more to count than can be looked through for a way to the end."""
        counts = self._shape.counts
        if not too_many(count.low for count in counts):
            return
        node = counts[0].node
        why = (
            f"what {len(counts)} of it ask for are over {MAX_ALIKE} items of a kind, or there are "
            f"over {MAX_COUNTED} ways to have a part of them; ask for fewer, or lower minContains"
        )
        self._context.refuse(node.key.split("/")[1] if node.key else "contains", _owner(node), why)
        self._shape = replace(self._shape, counts=())

    def goals(self) -> Iterator[Goal]:
        """Every goal that an item may get."""
        nothing = Progress(counts=(0,) * len(self._shape.counts))
        size = min(max(len(self._shape.prefix), *(c.start for c in self._shape.counts), 0), 100)
        for index in range(size + 1):
            now = replace(nothing, items=index)
            yield from (wanted for wanted, _ in self._ways(self._shape.goal_of(index), now, 0))

    # --- arrays whose items do not depend on each other ----------------------------------------

    def _plain(self) -> Node:
        shape, size = self._shape, len(self._shape.prefix)
        close, comma = self._layout.closed(b"]"), self._layout.comma
        high = None if shape.high is None else shape.high - max(size, 1)
        low = max(shape.low - max(size, 1), 0)
        rest = concat(comma, self._context.value(shape.rest))
        tail: Node = EMPTY
        if high is None or high >= 0:
            tail = concat(repeat(rest, low, high), close)
        if not size:
            tail = concat(self._context.value(shape.rest), tail)
        before: list[Node] = []  # what stands before the tail, from its end on; joined once
        for index in range(size - 1, -1, -1):
            before.append(self._context.value(shape.prefix[index]))
            if index == 0:
                break
            before.append(comma)
            if shape.high is not None and index >= shape.high:
                before, tail = [], EMPTY
            if index >= shape.low:
                before, tail = [], union(close, concat(*reversed(before), tail))
        tail = concat(*reversed(before), tail)
        if shape.high == 0:
            tail = EMPTY
        return union(literal(b"]"), tail) if shape.low == 0 else tail

    # --- arrays that count ---------------------------------------------------------------------

    def _find_values(self, owner: Schema) -> None:
        """The finite set that unique items are drawn from. Refuses an infinite one."""
        values: dict[Any, Node] = {}
        goals = {*self._shape.prefix, self._shape.rest}
        if self._shape.high is not None and self._shape.high <= len(self._shape.prefix):
            goals = set(self._shape.prefix[: self._shape.high])
        for wanted in goals:
            members = self._context.members(wanted)
            if members is None or len(members) > MAX_UNIQUE:
                self._tell_apart(owner)
                return
            values |= members
        drawn = Drawn(self._context, self._shape, values)
        why = drawn.why_not()
        if why is not None:
            self._context.refuse("uniqueItems", owner, why)
            return
        self._drawn = drawn

    def _tell_apart(self, owner: Schema) -> None:
        """Unique items without a list of values. Refuses where they may run out."""
        differing = Differing(self._context, self._shape, owner, self._is_derived)
        why = differing.why_not()
        if why is not None:
            self._context.refuse("uniqueItems", owner, why)
            return
        try:
            self._context.rules.expect_hooks()
        except InvalidGrammar:  # texts have begun without being kept
            why = "it was met too late, behind thousands of schemas; give the items an enum"
            self._context.refuse("uniqueItems", owner, why)
            return
        self._differing = differing
        self._high = self._cap = differing.most

    def _next(self, now: Progress) -> Node:
        """One more item, and what follows."""
        key = ("item", self._context, self._shape, now)
        drawn, sure, way = self._drawn, None, None
        if drawn is not None:
            sure = drawn.is_sure(now.used, is_open=True) or None
            way = partial(self._shortest, drawn, now) if drawn.is_one_list else None
        return self._context.rules.rule(key, lambda: self._item(now), sure, way=way)

    def _shortest(self, drawn: Drawn, now: Progress) -> Node:
        """The shortest value that is left, and what follows: other items make no text shorter."""
        if self._high is not None and now.items >= self._high:
            return EMPTY
        found = drawn.shortest(self._shape.goal_of(now.items), now.used)
        if found is None:
            return EMPTY
        text, used = found
        return concat(literal(text), self._after(replace(self._more_items(now), used=used)))

    def _more_items(self, now: Progress) -> Progress:
        return replace(now, items=min(now.items + 1, self._cap))

    def _after(self, now: Progress) -> Node:
        key = ("after item", self._context, self._shape, now)
        drawn = self._drawn
        sure = self._may_close(now) or (drawn and drawn.is_sure(now.used, is_open=False))
        return self._context.rules.rule(key, lambda: self._end_or_more(now), sure or None)

    def _end_or_more(self, now: Progress) -> Node:
        close = self._layout.closed(b"]") if self._may_close(now) else EMPTY
        return union(close, self._more(now))

    def _more(self, now: Progress) -> Node:
        """A comma and one more item, if there may be one."""
        if self._high is not None and now.items >= self._high:
            return EMPTY
        if self._differing is None:
            return concat(self._layout.comma, self._next(now))
        key = ("differing item", self._context, self._shape, now)
        return self._differing.more(
            key, now.items, now.taken, lambda taken: self._next(replace(now, taken=taken))
        )

    def _may_close(self, now: Progress) -> bool:
        if self._rivals.equal(now.rivals, now.matched):
            return False
        counts = zip(now.counts, self._shape.counts, strict=True)
        return now.items >= self._shape.low and all(had >= count.low for had, count in counts)

    def _item(self, now: Progress) -> Node:
        shape = self._shape
        if self._high is not None and now.items >= self._high:
            return EMPTY
        wanted = shape.goal_of(now.items)
        if self._differing is not None:
            wanted = self._differing.goal_of(now.items, now.taken)
        more = self._more_items(now)
        return union(
            *(
                self._one(goals, replace(then, counts=counts))
                for also, then in self._compared(now, more)
                for goals, counts in self._ways(wanted | also, now, 0)
            )
        )

    def _compared(self, now: Progress, more: Progress) -> list[tuple[Goal, Progress]]:
        """Which rivals have this item as well: its goal, and the progress after it."""
        if not now.rivals:
            return [(ANYTHING, more)]
        return [
            (also, replace(more, rivals=rivals, matched=(now.matched + 1) * bool(rivals)))
            for also, rivals in self._rivals.ways(now.rivals, now.matched)
        ]

    def _one(self, wanted: Goal, after: Progress) -> Node:
        if self._drawn is None:
            return concat(self._context.value(wanted), self._after(after))
        key = ("drawn item", self._context, self._shape, wanted, after)
        return self._drawn.item(
            key, wanted, after.used, lambda used: self._after(replace(after, used=used))
        )

    def _ways(
        self, wanted: Goal, now: Progress, index: int
    ) -> Iterator[tuple[Goal, tuple[int, ...]]]:
        """Which counted kinds the item belongs to: its goal, and the counts after it."""
        if index == len(self._shape.counts):
            yield wanted, ()
            return
        count, had = self._shape.counts[index], now.counts[index]
        for also, after in _belongs(count, had, now.items):
            for goals, counts in self._ways(wanted | also, now, index + 1):
                yield goals, (after, *counts)


def _owner(node: Schema) -> Schema:
    return node if node.parent is None else node.parent


def _belongs(count: Count, had: int, index: int) -> Iterator[tuple[Goal, int]]:
    """Whether the item counts: what that asks of it, and the count after it.

    Without an upper bound a missed match does no harm, so the item is not asked to fail.
    """
    if index < count.start or (count.high is None and had >= count.low):
        yield ANYTHING, had
        return
    if count.high is None or had < count.high:
        yield goal(count.node, count.sign), had + 1
    yield (ANYTHING if count.high is None else goal(count.node, not count.sign)), had
