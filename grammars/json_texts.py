"""Sets of texts: the values of JSON strings and the names of members.

A set is finitely many texts, or a regular language of code points. Closed under union,
intersection and complement; finite sets stay finite where they can, so that an `enum` beside a
pattern is filtered when it is read. Knows no JSON spelling but the canonical one of a text.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from radixgen.grammars.derivative import state_not_empty
from radixgen.grammars.encode import json_string
from radixgen.grammars.expr import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    And,
    Chars,
    Concat,
    Expr,
    Node,
    Not,
    Repeat,
    Union,
    chars,
    complement,
    concat,
    conj,
    repeat,
    star,
    union,
)
from radixgen.grammars.text_emptiness import (
    holds_text,
    is_boolean,
    is_hard,
    is_nullable,
    text_is_empty,
)

ANY_TEXT = star(ANY_CHAR)
assert isinstance(ANY_TEXT, Expr)


@dataclass(frozen=True, slots=True)
class Texts:
    """`finite` texts, or the language `expr` if that is None."""

    finite: frozenset[str] | None
    expr: Expr = EMPTY

    def holds(self, value: str) -> bool:
        return value in self.finite if self.finite is not None else matches(self.expr, value)

    def meet(self, other: "Texts") -> "Texts":
        if self is EVERY or other is NONE:
            return other
        if other is EVERY or self is NONE:
            return self
        if self.finite is not None:
            return few(value for value in self.finite if other.holds(value))
        if other.finite is not None:
            return few(value for value in other.finite if self.holds(value))
        return language(conj(self.expr, other.expr))

    def join(self, other: "Texts") -> "Texts":
        if self is EVERY or other is NONE:
            return self
        if other is EVERY or self is NONE:
            return other
        if self.finite is not None and other.finite is not None:
            return Texts(self.finite | other.finite)
        return language(_expr(union(self.as_expr(), other.as_expr())))

    def complement(self) -> "Texts":
        if self is EVERY:
            return NONE
        if self is NONE:
            return EVERY
        expr = self.as_expr()
        if isinstance(expr, Repeat) and expr.item is ANY_CHAR:  # lengths, which stay so: they meet
            shorter = lengths(0, expr.low - 1) if expr.low else NONE
            return shorter if expr.high is None else shorter.join(lengths(expr.high + 1, None))
        return language(complement(expr))

    def is_empty(self) -> bool:
        """Whether it is known to be empty."""
        return not self.finite if self.finite is not None else text_is_empty(self.expr) is True

    def members(self) -> frozenset[str] | None:
        return self.finite

    def as_expr(self) -> Expr:
        """The set as one text expression."""
        if self.finite is None:
            return self.expr
        return any_of(sorted(self.finite))


EVERY = Texts(None, ANY_TEXT)
NONE = Texts(frozenset())


def few(values: Iterable[str]) -> Texts:
    found = frozenset(values)
    return Texts(found) if found else NONE


def language(expr: Expr) -> Texts:
    """The set of a text expression."""
    if expr is EMPTY:
        return NONE
    return EVERY if expr is ANY_TEXT else Texts(None, expr)


def searched(expr: Expr) -> Expr:
    """The same texts, where all that is searched for is in every text or is one character or more:
    then any text is said so, and one character suffices."""
    args = expr.args if isinstance(expr, Concat) else ()
    if len(args) != 3 or not args[0] is args[2] is ANY_TEXT:
        return expr
    found = args[1]
    if is_nullable(found):
        return _expr(ANY_TEXT)
    if isinstance(found, Repeat) and found.low == 1:
        return _expr(concat(ANY_TEXT, found.item, ANY_TEXT))
    return expr


def lengths(low: int, high: int | None) -> Texts:
    """Every text of `low` to `high` code points."""
    return language(_expr(repeat(ANY_CHAR, low, high)))


def of_length(texts: Texts, low: int, high: int | None) -> Texts:
    """Those of the texts that have `low` to `high` code points: all, if they plainly have."""
    if texts.finite is None and texts is not EVERY:
        least, most = _lengths_of(texts.expr)
        if low <= least and (high is None or (most is not None and most <= high)):
            return texts
    return lengths(low, high).meet(texts)


@lru_cache(1024)
def _lengths_of(expr: Expr) -> tuple[int, int | None]:
    """How many code points a text of an expression has at least, and at most: None for no bound."""
    match expr:
        case Chars():
            return 1, 1
        case Repeat():
            least, most = _lengths_of(expr.item)
            return least * expr.low, None if most is None or expr.high is None else most * expr.high
        case Concat() | Union() | And() if expr.args:
            parts = [_lengths_of(part) for part in expr.args]
            known = [most for _, most in parts if most is not None]
            return _of_parts(expr, [least for least, _ in parts], known, len(known) < len(parts))
    return 0, 0 if expr is EPSILON else None


def _of_parts(
    expr: Expr, least: list[int], most: list[int], is_endless: bool
) -> tuple[int, int | None]:
    """`most` of those parts that have a bound; the others are endless."""
    if isinstance(expr, And):
        return max(least), min(most, default=None)
    if isinstance(expr, Concat):
        return sum(least), None if is_endless else sum(most)
    return min(least), None if is_endless else max(most)


def _expr(node: Node) -> Expr:
    assert isinstance(node, Expr)  # text expressions hold no rule
    return node


def any_of(values: Sequence[str]) -> Expr:
    """Sorted texts as one expression, common beginnings shared."""
    return _prefixes(values, 0, len(values), 0)


def _prefixes(values: Sequence[str], start: int, stop: int, depth: int) -> Expr:
    """The rest, from `depth` on, of the sorted texts from `start` to `stop`, equal before it."""
    found: list[Node] = []
    if start < stop and len(values[start]) == depth:
        found.append(EPSILON)
        start += 1
    while start < stop:
        letter = values[start][depth]
        end = start + 1
        while end < stop and values[end][depth] == letter:
            end += 1
        same = _common_length(values[start], values[end - 1])
        head = _text(values[start], depth, same)
        found.append(concat(head, _prefixes(values, start, end, same)))
        start = end
    return _expr(union(*found))


def _common_length(one: str, other: str) -> int:
    """How many characters both begin with."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _text(value: str, start: int, stop: int) -> Node:
    return concat(*map(_letter, value[start:stop]))


@lru_cache(1024)
def _letter(letter: str) -> Expr:
    return chars(((ord(letter), ord(letter)),))


def matches(expr: Expr, value: str) -> bool:
    """Whether a text is in the language of a text expression."""
    return expr is ANY_TEXT or holds_text(expr, value)


@lru_cache(4096)
def encoded(expr: Expr) -> Expr:
    """A text expression as the inside of a JSON string, `EMPTY` if that is known."""
    if not is_boolean(expr):
        return json_string(expr)
    empty = text_is_empty(expr)
    if empty:
        return EMPTY
    found = json_string(expr)
    if isinstance(expr, And | Not):
        if empty is False:
            state_not_empty(found)
    else:
        for part in expr.args[:1] if isinstance(expr, Repeat) else expr.args:
            encoded(part)  # for what it proves
    return found


def doubtful(expr: Expr) -> Iterator[Expr]:
    """The parts of an expression in which there may be no text, as a search has not told, or in
    which there was one late."""
    if not is_boolean(expr):
        return
    if isinstance(expr, And | Not):
        if text_is_empty(expr) is None or is_hard(expr):
            yield expr
    else:
        for part in expr.args[:1] if isinstance(expr, Repeat) else expr.args:
            yield from doubtful(part)


_encode = json.JSONEncoder(ensure_ascii=False).encode


def spelled(value: str) -> bytes:
    """A text as a JSON string with its quotes: escapes only where JSON demands them."""
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return json.dumps(value).encode()


def all_spelled(values: Sequence[str]) -> list[bytes]:
    """`spelled` of each; most lists of names need a look at the whole only."""
    whole = "".join(values)
    if whole.isascii() and whole.isprintable() and '"' not in whole and "\\" not in whole:
        return [f'"{value}"'.encode() for value in values]
    return [*map(spelled, values)]
