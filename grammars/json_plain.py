"""Objects and arrays of schemas that say no more than `properties` or `items`, as most do.

What they denote is plain to see, so no sets are computed and no shape is made; the grammar is the
one that `json_values.py` finds for any other schema. Knows no text and no rule.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from radixgen.grammars.chain import ChainRule, Listing, ListRule, Marks
from radixgen.grammars.expr import EMPTY, EPSILON, Node, literal
from radixgen.grammars.json_chain import MemberChain
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import required_names, whole
from radixgen.grammars.json_layout import Layout
from radixgen.grammars.json_leaves import leaf
from radixgen.grammars.json_proofs import SAYING, plainly_has_value
from radixgen.grammars.json_shapes import ANYTHING, ArrayShape, Goal, goal, is_never

_OF_SCALARS = frozenset(
    (
        *("minLength", "maxLength", "pattern", "format", "multipleOf", "divisibleBy"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_OF_ARRAYS = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("contains", "uniqueItems", "unevaluatedItems"),
    )
)
_OF_OBJECTS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "propertyNames"),
        *("required", "minProperties", "maxProperties", "unevaluatedProperties"),
    )
)
# What a plain schema does not say.
_NO_OBJECT = (
    SAYING
    - _OF_SCALARS
    - _OF_ARRAYS
    - {
        *("type", "properties", "required", "additionalProperties"),
    }
)
_NO_ARRAY = (
    SAYING
    - _OF_SCALARS
    - _OF_OBJECTS
    - {
        *("type", "items", "minItems", "maxItems"),
    }
)


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def layout(self) -> Layout: ...
    def value(self, wanted: Goal) -> Node: ...
    def productive(self, wanted: Goal) -> bool | None: ...


def plain_object(
    context: Context, node: Schema, behind_declared: Callable[[], Node]
) -> ChainRule | None:
    """The objects of a schema that is known to have a value, where a look at its keywords shows
    them: declared names, required or not, with one schema for all others. None for other schemas.

    `behind_declared`: one more member when all declared names were passed, asked for only where
    there may be one.
    """
    value = node.value
    properties, required = value.get("properties"), required_names(node)
    if not properties or not _NO_OBJECT.isdisjoint(value):
        return None
    if value.get("type") not in ("object", ["object"]) or not properties.keys() >= set(required):
        return None
    if False in properties.values():  # a name that is spoken of only to forbid it
        return None
    members = _Members(context, node, properties)
    rest = ANYTHING
    if "additionalProperties" in value:
        rest = goal(node.child("additionalProperties"))
    return MemberChain(
        context,
        members.names,
        required,
        value=members.value,
        may_be=members.may_be,
        end=(lambda: EMPTY) if is_never(rest) else behind_declared,
        sure=True,
        others=rest if context.productive(rest) else None,
    ).whole()


class _Members:
    """The declared members of a schema by their index. Of most a look tells what they are, and no
    schema is made."""

    __slots__ = ("_context", "_node", "_properties", "names")

    def __init__(self, context: Context, node: Schema, properties: dict[str, Any]) -> None:
        self._context, self._node, self._properties = context, node, properties
        self.names = list(properties)

    def value(self, index: int) -> Node:
        name = self.names[index]
        plain = leaf(self._properties[name])
        if plain is not None:
            return plain
        return self._context.value(goal(self._node.member("properties", name)))

    def may_be(self, index: int) -> bool | None:
        name = self.names[index]
        if plainly_has_value(self._properties[name]):
            return True
        return self._context.productive(goal(self._node.member("properties", name)))


def plain_array(
    context: Context, node: Schema, expand: Callable[[ArrayShape], Node]
) -> ListRule | None:
    """The arrays of a schema that is known to have a value, where a look at its keywords shows
    them: items of one schema. `expand` gives the arrays of a shape."""
    value = node.value
    if value.get("type") not in ("array", ["array"]) or not _NO_ARRAY.isdisjoint(value):
        return None
    if not isinstance(value.get("items"), dict):
        return None
    items, high = goal(node.child("items")), value.get("maxItems")
    low, high = whole(value.get("minItems", 0)), None if high is None else whole(high)
    listing = Listing(item_marks(context.layout), lambda: context.value(items), low, high)
    shape = ArrayShape(rest=items, low=low, high=high)
    return ListRule(("array", listing), lambda: expand(shape), True, listing)


@lru_cache(64)
def item_marks(layout: Layout) -> Marks:
    """Of arrays, whose items have no names."""
    opening, close = layout.opened(b"["), layout.closed(b"]")
    return Marks(opening, literal(b"]"), EPSILON, layout.comma, close, EPSILON, EPSILON)
