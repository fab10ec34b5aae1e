"""Which values of a schema take long to put together, by a look at its keywords.

What takes a tenth of a millisecond and more is better made with a grammar than within some text's
mask. Knows no set, no text and no rule; estimates only.
"""

from collections.abc import Callable, Iterable
from functools import partial

from radixgen.grammars.expr import Node
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_shapes import Goal, goal

LONG = 150.0  # microseconds; what takes less is left to the text that gets there
# Where a schema is the value of a member or an item by itself, not a part of another.
_PLACES = frozenset(
    f"/{keyword}"
    for keyword in (
        *("properties", "patternProperties", "additionalProperties"),
        *("items", "prefixItems", "additionalItems"),
    )
)
_EACH = 50.0  # of schemas that are combined
_COMBINED = ("allOf", "anyOf", "oneOf")
MAX_DEPTH = 3  # of schemas combined within each other
# Microseconds by keyword, of each part that it lists, or in all.
_OF_PARTS = {"enum": 1.0, "properties": 4.0, "pattern": 5.0, "dependencies": 100.0}
_IN_ALL = {
    **dict.fromkeys(("patternProperties", "not", "if", "uniqueItems", "multipleOf"), 200.0),
    **dict.fromkeys(("contains", "minProperties", "maxProperties"), 200.0),
    **dict.fromkeys(("additionalProperties", "propertyNames"), 100.0),
}
_LISTS = (str, list, dict)


def dear(
    schemas: Iterable[Schema], value: Callable[[Goal], Node]
) -> list[tuple[float, Callable[[], Node]]]:
    """The values that take long, the dearest first: about how many seconds, and how to make it."""
    found: dict[Schema, float] = {}
    for node in schemas:
        if node.key in _PLACES:
            meant = _meant(node)
            if meant not in found:
                found[meant] = _cost(meant, MAX_DEPTH)
    long = [(cost / 1e6, node) for node, cost in found.items() if cost >= LONG]
    long.sort(key=lambda pair: -pair[0])
    return [(cost, partial(value, goal(node))) for cost, node in long]


def _meant(node: Schema) -> Schema:
    """What a schema refers to, if it does."""
    return node.document.resolve(node) if "$ref" in node.value else node


def _cost(node: Schema, depth: int) -> float:
    """Microseconds, about. Schemas combined deeper than that count as none."""
    cost = 0.0
    for keyword, said in node.value.items():
        if keyword in _IN_ALL and said is not False:
            cost += _IN_ALL[keyword]
        if keyword in _OF_PARTS and isinstance(said, _LISTS):
            cost += _OF_PARTS[keyword] * len(said)
        if keyword in _COMBINED and depth:
            cost += sum(_EACH + _cost(_meant(part), depth - 1) for part in node.children(keyword))
    return cost
