"""The names that no rule of an object calls by name, sorted into classes.

Every name of a class is under the same rules.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from radixgen.grammars import text_emptiness
from radixgen.grammars.derivative import state_not_empty
from radixgen.grammars.encode import json_string
from radixgen.grammars.expr import (
    MAX_CODE_POINT,
    Expr,
    Node,
    byte_set,
    chars,
    complement,
    concat,
    conj,
    literal,
    star,
    union,
)
from radixgen.grammars.json_layout import QUOTE
from radixgen.grammars.json_shapes import ANYTHING, Goal, Keys, ObjectShape, is_never
from radixgen.grammars.json_texts import ANY_TEXT, any_of, encoded, matches, spelled

MAX_CLASSES = 128
FEW_CLASSES = 4  # of so many each is looked at by itself
MAX_COMBINED = 500  # states of all languages together


class TooManyClasses(Exception):
    """Patterns overlap in more ways than are looked at."""


_EVERY = frozenset((ANY_TEXT,))


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
        within, without = self.inside.union(inside) - _EVERY, self.outside.union(outside)
        if within & without or without & _EVERY:
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
    return _inhabited(found)


def _inhabited(found: list[KeyClass]) -> list[KeyClass]:
    """The classes without those that are known to have no names."""
    held = None
    if len(found) > FEW_CLASSES:
        languages = {expr for one in found for expr in (*one.inside, *one.outside)}
        held = text_emptiness.combinations(frozenset(languages), MAX_COMBINED)
    if held is None:
        return [one for one in found if not _is_void(one)]
    found = [one for one in found if any(one.inside <= h and not one.outside & h for h in held)]
    for one in found:
        text_emptiness.state_not_empty(_language(one))
    return found


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
    return text_emptiness.text_is_empty(_language(one)) is True


@lru_cache(1024)  # keeps what is proven of them, too
def _language(one: KeyClass) -> Expr:
    """The names of a class, as a text expression."""
    return conj(*one.inside, *(complement(expr) for expr in one.outside))


def key_text(one: KeyClass, declared: Sequence[str], doubt: Callable[[Expr], None]) -> Node:
    """The names of a class but the declared ones, as JSON strings; `doubt` is told what they are
    where they are put together."""
    if not one.inside and not one.outside:
        return concat(QUOTE, _other_names(declared), QUOTE)
    held = [
        name
        for name in declared
        if all(matches(e, name) for e in one.inside)
        and not any(matches(e, name) for e in one.outside)
    ]
    language = _language(one)
    if held:
        language = conj(language, complement(any_of(sorted(held))))
    doubt(language)
    return concat(QUOTE, encoded(language), QUOTE)


def _other_names(declared: Iterable[str]) -> Expr:
    """Every name but the declared ones.

    The automaton follows the complement of a list of literals by itself, at the cost of the names
    that a text begins. So no character of such a name has a second spelling here, lest an escape
    smuggle a declared name in: printable ASCII is written plainly.
    """
    listed = union(*(_one_spelling(name) or encoded(any_of([name])) for name in declared))
    assert isinstance(listed, Expr)
    others = conj(PLAIN_INSIDE, complement(listed))
    state_not_empty(others)  # finitely many out of all
    return others


def _one_spelling(name: str) -> Expr | None:
    """The literal of a name that has one spelling."""
    if all(" " <= letter <= "~" for letter in name):
        return literal(spelled(name)[1:-1])
    return None


def is_spelled_once(words: bytes) -> bool:
    """Whether quoted names, one after the other, have no other spelling between their quotes."""
    return not words.translate(None, _PLAINLY)


def _plain_inside() -> Expr:
    printable = byte_set(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
    others = chars([(0, 0x1F), (0x7F, 0xD7FF), (0xE000, MAX_CODE_POINT)])
    letter = union(printable, literal(b'\\"'), literal(b"\\\\"), json_string(others))
    inside = star(letter)
    assert isinstance(inside, Expr)
    return inside


PLAIN_INSIDE = _plain_inside()
_PLAINLY = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("\\"))
