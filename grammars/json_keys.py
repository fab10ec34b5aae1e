"""The names that no rule of an object calls by name, sorted into classes.

Every name of a class is under the same rules. Where a class is any name but the declared ones, its
language is written without a complement: a trie of the declared names, and the ways to leave it.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from radixgen.grammars.encode import json_string
from radixgen.grammars.expr import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    MAX_CODE_POINT,
    Expr,
    Node,
    RuleSet,
    chars,
    complement,
    concat,
    conj,
    literal,
    union,
)
from radixgen.grammars.json_layout import INSIDE, QUOTE
from radixgen.grammars.json_shapes import ANYTHING, Goal, Keys, ObjectShape, is_never
from radixgen.grammars.json_texts import any_of, encoded, matches, spelled
from radixgen.grammars.text_emptiness import text_is_empty

MAX_CLASSES = 128


class TooManyClasses(Exception):
    """Patterns overlap in more ways than are looked at."""


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Undeclared names in every language of `inside` and in none of `outside`.

    `goal` is what their values satisfy; `some` are the indices of the members that have to exist
    and may be named so.
    """

    inside: frozenset[Expr] = frozenset()
    outside: frozenset[Expr] = frozenset()
    goal: Goal = ANYTHING
    some: frozenset[int] = frozenset()

    def narrowed(self, inside: Iterable[Expr], outside: Iterable[Expr]) -> "KeyClass | None":
        """The part within these languages; None where it is plainly empty."""
        within, without = self.inside.union(inside), self.outside.union(outside)
        if within & without:
            return None
        return KeyClass(within, without, self.goal, self.some)


def classes_of(shape: ObjectShape) -> list[KeyClass]:
    """The classes of names that are allowed beside the declared ones. Raises TooManyClasses."""
    found = [KeyClass()]
    rules: list[tuple[Keys, Goal, int | None]] = [(k, wanted, None) for k, wanted in shape.every]
    rules += [(member.keys, ANYTHING, index) for index, member in enumerate(shape.some)]
    for keys, wanted, index in rules:
        found = [part for one in found for part in _divided(one, keys, wanted, index)]
        if len(found) > MAX_CLASSES:
            raise TooManyClasses
    return [one for one in found if not _is_void(one)]


def _divided(one: KeyClass, keys: Keys, wanted: Goal, index: int | None) -> Iterator[KeyClass]:
    """The part of a class that a rule is about, under that rule, and the other parts."""
    held = one.narrowed(keys.inside, keys.outside)
    if held is not None:
        some = held.some if index is None else held.some | {index}
        ruled = KeyClass(held.inside, held.outside, held.goal | wanted, some)
        if not is_never(ruled.goal):
            yield ruled
    rest: KeyClass | None = one
    for expr in keys.inside:
        failed = rest.narrowed((), (expr,)) if rest else None
        if failed is not None:
            yield failed
        rest = rest.narrowed((expr,), ()) if rest else None
    for expr in keys.outside:
        failed = rest.narrowed((expr,), ()) if rest else None
        if failed is not None:
            yield failed
        rest = rest.narrowed((), (expr,)) if rest else None


def _is_void(one: KeyClass) -> bool:
    """Whether a class is known to have no names."""
    if len(one.inside) + len(one.outside) < 2:
        return False
    return text_is_empty(_language(one)) is True


def _language(one: KeyClass) -> Expr:
    """The names of a class, as a text expression."""
    return conj(*one.inside, *(complement(expr) for expr in one.outside))


def key_text(one: KeyClass, declared: Sequence[str], rules: RuleSet) -> Node:
    """The names of a class but the declared ones, as JSON strings."""
    if not one.inside and not one.outside:
        return concat(QUOTE, _Others(sorted(declared), rules).node(), QUOTE)
    held = [
        name
        for name in declared
        if all(matches(e, name) for e in one.inside)
        and not any(matches(e, name) for e in one.outside)
    ]
    language = _language(one)
    if held:
        language = conj(language, complement(any_of(sorted(held))))
    return concat(QUOTE, encoded(language), QUOTE)


class _Others:
    """Every name but the given, sorted ones: one lazy rule for each beginning they share.

    A character that leads on in the trie is read in its plain spelling only, so no escape can
    smuggle a declared name in.
    """

    def __init__(self, names: Sequence[str], rules: RuleSet) -> None:
        self._names = tuple(names)
        self._rules = rules

    def node(self) -> Node:
        return self._from(0, len(self._names), 0)

    def _from(self, start: int, stop: int, depth: int) -> Node:
        if start == stop:
            return INSIDE
        key = ("other names", self._names, start, stop, depth)
        return self._rules.rule(key, lambda: self._split(start, stop, depth), productive=True)

    def _split(self, start: int, stop: int, depth: int) -> Node:
        names, taken = self._names, []
        found: list[Node] = []
        if len(names[start]) == depth:
            start += 1
        else:
            found.append(EPSILON)
        while start < stop:
            letter, end = names[start][depth], start + 1
            while end < stop and names[end][depth] == letter:
                end += 1
            plain = literal(spelled(letter)[1:-1])
            found.append(concat(plain, self._from(start, end, depth + 1)))
            taken.append(ord(letter))
            start = end
        found.append(concat(_any_but(taken), INSIDE))
        return union(*found)


def _any_but(taken: Sequence[int]) -> Node:
    """One character that is none of these, sorted by code point, in any spelling."""
    if not taken:
        return json_string(ANY_CHAR)
    ends = [-1, *taken, MAX_CODE_POINT + 1]
    gaps = [(a + 1, b - 1) for a, b in itertools.pairwise(ends) if a + 1 < b]
    node = chars(gaps)
    return EMPTY if node is EMPTY else json_string(node)
