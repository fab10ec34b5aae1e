"""`unevaluatedProperties` and `unevaluatedItems`: what the schemas beside them looked at.

Which members a schema has looked at depends on which of its alternatives held. So the alternatives
are taken apart into cases that exclude each other and are known to hold or not, each with the names
and items that were looked at; in each, what is left over is a rule like any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import Names, has, key_rules, lacks, properties
from radixgen.grammars.json_sets import MAX_SHAPES
from radixgen.grammars.json_shapes import (
    ANYTHING,
    ArrayShape,
    Count,
    Keys,
    Member,
    ObjectShape,
    goal,
)
from radixgen.grammars.json_terms import Term, TooMany, hides_siblings, terms

MAX_BRANCHES = 6  # of an anyOf that looks at members or items beside an unevaluated keyword
TOO_MANY = f"with what stands beside it, it has over {MAX_SHAPES} alternatives"
FEWER = (
    "take fewer, tell them apart by constants of one required property, or say in each what other "
    "members or items may be"
)
KEYWORD = {"object": "unevaluatedProperties", "array": "unevaluatedItems"}


class Sets(Protocol):
    """The sets of `json_algebra.Algebra`."""

    @property
    def names(self) -> Names: ...
    def every(self, kind: str) -> Any: ...
    def meet(self, kind: str, one: Any, other: Any) -> Any: ...
    def join(self, kind: str, one: Any, other: Any) -> Any: ...
    def evaluate(self, node: Schema, kind: str, sign: bool) -> Any: ...
    def plain(self, node: Schema, kind: str, sign: bool) -> Any: ...
    def own(self, node: Schema, kind: str, sign: bool) -> Any: ...
    def term(self, term: Term, kind: str, sign: bool) -> Any: ...
    def refuse(self, keyword: str, node: Schema, why: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What was looked at: names and patterns of members; the first items, and which others."""

    whole: bool = False  # every member, or every item
    names: frozenset[str] = frozenset()
    patterns: frozenset[Any] = frozenset()
    items: int = 0
    matching: tuple[Schema, ...] = ()

    def join(self, other: "Seen") -> "Seen":
        return Seen(
            self.whole or other.whole,
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.items, other.items),
            self.matching + other.matching,
        )


NOTHING = Seen()
Case = tuple[Any, Seen]  # a set of values, and what was looked at in each of them


class Cases:
    """Takes schemas with unevaluated keywords apart."""

    def __init__(self, algebra: Sets) -> None:
        self._algebra = algebra

    def concern(self, node: Schema, kind: str) -> bool:
        """Whether a schema has the keyword for values of that kind."""
        return kind in KEYWORD and KEYWORD[kind] in node.value

    def evaluate(self, node: Schema, kind: str, sign: bool) -> Any:
        """The values that satisfy such a schema, or that do not."""
        try:
            return self._evaluate(node, kind, sign)
        except TooMany:
            self._algebra.refuse(KEYWORD[kind], node, f"{TOO_MANY}; {FEWER}")
            return self._algebra.plain(node, kind, sign)

    def _evaluate(self, node: Schema, kind: str, sign: bool) -> Any:
        """`evaluate`. Raises TooMany."""
        left = node.child(KEYWORD[kind])
        found = () if sign else self._algebra.plain(node, kind, False)
        for values, seen in self._plain_cases(node, kind):
            if sign:
                part = self._algebra.meet(kind, values, every_left(kind, seen, left))
            elif seen.whole:
                continue
            else:
                part = self._algebra.meet(kind, values, some_left(kind, seen, left))
            found = self._algebra.join(kind, found, part)
        return found

    def _cases(self, node: Schema, kind: str) -> list[Case]:
        """Disjoint cases that together are the schema."""
        if self.concern(node, kind):
            return [(self._algebra.evaluate(node, kind, True), Seen(whole=True))]
        return self._plain_cases(node, kind)

    def _plain_cases(self, node: Schema, kind: str) -> list[Case]:
        known: list[Case] | None = node.memo.get(("cases", kind))
        if known is None:
            known = node.memo["cases", kind] = self._find_cases(node, kind)
        return known

    def _find_cases(self, node: Schema, kind: str) -> list[Case]:
        seen = NOTHING if hides_siblings(node) else looked_at(node, kind, self._algebra)
        found: list[Case] = [(self._algebra.own(node, kind, True), seen)]
        for term in terms(node):
            found = self._product(kind, found, self._term_cases(node, term, kind))
        return found

    def _product(self, kind: str, one: list[Case], other: list[Case]) -> list[Case]:
        found = []
        for (a, seen), (b, also) in product(one, other):
            both = self._algebra.meet(kind, a, b)
            if both:
                found.append((both, seen.join(also)))
        return found

    def _term_cases(self, node: Schema, term: Term, kind: str) -> list[Case]:
        match term:
            case ("$ref" | "$dynamicRef" | "$recursiveRef", target):
                return self._cases(target, kind)
            case ("allOf", nodes):
                found: list[Case] = [(self._algebra.every(kind), NOTHING)]
                for part in nodes:
                    found = self._product(kind, found, self._cases(part, kind))
                return found
            case ("anyOf", nodes) | ("oneOf", nodes):
                return list(self._choices(node, term, nodes, kind))
            case ("if", test, then, other):
                return self._conditional(test, then, other, kind)
            case ("looks", test):
                return self._conditional(test, node.document.true, node.document.true, kind)
            case ("dependencies", owner, name, Schema() as then):
                return self._dependency(owner, name, then, kind)
        return [(self._algebra.term(term, kind, True), NOTHING)]

    def _choices(self, node: Schema, term: Term, nodes: list[Schema], kind: str) -> Iterator[Case]:
        """Every choice of alternatives that hold, the others failing."""
        if all(blind(part) for part in nodes):
            yield self._algebra.term(term, kind, True), NOTHING
            return
        if term[0] == "anyOf" and len(nodes) > MAX_BRANCHES:
            message = f"beside an anyOf of over {MAX_BRANCHES} schemas; {FEWER}"
            self._algebra.refuse(KEYWORD[kind], node, message)
            yield self._algebra.term(term, kind, True), Seen(whole=True)
            return
        if term[0] == "oneOf":
            ways = [tuple(i == j for j in range(len(nodes))) for i in range(len(nodes))]
        else:
            ways = [held for held in product((True, False), repeat=len(nodes)) if any(held)]
        for held in ways:
            yield from self._choice(nodes, held, kind)

    def _choice(self, nodes: list[Schema], held: tuple[bool, ...], kind: str) -> list[Case]:
        found: list[Case] = [(self._algebra.every(kind), NOTHING)]
        for part, holds in zip(nodes, held, strict=True):
            if holds:
                more = self._cases(part, kind)
            else:
                more = [(self._algebra.evaluate(part, kind, False), NOTHING)]
            found = self._product(kind, found, more)
        return found

    def _conditional(self, test: Schema, then: Schema, other: Schema, kind: str) -> list[Case]:
        failed: list[Case] = [(self._algebra.evaluate(test, kind, False), NOTHING)]
        if_so = self._product(kind, self._cases(test, kind), self._cases(then, kind))
        return if_so + self._product(kind, failed, self._cases(other, kind))

    def _dependency(self, owner: Schema, name: str, then: Schema, kind: str) -> list[Case]:
        if kind != "object":
            return [(self._algebra.every(kind), NOTHING)]
        there: list[Case] = [((has(name, ANYTHING),), NOTHING)]
        absent: list[Case] = [((lacks(owner, name),), NOTHING)]
        return absent + self._product(kind, there, self._cases(then, kind))


def looked_at(node: Schema, kind: str, algebra: Sets) -> Seen:
    """What the keywords of a schema look at themselves."""
    if kind == "object":
        if "additionalProperties" in node.value:
            return Seen(whole=True)
        rules = [keys for keys, _ in key_rules(node, algebra.names) if keys.inside]
        patterns = frozenset(expr for keys in rules for expr in keys.inside)
        return Seen(names=frozenset(properties(node)), patterns=patterns)
    if node.rest_items() is not None:
        return Seen(whole=True)
    matching: tuple[Schema, ...] = ()
    if "contains" in node.value and node.resource.draft != 2019:
        matching = (node.child("contains"),)
    return Seen(items=len(node.prefix_items()), matching=matching)


_LOOKING = frozenset(
    (
        "properties",
        "patternProperties",
        "additionalProperties",
        "unevaluatedProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "contains",
        "unevaluatedItems",
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "dependentSchemas",
        "dependencies",
    )
)


def blind(node: Schema) -> bool:
    """Whether a schema plainly looks at no member and no item."""
    return not _LOOKING.intersection(node.value)


def every_left(kind: str, seen: Seen, left: Schema) -> Any:
    """Values whose members or items that were not looked at satisfy `left`."""
    if seen.whole or left is left.document.true:
        return (ObjectShape(),) if kind == "object" else (ArrayShape(),)
    if kind == "object":
        goals = dict.fromkeys(sorted(seen.names), ANYTHING)
        return (ObjectShape(goals, every=((_keys(seen), goal(left)),)),)
    return (ArrayShape((ANYTHING,) * seen.items, goal(_or_matching(seen, left))),)


def some_left(kind: str, seen: Seen, left: Schema) -> Any:
    """Values with a member or item that was not looked at and does not satisfy `left`."""
    if kind == "object":
        goals = dict.fromkeys(sorted(seen.names), ANYTHING)
        return (ObjectShape(goals, some=(Member(_keys(seen), goal(left, False)),)),)
    count = Count(_or_matching(seen, left), False, seen.items, 1, None)
    return (ArrayShape(counts=(count,)),)


def _keys(seen: Seen) -> Keys:
    return Keys(seen.names, outside=seen.patterns)


def _or_matching(seen: Seen, left: Schema) -> Schema:
    if not seen.matching:
        return left
    parts = [*seen.matching, left]
    made = left.document.composed({"anyOf": [part.value for part in parts]}, left)
    made.memo["parts"] = parts  # for who knows of these only what they lead to
    return made
