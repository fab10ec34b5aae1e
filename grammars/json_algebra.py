"""Schemas as sets of values, kind by kind, under intersection, union and complement.

A schema denotes for each kind of JSON value a set: words for null and booleans, `Numbers`, `Texts`,
and for arrays and objects a union of shapes. Complement is pushed down to the keywords, so what is
left is unions of conjunctions: `not` of an object becomes the ways in which a member, a name or a
count can fail. Knows what combines schemas. Knows no text and no rule.

The values inside shapes stay goals, not sets, so recursion costs nothing here. A schema that
refers to itself without going through a member or an item denotes nothing, and is refused.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from radixgen.errors import InvalidGrammar
from radixgen.grammars import json_keywords as own
from radixgen.grammars.json_bounds import all_apart, are_unlike
from radixgen.grammars.json_bounds import apart as are_apart
from radixgen.grammars.json_document import Document, Schema
from radixgen.grammars.json_examples import has_example
from radixgen.grammars.json_keywords import has, lacks
from radixgen.grammars.json_sets import (
    EVERY,
    MAX_SHAPES,
    NONE,
    beside_listed,
    complement,
    counted,
    joined_shapes,
    union_of,
)
from radixgen.grammars.json_shapes import (
    ANY_ARRAY,
    ANY_OBJECT,
    ANYTHING,
    Goal,
    ObjectShape,
    is_never,
    meet_arrays,
    meet_objects,
    need_unlike,
    required_by_all,
)
from radixgen.grammars.json_terms import (
    INCLUDING,
    Term,
    TooMany,
    fewer,
    hides_siblings,
    kinds_of,
    possible_kinds,
    stated_as,
    terms,
    too_many_meets,
    too_many_pairs,
)
from radixgen.grammars.json_texts import Texts
from radixgen.grammars.json_unevaluated import Cases

MAX_MEETS = 30_000  # of two shapes, in the whole schema
MAX_PAIRS = 100_000  # of the schemas of one oneOf, compared with each other
MAX_PROOF_DEPTH = 4  # of members within members, when a goal is asked whether it is empty

Refuse = Callable[[str, Schema, str], None]  # keyword, where, why; returns if it may be left out


class Undecided(Exception):
    """A proof of emptiness came upon a set that is being computed."""


class Algebra:
    """The sets of one document's schemas, each computed once."""

    def __init__(self, document: Document, refuse: Refuse, formats: bool) -> None:
        self.document = document
        self.refuse = refuse
        self._formats = formats
        self._active: dict[tuple[Schema, str, bool], int] = {}
        self._goals: dict[tuple[Goal, str], Any] = {}
        self._never: dict[Goal, bool] = {}
        self._depth = 0
        self._meets = 0
        self._cases = Cases(self)

    # --- sets ------------------------------------------------------------------------------

    def every(self, kind: str) -> Any:
        return EVERY[kind]

    def meet(self, kind: str, one: Any, other: Any) -> Any:
        """The intersection of two sets of one kind. Raises TooMany."""
        if kind == "object":
            return self._meet_shapes(one, other, ANY_OBJECT, meet_objects)
        if kind == "array":
            return self._meet_shapes(one, other, ANY_ARRAY, meet_arrays)
        return one & other if kind in ("null", "boolean") else one.meet(other)

    def join(self, kind: str, one: Any, other: Any) -> Any:
        """The union of two sets of one kind. Raises TooMany."""
        if kind in ("object", "array"):
            return joined_shapes(one, other, EVERY[kind])
        return one | other if kind in ("null", "boolean") else one.join(other)

    def _meet_shapes(self, one: Any, other: Any, top: Any, meet: Any) -> Any:
        if one == (top,):
            return other
        if other == (top,):
            return one
        found = []
        self._count_meets(len(one) * len(other))
        for a in one:
            for b in other:
                both = a if a is b else meet(a, b, self.never)
                if both is not None:
                    found.append(both)
            if len(found) > max(MAX_SHAPES, len(one), len(other)):  # a list is only filtered
                raise TooMany
        return tuple(dict.fromkeys(found))

    def _count_meets(self, more: int) -> None:
        self._meets += more
        if self._meets > MAX_MEETS:
            raise too_many_meets(self.document.root, MAX_MEETS)

    def goal_set(self, wanted: Goal, kind: str) -> Any:
        """The values of one kind that satisfy a goal."""
        key = (wanted, kind)
        found = self._goals.get(key)
        if found is None:
            found = self._goals[key] = self._goal_set(wanted, kind)
        return found

    def _goal_set(self, wanted: Goal, kind: str) -> Any:
        if len(wanted) == 1:
            ((node, sign),) = wanted
            return self.evaluate(node, kind, sign)
        parts = sorted(wanted, key=lambda literal: literal[0].serial)
        found = self._goals.get((frozenset(parts[:-1]), kind))  # as of the item before
        parts, found = (parts, self.every(kind)) if found is None else (parts[-1:], found)
        for node, sign in parts:
            part = self.evaluate(node, kind, sign)
            try:
                found = self.meet(kind, found, part)
            except TooMany:
                self._refuse_size("allOf", node)
            if not found:
                break
        return found

    def evaluate(self, node: Schema, kind: str, sign: bool = True) -> Any:
        """The values of one kind that satisfy a schema, or with `sign` False those that do not."""
        if node is self.document.true or node is self.document.false:
            holds = (node is self.document.true) == sign
            return self.every(kind) if holds else NONE[kind]
        memo = (kind, sign)
        found = node.memo.get(memo)
        if found is None:
            found = node.memo[memo] = self._guarded(node, kind, sign)
        return found

    def _guarded(self, node: Schema, kind: str, sign: bool) -> Any:
        if sign and not terms(node) and not self._cases.concern(node, kind):
            return self.own(node, kind, True)  # refers to nothing, so not to itself either
        if kind not in possible_kinds(node):
            return NONE[kind] if sign else self.every(kind)
        if not sign and kind not in ("object", "array"):
            return complement(kind, self.evaluate(node, kind, True))
        key = (node, kind, sign)
        level = self._active.get(key)
        if level is not None and level < self._depth:
            raise Undecided
        if level is not None:
            self._refuse_cycle(node)
        self._active[key] = self._depth
        try:
            if self._cases.concern(node, kind):
                return self._cases.evaluate(node, kind, sign)
            return self.plain(node, kind, sign)
        finally:
            del self._active[key]

    def plain(self, node: Schema, kind: str, sign: bool) -> Any:
        """`evaluate` without regard to `unevaluatedProperties` and `unevaluatedItems`."""
        if sign:
            return self._all_of(node, kind)
        found = self.own(node, kind, False)
        for term in terms(node):
            if found == self.every(kind):
                break
            try:
                found = self.join(kind, found, self.term(term, kind, False))
            except TooMany:
                self._refuse_size(stated_as(term), node)
        return found

    def _all_of(self, node: Schema, kind: str) -> Any:
        """The values that satisfy a schema and all that it includes by `allOf` and `$ref`.

        What each says itself comes first and `oneOf` last: alternatives that overlap are often
        told apart by what stands around them.
        """
        found, choices = self.every(kind), []
        for part in self._included(node, kind, [], set()):
            concerned = part is not node and self._cases.concern(part, kind)
            more = self.evaluate(part, kind) if concerned else self.own(part, kind, True)
            try:
                found = self.meet(kind, found, more)
            except TooMany:
                self._refuse_size("allOf", node)
            if concerned:
                continue
            choices += [(part, term) for term in terms(part) if term[0] not in INCLUDING]
        for part, term in sorted(choices, key=lambda choice: choice[1][0] == "oneOf"):
            if not found:
                break
            try:
                if term[0] == "oneOf":
                    found = self._exactly_one(term[1], kind, found)
                else:
                    found = self.meet(kind, found, self.term(term, kind, True))
            except TooMany:
                self._refuse_size(stated_as(term), part)
        return found

    def _included(
        self, node: Schema, kind: str, path: list[Schema], seen: set[Schema]
    ) -> Iterator[Schema]:
        """A schema, and those that its values have to satisfy as well, each once."""
        if node in path:
            self._refuse_cycle(node)
        if path and (node, kind, True) in self._active:
            if self._active[node, kind, True] < self._depth:
                raise Undecided
            self._refuse_cycle(node)
        if node in seen:
            return
        seen.add(node)
        yield node
        path.append(node)
        for term in terms(node) if len(path) == 1 or not self._cases.concern(node, kind) else ():
            if term[0] in INCLUDING:
                for part in term[1] if term[0] == "allOf" else term[1:]:
                    yield from self._included(part, kind, path, seen)
        path.pop()

    def _refuse_cycle(self, node: Schema) -> NoReturn:
        why = "without a member or an item in between says nothing about any value"
        raise InvalidGrammar(f"a schema that refers to itself {why}", node.path)

    def _refuse_size(self, keyword: str, node: Schema) -> None:
        why = f"together with the rest it has over {MAX_SHAPES} alternatives"
        self.refuse(keyword, node, f"{why}; {fewer(keyword)}")

    # --- a schema's own keywords -------------------------------------------------------------

    def own(self, node: Schema, kind: str, sign: bool) -> Any:
        """What the keywords of a schema say themselves, those that combine schemas left out."""
        if hides_siblings(node):
            return self.every(kind) if sign else NONE[kind]
        if kind == "object":
            return self._own_objects(node, sign)
        if kind == "array":
            return self._own_arrays(node, sign)
        if kind == "string":
            found: Any = own.texts(node, self._formats)
        elif kind == "number":
            found = own.numbers(node)
        else:
            found = own.words(node, kind)
        return found if sign else complement(kind, found)

    def _own_objects(self, node: Schema, sign: bool) -> Any:
        listed = own.constants(node, "object")
        if not sign:
            found = tuple(own.not_objects(node, self.names))
            return self._not_listed("object", node, found, listed, own.not_object_constant)
        shape = own.objects(node, self.names)
        found = () if shape is None else (shape,)
        if listed is None or not found:
            return found
        exact = tuple(own.object_constant(node, *one) for one in listed)
        return self.meet("object", exact, found)

    def _own_arrays(self, node: Schema, sign: bool) -> Any:
        listed = own.constants(node, "array")
        if not sign:
            if node.get("uniqueItems") is True and own.admits(node, "array"):
                self.refuse("uniqueItems", node, "its negation is not regular")
            found = tuple(own.not_arrays(node))
            return self._not_listed("array", node, found, listed, own.not_array_constant)
        shape = own.arrays(node)
        found = () if shape is None else (shape,)
        if listed is None or not found:
            return found
        exact = tuple(own.array_constant(node, *one) for one in listed)
        return self.meet("array", exact, found)

    def _not_listed(
        self, kind: str, node: Schema, found: Any, listed: Any, differ: Callable[..., Any]
    ) -> Any:
        """Joined with what differs from every listed value."""
        if listed is None:
            return found
        if not own.are_few_differences(value for _, value in listed):
            return self.join(kind, found, (own.unlike(kind, node, listed),))
        others = self.every(kind)
        for pointer, value in listed:
            others = self.meet(kind, others, tuple(differ(node, pointer, value)))
        return self.join(kind, found, others)

    def names(self, node: Schema) -> Texts:
        """The names that a `propertyNames` schema lets through."""
        found = self.evaluate(node, "string")
        assert isinstance(found, Texts)
        return found

    # --- what combines schemas ---------------------------------------------------------------

    def term(self, term: Term, kind: str, sign: bool) -> Any:
        """The set of one combining keyword, or its complement. Raises TooMany."""
        match term:
            case ("$ref" | "$dynamicRef" | "$recursiveRef", target):
                return self.evaluate(target, kind, sign)
            case ("not", node):
                return self.evaluate(node, kind, not sign)
            case ("allOf", nodes) | ("anyOf", nodes):
                every = (term[0] == "allOf") == sign
                return self.combine(every, kind, (self.evaluate(n, kind, sign) for n in nodes))
            case ("oneOf", nodes):
                every = self.every(kind)
                return self._exactly_one(nodes, kind, every) if sign else self._not_one(nodes, kind)
            case ("if", test, then, other):
                return self._conditional(test, then, other, kind, sign)
            case ("looks", _):  # an `if` alone: it matters for what was evaluated
                return self.every(kind) if sign else NONE[kind]
            case ("dependencies", node, name, then):
                return self._dependency(node, name, then, kind, sign)
        raise AssertionError(term)

    def combine(self, every: bool, kind: str, parts: Iterable[Any]) -> Any:
        """The intersection of all parts, or their union."""
        if not every and kind not in ("object", "array"):
            return union_of(kind, parts)
        found = self.every(kind) if every else NONE[kind]
        for part in parts:
            found = (self.meet if every else self.join)(kind, found, part)
            if every and not found:
                break
        return found

    def _conditional(self, test: Schema, then: Schema, other: Schema, kind: str, sign: bool) -> Any:
        if_so = self.meet(kind, self.evaluate(test, kind), self.evaluate(then, kind, sign))
        if_not = self.meet(kind, self.evaluate(test, kind, False), self.evaluate(other, kind, sign))
        return self.join(kind, if_so, if_not)

    def _dependency(
        self, node: Schema, name: str, then: Schema | list[str], kind: str, sign: bool
    ) -> Any:
        if kind != "object":
            return self.every(kind) if sign else NONE[kind]
        there: Any = (has(name, ANYTHING),)
        if isinstance(then, Schema):
            met = self.meet(kind, there, self.evaluate(then, kind, sign))
        elif sign:
            met = self.combine(True, kind, [there, *((has(n, ANYTHING),) for n in then)])
        else:
            met = self.meet(kind, there, tuple(lacks(node, n) for n in then))
        return self.join(kind, (lacks(node, name),), met) if sign else met

    def _exactly_one(self, nodes: list[Schema], kind: str, among: Any) -> Any:
        """The union over the schemas of what satisfies this one and none that it overlaps."""
        sets = [self.meet(kind, among, self.evaluate(node, kind)) for node in nodes]
        if kind == "object" and among and all_apart(nodes, kind, required_by_all(among)):
            return self.combine(False, kind, sets)
        if kind in ("object", "array"):
            return self._alone(nodes, sets, kind)
        once, values, endless = counted(kind, sets)
        if not endless:
            return once
        sets = [sets[index] for index in endless]
        alone = self._alone([nodes[index] for index in endless], sets, kind)
        return beside_listed(kind, once, values, sets, alone)

    def _alone(self, nodes: list[Schema], sets: list[Any], kind: str) -> Any:
        """What is in the set of one schema and satisfies none of the others: looked at in pairs."""
        found, apart = NONE[kind], dict[frozenset[int], bool]()
        for index, alone in enumerate(sets):
            for other, node in enumerate(nodes if alone else ()):
                if not alone or other == index:
                    continue
                pair = frozenset((index, other))
                if pair not in apart:
                    looks = are_apart(nodes[index], node, kind)
                    apart[pair] = looks or self.disjoint(kind, sets[index], sets[other])
                    if len(apart) > MAX_PAIRS:
                        raise too_many_pairs(nodes, MAX_PAIRS)
                if not apart[pair]:
                    alone = self.meet(kind, alone, self.evaluate(node, kind, False))
            found = self.join(kind, found, alone)
        return found

    def _not_one(self, nodes: list[Schema], kind: str) -> Any:
        """What satisfies none of the schemas, or two of them."""
        found = self.combine(True, kind, (self.evaluate(n, kind, False) for n in nodes))
        sets = [self.evaluate(node, kind) for node in nodes]
        for index, one in enumerate(sets):
            for other in sets[:index]:
                found = self.join(kind, found, self.meet(kind, one, other))
        return found

    def disjoint(self, kind: str, one: Any, other: Any) -> bool:
        """Whether two sets are known to have nothing in common."""
        if not one or not other:
            return True
        if kind == "object" and all(self._need_unlike(a, b) for a in one for b in other):
            self._count_meets(len(one) * len(other))
            return True
        both = self.meet(kind, one, other)
        return not both or (kind in ("number", "string") and both.is_empty())

    def _need_unlike(self, one: ObjectShape, other: ObjectShape) -> bool:
        """`need_unlike`, by a look first, before any set is computed."""
        return need_unlike(one, other, are_unlike) or need_unlike(one, other, self.never)

    # --- emptiness -----------------------------------------------------------------------------

    def never(self, wanted: Goal) -> bool:
        """Whether no value is known to satisfy a goal; False also where that is not known."""
        if not wanted:
            return False
        known = self._never.get(wanted)
        if known is not None:
            return known
        found = is_never(wanted) or are_unlike(wanted)
        if not found and not has_example(wanted):
            if self._depth >= MAX_PROOF_DEPTH:
                return False
            self._depth += 1
            try:
                found = all(self._is_void(wanted, kind) for kind in kinds_of(wanted))
            except Undecided:
                return False
            finally:
                self._depth -= 1
        self._never[wanted] = found
        return found

    def _is_void(self, wanted: Goal, kind: str) -> bool:
        found = self.goal_set(wanted, kind)
        return found.is_empty() if kind in ("number", "string") else not found
