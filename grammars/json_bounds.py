"""How many alternatives a schema can have, at most, without working them out.

An upper bound from the keywords alone. Where it is small nothing has to be expanded to know that a
schema stays within its limit. Knows keywords and terms, no sets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import (
    admits,
    are_few_differences,
    constants,
    required_names,
    same_key,
    types_of,
)
from radixgen.grammars.json_shapes import Goal
from radixgen.grammars.json_terms import INCLUDING, Term, hides_siblings, terms

MANY = 100  # above this the alternatives are worked out; far below json_sets.MAX_SHAPES
CAP = MANY * MANY
MAX_INCLUDED = 16  # schemas that one includes by allOf and $ref, and that are looked at with it
# The keywords by which an object, or an array, can fail a schema, in so many ways each as their
# value has parts; the others in one way.
_FAILING_BY_PART = {
    "object": ("required", "properties", "patternProperties"),
    "array": ("prefixItems",),
}
_FAILING = {
    "object": ("additionalProperties", "propertyNames", "minProperties", "maxProperties"),
    "array": ("additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems"),
}


def alternatives(node: Schema) -> int:
    """At most so many shapes for objects, or for arrays, satisfy a schema; capped."""
    return max(_by_itself(node, "object"), _by_itself(node, "array"))


def _by_itself(node: Schema, kind: str) -> int:
    return _shapes(node, kind, True, node if terms(node) else None)


def _shapes(node: Schema, kind: str, sign: bool, within: Schema | None = None) -> int:
    """At most so many shapes of a kind satisfy a schema, or with `sign` False fail it.

    `within`: what is worked out at once, and includes the schema.
    """
    key = ("bound", kind, sign, within)
    known: int | None = node.memo.get(key)
    if known is None:
        node.memo[key] = CAP  # if it is asked for again below itself
        known = node.memo[key] = min(_count(node, kind, sign, within), CAP)
    return known


def _count(node: Schema, kind: str, sign: bool, within: Schema | None) -> int:
    if hides_siblings(node):
        return _term(terms(node)[0], kind, sign, within)
    if not admits(node, kind):
        return int(not sign)
    listed = constants(node, kind)
    if not sign:
        own = _failures(node, kind, listed)
        return own + sum(_term(term, kind, False, None) for term in terms(node))
    number = 1 if listed is None else len(listed)
    if number:
        # Those that come to nothing are not worked out first.
        number *= prod(max(_term(term, kind, True, within), 1) for term in terms(node))
    return number


def _failures(node: Schema, kind: str, listed: list[tuple[str, Any]] | None) -> int:
    """In how many ways values can fail a schema's own keywords."""
    value = node.value
    number = sum(keyword in value for keyword in _FAILING[kind])
    number += sum(len(value.get(keyword, ())) for keyword in _FAILING_BY_PART[kind])
    if kind == "array" and "items" in value:
        number += len(value["items"]) if isinstance(value["items"], list) else 1
    if listed is not None:
        few = are_few_differences(v for _, v in listed)
        number += prod(2 * len(v) + 2 for _, v in listed) if few else 1
    return number


def _term(term: Term, kind: str, sign: bool, within: Schema | None) -> int:
    match term:
        case ("allOf", nodes):
            counts = [_shapes(node, kind, sign, within) for node in nodes]
            return prod(max(count, 1) for count in counts) if sign else sum(counts)
        case ("anyOf", nodes) if sign:
            return sum(_by_itself(node, kind) for node in nodes)
        case ("anyOf", nodes):
            return prod(_shapes(node, kind, False) for node in nodes)
        case ("oneOf", nodes):
            return _one_of(nodes, kind, within) if sign else _not_one_of(nodes, kind)
        case ("not", node):
            return _shapes(node, kind, not sign)
        case ("if", test, then, other):
            if_so = _by_itself(test, kind) * _shapes(then, kind, sign)
            return if_so + _shapes(test, kind, False) * _shapes(other, kind, sign)
        case ("dependencies", *_) if kind == "array":
            return int(sign)
        case ("dependencies", _, _, Schema() as then):
            return sign + _shapes(then, kind, sign)
        case ("dependencies", _, _, names):
            return 2 if sign else len(names)
        case ("looks", _):
            return int(sign)
    return _shapes(term[1], kind, sign, within)  # a reference


def _one_of(nodes: list[Schema], kind: str, within: Schema | None) -> int:
    """Each schema, and the ways to fail those that it is not known to be apart from."""
    numbers = [_by_itself(node, kind) for node in nodes]
    if all_apart(nodes, kind, () if within is None else _look(within).required):
        return sum(numbers)
    some = [index for index, number in enumerate(numbers) if number]
    for place, first in enumerate(some):
        for other in some[:place]:
            if not apart(nodes[first], nodes[other], kind, within):
                numbers[first] *= _shapes(nodes[other], kind, False)
                numbers[other] *= _shapes(nodes[first], kind, False)
                if numbers[first] >= CAP:  # whatever the others add
                    return CAP
    return sum(numbers)


def _not_one_of(nodes: list[Schema], kind: str) -> int:
    none = prod(_shapes(node, kind, False) for node in nodes)
    return none + sum(_by_itself(node, kind) for node in nodes) ** 2


# --- what a look at two schemas shows ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Look:
    """What a schema says, with those that it includes: the kinds of its values, the names that
    objects need. `listed`: the values that it lists for members, as far as they were asked for."""

    parts: list[Schema]
    kinds: frozenset[str] | None
    required: frozenset[str]
    listed: dict[str, frozenset[Any] | None]


def apart(one: Schema, other: Schema, kind: str, within: Schema | None = None) -> bool:
    """Whether two schemas plainly have no value of a kind in common: by their types, or by the
    values that they list for a member which one of them, or `within`, requires."""
    if differ_in_kind(one, other):
        return True
    if kind != "object":
        return False
    ours, theirs = _look(one), _look(other)
    if any(_differ(name, ours, theirs) for name in ours.required | theirs.required):
        return True
    return within is not None and any(_differ(n, ours, theirs) for n in _look(within).required)


def differ_in_kind(one: Schema, other: Schema) -> bool:
    """Whether two schemas plainly have no value in common, by their types."""
    ours, theirs = _look(one).kinds, _look(other).kinds
    return ours is not None and theirs is not None and ours.isdisjoint(theirs)


def all_apart(nodes: Sequence[Schema], kind: str, needed: Iterable[str]) -> bool:
    """Whether each of some schemas is plainly apart from all others, by one member that is among
    `needed` or that all of them require: seen without comparing each with each."""
    if kind != "object":
        return False
    looks = [_look(node) for node in nodes]
    for name in frozenset.intersection(*(look.required for look in looks)).union(needed):
        values = [found for look in looks if (found := _values(look, name)) is not None]
        if len(values) == len(nodes):
            return sum(map(len, values)) == len(frozenset().union(*values))
    return False


def _differ(name: str, one: _Look, other: _Look) -> bool:
    values = _values(one, name)
    others = None if values is None else _values(other, name)
    return values is not None and others is not None and values.isdisjoint(others)


def _values(look: _Look, name: str) -> frozenset[Any] | None:
    """The values that are listed for the member of that name; None without."""
    if name in look.listed:
        return look.listed[name]
    found: frozenset[Any] | None = None
    for part in look.parts:
        if name in (part.get("properties") or ()):
            values = _listed(part.member("properties", name))
            found = values if found is None or values is None else found & values
    look.listed[name] = found
    return found


def _look(node: Schema) -> _Look:
    found: _Look | None = node.memo.get("look")
    if found is None:
        parts = _included(node) if terms(node) else [node]
        required = frozenset().union(*map(required_names, parts))
        found = node.memo["look"] = _Look(parts, _kinds(parts), required, {})
    return found


def _kinds(nodes: list[Schema]) -> frozenset[str] | None:
    """The kinds that all of some schemas state; None where none of them does."""
    found: frozenset[str] | None = None
    for node in nodes:
        types = types_of(node)
        if types is not None:
            known = frozenset("number" if name == "integer" else name for name in types)
            found = known if found is None else found & known
    return found


def _included(node: Schema) -> list[Schema]:
    """A schema and those that it includes by allOf and $ref: some of them, if there are many."""
    found = {node: None}
    waiting = [node]
    while waiting and len(found) < MAX_INCLUDED:
        for keyword, *what in terms(waiting.pop()):
            if keyword in INCLUDING:
                more = [n for n in (what[0] if keyword == "allOf" else what) if n not in found]
                found.update(dict.fromkeys(more))
                waiting += more
    return [n for n in found if not hides_siblings(n)]


def are_unlike(wanted: Goal) -> bool:
    """Whether two schemas of a goal plainly list values of which they have none in common."""
    if len(wanted) < 2:
        return False
    common: frozenset[Any] | None = None
    for node, sign in wanted:
        listed = _listed(node) if sign else None
        if listed is not None:
            common = listed if common is None else common & listed
    return common is not None and not common


def _listed(node: Schema) -> frozenset[Any] | None:
    """The values that a schema lists, by themselves or by what it refers to; None without."""
    known = node.memo.get("listed", node)
    if known is node:
        known = node.memo["listed"] = _find_listed(_target(node).value)
    found: frozenset[Any] | None = known
    return found


def _find_listed(value: dict[str, Any]) -> frozenset[Any] | None:
    if "$ref" in value:
        return None
    if "const" in value:
        return frozenset((same_key(value["const"]),))
    return frozenset(map(same_key, value["enum"])) if "enum" in value else None


def _target(node: Schema) -> Schema:
    """What a schema that is one reference points to, at most a few steps away."""
    for _ in range(4):
        if "$ref" not in node.value or not (hides_siblings(node) or len(node.value) == 1):
            break
        node = node.document.resolve(node)
    return node
