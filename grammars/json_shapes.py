"""Conjunctions of what JSON Schema says of one object or one array.

A schema for objects is a union of `ObjectShape`s, one for arrays of `ArrayShape`s. The value of a
member or item is a `Goal`: schemas that it has to satisfy, or, with the sign False, must not.
Knows how two shapes meet. Knows no schema's keywords and no text.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from radixgen.grammars.expr import Expr
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_texts import matches

MAX_COUNTED = 1024  # ways to have a part of the items of some kinds that an array has to have
MAX_ALIKE = 512  # of one kind
Goal = frozenset[tuple[Schema, bool]]
ANYTHING: Goal = frozenset()


def goal(node: Schema, sign: bool = True) -> Goal:
    """The values that satisfy `node`, or that do not."""
    if sign and node.alone is not None:
        return node.alone
    if node is node.document.true:
        return ANYTHING if sign else frozenset(((node.document.false, True),))
    if node is node.document.false:
        return frozenset(((node, True),)) if sign else ANYTHING
    found = frozenset(((node, sign),))
    if sign:
        node.alone = found
    return found


def is_never(wanted: Goal) -> bool:
    """Whether it plainly demands what no value gives."""
    if not wanted:
        return False
    if len(wanted) == 1:  # as most do
        ((node, sign),) = wanted
        return sign and node is node.document.false
    return any(
        (node, not sign) in wanted or (sign and node is node.document.false)
        for node, sign in wanted
    )


def too_many(counts: Iterable[int]) -> bool:
    """Whether there is no looking through the ways to have so many items of each of some kinds."""
    number = 1
    for count in counts:
        number *= count + 1
        if number > MAX_COUNTED or count > MAX_ALIKE:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of members: in every language of `inside`, in none of `outside`, not in `names`."""

    names: frozenset[str] = frozenset()
    inside: frozenset[Expr] = frozenset()
    outside: frozenset[Expr] = frozenset()

    @property
    def is_every_other(self) -> bool:
        """Whether they are all but the listed names."""
        return not self.inside and not self.outside

    def hold(self, name: str) -> bool:
        if name in self.names or not all(matches(expr, name) for expr in self.inside):
            return False
        return not any(matches(expr, name) for expr in self.outside)


@dataclass(frozen=True, slots=True)
class Member:
    """A member that has to be there: its name among `keys`, its value of `goal`."""

    keys: Keys
    goal: Goal


@dataclass(frozen=True, slots=True, eq=False)
class Unlike:
    """An object or an array that is excluded, and where in the schema it stands."""

    node: Schema
    pointer: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class ObjectShape:
    """Members by name and rules over all others.

    `goals` has every name that is spoken of. `chains` are the orders in which schemas declare
    names; no name is in two of them. `every` holds of each member whose name is among the keys;
    `some` has to exist. `low` and `high` count members. All of it is none of `unlike`, whose names
    are in `goals`.
    """

    goals: Mapping[str, Goal] = field(default_factory=dict)
    chains: tuple[tuple[str, ...], ...] = ()
    required: frozenset[str] = frozenset()
    every: tuple[tuple[Keys, Goal], ...] = ()
    some: tuple[Member, ...] = ()
    low: int = 0
    high: int | None = None
    unlike: tuple[Unlike, ...] = ()

    def goal_of(self, name: str) -> Goal:
        """What the value of that member has to satisfy."""
        found = self.goals.get(name, ANYTHING)
        for keys, wanted in self.every:
            if not wanted <= found and keys.hold(name):
                found |= wanted
        return found


@dataclass(frozen=True, slots=True)
class Count:
    """Of the items from `start` on, `low` to `high` satisfy `node` (or do not: `sign`)."""

    node: Schema
    sign: bool
    start: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class ArrayShape:
    """Goals of the first items, of all others, bounds on their number, counts among them.

    `unique` is where `uniqueItems` stands, if it does. All of it is none of `unlike`.
    """

    prefix: tuple[Goal, ...] = ()
    rest: Goal = ANYTHING
    low: int = 0
    high: int | None = None
    counts: tuple[Count, ...] = ()
    unique: Schema | None = None
    unlike: tuple[Unlike, ...] = ()

    def goal_of(self, index: int) -> Goal:
        return self.prefix[index] if index < len(self.prefix) else self.rest


ANY_OBJECT = ObjectShape()
ANY_ARRAY = ArrayShape()
Never = Callable[[Goal], bool]  # whether a goal is known to be empty


def lesser(one: int | None, other: int | None) -> int | None:
    """The lower of two bounds, where None is no bound."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def meet_objects(one: ObjectShape, other: ObjectShape, never: Never) -> ObjectShape | None:
    """What both say; None where no object can satisfy it."""
    if one is ANY_OBJECT:
        return other
    if other is ANY_OBJECT:
        return one
    goals = dict(one.goals)
    for name, wanted in other.goals.items():
        both = goals[name] = goals.get(name, ANYTHING) | wanted
        if name in one.required and is_never(both):  # as where one of them says that it lacks it
            return None
    shape = ObjectShape(
        goals,
        _chained(one.chains, other.chains),
        one.required | other.required,
        one.every + tuple(e for e in other.every if e not in one.every),
        one.some + tuple(m for m in other.some if m not in one.some),
        max(one.low, other.low),
        lesser(one.high, other.high),
        one.unlike + tuple(u for u in other.unlike if u not in one.unlike),
    )
    return None if hopeless_object(shape, never) else shape


def _chained(
    one: tuple[tuple[str, ...], ...], other: tuple[tuple[str, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    """The orders of both, where the first to declare a name places it."""
    if not one or not other or one == other:
        return one or other
    taken = {name for chain in one for name in chain}
    more = (tuple(name for name in chain if name not in taken) for chain in other)
    return one + tuple(chain for chain in more if chain)


def hopeless_object(shape: ObjectShape, never: Never) -> bool:
    """Whether a member that has to be there, or their number, is known to be impossible."""
    if shape.high is not None and max(shape.low, len(shape.required)) > shape.high:
        return True
    if any(never(shape.goal_of(name)) for name in shape.required):
        return True
    return any(_has_no_name(shape, member, never) for member in shape.some)


def _has_no_name(shape: ObjectShape, member: Member, never: Never) -> bool:
    """Whether an object that is closed to all but listed names has none for a member."""
    for keys, wanted in shape.every:
        if keys.is_every_other and is_never(wanted):
            names = filter(member.keys.hold, keys.names)
            return all(never(shape.goal_of(name) | member.goal) for name in names)
    return False


def need_unlike(one: ObjectShape, other: ObjectShape, never: Never) -> bool:
    """Whether both need a member of one name, of values that cannot be equal, as most do that a
    constant tells apart: then they need not be put together to know that they do not meet."""
    return any(
        never(one.goal_of(name) | other.goal_of(name)) for name in one.required | other.required
    )


def required_by_all(shapes: Iterable[ObjectShape]) -> frozenset[str]:
    """The names that each of some shapes, at least one, needs."""
    return frozenset.intersection(*(shape.required for shape in shapes))


def meet_arrays(one: ArrayShape, other: ArrayShape, never: Never) -> ArrayShape | None:
    """What both say; None where no array can satisfy it."""
    if one is ANY_ARRAY:
        return other
    if other is ANY_ARRAY:
        return one
    length = max(len(one.prefix), len(other.prefix))
    shape = ArrayShape(
        tuple(one.goal_of(i) | other.goal_of(i) for i in range(length)),
        one.rest | other.rest,
        max(one.low, other.low),
        lesser(one.high, other.high),
        one.counts + tuple(c for c in other.counts if c not in one.counts),
        one.unique or other.unique,
        one.unlike + tuple(u for u in other.unlike if u not in one.unlike),
    )
    return None if hopeless_array(shape, never) else shape


def hopeless_array(shape: ArrayShape, never: Never) -> bool:
    """Whether an item that has to be there, or the number of items, is known to be impossible."""
    if shape.high is not None and shape.low > shape.high:
        return True
    needed = min(shape.low, len(shape.prefix) + 1)
    return any(never(shape.goal_of(index)) for index in range(needed))
