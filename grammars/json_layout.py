"""How JSON is laid out: blanks, separators, and the texts that need no schema.

Owns the choice between compact, flexible and fixed separators, and big lists of literals as tries.
Knows no schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.encode import json_string
from radixgen.grammars.expr import (
    EPSILON,
    Concat,
    Literal,
    Node,
    Rule,
    RuleSet,
    byte_set,
    concat,
    literal,
    repeat,
    union,
)
from radixgen.grammars.json_decimals import ANY_NUMBER
from radixgen.grammars.json_texts import ANY_TEXT

MAX_BLANKS = 64  # in a run, unless the option says otherwise
QUOTE = literal(b'"')
INSIDE = json_string(ANY_TEXT)
ANY_STRING = concat(QUOTE, INSIDE, QUOTE)
WORDS = {None: literal(b"null"), True: literal(b"true"), False: literal(b"false")}
TRIE_FROM = 20_000  # alternatives; fewer are a plain union, which the automaton reads as a trie


@dataclass(frozen=True, slots=True)
class Layout:
    """The texts between values. `blank` stands behind an opening and before a closing bracket."""

    blank: Node
    comma: Node
    colon: Node

    def opened(self, bracket: bytes) -> Node:
        return concat(literal(bracket), self.blank)

    def closed(self, bracket: bytes) -> Node:
        return concat(self.blank, literal(bracket))

    def split_comma(self) -> tuple[Node, Node]:
        """The separator of items up to its comma, and the rest of it."""
        first, *rest = self.comma.args if isinstance(self.comma, Concat) else (self.comma,)
        assert isinstance(first, Literal)
        before, comma, after = first.value.partition(b",")
        return literal(before + comma), concat(literal(after), *rest)


def layout(options: Mapping[str, Any]) -> Layout:
    """The layout of `whitespace`, `max_whitespace`, `item_separator` and `key_separator`.

    "compact": none. "flexible": up to `max_whitespace` blanks behind an opening bracket, a comma
    and a colon, and before a closing bracket; that takes what printers of JSON write, indented or
    not. Separators given by name are fixed. Raises InvalidGrammar for anything else.
    """
    if not options or LAYOUT_OPTIONS.isdisjoint(options):
        return _FLEXIBLE
    fixed = [_separator(options, name, mark) for name, mark in _MARKS.items()]
    kind = options.get("whitespace", "flexible")
    if any(fixed):
        comma, colon = (s or m for s, m in zip(fixed, _MARKS.values(), strict=True))
        return Layout(EPSILON, literal(comma.encode()), literal(colon.encode()))
    if kind == "compact":
        return Layout(EPSILON, literal(b","), literal(b":"))
    if kind != "flexible":
        raise InvalidGrammar(f"whitespace={kind!r} is neither 'compact' nor 'flexible'")
    most = options.get("max_whitespace", MAX_BLANKS)
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= 1000:
        raise InvalidGrammar(f"max_whitespace={most!r} is not a number from 0 to 1000")
    return _flexible(most)


def _flexible(most: int) -> Layout:
    blank = repeat(byte_set(b" \t\n\r"), 0, most)
    return Layout(blank, concat(literal(b","), blank), concat(literal(b":"), blank))


_FLEXIBLE = _flexible(MAX_BLANKS)
_MARKS = {"item_separator": ",", "key_separator": ":"}
LAYOUT_OPTIONS = frozenset(("whitespace", "max_whitespace", *_MARKS))


def _separator(options: Mapping[str, Any], name: str, mark: str) -> str | None:
    given = options.get(name)
    if given is None:
        return None
    if not isinstance(given, str) or given.strip(" \t\n\r") != mark or len(given) > 64:
        raise InvalidGrammar(f"{name}={given!r} is not {mark!r} with blanks around it")
    return given


@lru_cache(64)
def any_value(lay: Layout) -> Rule:
    """Any JSON value: one rule for all grammars, so that they share its states and masks."""
    return Rule(("any", lay), lambda: _any_body(lay), productive=True)


def _any_body(lay: Layout) -> Node:
    value = any_value(lay)
    member = concat(ANY_STRING, lay.colon, value)
    return union(
        *WORDS.values(),
        ANY_NUMBER,
        ANY_STRING,
        _listed(lay, b"{", member, b"}"),
        _listed(lay, b"[", value, b"]"),
    )


def _listed(lay: Layout, opening: bytes, item: Node, closing: bytes) -> Node:
    more = repeat(concat(lay.comma, item), 0, None)
    some = concat(item, more, lay.closed(closing))
    return concat(lay.opened(opening), union(literal(closing), some))


class Literals:
    """Sorted, distinct byte strings as one lazy trie."""

    def __init__(self, values: Sequence[bytes], rules: RuleSet) -> None:
        self._values = values
        self._rules = rules

    def node(self) -> Node:
        return self._between(0, len(self._values), 0)

    def _between(self, start: int, stop: int, depth: int) -> Node:
        """The rest, from `depth` on, of the values from `start` to `stop`, equal before it."""
        if stop - start <= TRIE_FROM:
            return union(*[Literal(value[depth:]) for value in self._values[start:stop]])
        key = ("literals", id(self._values), start, stop, depth)
        return self._rules.rule(key, lambda: self._split(start, stop, depth), productive=True)

    def _split(self, start: int, stop: int, depth: int) -> Node:
        values = self._values
        found: list[Node] = []
        if len(values[start]) == depth:
            found.append(EPSILON)
            start += 1
        while start < stop:
            end = _end_of_group(values, start, stop, depth)
            head = values[start][depth : depth + 1]
            found.append(concat(literal(head), self._between(start, end, depth + 1)))
            start = end
        return union(*found)


def _end_of_group(values: Sequence[bytes], start: int, stop: int, depth: int) -> int:
    """Where the values that have the same byte at `depth` as the first one end."""
    byte = values[start][depth]
    low, high = start + 1, stop
    while low < high:
        middle = (low + high) // 2
        if values[middle][depth] == byte:
            low = middle + 1
        else:
            high = middle
    return low
