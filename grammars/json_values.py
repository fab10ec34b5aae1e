"""Goals as grammars: the text of every value that satisfies a set of schemas.

Owns the rule of a goal. What is inside objects and arrays is in `json_objects.py` and
`json_arrays.py`; each calls back here for the values of members and items.
"""

from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import MAX_EMPTINESS_STATES, is_empty
from radixgen.grammars.encode import json_string
from radixgen.grammars.expr import EMPTY, Expr, Node, RuleSet, concat, literal, union
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_arrays import ArrayRules
from radixgen.grammars.json_counts import Counts
from radixgen.grammars.json_decimals import number_text, spellings
from radixgen.grammars.json_decimals import spelled as spelled_number
from radixgen.grammars.json_document import Document, Schema
from radixgen.grammars.json_hard import ASKING, asks_together, leads_to
from radixgen.grammars.json_keywords import KINDS, own_kinds
from radixgen.grammars.json_layout import (
    ANY_STRING,
    QUOTE,
    TRIE_FROM,
    WORDS,
    Layout,
    Literals,
    any_value,
)
from radixgen.grammars.json_leaves import leaf
from radixgen.grammars.json_numbers import Numbers
from radixgen.grammars.json_objects import ObjectRules
from radixgen.grammars.json_plain import plain_array, plain_object
from radixgen.grammars.json_proofs import Proofs, only_refers
from radixgen.grammars.json_shapes import (
    ANY_ARRAY,
    ANY_OBJECT,
    ArrayShape,
    Goal,
    Member,
    ObjectShape,
    goal,
    is_never,
)
from radixgen.grammars.json_terms import hides_siblings, terms
from radixgen.grammars.json_texts import EVERY, Texts, all_spelled, doubtful, encoded, spelled
from radixgen.grammars.text_emptiness import is_boolean, most_states

MAX_EXPLORED = 2000  # goals; beyond them a refusal may come only when a text gets there
MAX_DOUBTFUL = 4  # alternatives of one string
MAX_INSIDE = 200  # goals of the members, or items, of one schema
# And of names of members.
NAMING = ("propertyNames", "patternProperties", "allOf", "anyOf", "oneOf", "not", "if", "$ref")
SCALARS = frozenset(("string", "number", "integer", "boolean", "null"))


class Values:
    """The grammar of one document."""

    def __init__(self, algebra: Algebra, rules: RuleSet, layout: Layout, any_order: bool) -> None:
        self.algebra = algebra
        self.rules = rules
        self.layout = layout
        self.any_order = any_order
        self._nodes: dict[Goal, Node] = {}
        self._containers: dict[Any, tuple[ObjectRules | ArrayRules, Node]] = {}
        self._proofs = Proofs(algebra)
        self._counts = Counts(algebra, self._proofs)
        self._members: dict[Goal, dict[Any, Node] | None] = {}
        self._kept: list[Any] = []  # what rule keys name by id

    def value(self, wanted: Goal) -> Node:
        """The texts of the values that satisfy a goal."""
        found = self._nodes.get(wanted)
        if found is None:
            meant = _referred(wanted)
            found = self._value(wanted) if meant is wanted else self.value(meant)
            self._nodes[wanted] = found
        return found

    def _value(self, wanted: Goal) -> Node:
        if not wanted:
            return any_value(self.layout)
        if len(wanted) == 1:
            ((node, sign),) = wanted
            plain = leaf(node.value) if sign else None
            if plain is not None:
                return plain
        if is_never(wanted):
            return EMPTY
        for node, sign in wanted:
            if not sign or not is_scalar(node):
                break
        else:
            return self._body(wanted)
        productive = self._proofs.productive(wanted)
        if productive is False:
            return EMPTY
        if productive and len(wanted) == 1:
            found = self._plain(wanted)
            if found is not None:
                return found
        return self.rules.rule(("value", wanted), lambda: self._body(wanted), productive)

    def _plain(self, wanted: Goal) -> Node | None:
        """The values of a schema that a look at its keywords shows; None for any other."""
        ((node, sign),) = wanted
        if not sign:
            return None
        array = plain_array(self, node, lambda shape: ArrayRules(self, shape, False).start())
        if array is not None or self.any_order:
            return array
        return plain_object(self, node, lambda: self._behind_declared(wanted))

    def _behind_declared(self, wanted: Goal) -> Node:
        (shape,) = self.algebra.goal_set(wanted, "object")
        rules, _ = self._container(shape, wanted)
        assert isinstance(rules, ObjectRules)
        return rules.behind_declared()

    def _body(self, wanted: Goal) -> Node:
        stated = [node for node, sign in wanted if sign and not hides_siblings(node)]
        kinds: Iterable[str] = KINDS
        for node in stated:
            own = own_kinds(node)
            kinds = [kind for kind in kinds if kind in own]
        return union(*(part for kind in kinds for part in self._kind(wanted, kind)))

    def _kind(self, wanted: Goal, kind: str) -> Iterable[Node]:
        found = self.algebra.goal_set(wanted, kind)
        if not found:
            return ()
        if kind in ("object", "array"):
            return [self._container(shape, wanted)[1] for shape in found]
        if kind == "string":
            self._doubt(wanted, found)
            return [self._texts(found)]
        if kind == "number":
            return self._numbers(found)
        return [WORDS[word] for word in sorted(found, key=str)]

    def _container(self, shape: Any, wanted: Goal) -> tuple[ObjectRules | ArrayRules, Node]:
        """The rules of a shape, and the node of the whole object or array."""
        found = self._containers.get(shape)
        if found is None and (shape is ANY_OBJECT or shape is ANY_ARRAY):
            found = self._containers[shape] = _any_container(shape, self.layout, self.any_order)
        if found is None:
            rules: ObjectRules | ArrayRules
            if isinstance(shape, ObjectShape):
                rules = ObjectRules(self, shape, _owner(wanted))
            else:
                rules = ArrayRules(self, shape, any(not sign for _, sign in wanted))
            found = self._containers[shape] = (rules, rules.start())
        return found

    def explore(self, root: Goal, hard: Collection[Schema]) -> None:
        """Work out every goal below `root` that leads to a schema out of `hard`.

        What cannot be enforced is so refused before any text is read. Raises InvalidGrammar.
        """
        waiting, seen = [root], {root}
        while waiting:
            wanted = waiting.pop()
            if len(seen) > MAX_EXPLORED:
                self._expect_unique(hard)
                return
            for kind in ("object", "array"):
                for shape in self.algebra.goal_set(wanted, kind) if wanted else ():
                    for inner in self._container(shape, wanted)[0].goals():
                        if inner not in seen and any(leads_to(node, hard) for node, _ in inner):
                            seen.add(inner)
                            waiting.append(inner)

    def doubt(self, wanted: Goal) -> None:
        """Note if a search has not told whether there are strings that satisfy a goal."""
        meant = _referred(wanted)
        self._doubt(meant, self.algebra.goal_set(meant, "string"))

    def doubt_inside(self, wanted: Goal) -> None:
        """The same of names of members, and of what members and items have to satisfy together."""
        meant = _referred(wanted)
        for kind in ("object", "array"):
            for shape in self.algebra.goal_set(meant, kind):
                rules, _ = self._container(shape, meant)
                if isinstance(rules, ObjectRules):
                    rules.doubt_names()
                for inner in islice(rules.goals(), MAX_INSIDE):
                    if len(inner) > 1 and asks_together(inner):
                        self.doubt(inner)

    def doubt_names(self, names: Expr, owner: Schema) -> None:
        """Note if a search has not told whether there are such names."""
        if self.rules.doubts.is_over:
            return
        keyword = next((key for key in NAMING if key in owner.value), "type")
        self._note_doubts("name", names, keyword, owner)

    def _doubt(self, wanted: Goal, found: Texts) -> None:
        if found.finite is None and is_boolean(found.expr) and not self.rules.doubts.is_over:
            stated = ((key, n) for n in _by_mention(wanted) for key in n.value if key in ASKING)
            keyword, node = next(stated, ("type", _owner(wanted)))
            self._note_doubts("text", found.expr, keyword, node)

    def _note_doubts(self, what: str, expr: Expr, keyword: str, node: Schema) -> None:
        """Raises InvalidGrammar for what an engine does not tell either, and for more doubtful
        alternatives than it should search."""
        asked: list[tuple[Node, InvalidGrammar]] = []
        for part in doubtful(expr):
            if len(asked) == MAX_DOUBTFUL:
                raise _unknown(what, most_states(part), keyword, node)
            error = _unknown(what, MAX_EMPTINESS_STATES, keyword, node)
            inside = json_string(part)
            asked.append((inside, error))
            try:
                is_empty(inside, self.rules.decide or _leave_open)
            except InvalidGrammar:
                raise error from None
        if asked:  # then how the rest is completed may not be known either
            whole = concat(QUOTE, encoded(expr), QUOTE)
            self.rules.doubts.found += [*asked, (whole, asked[0][1])]

    def binding(self) -> Iterator[tuple[str, Schema]]:
        """Keywords, and where they stand, of what some undeclared member has to meet, or fail, as
        far as objects were put together: see `json_objects.py`."""
        goals = (member.goal for shape in self._containers for member in _some(shape))
        for node in dict.fromkeys(node for wanted in goals for node, _ in wanted):
            if node.parent is not None:
                yield node.key.strip("/"), node.parent

    def _expect_unique(self, hard: Collection[Schema]) -> None:
        """Have texts kept: an array that was not looked at may have to tell its items apart."""
        if any(node.get("uniqueItems") is True for node in hard):
            self.rules.expect_hooks()

    def _numbers(self, numbers: Numbers) -> list[Node]:
        if len(numbers.points) <= TRIE_FROM:
            return [number_text(numbers, self.rules)]
        listed = self._literals(spellings(numbers.points))
        return [listed, number_text(Numbers(pieces=numbers.pieces), self.rules)]

    def _literals(self, values: list[bytes]) -> Node:
        self._kept.append(values)
        return Literals(values, self.rules).node()

    def _texts(self, texts: Texts) -> Node:
        if texts is EVERY:
            return ANY_STRING
        if texts.finite is None:
            return concat(QUOTE, encoded(texts.expr), QUOTE)
        return self._literals(sorted(all_spelled([*texts.finite])))

    # --- what can be said without expanding anything -----------------------------------------

    def members(self, wanted: Goal) -> dict[Any, Node] | None:
        """The values of a goal with their texts, where they are finitely many scalars."""
        if wanted not in self._members:
            self._members[wanted] = self._find_members(wanted)
        return self._members[wanted]

    def _find_members(self, wanted: Goal) -> dict[Any, Node] | None:
        found: dict[Any, Node] = {}
        for kind in ("object", "array"):
            if self.algebra.goal_set(wanted, kind):
                return None
        for kind in ("null", "boolean"):
            for word in self.algebra.goal_set(wanted, kind):
                found["word", word] = WORDS[word]
        numbers = self.algebra.goal_set(wanted, "number").members()
        texts = self.algebra.goal_set(wanted, "string").members()
        if numbers is None or texts is None:
            return None
        found.update((("number", n), _number(n)) for n in sorted(numbers))
        found.update((("text", t), literal(spelled(t))) for t in sorted(texts))
        return found

    def at_least(self, wanted: Goal, most: int) -> int:
        """How many values a goal surely has, counted up to `most`."""
        return self._counts.at_least(wanted, most)

    def strings(self, wanted: Goal, most: int) -> list[int]:
        """The lengths of the shortest strings of a goal, at most `most` of them."""
        return self._counts.strings(wanted, most)

    def has_strings(self, wanted: Goal, number: int) -> bool:
        """Whether a goal surely has so many strings."""
        return self._counts.has_strings(wanted, number)

    def containers(self, wanted: Goal, kind: str, most: int) -> int:
        """How many objects, or arrays, a goal surely has, counted up to `most`."""
        return self._counts.containers(wanted, kind, most)

    def has_negatives(self, wanted: Goal) -> bool:
        """Whether a goal surely has numbers below zero without end."""
        return self._counts.has_negatives(wanted)

    def refuse(self, keyword: str, node: Schema, why: str) -> None:
        """Raise, or note what is left unchecked."""
        self.algebra.refuse(keyword, node, why)

    def productive(self, wanted: Goal) -> bool | None:
        """Whether a goal has a value; None where only the rules can tell."""
        return self._proofs.productive(wanted)

    def shape_productive(self, shape: ObjectShape) -> bool | None:
        """Whether a shape has a value; None where only the rules can tell."""
        return self._proofs.shape(shape)


@lru_cache(64)
def _any_container(
    shape: ObjectShape | ArrayShape, layout: Layout, any_order: bool
) -> tuple[ObjectRules | ArrayRules, Node]:
    """The rules of all objects, or arrays: the same for all grammars, so that they share states."""
    document = Document("true")

    def refuse(keyword: str, node: Schema, why: str) -> None:
        raise AssertionError(f"{keyword}: {why}")  # says nothing that might be refused

    values = Values(Algebra(document, refuse, formats=True), RuleSet(), layout, any_order)
    rules: ObjectRules | ArrayRules
    if isinstance(shape, ObjectShape):
        rules = ObjectRules(values, shape, document.true)
    else:
        rules = ArrayRules(values, shape, is_derived=False)
    return rules, rules.start()


def _unknown(what: str, states: int, keyword: str, node: Schema) -> InvalidGrammar:
    return InvalidGrammar(
        f"{keyword} cannot be enforced: whether a {what} meets all that is asked of it takes over "
        f"{states} states to find out; ask for fewer patterns, formats and lengths at once, or for "
        f"one pattern that says the same",
        f"{node.path}/{keyword}",
    )


def _leave_open(_: Expr) -> bool:
    """What is said of an intersection where no engine is known."""
    return False


def _some(shape: Any) -> tuple[Member, ...]:
    return shape.some if isinstance(shape, ObjectShape) else ()


def _by_mention(wanted: Goal) -> list[Schema]:
    return sorted((node for node, _ in wanted), key=lambda node: node.serial)


def _owner(wanted: Goal) -> Schema:
    """The schema of a goal that was mentioned first."""
    return min((node for node, _ in wanted), key=lambda node: node.serial)


def _number(value: Fraction) -> Node:
    return literal(spelled_number(value))


def _referred(wanted: Goal) -> Goal:
    """The goal that a mere reference stands for; the goal itself if it is none, or goes round."""
    if len(wanted) == 1:
        ((node, _),) = wanted
        if "$ref" not in node.value:  # as most
            return wanted
    meant, passed = wanted, {wanted}
    while len(meant) == 1:
        ((node, sign),) = meant
        if not sign or not only_refers(node):
            break
        meant = goal(node.document.resolve(node))
        if meant in passed:
            return wanted
        passed.add(meant)
    return meant


def is_scalar(node: Schema) -> bool:
    """Whether a schema, by its own words, admits neither objects nor arrays."""
    found = node.memo.get("scalar")
    if found is None:
        stated = node.get("type")
        types = stated if isinstance(stated, list) else (stated,)
        simple = SCALARS.issuperset(types) and not hides_siblings(node) and not terms(node)
        found = node.memo["scalar"] = simple
    return bool(found)
