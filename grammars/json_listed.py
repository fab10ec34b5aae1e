"""`uniqueItems` where the items have few values: each is drawn from a list, and not again.

An item is read along a trie of the values that are left, whose branches are rules of their own, so
that a place costs what a text visits of it and not what the list holds. Knows how many values there
are to choose from. Knows no count of items but the bounds of their array.
"""

from collections.abc import Callable, Iterator
from math import comb
from typing import Any, Protocol

from radixgen.grammars.expr import Literal, Node, RuleSet, concat, union
from radixgen.grammars.json_shapes import ArrayShape, Goal

MAX_UNIQUE = 4096  # different values that an array with uniqueItems may have
MAX_CHOICES = 4096  # of the items that have to be there, where they are not all of one list
FEW = 16  # values that are told apart in one place
Left = tuple[tuple[bytes, int], ...]  # values by their bytes, each with its bit


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def rules(self) -> RuleSet: ...
    def members(self, wanted: Goal) -> dict[Any, Node] | None: ...


class Drawn:
    """The values that the items of one shape are drawn from, each with a bit of its own."""

    def __init__(self, context: Context, shape: ArrayShape, values: dict[Any, Node]) -> None:
        self._context = context
        self._shape = shape
        self._bits = {value: 1 << index for index, value in enumerate(values)}
        self._lists: dict[Goal, Left] = {}
        self._by_length: dict[Goal, list[tuple[bytes, int]]] = {}
        goals = {shape.goal_of(index) for index in range(len(shape.prefix) + 1)}
        is_alone = not (shape.counts or shape.unlike)
        self.is_one_list = is_alone and len({frozenset(self._list(g)) for g in goals}) == 1

    def why_not(self) -> str | None:
        """Why such an array cannot be enforced; None if it can."""
        if self.is_one_list:
            return None
        shape = self._shape
        most = max(len(self._list(shape.goal_of(index))) for index in range(len(shape.prefix) + 1))
        choices = 1 << most if shape.counts else comb(most, min(shape.low, most // 2))
        if choices <= MAX_CHOICES:
            return None
        return (
            f"the items that have to be there can be chosen in over {MAX_CHOICES} ways; give all "
            f"items one enum without contains, or a shorter one, or lower minItems"
        )

    def is_sure(self, used: int, is_open: bool) -> bool:
        """Whether the array can be finished behind the items that `used` names, with one more where
        it `is_open` behind a comma: each has one value more to choose from than came before it."""
        shape, index = self._shape, used.bit_count()
        if shape.counts or shape.unlike:
            return False
        last = max(shape.low, index + is_open)
        if shape.high is not None and last > shape.high:
            return False
        if is_open and last == index + 1:  # it may be the last one
            return any(not used & bit for _, bit in self._list(shape.goal_of(index)))
        if last > len(shape.prefix) and len(self._list(shape.rest)) < last:
            return False
        places = range(index, min(last, len(shape.prefix)))
        return all(len(self._list(shape.prefix[place])) > place for place in places)

    def shortest(self, wanted: Goal, used: int) -> tuple[bytes, int] | None:
        """The shortest value that is left, and what is used behind it; None where none is."""
        found = self._by_length.get(wanted)
        if found is None:
            found = self._by_length[wanted] = sorted(self._list(wanted), key=lambda o: len(o[0]))
        return next(((text, used | bit) for text, bit in found if not used & bit), None)

    def item(
        self, key: tuple[Any, ...], wanted: Goal, used: int, after: Callable[[int], Node]
    ) -> Node:
        """An item, and what follows by what is used `after` it. `key` names that place."""
        left = tuple(one for one in self._list(wanted) if not used & one[1])
        return self._branch(key, left, 0, used, after)

    def _branch(
        self, key: tuple[Any, ...], left: Left, depth: int, used: int, after: Callable[[int], Node]
    ) -> Node:
        """The rest, from `depth` on, of values that are equal before it."""
        if len(left) <= FEW:
            return union(*(concat(Literal(text[depth:]), after(used | b)) for text, b in left))
        begun = left[0][0][:depth]
        sure = True if self.is_sure(used | left[0][1], is_open=False) else None

        def way() -> Node:
            text, bit = min(left, key=lambda one: len(one[0]))
            return concat(Literal(text[depth:]), after(used | bit))

        return self._context.rules.rule(
            (*key, begun),
            lambda: union(*self._split(key, left, depth, used, after)),
            sure,
            way=way if self.is_one_list else None,
        )

    def _split(
        self, key: tuple[Any, ...], left: Left, depth: int, used: int, after: Callable[[int], Node]
    ) -> Iterator[Node]:
        groups: dict[bytes, list[tuple[bytes, int]]] = {}
        for text, bit in left:
            groups.setdefault(text[depth : depth + 1], []).append((text, bit))
        for byte, group in groups.items():
            if byte:
                rest = self._branch(key, tuple(group), depth + 1, used, after)
                yield concat(Literal(byte), rest)
            else:
                yield after(used | group[0][1])

    def _list(self, wanted: Goal) -> Left:
        found = self._lists.get(wanted)
        if found is None:
            members = self._context.members(wanted) or {}
            bits = self._bits
            texts = [
                (node.value, bits[value])
                for value, node in members.items()
                if isinstance(node, Literal) and value in bits
            ]
            found = self._lists[wanted] = tuple(sorted(texts))
        return found
