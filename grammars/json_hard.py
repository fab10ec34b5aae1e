"""Which schemas have to be worked out before any text is read, to know that they can be enforced.

Most cannot be refused, whatever they are combined with. Knows keywords and terms, no sets.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from radixgen.grammars.json_bounds import MANY, alternatives
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import admits, pattern
from radixgen.grammars.json_shapes import Goal, too_many
from radixgen.grammars.json_terms import (
    DEPENDENCIES,
    INCLUDING,
    PLACES,
    REFERRING,
    hides_siblings,
    in_place,
    possible_kinds,
    terms,
)

MUCH = 50  # characters at least, of what is of some form
FEW_PATTERNS = 6  # of patternProperties, which overlap in at most 64 ways
Steps = Mapping[Schema, Sequence[Schema]]  # schemas, each with those that it leads to

# Keywords that may turn out to be of no regular kind, and those that combine schemas, which may
# turn out to need too many alternatives.
_MAYBE = frozenset(
    ("uniqueItems", "minProperties", "maxProperties", "unevaluatedItems", "unevaluatedProperties")
)
_COMBINING = frozenset(("allOf", "anyOf", "oneOf", "not", "if", *DEPENDENCIES))
_APPLYING = _COMBINING | REFERRING
_LOOKED_AT = _MAYBE | _COMBINING | {"patternProperties", "contains"}
_STANDING = PLACES | {"/contains", "/unevaluatedProperties", "/unevaluatedItems"}
# What a schema asks of strings by.
ASKING = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "pattern", "format", "minLength", "maxLength")
)
_ASKING_OR_NOT = ASKING | {"$ref", "$dynamicRef"}
_MORE = _COMBINING | INCLUDING
_MORE_THAN_LISTS = (_MORE | {"enum", "const"}) - {"allOf", "anyOf", "oneOf"}
_BY_PART = frozenset(("required", "properties", "patternProperties", "prefixItems", "items"))
# Those whose schemas may be asked to fail.
_FAILING = ("not", "if", "anyOf", "oneOf", "contains")


def hard(steps: Steps) -> set[Schema]:
    """The schemas that reach one whose enforceability shows only when it is worked out.

    They are all read through `steps`, which has been checked.
    """
    found = _directly(steps)
    return _reached(found, _before(steps)) if found else set()


def entwined(steps: Steps) -> Iterator[Schema]:
    """The schemas of members, items and the root that may ask several things of one string."""
    texts = any("pattern" in node.value or "format" in node.value for node in steps)
    for node in steps if texts else ():
        if node.parent is None or node.key in _STANDING:
            meant = node.document.resolve(node) if "$ref" in node.value else node
            combines = not all(map(_COMBINING.isdisjoint, (node.value, meant.value)))
            if (combines or _asks_much(meant.value)) and "string" in possible_kinds(node):
                yield node


def _asks_much(value: dict[str, Any]) -> bool:
    """Whether a schema alone asks of strings what may not go together."""
    if "pattern" in value or "format" in value:
        return {"pattern", "format"} <= value.keys() or value.get("minLength", 0) > MUCH
    return False


def crowded(steps: Steps) -> Iterator[Schema]:
    """The schemas of members, items and the root whose members or items may have to satisfy several
    others, or whose names may: where several patterns name them, or some items have to be there."""
    found = {node for node in steps if _is_crowded(node.value)}
    for node in steps if found else ():
        if node.parent is None or node.key in _STANDING:
            waiting, seen = [node], {node}
            while waiting and waiting[-1] not in found:
                inner = [part for part in in_place(waiting.pop()) if part not in seen]
                seen.update(inner)
                waiting += inner
            if waiting:
                yield node


def _is_crowded(value: dict[str, Any]) -> bool:
    if "contains" in value:
        return _may_ask(value["contains"])
    if "patternProperties" not in value:
        return "propertyNames" in value
    named, declared = value["patternProperties"], value.get("properties", ())
    if len(named) > 1 or "propertyNames" in value:
        return True
    return any(
        pattern(source).holds(name)
        for source, inner in named.items()
        for name in (declared if _may_ask(inner) else ())
    )


def _may_ask(value: Any) -> bool:
    return isinstance(value, dict) and not _ASKING_OR_NOT.isdisjoint(value)


def asks_together(wanted: Goal) -> bool:
    """Whether several schemas of a goal may ask something of one string."""
    return sum(map(_may_ask, (node.value for node, _ in wanted))) > 1


def leads_to(node: Schema, found: Collection[Schema]) -> bool:
    """Whether a schema is among those found, or was made out of one of them since."""
    return node in found or any(part in found for part in node.memo.get("parts", ()))


def looping(steps: Steps) -> list[Schema]:
    """Schemas that refer to themselves without a member or an item in between: of each loop one."""
    found, done, path = [], set[Schema](), set[Schema]()
    for start in steps:
        if start in done or REFERRING.isdisjoint(start.value):  # each loop has a reference
            continue
        if not any(map(_applies, steps[start])):  # as most references: none of that leads on
            continue
        waiting = [(start, in_place(start))]
        path.add(start)
        while waiting:
            node, inner = waiting[-1]
            one = next(inner, None)
            if one is None:
                waiting.pop()
                path.remove(node)
                done.add(node)
            elif one in path:
                found.append(one)
            elif one not in done and _applies(one):
                path.add(one)
                waiting.append((one, in_place(one)))
    return found


def _applies(node: Schema) -> bool:
    """Whether a schema applies others to its own values."""
    return not _APPLYING.isdisjoint(node.value)


def _reached(waiting: list[Schema], steps: Steps) -> set[Schema]:
    """Some schemas, which are taken out of their list, and all that steps lead to from them."""
    found: set[Schema] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(steps.get(node, ()))
    return found


def _directly(steps: Steps) -> list[Schema]:
    """Those whose own keywords may be refused."""
    found, bounded, combining, counting = [], [], [], []
    for node in steps:
        value = node.value
        if _LOOKED_AT.isdisjoint(value):
            continue
        if "contains" in value:
            counting.append(node)
        if not _MAYBE.isdisjoint(value):
            if _is_hard(value):
                found.append(node)
                continue
            bounded.append(node)
        if "patternProperties" in value and len(value["patternProperties"]) > FEW_PATTERNS:
            found.append(node)
        elif not _COMBINING.isdisjoint(value) and not _are_few(node):
            combining.append(node)
    bounded = [node for node in bounded if node.value.get("maxProperties", 0) > 0]
    if bounded:
        failing = _failing(steps)
        found += (node for node in bounded if node in failing)
    if counting and too_many(max(map(int, _counts(node))) for node in counting):
        found += counting
    if combining:
        before = _before(steps)
        alone = (node for node in combining if not _is_included(node, before.get(node, ())))
        found += (node for node in alone if alternatives(node) > MANY)
    return found


def _counts(node: Schema) -> tuple[Any, Any]:
    """How many items of a kind may have to be there, whether a schema holds or is to fail."""
    return node.value.get("minContains", 1), node.value.get("maxContains", 0)


def _are_few(node: Schema) -> bool:
    """Whether a look shows that a schema has few alternatives, as most that combine others do."""
    value = node.value
    if not _MORE_THAN_LISTS.isdisjoint(value):
        return False
    number = 1
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in value:
            parts = node.children(keyword)
            if not all(map(_is_single, parts)):
                return False
            parts = [part for part in parts if _may_nest(part)]
            if keyword != "allOf" and parts:
                number *= len(parts)
            if keyword == "oneOf" and parts:
                number *= max(map(_num_failures, parts)) ** (len(parts) - 1)
    return number <= MANY


def _may_nest(node: Schema) -> bool:
    meant = node.document.resolve(node) if "$ref" in node.value else node
    return admits(meant, "object") or admits(meant, "array")


def _num_failures(node: Schema) -> int:
    """In how many ways, at most, values can fail what `_is_single` takes."""
    said = [node.value]
    if "$ref" in node.value:
        said.append(node.document.resolve(node).value)
    by_part = (v for value in said for k, v in value.items() if k in _BY_PART)
    return sum(map(len, said)) + sum(len(v) for v in by_part if isinstance(v, list | dict)) + 1


def _is_single(node: Schema) -> bool:
    """Whether a schema, or what it refers to, plainly has one shape at most."""
    if "$ref" not in node.value:
        return _MORE.isdisjoint(node.value) and not _lists_containers(node.value)
    meant = node.document.resolve(node).value
    if not _MORE.isdisjoint(meant) or _lists_containers(meant):
        return False
    if hides_siblings(node):
        return True
    return len(_MORE & node.value.keys()) == 1 and not _lists_containers(node.value)


def _lists_containers(value: dict[str, Any]) -> bool:
    listed = [value["const"]] if "const" in value else value.get("enum", ())
    return any(isinstance(one, list | dict) for one in listed)


def _is_hard(value: dict[str, Any]) -> bool:
    """Whether the keywords may be refused in any context. One member more than those that have to
    be there is never too many; an upper bound is one from below for what has to fail it."""
    if value.get("uniqueItems") is True or value.get("minProperties", 0) > 1:
        return True
    return "unevaluatedItems" in value or "unevaluatedProperties" in value


def _before(steps: Steps) -> dict[Schema, list[Schema]]:
    """What leads to each schema."""
    found: dict[Schema, list[Schema]] = {}
    for node, inner in steps.items():
        for one in inner:
            found.setdefault(one, []).append(node)
    return found


def _failing(steps: Steps) -> set[Schema]:
    """The schemas that something may be asked to fail."""
    waiting: list[Schema] = []
    for node in steps:
        for keyword in () if hides_siblings(node) else _FAILING:
            if keyword in node.value:
                is_list = isinstance(node.value[keyword], list)
                waiting += node.children(keyword) if is_list else [node.child(keyword)]
    return _reached(waiting, steps)


def _is_included(node: Schema, before: Sequence[Schema]) -> bool:
    """Whether a schema stands in others only that include it, and so are combined with it."""
    for other, number in Counter(before).items() if len(before) > 1 else ((b, 1) for b in before):
        if INCLUDING.isdisjoint(other.value):
            return False
        included = [n for keyword, *what in terms(other) if keyword in INCLUDING for n in what]
        flat = (n for one in included for n in (one if isinstance(one, list) else (one,)))
        if sum(n is node for n in flat) < number:
            return False
    return bool(before)
