"""The grammar of an object shape.

A lazy rule stands for what came so far: in declared order how far each chain of declared names was
passed, in any order which names were seen; and, only where it matters, how many members there are
and which members that have to exist are still missing. Names that no schema declares come behind
the declared ones, or anywhere in any order. Chains of several schemas mix freely, and a name that
is required but declared nowhere is a chain of its own.

A name is never written twice if it is declared. An undeclared one may come twice, of which readers
keep the last: so such members count once at most towards a lower bound, and a member that has to
exist binds all later names like it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple, Protocol

from radixgen.grammars.chain import MAX_STRANDS, BraidRule
from radixgen.grammars.expr import EMPTY, Concat, Expr, Node, Rule, RuleSet, concat, literal, union
from radixgen.grammars.json_chain import MemberBraid, MemberChain
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keys import MAX_CLASSES, KeyClass, TooManyClasses, classes_of, key_text
from radixgen.grammars.json_layout import Layout
from radixgen.grammars.json_shapes import ANYTHING, Goal, ObjectShape, is_never
from radixgen.grammars.json_texts import spelled
from radixgen.grammars.json_unlike import NOBODY, Few, Rivals
from radixgen.grammars.text_emptiness import is_endless


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def rules(self) -> RuleSet: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def any_order(self) -> bool: ...
    def value(self, wanted: Goal) -> Node: ...
    def productive(self, wanted: Goal) -> bool | None: ...
    def shape_productive(self, shape: ObjectShape) -> bool | None: ...
    def doubt_names(self, names: Expr, owner: Schema) -> None: ...
    def refuse(self, keyword: str, node: Schema, why: str) -> None: ...


class Progress(NamedTuple):
    """What came so far, as far as it matters.

    `place`: how many names of each chain were passed. `seen`: the bits of names that stand alone.
    `members`: their number, up to the bound that matters. `missing`: indices of members that have
    to exist and do not yet. `bound`: those that an undeclared name has fulfilled. `rivals`: the
    values to differ from that have all members so far, `matched` of them.
    """

    place: tuple[int, ...] = ()
    seen: int = 0
    members: int = 0
    missing: frozenset[int] = frozenset()
    bound: frozenset[int] = frozenset()
    rivals: Few = NOBODY
    matched: int = 0


@lru_cache(4096)  # alternatives often share names
def _name_text(name: str) -> Node:
    return literal(spelled(name))


class ObjectRules:
    """The rules of one shape."""

    def __init__(self, context: Context, shape: ObjectShape, owner: Schema) -> None:
        self._context = context
        self._owner = owner  # where a refusal points to
        self._shape = shape
        self._layout = context.layout
        self._goals = shape.goals
        if shape.every:
            self._goals = {name: shape.goal_of(name) for name in shape.goals}
        self._names = [
            name
            for name, wanted in self._goals.items()
            if name in shape.required or not is_never(wanted)
        ]
        self._chains, self._alone = self._find_chains()
        # Lower bounds that the required members meet need no counting.
        self._counting = shape.low > len(shape.required) or shape.high is not None
        self._rivals = Rivals(shape.unlike)
        # Where members are counted, those that came may leave too few to be finished with.
        self._sure = None if self._counting else context.shape_productive(shape) or None

    def start(self) -> Node:
        """The whole object."""
        self._check_low()
        if self._counting or self._shape.some or self._shape.unlike:
            return self._whole()
        if len(self._chains) == 1 and not self._alone:
            return self._plain()
        strands = [*self._chains, *((name,) for name in self._alone)]
        if not self._sure or self._context.any_order or not 1 < len(strands) <= MAX_STRANDS:
            return self._whole()
        return self._braided(strands)

    def _whole(self) -> Node:
        """The object, put together from rules of its own."""
        missing = frozenset(range(len(self._shape.some)))
        rivals = self._rivals.every
        first = Progress((0,) * len(self._chains), missing=missing, rivals=rivals)
        empty = literal(b"}") if self._may_close(first) else EMPTY
        return concat(self._layout.opened(b"{"), union(empty, self._member(first)))

    def _plain(self) -> Node:
        """The object, where the place in one chain is all there is to know."""
        (names,) = self._chains
        context, goals = self._context, self._goals
        return MemberChain(
            context,
            names,
            self._shape.required,
            value=lambda index: context.value(goals[names[index]]),
            may_be=lambda index: context.productive(goals[names[index]]),
            end=self._end,
            sure=self._sure,
            others=self._others(),
        ).whole()

    def _braided(self, strands: Sequence[Sequence[str]]) -> Node:
        """The object, where the places in some chains are, a name that stands alone being one."""
        context, goals = self._context, self._goals
        braid = MemberBraid(
            context,
            strands,
            self._shape.required,
            value=lambda name: context.value(goals[name]),
            may_be=lambda name: context.productive(goals[name]),
            end=self._end,
            others=self._others(),
        )
        return BraidRule(braid, self._whole)

    def _end(self) -> Node:
        return EMPTY if self._is_closed else self.behind_declared()

    def behind_declared(self) -> Node:
        """One more member where all names were passed, and what follows."""
        return self._member(Progress(self._ends, (1 << len(self._alone)) - 1))

    def _others(self) -> Goal | None:
        """The goal of members that no chain names, if it is one and known to have a value."""
        if len(self._names) < len(self._goals):  # some names are spoken of only to forbid them
            return None
        wanted: Goal = ANYTHING
        for keys, also in self._shape.every:
            if not keys.is_every_other:
                return None
            wanted |= also
        return wanted if self._context.productive(wanted) else None

    @cached_property
    def _bits(self) -> int:
        """The required names that stand alone, as of `Progress.seen`."""
        return sum(1 << i for i, n in enumerate(self._alone) if n in self._shape.required)

    @cached_property
    def _last(self) -> list[int]:
        """The index of the last required name of each chain; -1 without one."""
        required = self._shape.required
        found = ([i for i, name in enumerate(chain) if name in required] for chain in self._chains)
        return [max(places, default=-1) for places in found]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The place behind all chains."""
        return tuple(map(len, self._chains))

    def _find_chains(self) -> tuple[list[tuple[str, ...]], list[str]]:
        """The names by chain, and those that stand alone; in any order all of them do."""
        if self._context.any_order:
            return [], self._names
        declared = self._shape.chains
        if len(declared) == 1 and len(declared[0]) == len(self._goals) == len(self._names):
            return list(declared), []
        live = set(self._names)
        chains = [tuple(n for n in chain if n in live) for chain in self._shape.chains]
        alone = live.difference(*self._shape.chains)
        alone.update(chain[0] for chain in chains[1:] if len(chain) == 1)
        kept = [c for c in chains if c and c[0] not in alone]
        return kept, [name for name in self._names if name in alone]

    @cached_property
    def _is_closed(self) -> bool:
        """Whether a look shows that there are no undeclared names."""
        return any(keys.is_every_other and is_never(wanted) for keys, wanted in self._shape.every)

    @cached_property
    def _is_open(self) -> bool:
        """Whether there surely is an undeclared name that has a value: all have one, whichever
        rules hold of them, or those of a pattern, which has them without end."""
        productive, every = self._context.productive, self._shape.every
        for keys, wanted in every:
            if len(keys.inside) == 1 and not keys.outside and is_endless(*keys.inside):
                others = [w for k, w in every if k is not keys and not keys.inside <= k.outside]
                if not others and productive(wanted):
                    return True
        goals = [wanted for _, wanted in every]
        if len(goals) > 1:
            goals.append(ANYTHING.union(*goals))
        return len(goals) <= 3 and all(map(productive, goals))

    @cached_property
    def _classes(self) -> list[KeyClass]:
        """The classes of undeclared names."""
        if self._is_closed:
            return []
        try:
            return classes_of(self._shape)
        except TooManyClasses:
            why = f"names match its patterns in over {MAX_CLASSES} combinations; let fewer overlap"
            self._context.refuse("patternProperties", self._owner, why)
            return []

    @cached_property
    def _named_classes(self) -> list[tuple[KeyClass, Node]]:
        """The same with the texts of their names."""
        declared = list(self._shape.goals)
        doubt = partial(self._context.doubt_names, owner=self._owner)
        return [(one, key_text(one, declared, doubt)) for one in self._classes]

    def doubt_names(self) -> None:
        """Have names that patterns tell apart looked at."""
        if any(one.inside or one.outside for one in self._classes):
            assert self._named_classes is not None

    def _check_low(self) -> None:
        """Lower bounds may be refused that are more than one over the required members."""
        low = self._shape.low
        if low > len(self._shape.required) + 1 and self._classes:
            self._context.refuse(
                "minProperties",
                self._owner,
                f"{low} different names cannot be told apart where any name is allowed; require "
                f"{low - 1} of them by name, or close the object with additionalProperties",
            )

    def _productive(self) -> bool | None:
        """True if every object that has begun can be finished; None if that takes thought."""
        return self._sure

    def goals(self) -> Iterator[Goal]:
        """Every goal that a member's value may get."""
        whole = frozenset(range(len(self._shape.some)))
        for name in self._names:
            open_to = [e for e in whole if self._shape.some[e].keys.hold(name)]
            yield from (wanted for wanted, _ in self._fulfilling(self._goals[name], whole, open_to))
        for one in self._classes:
            bound = one.goal.union(*(self._shape.some[index].goal for index in one.some))
            for begun in (one.goal, bound):
                ways = self._fulfilling(begun, whole, sorted(one.some))
                yield from (wanted for wanted, _ in ways)

    # --- what may come next --------------------------------------------------------------------

    def _may_close(self, now: Progress) -> bool:
        if now.missing or (self._counting and now.members < self._shape.low):
            return False
        return self._passed(now) and not self._rivals.equal(now.rivals, now.matched)

    def _passed(self, now: Progress) -> bool:
        """Whether every required name was seen."""
        if now.seen & self._bits != self._bits:
            return False
        return all(place > last for place, last in zip(now.place, self._last, strict=True))

    def _member(self, now: Progress) -> Rule:
        """One more member, and what follows."""
        known = self._needed_after(now) or self._has_another(now)
        productive = self._productive() if known else None
        key = ("member", self._context, self._shape, now)
        is_chain = len(self._chains) == 1 and not self._alone
        way = None if is_chain or not self._shape.required else self._first_required(now)
        return self._context.rules.rule(key, lambda: self._members(now), productive, way=way)

    def _first_required(self, now: Progress) -> Callable[[], Node] | None:
        """The members that go on with the first required name still missing: another order makes
        no text shorter, and a search for one would go through every subset of them."""
        for index, name in enumerate(self._alone):
            bit = 1 << index
            if self._bits & bit and not now.seen & bit:
                seen = now._replace(seen=now.seen | bit)
                return partial(self._named, seen, name)
        for chain, place in enumerate(now.place):
            index = self._reach(chain, place) - 1
            if index >= place and self._chains[chain][index] in self._shape.required:
                return partial(self._declared, now, chain, index)
        return None

    def _needed_after(self, now: Progress) -> bool:
        return bool(self._shape.required) and not self._may_close(now)

    def _has_another(self, now: Progress) -> bool:
        """Whether a look shows that one more member may come: then no rule is expanded for it."""
        if not self._sure or self._counting or self._shape.some or self._shape.unlike:
            return False
        if (self._context.any_order or self._passed(now)) and self._is_open:
            return True  # one of any other name
        return any(
            self._context.productive(self._goals[self._chains[chain][index]])
            for chain, place in enumerate(now.place)
            for index in range(place, self._reach(chain, place))
        )

    def _after(self, now: Progress) -> Rule:
        key = ("after member", self._context, self._shape, now)
        return self._context.rules.rule(key, lambda: self._end_or_more(now), self._productive())

    def _end_or_more(self, now: Progress) -> Node:
        close = self._layout.closed(b"}") if self._may_close(now) else EMPTY
        return union(close, concat(self._layout.comma, self._member(now)))

    def _members(self, now: Progress) -> Node:
        if self._shape.high is not None and now.members >= self._shape.high:
            return EMPTY
        found = [
            self._declared(now, chain, index)
            for chain, place in enumerate(now.place)
            for index in range(place, self._reach(chain, place))
        ]
        for index, name in enumerate(self._alone):
            if not now.seen >> index & 1:
                found.append(self._named(now._replace(seen=now.seen | 1 << index), name))
        if self._context.any_order or self._passed(now):
            found.extend(self._undeclared(now))
        return union(*found)

    def _reach(self, chain: int, place: int) -> int:
        """Behind the first required name of a chain from `place` on, or behind the chain."""
        names = self._chains[chain]
        for index in range(place, len(names)):
            if names[index] in self._shape.required:
                return index + 1
        return len(names)

    # --- declared names ------------------------------------------------------------------------

    def _declared(self, now: Progress, chain: int, index: int) -> Node:
        """The member of that name."""
        place = (*now.place[:chain], index + 1, *now.place[chain + 1 :])
        return self._named(Progress(place, *now[1:]), self._chains[chain][index])

    def _named(self, now: Progress, name: str) -> Node:
        """The member of that name, where `now` counts it as seen.

        What follows the name waits for it, unless only a look at it tells whether it has a text.
        """
        wanted = self._goals[name]
        begun = _name_text(name)
        sure = self._sure and not (self._shape.some or now.rivals)
        productive = self._context.productive(wanted) if sure else None
        if productive is False:
            return EMPTY
        if productive is None:
            return concat(begun, self._behind(now, name, self._after))
        key = ("behind", self._context, self._shape, now, name)
        rest = self._context.rules.rule(
            key, lambda: self._behind(now, name, self._end_or_more), True
        )
        return Concat(begun, rest)

    def _behind(self, now: Progress, name: str, rest: Callable[[Progress], Node]) -> Node:
        """What follows a declared name: its value, and the rest of the object."""
        after = self._counted(now)
        members = self._shape.some
        open_to = [e for e in sorted(now.missing) if members[e].keys.hold(name)]
        ways = [
            concat(self._context.value(wanted), rest(then._replace(missing=missing)))
            for also, then in self._compared(now, after, name)
            for wanted, missing in self._fulfilling(self._goals[name] | also, now.missing, open_to)
        ]
        return concat(self._layout.colon, union(*ways))

    def _compared(self, now: Progress, after: Progress, name: str) -> list[tuple[Goal, Progress]]:
        """Which rivals have the same member of that name: its goal, and the progress after it."""
        if not now.rivals:
            return [(ANYTHING, after)]
        return [
            (also, after._replace(rivals=rivals, matched=(now.matched + 1) * bool(rivals)))
            for also, rivals in self._rivals.ways(now.rivals, name)
        ]

    def _counted(self, after: Progress) -> Progress:
        if not self._counting:
            return after
        cap = self._shape.low if self._shape.high is None else self._shape.high
        return after._replace(members=min(after.members + 1, cap))

    def _fulfilling(
        self, wanted: Goal, missing: frozenset[int], open_to: list[int]
    ) -> Iterator[tuple[Goal, frozenset[int]]]:
        """Which missing members this one is: its goal, and what is missing after it."""
        if not open_to:
            yield wanted, missing
            return
        first, rest = open_to[0], open_to[1:]
        also = self._shape.some[first].goal
        yield from self._fulfilling(wanted | also, missing - {first}, rest)
        if also != ANYTHING:
            yield from self._fulfilling(wanted, missing, rest)

    # --- all other names -----------------------------------------------------------------------

    def _undeclared(self, now: Progress) -> Iterator[Node]:
        after = self._counted(now)
        if now.rivals:  # they have none but declared names
            after = after._replace(rivals=NOBODY, matched=0)
        if not self._context.any_order:
            after = after._replace(place=self._ends, seen=(1 << len(self._alone)) - 1)
        for one, text in self._named_classes:
            wanted = one.goal
            for index in now.bound & one.some:
                wanted |= self._shape.some[index].goal
            open_to = sorted(now.missing & one.some)
            ways = [
                concat(self._context.value(goals), self._after(self._bound(after, missing)))
                for goals, missing in self._fulfilling(wanted, now.missing, open_to)
            ]
            yield concat(text, self._layout.colon, union(*ways))

    def _bound(self, after: Progress, missing: frozenset[int]) -> Progress:
        done = after.missing - missing
        held = frozenset(i for i in done if self._shape.some[i].goal != ANYTHING)
        return after._replace(missing=missing, bound=after.bound | held)
