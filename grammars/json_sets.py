"""The sets of values of each kind: the whole, the empty one, and complements of scalars."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from radixgen.grammars import json_numbers as num
from radixgen.grammars import json_texts as txt
from radixgen.grammars.json_shapes import ANY_ARRAY, ANY_OBJECT
from radixgen.grammars.json_terms import TooMany

MAX_SHAPES = 512  # alternatives of one schema for objects, or for arrays

EVERY: dict[str, Any] = {
    "null": frozenset((None,)),
    "boolean": frozenset((True, False)),
    "number": num.EVERY,
    "string": txt.EVERY,
    "array": (ANY_ARRAY,),
    "object": (ANY_OBJECT,),
}
NONE: dict[str, Any] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "number": num.NONE,
    "string": txt.NONE,
    "array": (),
    "object": (),
}


def complement(kind: str, found: Any) -> Any:
    """The complement of a set of scalars."""
    if kind in ("null", "boolean"):
        return EVERY[kind] - found
    return found.complement()


def joined_shapes(
    one: tuple[Any, ...], other: tuple[Any, ...], every: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The shapes of either of two sets, or `every` one. Raises TooMany for over MAX_SHAPES."""
    if every[0] in one or every[0] in other:
        return every
    found = tuple(dict.fromkeys(one + other))
    if len(found) > MAX_SHAPES:
        raise TooMany
    return found


def listed(kind: str, found: Any) -> frozenset[Any] | None:
    """The values of a set of scalars, where it is no more than a list of them."""
    if kind == "number":
        found = None if found.pieces else found.points
    elif kind == "string":
        found = found.finite
    values: frozenset[Any] | None = found
    return values


def of_listed(kind: str, values: frozenset[Any]) -> Any:
    """The set of scalars of one kind that has these values."""
    if kind == "number":
        return num.Numbers(points=values)
    return values if kind in ("null", "boolean") else txt.few(values)


def union_of(kind: str, sets: Iterable[Any]) -> Any:
    """The union of sets of scalars; those that are lists at once, as there may be thousands."""
    values, found = set[Any](), NONE[kind]
    for one in sets:
        known = listed(kind, one)
        if known is None:
            found = found.join(one)
        else:
            values.update(known)
    if not values:
        return found
    few = of_listed(kind, frozenset(values))
    return few if found is NONE[kind] else few.join(found)


def counted(kind: str, sets: Sequence[Any]) -> tuple[Any, frozenset[Any], list[int]]:
    """Of sets of scalars of which exactly one has to hold, those that are lists: what is in one of
    them alone, and all their values; and the indices of the others."""
    times, endless = Counter[Any](), list[int]()
    for index, one in enumerate(sets):
        known = listed(kind, one)
        if known is None:
            endless.append(index)
        else:
            times.update(known)
    once = frozenset(value for value, number in times.items() if number == 1)
    return of_listed(kind, once), frozenset(times), endless


def beside_listed(
    kind: str, once: Any, values: frozenset[Any], endless: Sequence[Any], alone: Any
) -> Any:
    """What `counted` finds, joined with what is in one of the endless sets `alone`."""
    both = frozenset(value for value in values if any(one.holds(value) for one in endless))
    if both:
        once = of_listed(kind, (listed(kind, once) or frozenset()) - both)
        alone = alone.meet(complement(kind, of_listed(kind, both)))
    return once.join(alone)
