"""Objects and arrays that differ from each of some values, told apart while they are written.

As alternatives (another member, one more, one less …) they multiply with every value. Instead the
rules of a shape keep which of the values are still equal so far, its rivals: each member or item
is either that of some of them, who stay, or of none. The end is forbidden to what equals one whole.
"""

from collections.abc import Iterator
from typing import Any

from radixgen.grammars.json_document import escape
from radixgen.grammars.json_keywords import same_key
from radixgen.grammars.json_shapes import ANYTHING, Goal, Unlike, goal

Few = frozenset[int]  # some of the values, by index
NOBODY: Few = frozenset()


class Rivals:
    """What one shape has to differ from."""

    def __init__(self, unlike: tuple[Unlike, ...]) -> None:
        self._unlike = unlike
        self.every: Few = frozenset(range(len(unlike)))
        self._known: dict[tuple[Few, str | int], list[tuple[Goal, Few]]] = {}

    def equal(self, rivals: Few, size: int) -> bool:
        """Whether what has so many members or items, all as in `rivals`, equals one of them."""
        return any(len(self._unlike[index].value) == size for index in rivals)

    def ways(self, rivals: Few, key: str | int) -> list[tuple[Goal, Few]]:
        """What the member of that name, or the item of that index, may be: its goal, and who stays
        a rival behind it."""
        found = self._known.get((rivals, key))
        if found is None:
            found = self._known[rivals, key] = list(self._ways(rivals, key))
        return found

    def _ways(self, rivals: Few, key: str | int) -> Iterator[tuple[Goal, Few]]:
        groups: dict[Any, list[int]] = {}
        for index in sorted(rivals):
            value = self._unlike[index].value
            if (key < len(value)) if isinstance(key, int) else (key in value):
                groups.setdefault(same_key(value[key]), []).append(index)
        if not groups:
            yield ANYTHING, NOBODY
            return
        values = []
        for same in groups.values():
            one = self._unlike[same[0]]
            values.append(one.value[key])
            pointer = f"{one.pointer}/{escape(str(key))}"
            equal = one.node.document.constant(one.value[key], one.node, pointer)
            yield goal(equal), frozenset(same)
        owner = self._unlike[0].node
        yield goal(owner.document.composed({"enum": values}, owner), False), NOBODY
