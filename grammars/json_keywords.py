"""What the keywords of one schema say of one kind of value, without its subschemas' own say.

Owns the reading of `type`, `enum`, `const` and of every assertion on numbers, strings, arrays and
objects, each also negated. What combines schemas (`allOf`, `$ref` …) is `json_algebra.py`'s.

Trusts the shape of the keywords' values: `json_check.py` has looked at them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from radixgen.grammars import json_numbers as num
from radixgen.grammars import json_texts as txt
from radixgen.grammars.formats import format_text
from radixgen.grammars.json_document import Schema, escape
from radixgen.grammars.json_numbers import Numbers, Piece
from radixgen.grammars.json_shapes import (
    ANY_ARRAY,
    ANY_OBJECT,
    ANYTHING,
    ArrayShape,
    Count,
    Goal,
    Keys,
    Member,
    ObjectShape,
    Unlike,
    goal,
)
from radixgen.grammars.json_texts import Texts
from radixgen.grammars.regex import parse

Names = Callable[[Schema], Texts]  # the names that a `propertyNames` schema lets through
MAX_PATTERNS = 1024  # whose texts are kept: each is asked for several times
MAX_DIFFERENCES = 64  # ways to differ from listed values, each told apart by a shape of its own
KINDS = ("object", "array", "string", "number", "boolean", "null")
_KIND_OF = {
    dict: "object",
    list: "array",
    str: "string",
    int: "number",
    Decimal: "number",
    bool: "boolean",
    type(None): "null",
}
_OF_TYPE = {"integer": ("number",), **{kind: (kind,) for kind in KINDS}}


def kind_of(value: Any) -> str:
    """The kind of a JSON value."""
    return _KIND_OF[type(value)]


def types_of(node: Schema) -> frozenset[str] | None:
    """The words of `type`; None when there is none."""
    stated = node.get("type")
    if stated is None:
        return None
    return frozenset(stated) if isinstance(stated, list) else frozenset((stated,))


def admits(node: Schema, kind: str) -> bool:
    """Whether `type` lets values of that kind through."""
    stated = node.value.get("type")
    if stated is None:
        return True
    if isinstance(stated, str):
        return stated == kind or (kind == "number" and stated == "integer")
    return kind in stated or (kind == "number" and "integer" in stated)


def own_kinds(node: Schema) -> Sequence[str]:
    """The kinds of the values that `type` lets through, and `const` or `enum` list."""
    value = node.value
    stated = value.get("type")
    found: Sequence[str] = _OF_TYPE.get(stated, ()) if isinstance(stated, str) else KINDS
    if isinstance(stated, list):
        found = tuple(kind for kind in KINDS if admits(node, kind))
    if "const" in value or "enum" in value:
        listed = [value["const"]] if "const" in value else value["enum"]
        among = set(map(kind_of, listed))
        found = tuple(kind for kind in found if kind in among)
    return found


def constants(node: Schema, kind: str) -> list[tuple[str, Any]] | None:
    """The values of that kind that `const` and `enum` list, each with its pointer; None without.

    Beside each other both hold.
    """
    value = node.value
    if "const" in value:
        found = [("/const", value["const"])] if kind_of(value["const"]) == kind else []
        if "enum" in value:
            listed = [same_key(v) for v in value["enum"]]
            found = [(k, v) for k, v in found if same_key(v) in listed]
        return found
    if "enum" not in value:
        return None
    return [(f"/enum/{i}", v) for i, v in enumerate(value["enum"]) if kind_of(v) == kind]


def same_key(value: Any) -> Any:
    """Equal for equal JSON values: 1 is 1.0, but true is not 1."""
    if isinstance(value, dict):
        return ("object", frozenset((k, same_key(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(same_key, value)))
    if isinstance(value, bool) or value is None:
        return ("word", value)
    return ("text", value) if isinstance(value, str) else ("number", Fraction(value))


def are_few_differences(values: Iterable[dict[str, Any] | list[Any]]) -> bool:
    """Whether the ways to differ from all of some objects or arrays may get a shape each."""
    return prod(2 * len(value) + 2 for value in values) <= MAX_DIFFERENCES


def whole(value: Any) -> int:
    """A count as a keyword gives it: 2 or 2.0."""
    return int(value)


# --- scalars -------------------------------------------------------------------------------------


def words(node: Schema, kind: str) -> frozenset[Any]:
    """The values of `null` or `boolean` that a schema's own keywords leave."""
    every: frozenset[Any] = frozenset((None,)) if kind == "null" else frozenset((True, False))
    if not admits(node, kind):
        return frozenset()
    listed = constants(node, kind)
    return every if listed is None else frozenset(v for _, v in listed)


def numbers(node: Schema) -> Numbers:
    """The numbers that a schema's own keywords leave."""
    types = types_of(node)
    if types is None or "number" in types:
        found = num.EVERY
    elif "integer" in types:
        found = num.INTEGERS
    else:
        return num.NONE
    listed = constants(node, "number")
    if listed is not None:
        found = found.meet(Numbers(points=frozenset(Fraction(v) for _, v in listed)))
    if found.is_empty() or not _NUMERIC.intersection(node.value):
        return found
    piece = bounds(node.value)
    if found is num.EVERY:
        return num.numbers((piece,))
    return found.meet(Numbers(pieces=(piece,)))  # not one by one, where it has members to list


_NUMERIC = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy")
)


def bounds(value: dict[str, Any]) -> Piece:
    """The numbers that the bounds and the divisor of a schema leave."""
    low, low_open = _end(value, "minimum", "exclusiveMinimum", max)
    high, high_open = _end(value, "maximum", "exclusiveMaximum", min)
    step = value.get("multipleOf", value.get("divisibleBy"))
    multiple = None if step is None else Fraction(step)
    return Piece(low, high, low_open, high_open, multiple)


def _end(
    value: dict[str, Any], closed: str, opened: str, tighter: Any
) -> tuple[Fraction | None, bool]:
    """One end of the interval and whether it is excluded. In draft 4 `opened` is a boolean."""
    limit, outside = value.get(closed), value.get(opened)
    if isinstance(outside, bool):
        return (None if limit is None else Fraction(limit)), outside and limit is not None
    if outside is None:
        return (None if limit is None else Fraction(limit)), False
    if limit is None:
        return Fraction(outside), True
    both = tighter(Fraction(limit), Fraction(outside))
    return both, both == Fraction(outside)


def texts(node: Schema, formats: bool) -> Texts:
    """The texts that a schema's own keywords leave; `formats`: whether `format` asserts."""
    if not admits(node, "string"):
        return txt.NONE
    value, found = node.value, txt.EVERY
    if "pattern" in value:
        found = found.meet(pattern(value["pattern"]))
    if formats and isinstance(value.get("format"), str):
        expr = format_text(value["format"])
        found = found if expr is None else found.meet(txt.language(expr))
    if "minLength" in value or "maxLength" in value:
        high = value.get("maxLength")
        counted = whole(value.get("minLength", 0)), None if high is None else whole(high)
        found = txt.of_length(found, *counted)
    listed = constants(node, "string")
    if listed is not None:
        found = txt.few(v for _, v in listed).meet(found)
    return found


@lru_cache(MAX_PATTERNS)
def pattern(source: str) -> Texts:
    """The texts in which a pattern is found."""
    return txt.language(txt.searched(parse(source, dialect="ecma", mode="search")))


# --- objects -------------------------------------------------------------------------------------


def objects(node: Schema, names: Names) -> ObjectShape | None:
    """What a schema's own keywords say of objects, `enum` and `const` apart; None: no object."""
    if not admits(node, "object"):
        return None
    value = node.value
    if not _OBJECT.intersection(value):
        return ANY_OBJECT
    goals = {name: goal(sub) for name, sub in properties(node).items()}
    required = required_names(node)
    for name in required:
        goals.setdefault(name, ANYTHING)
    every = [(keys, goal(sub)) for keys, sub in key_rules(node, names)]
    every = [(keys, wanted) for keys, wanted in every if wanted]
    for keys, _ in every:
        for name in sorted(keys.names):
            goals.setdefault(name, ANYTHING)
    high = value.get("maxProperties")
    declared = tuple(value.get("properties") or ())
    return ObjectShape(
        goals,
        (declared,) if declared else (),
        frozenset(required),
        tuple(every),
        low=whole(value.get("minProperties", 0)),
        high=None if high is None else whole(high),
    )


_OBJECT = frozenset(
    (
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "required",
        "minProperties",
        "maxProperties",
    )
)


def properties(node: Schema) -> dict[str, Schema]:
    return node.named("properties") if "properties" in node.value else {}


def required_names(node: Schema) -> list[str]:
    stated = node.get("required")
    return stated if isinstance(stated, list) else []


def key_rules(node: Schema, names: Names) -> Iterator[tuple[Keys, Schema]]:
    """Which names have to have values of which schema, `properties` apart."""
    patterns = []
    if "patternProperties" in node.value:
        for source, sub in node.named("patternProperties").items():
            expr = pattern(source).as_expr()
            patterns.append(expr)
            yield Keys(inside=frozenset((expr,))), sub
    if "additionalProperties" in node.value:
        known = frozenset(node.get("properties") or ())
        yield Keys(known, outside=frozenset(patterns)), node.child("additionalProperties")
    if "propertyNames" in node.value:
        allowed = names(node.child("propertyNames"))
        never = node.document.false
        if allowed.finite is not None:
            yield Keys(allowed.finite), never
        elif allowed is not txt.EVERY:
            yield Keys(outside=frozenset((allowed.expr,))), never


def object_constant(node: Schema, pointer: str, value: dict[str, Any]) -> ObjectShape:
    """Exactly this object."""
    document = node.document
    goals = {
        name: goal(document.constant(inner, node, f"{pointer}/{escape(name)}"))
        for name, inner in value.items()
    }
    names = frozenset(value)
    rest = (Keys(names), goal(document.false))
    return ObjectShape(goals, (tuple(value),), names, (rest,))


def not_objects(node: Schema, names: Names) -> Iterable[ObjectShape]:
    """The ways in which an object can fail a schema's own keywords, `enum` and `const` apart."""
    if not admits(node, "object"):
        return [ANY_OBJECT]
    return _object_failures(node, names)


def _object_failures(node: Schema, names: Names) -> Iterator[ObjectShape]:
    for name, sub in properties(node).items():
        if sub is not node.document.true:
            yield has(name, goal(sub, False))
    for keys, sub in key_rules(node, names):
        if sub is not node.document.true:
            goals = dict.fromkeys(sorted(keys.names), ANYTHING)
            yield ObjectShape(goals, some=(Member(keys, goal(sub, False)),))
    for name in required_names(node):
        yield lacks(node, name)
    if "maxProperties" in node.value:
        yield ObjectShape(low=whole(node.value["maxProperties"]) + 1)
    if whole(node.value.get("minProperties", 0)) > 0:
        yield ObjectShape(high=whole(node.value["minProperties"]) - 1)


def not_object_constant(node: Schema, pointer: str, value: dict[str, Any]) -> Iterator[ObjectShape]:
    """The ways in which an object can differ from this one."""
    names = frozenset(value)
    goals = dict.fromkeys(value, ANYTHING)
    yield ObjectShape(goals, some=(Member(Keys(names), ANYTHING),))
    for name, inner in value.items():
        yield lacks(node, name)
        yield has(
            name, goal(node.document.constant(inner, node, f"{pointer}/{escape(name)}"), False)
        )


def has(name: str, wanted: Goal) -> ObjectShape:
    """Objects with a member of that name and goal."""
    return ObjectShape({name: wanted}, required=frozenset((name,)))


def lacks(node: Schema, name: str) -> ObjectShape:
    """Objects without a member of that name."""
    return ObjectShape({name: goal(node.document.false)})


# --- arrays --------------------------------------------------------------------------------------


def arrays(node: Schema) -> ArrayShape | None:
    """What a schema's own keywords say of arrays, `enum` and `const` apart; None: no array."""
    if not admits(node, "array"):
        return None
    value = node.value
    if not _ARRAY.intersection(value):
        return ANY_ARRAY
    rest, low, high = node.rest_items(), whole(value.get("minItems", 0)), value.get("maxItems")
    if high is not None and low > high:
        return None
    return ArrayShape(
        tuple(goal(sub) for sub in node.prefix_items()),
        ANYTHING if rest is None else goal(rest),
        low,
        None if high is None else whole(high),
        tuple(_counts(node)),
        node if value.get("uniqueItems") is True else None,
    )


_ARRAY = frozenset(
    (
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "contains",
        "uniqueItems",
    )
)


def _counts(node: Schema) -> Iterator[Count]:
    if "contains" in node.value:
        low = whole(node.value.get("minContains", 1))
        high = node.value.get("maxContains")
        if low > 0 or high is not None:
            high = None if high is None else whole(high)
            yield Count(node.child("contains"), True, 0, low, high)


def array_constant(node: Schema, pointer: str, value: list[Any]) -> ArrayShape:
    """Exactly this array."""
    size = len(value)
    return ArrayShape(tuple(_items(node, pointer, value)), low=size, high=size)


def _items(node: Schema, pointer: str, value: list[Any], sign: bool = True) -> Iterator[Goal]:
    for index, inner in enumerate(value):
        yield goal(node.document.constant(inner, node, f"{pointer}/{index}"), sign)


def not_arrays(node: Schema) -> Iterable[ArrayShape]:
    """The ways in which an array can fail a schema's own keywords, but for `uniqueItems`."""
    if not admits(node, "array"):
        return [ANY_ARRAY]
    return _array_failures(node)


def _array_failures(node: Schema) -> Iterator[ArrayShape]:
    prefix, rest = node.prefix_items(), node.rest_items()
    for index, sub in enumerate(prefix):
        if sub is not node.document.true:
            yield item_at(index, goal(sub, False))
    if rest is not None and rest is not node.document.true:
        yield ArrayShape(counts=(Count(rest, False, len(prefix), 1, None),))
    for count in _counts(node):
        if count.low > 0:
            yield ArrayShape(counts=(Count(count.node, True, 0, 0, count.low - 1),))
        if count.high is not None:
            yield ArrayShape(counts=(Count(count.node, True, 0, count.high + 1, None),))
    if whole(node.value.get("minItems", 0)) > 0:
        yield ArrayShape(high=whole(node.value["minItems"]) - 1)
    if "maxItems" in node.value:
        yield ArrayShape(low=whole(node.value["maxItems"]) + 1)


def not_array_constant(node: Schema, pointer: str, value: list[Any]) -> Iterator[ArrayShape]:
    """The ways in which an array can differ from this one."""
    if value:
        yield ArrayShape(high=len(value) - 1)
    yield ArrayShape(low=len(value) + 1)
    for index, wanted in enumerate(_items(node, pointer, value, False)):
        yield item_at(index, wanted)


def item_at(index: int, wanted: Goal) -> ArrayShape:
    """Arrays with an item of that index and goal."""
    return ArrayShape((ANYTHING,) * index + (wanted,), low=index + 1)


def unlike(kind: str, node: Schema, listed: list[tuple[str, Any]]) -> ObjectShape | ArrayShape:
    """Objects or arrays that are none of these, as one shape."""
    others = tuple(Unlike(node, pointer, value) for pointer, value in listed)
    if kind == "array":
        return ArrayShape(unlike=others)
    names = (name for _, value in listed for name in value)
    return ObjectShape(dict.fromkeys(names, ANYTHING), unlike=others)
