"""Which values of a schema take long to put together, by a look at its keywords.

What takes a tenth of a millisecond and more is better made with a grammar than within some text's
mask. Knows no set, no text and no rule; estimates only.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from radixgen.grammars.expr import Node
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_shapes import Goal, goal
from radixgen.grammars.json_terms import PLACES

LONG = 150.0  # microseconds; what takes less is left to the text that gets there
_EACH = 50.0  # of schemas that are combined
_COMBINED = ("allOf", "anyOf", "oneOf")
_COMBINING = frozenset(_COMBINED)
MANY = 4  # alternatives that declare one name
_LEAST = 30.0  # of each of their members
_SCALARS = frozenset(("string", "number", "integer", "boolean", "null"))
MAX_DEPTH = 3  # of schemas combined within each other
MAX_LOOKS = 10_000
# Microseconds by keyword, of each part that it lists, or in all.
_OF_PARTS = {"enum": 1.0, "properties": 4.0, "pattern": 2.0, "dependencies": 200.0}
_IN_ALL = {
    **dict.fromkeys(("patternProperties", "not", "if", "uniqueItems", "multipleOf"), 200.0),
    **dict.fromkeys(("contains", "minProperties", "maxProperties"), 200.0),
    **dict.fromkeys(("additionalProperties", "propertyNames"), 100.0),
}
_COSTING = frozenset((*_OF_PARTS, *_IN_ALL, *_COMBINED))
_LISTS = (str, list, dict)


def dear(
    schemas: Iterable[Schema], value: Callable[[Goal], Node]
) -> list[tuple[float, float, Callable[[], Node]]]:
    """The values that take long, the dearest first: about how many seconds with those that a text
    asks for with it, how many alone, and how to make it."""
    look = _Look()
    found: dict[Schema, float] = {}
    for node in schemas:
        if node.key in PLACES:
            meant = _meant(node)
            if meant not in found and not _COSTING.isdisjoint(meant.value):
                found[meant] = look.cost(meant, MAX_DEPTH)
                look.add_shared(meant)
    long = {node: (cost, cost) for node, cost in found.items() if cost >= LONG}
    ranked = sorted({**look.together, **long}.items(), key=lambda pair: -pair[1][0])
    return [(rank / 1e6, cost / 1e6, partial(value, goal(n))) for n, (rank, cost) in ranked]


def _meant(node: Schema) -> Schema:
    """What a schema refers to, if it does."""
    return node.document.resolve(node) if "$ref" in node.value else node


class _Look:
    """What is looked at in one document, MAX_LOOKS schemas in all; others count as none."""

    def __init__(self) -> None:
        self.together: dict[Schema, tuple[float, float]] = {}  # the costs of all, and of each alone
        self._costs: dict[tuple[Schema, int], float] = {}
        self._left = MAX_LOOKS

    def cost(self, node: Schema, depth: int) -> float:
        """Microseconds, about. Schemas combined deeper than that count as none."""
        found = self._costs.get((node, depth))
        if found is None:
            found = self._costs[node, depth] = self._cost(node, depth)
        return found

    def _cost(self, node: Schema, depth: int) -> float:
        cost = 0.0
        for keyword, said in node.value.items():
            if keyword not in _COSTING:  # as most
                continue
            if keyword in _IN_ALL and said is not False:
                cost += _IN_ALL[keyword]
            if keyword in _OF_PARTS and isinstance(said, _LISTS):
                cost += _OF_PARTS[keyword] * len(said)
                if keyword == "pattern" and "(?" in said:  # and looks around
                    cost += _OF_PARTS[keyword] * len(said)
            if keyword in _COMBINING and depth:
                parts = map(_meant, self._children(node, keyword))
                cost += sum(_EACH + self.cost(part, depth - 1) for part in parts)
        return cost

    def _children(self, node: Schema, keyword: str) -> list[Schema]:
        found = node.children(keyword)[: max(self._left, 0)]
        self._left -= len(found)
        return found

    def add_shared(self, node: Schema) -> None:
        """Note the members of one name that many alternatives declare: a text that gets to the name
        needs all of them. What they take in all is their rank, before what each takes."""
        if _COMBINING.isdisjoint(node.value):
            return
        by_name: dict[str, list[Schema]] = {}
        for part in self._alternatives(node, MAX_DEPTH):
            if "properties" in part.value:
                self._left -= len(part.value["properties"])
                for name, member in part.named("properties").items():
                    if str(member.value.get("type")) not in _SCALARS:
                        by_name.setdefault(name, []).append(member)
        for members in by_name.values():
            if len(members) >= MANY:
                costs = [_LEAST + self.cost(_meant(member), MAX_DEPTH) for member in members]
                for member, cost in zip(members, costs, strict=True):
                    self.together.setdefault(member, (sum(costs), cost))

    def _alternatives(self, node: Schema, depth: int) -> Iterator[Schema]:
        for keyword in _COMBINED:
            if keyword in node.value and depth:
                for part in map(_meant, self._children(node, keyword)):
                    if keyword != "allOf":
                        yield part
                    yield from self._alternatives(part, depth - 1)
