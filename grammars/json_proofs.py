"""Which goals have a value at all, found among goals instead of rules.

The automaton decides this for any grammar, rule by rule. Most of JSON Schema needs less: an object
can be finished when each required member has a value, so a proof goes through nesting only. What
depends on counts is left to the automaton (None).
"""

from typing import Any

from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import KINDS, admits, constants
from radixgen.grammars.json_shapes import ArrayShape, Goal, ObjectShape, is_never
from radixgen.grammars.json_terms import hides_siblings
from radixgen.grammars.text_emptiness import text_is_empty


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
        if is_never(wanted):
            return False
        if wanted in self._open:
            return None  # a value inside itself proves nothing
        if _plainly(wanted):
            found: bool | None = True
        else:
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
            plain = any(piece.multiple is None and not piece.nots for piece in found.pieces)
            every = any(p.nots == frozenset() and p.low is None for p in found.pieces)
            return True if found.points or plain or every else (None if found.pieces else False)
        if kind in ("null", "boolean"):
            return True
        answers = {self.shape(shape) for shape in found}
        return True if True in answers else (None if None in answers else False)

    def shape(self, shape: ObjectShape | ArrayShape) -> bool | None:
        """Whether a shape has a value."""
        if shape.unlike:
            return None
        if isinstance(shape, ObjectShape):
            if shape.some or shape.high is not None or shape.low > len(shape.required):
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


def _negated(expr: Any) -> bool | None:
    empty = text_is_empty(expr)
    return None if empty is None else not empty


def _plainly(wanted: Goal) -> bool:
    """Whether one schema alone plainly has a value, so that no set has to be made."""
    if len(wanted) > 1:
        return False
    ((node, sign),) = wanted
    plain = sign and not _RISKY.intersection(node.value)
    return plain and _admits_some(node)


# Without these a schema of a simple type has values.
_RISKY = frozenset(
    [
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "divisibleBy",
        "not",
        "if",
        "allOf",
        "anyOf",
        "oneOf",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "required",
        "minProperties",
        "maxProperties",
        "minItems",
        "maxItems",
        "contains",
        "uniqueItems",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]
)


def _admits_some(node: Schema) -> bool:
    if "enum" not in node.value and "const" not in node.value:
        return bool(node.get("type") != [])
    scalars = (kind for kind in KINDS if kind not in ("object", "array"))
    integers: bool = "integer" in str(node.get("type"))
    listed = (bool(constants(node, kind)) for kind in scalars if admits(node, kind))
    return not integers and any(listed)
