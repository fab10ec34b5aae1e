"""Which goals have a value at all, found among goals instead of rules.

The automaton decides this for any grammar, rule by rule. Most of JSON Schema needs less: an object
can be finished when each required member has a value, so a proof goes through nesting only. What
depends on counts is left to the automaton (None).
"""

from fractions import Fraction
from typing import Any

from radixgen.grammars.formats import is_refused
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_bounds import differ_in_kind
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_examples import has_example
from radixgen.grammars.json_keywords import (
    KINDS,
    admits,
    bounds,
    constants,
    pattern,
    required_names,
)
from radixgen.grammars.json_leaves import listed_texts
from radixgen.grammars.json_shapes import ArrayShape, Goal, ObjectShape, is_never
from radixgen.grammars.json_terms import hides_siblings
from radixgen.grammars.text_emptiness import is_boolean, text_is_empty


class Proofs:
    """What is known of the goals of one document."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._known: dict[Goal, bool] = {}
        self._open: set[Goal] = set()

    def productive(self, wanted: Goal) -> bool | None:
        """Whether a goal has a value; None where that is left open."""
        if not wanted:
            return True
        known = self._known.get(wanted)
        if known is not None:
            return known
        if _plainly(wanted) or has_example(wanted):
            self._known[wanted] = True
            return True
        if is_never(wanted):
            return False
        if wanted in self._open:
            return None  # a value inside itself proves nothing
        self._open.add(wanted)
        found = self._some(wanted)
        self._open.discard(wanted)
        if found is not None:
            self._known[wanted] = found
        return found

    def _some(self, wanted: Goal) -> bool | None:
        """Whether there is a value of some kind, those that nest nothing first."""
        stated = [node for node, sign in wanted if sign and not hides_siblings(node)]
        answer: bool | None = False
        for kind in reversed(KINDS):
            if all(admits(node, kind) for node in stated):
                found = self._of_kind(self._algebra.goal_set(wanted, kind), kind)
                if found:
                    return True
                answer = None if found is None else answer
        return answer

    def _of_kind(self, found: Any, kind: str) -> bool | None:
        if not found:
            return False
        if kind == "string":
            return bool(found.finite) if found.finite is not None else _negated(found.expr)
        if kind == "number":
            if found.points or any(piece.has_some() for piece in found.pieces):
                return True  # pieces that are surely empty are left out
            return None if found.pieces else False
        if kind in ("null", "boolean"):
            return True
        answers = {self.shape(shape) for shape in found}
        return True if True in answers else (None if None in answers else False)

    def shape(self, shape: ObjectShape | ArrayShape) -> bool | None:
        """Whether a shape has a value."""
        if shape.unlike:
            return None
        if isinstance(shape, ObjectShape):
            if shape.some or not self._are_enough(shape):
                return None
            goals = [shape.goal_of(name) for name in shape.required]
        else:
            if shape.counts or shape.unique or (shape.high is not None and shape.high < shape.low):
                return None
            goals = list(shape.prefix[: shape.low])
            if shape.low > len(shape.prefix):
                goals.append(shape.rest)
        answer: bool | None = True
        for wanted in goals:
            found = self.productive(wanted)
            if found is False:
                return False
            answer = None if found is None else answer
        return answer

    def _are_enough(self, shape: ObjectShape) -> bool:
        """Whether there surely are as many members as there have to be, beside those that are
        required, and not too many. Another name counts for one."""
        missing = shape.low - len(shape.required)
        if shape.high is not None and shape.high < max(shape.low, len(shape.required)):
            return False
        if missing > 0 and not shape.every:
            missing -= 1
        for name in shape.goals:
            if missing <= 0:
                break
            if name not in shape.required and self.productive(shape.goal_of(name)):
                missing -= 1
        return missing <= 0


def _negated(expr: Any) -> bool | None:
    empty = text_is_empty(expr)
    return None if empty is None else not empty


def _plainly(wanted: Goal) -> bool:
    """Whether one schema alone plainly has a value, so that no set has to be made."""
    if len(wanted) > 1:
        return False
    ((node, sign),) = wanted
    return sign and has_value(node)


def has_value(node: Schema) -> bool:
    """Whether a look at a schema and what it refers to shows that some value satisfies it.

    False says nothing. A schema that is looked at already shows nothing by itself.
    """
    found: bool | None = node.memo.get("has value")
    if found is None:
        found = plainly_has_value(node.value)
        if not found:
            node.memo["has value"] = False
            found = _has_value(node)
        node.memo["has value"] = found
    return found


# Keywords beside which a look shows nothing, with those that combine schemas in another way.
_HARD = frozenset(
    [
        "$dynamicRef",
        "$recursiveRef",
        "not",
        "if",
        "allOf",
        "extends",
        "disallow",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "contains",
        "uniqueItems",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]
)
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
SAYING = (
    _HARD
    | _BOUNDS
    | frozenset(
        [
            *(
                "type",
                "enum",
                "const",
                "format",
                "pattern",
                "minLength",
                "maxLength",
                "required",
                "properties",
            ),
            *(
                "patternProperties",
                "additionalProperties",
                "items",
                "prefixItems",
                "additionalItems",
            ),
            *("minItems", "maxItems", "anyOf", "oneOf", "$ref", "multipleOf", "divisibleBy"),
        ]
    )
)


# Beside these a schema of one type or several may have no value of any.
_NARROWING = SAYING - frozenset(
    (
        *("type", "properties", "patternProperties", "additionalProperties"),
        *("items", "prefixItems", "additionalItems", "maxItems"),
    )
)


def plainly_has_value(value: Any) -> bool:
    """Whether a look at a schema's text, and not at what it refers to, shows that it has a value:
    it narrows no type down, or lists strings. False says nothing."""
    if type(value) is not dict:
        return value is True
    if _NARROWING.isdisjoint(value):
        return bool(value.get("type", True))
    return "enum" in value and listed_texts(value) is not None


def only_refers(node: Schema) -> bool:
    """Whether a schema says no more than that its values are those of another."""
    if "$ref" not in node.value:
        return False
    return hides_siblings(node) or len(SAYING.intersection(node.value)) == 1


def _has_value(node: Schema) -> bool:
    value = node.value
    if not _HARD.isdisjoint(value):
        return False
    if not _CHOOSING.isdisjoint(value):
        said = SAYING.intersection(value)
        if "$ref" in value:
            return len(said) == 1 and has_value(node.document.resolve(node, "$ref"))
        if len(said - {"type"}) > 1:
            return False
        stated = value.get("type")
        if "anyOf" in value:
            return any(has_value(n) and _is_within(n, stated) for n in node.children("anyOf"))
        return _has_one_of(node.children("oneOf"), stated)
    if "enum" in value or "const" in value:
        return SAYING.intersection(value) <= _LISTING and _admits_some(node)
    stated = value.get("type", "null")
    if isinstance(stated, str):
        return _of_type(node, stated)
    return any(_of_type(node, kind) for kind in stated)


def _is_within(node: Schema, stated: str | list[str] | None) -> bool:
    """Whether all values of a schema plainly are of the types that stand beside it."""
    if stated is None:
        return True
    meant = node.document.resolve(node) if only_refers(node) else node
    own = meant.value.get("type")
    return own is not None and "$ref" not in meant.value and own in (stated, *stated)


def _has_one_of(nodes: list[Schema], stated: str | list[str] | None) -> bool:
    """Whether one schema plainly has values, of the types that stand beside it, none of which the
    others have."""
    return any(
        has_value(node)
        and _is_within(node, stated)
        and all(at == index or differ_in_kind(node, other) for at, other in enumerate(nodes))
        for index, node in enumerate(nodes)
    )


_CHOOSING = frozenset(("$ref", "anyOf", "oneOf"))
_LISTING = frozenset(("type", "enum", "const"))


def _of_type(node: Schema, kind: str) -> bool:
    """Whether a schema without combining keywords plainly has a value of one of its types."""
    value = node.value
    if kind in ("number", "integer"):
        open_side = len(_BOUNDS.intersection(value)) <= 1
        return open_side or bounds(value).holds(Fraction())  # zero is a multiple of everything
    if kind == "string":
        bounded = "minLength" in value or "maxLength" in value
        if "pattern" in value:
            return not bounded and "format" not in value and _is_found(value["pattern"])
        if "format" in value:
            return not bounded and not is_refused(value["format"])
        return not bounded or _in_order(value, "Length")
    if kind == "object":
        return _may_have(node, required_names(node))
    if kind == "array":
        return not value.get("minItems") or _has_items(node)
    return kind in ("null", "boolean")


def _is_found(source: str) -> bool:
    """Whether some text plainly has the pattern in it."""
    found = pattern(source)
    return found.finite is None and not is_boolean(found.expr)


def _in_order(value: dict[str, Any], what: str) -> bool:
    most = value.get(f"max{what}")
    return most is None or value.get(f"min{what}", 0) <= most


def _may_have(node: Schema, names: list[str]) -> bool:
    """Whether members that have to be there plainly have values."""
    value = node.value
    if names and "patternProperties" in value:
        return False
    properties = value.get("properties") or {}
    for name in names:
        if name not in properties:
            if "additionalProperties" in value:
                return False
        elif not plainly_has_value(properties[name]) and not has_value(
            node.member("properties", name)
        ):
            return False
    return True


def _has_items(node: Schema) -> bool:
    """Whether as many items as there have to be plainly have values."""
    value = node.value
    if "prefixItems" in value or "additionalItems" in value or isinstance(value.get("items"), list):
        return False
    rest = node.rest_items()
    return _in_order(value, "Items") and (rest is None or has_value(rest))


def _admits_some(node: Schema) -> bool:
    scalars = (kind for kind in KINDS if kind not in ("object", "array"))
    integers: bool = "integer" in str(node.get("type"))
    listed = (bool(constants(node, kind)) for kind in scalars if admits(node, kind))
    return not integers and any(listed)
