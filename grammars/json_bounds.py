"""How many alternatives a schema can have, at most, without working them out.

An upper bound from the keywords alone. Where it is small nothing has to be expanded to know that a
schema stays within its limit. Knows keywords and terms, no sets.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import same_key, types_of
from radixgen.grammars.json_shapes import Goal
from radixgen.grammars.json_terms import Term, hides_siblings, terms

MANY = 100  # above this the alternatives are worked out; far below json_algebra.MAX_SHAPES
_FAILING = ("required", "properties", "patternProperties", "prefixItems")


def alternatives(node: Schema, sign: bool = True) -> int:
    """At most so many shapes satisfy the schema, or with `sign` False fail it; capped."""
    known = node.memo.get(("bound", sign))
    if known is None:
        node.memo["bound", sign] = MANY * MANY  # if it is asked for again below itself
        known = node.memo["bound", sign] = min(_count(node, sign), MANY * MANY)
    return int(known)


def _count(node: Schema, sign: bool) -> int:
    parts = [_term(term, sign) for term in terms(node)]
    if hides_siblings(node):
        return parts[0]
    listed = [v for v in node.value.get("enum", ()) if isinstance(v, dict | list)]
    if sign:
        return max(len(listed), 1) * prod(parts)
    failures = sum(len(node.value.get(keyword, ())) for keyword in _FAILING) + 4
    return (failures + (MANY if listed or "const" in node.value else 0)) + sum(parts)


def _term(term: Term, sign: bool) -> int:
    match term:
        case ("allOf" | "anyOf", nodes):
            counts = [alternatives(node, sign) for node in nodes]
            return prod(counts) if (term[0] == "allOf") == sign else sum(counts)
        case ("oneOf", nodes):
            return _one_of(nodes) if sign else _not_one_of(nodes)
        case ("not", node):
            return alternatives(node, not sign)
        case ("if", test, then, other):
            if_so = alternatives(test) * alternatives(then, sign)
            return if_so + alternatives(test, False) * alternatives(other, sign)
        case ("dependencies", _, _, Schema() as then):
            return sign + alternatives(then, sign)
        case ("dependencies", _, _, names):
            return 2 if sign else len(names)
        case ("looks", _):
            return 1
    return alternatives(term[1], sign)  # a reference


def _one_of(nodes: list[Schema]) -> int:
    total = 0
    for node in nodes:
        others = (other for other in nodes if other is not node and not apart(node, other))
        total += alternatives(node) * prod(alternatives(other, False) for other in others)
        if total >= MANY * MANY:  # whatever the others add
            break
    return total


def _not_one_of(nodes: list[Schema]) -> int:
    none = prod(alternatives(node, False) for node in nodes)
    return none + sum(alternatives(node) for node in nodes) ** 2


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a schema shows: the kinds of its values, and, where these are objects alone,
    the values that it lists for required members."""

    kinds: frozenset[str] | None
    listed: dict[str, frozenset[Any]] | None


def apart(one: Schema, other: Schema) -> bool:
    """Whether two schemas plainly have no value in common: by type, or by a required constant."""
    ours, theirs = _look(one), _look(other)
    if ours.kinds and theirs.kinds and ours.kinds.isdisjoint(theirs.kinds):
        return True
    if not ours.listed or not theirs.listed:
        return False
    known = theirs.listed
    return any(n in known and found.isdisjoint(known[n]) for n, found in ours.listed.items())


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
        known = node.memo["listed"] = _listed_by(_target(node).value)
    found: frozenset[Any] | None = known
    return found


def _listed_by(value: dict[str, Any]) -> frozenset[Any] | None:
    if "$ref" in value:
        return None
    if "const" in value:
        return frozenset((same_key(value["const"]),))
    return frozenset(map(same_key, value["enum"])) if isinstance(value.get("enum"), list) else None


def _look(node: Schema) -> _Look:
    found: _Look | None = node.memo.get("look")
    if found is None:
        meant = _target(node)
        types = types_of(meant)
        listed = _find_constants(meant) if _only_objects(types) else None
        found = node.memo["look"] = _Look(_kinds(types) if types else None, listed)
    return found


def _kinds(types: frozenset[str]) -> frozenset[str]:
    return frozenset("number" if name == "integer" else name for name in types)


def _only_objects(types: frozenset[str] | None) -> bool:
    return types == frozenset(("object",))


def _target(node: Schema) -> Schema:
    """What a schema that is one reference points to, at most a few steps away."""
    for _ in range(4):
        if "$ref" not in node.value or not (hides_siblings(node) or len(node.value) == 1):
            break
        node = node.document.resolve(node)
    return node


def _find_constants(node: Schema) -> dict[str, frozenset[Any]]:
    """The values that a schema lists for required members."""
    found: dict[str, frozenset[Any]] = {}
    required, known = node.get("required"), node.get("properties")
    if not isinstance(required, list) or not isinstance(known, dict):
        return found
    for name in required:
        stated = known.get(name)
        listed = _listed_by(stated) if isinstance(stated, dict) else None
        if listed is not None:
            found[name] = listed
    return found
