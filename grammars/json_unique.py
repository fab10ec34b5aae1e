"""`uniqueItems` where the items have too many values to list: each differs from those read.

The rule behind a comma is a hook: it reads the value that stands before the comma, back from its
end, and lets the next item be any value but those that came. How many values there are is known
beforehand to exceed how many items there may be, so there is always another.
"""

import json
import re
from collections.abc import Callable, Hashable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

from radixgen.grammars.derivative import facts
from radixgen.grammars.expr import Node, RuleSet, concat
from radixgen.grammars.hook import Hook
from radixgen.grammars.json_decimals import spelled
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import are_few_differences
from radixgen.grammars.json_layout import Layout
from radixgen.grammars.json_shapes import ANYTHING, ArrayShape, Goal, goal

MAX_ITEMS = 256  # of such an array
FEW_ITEMS = 64  # values that have to be there, if an array may have as many items
NEVER = 1 << 40
BLANKS = b" \t\n\r"
Taken = frozenset[str]  # the items that came, each as `canonical` writes it
NOTHING: Taken = frozenset()


class Context(Protocol):
    """The grammar around: `json_values.Values`."""

    @property
    def rules(self) -> RuleSet: ...
    @property
    def layout(self) -> Layout: ...
    def at_least(self, wanted: Goal, most: int) -> int: ...
    def strings(self, wanted: Goal, most: int) -> list[int]: ...
    def has_strings(self, wanted: Goal, number: int) -> bool: ...
    def containers(self, wanted: Goal, kind: str, most: int) -> int: ...
    def has_negatives(self, wanted: Goal) -> bool: ...


class Differing:
    """The items of one array shape, each other than those before it."""

    def __init__(
        self, context: Context, shape: ArrayShape, owner: Schema, is_derived: bool
    ) -> None:
        self._context = context
        self._shape = shape
        self._owner = owner
        self._is_derived = is_derived  # from what an array must not be: there are other ways
        most = MAX_ITEMS if shape.high is None else min(shape.high, MAX_ITEMS)
        self._wanted = min(most, max(FEW_ITEMS, shape.low))
        # How many items there may be: each has one value more to choose from than came before it.
        self.most = self._number_of_items(most)
        self._goals: dict[Taken, Goal] = {}
        self._comma, self._blank = context.layout.split_comma()
        self._separator = facts(context.layout.comma).least

    def why_not(self) -> str | None:
        """Why such an array cannot be enforced; None if it can."""
        shape = self._shape
        if shape.low > 1 and self._bytes_needed(1) == NEVER and not self._is_derived:
            return "with minItems over 1 it needs strings, or items from a list; give them an enum"
        if shape.counts:
            return "beside contains it needs items from a list; give them an enum"
        if shape.low > MAX_ITEMS:
            return f"over {MAX_ITEMS} items cannot be; lower minItems, or give the items an enum"
        if self.most >= self._wanted:
            return None
        return "the items may run out of different values; give them an enum, or a lower maxItems"

    def _number_of_items(self, most: int) -> int:
        for index, wanted in enumerate(self._shape.prefix[:most]):
            if self._context.at_least(wanted, index + 1) <= index:
                return index
        if most <= len(self._shape.prefix):
            return most
        return max(self._context.at_least(self._shape.rest, most), len(self._shape.prefix))

    def goal_of(self, index: int, taken: Taken) -> Goal:
        """What an item has to satisfy behind those."""
        wanted = self._shape.goal_of(index)
        return wanted | self._none_of(taken) if taken else wanted

    def _none_of(self, taken: Taken) -> Goal:
        """What is none of some values.

        A few objects or arrays are left out one after the other, which puts few shapes together at
        a time, and most of that was done before the next item already.
        """
        found = self._goals.get(taken)
        if found is None:
            values = {value: json.loads(value, parse_float=Decimal) for value in sorted(taken)}
            nested = [value for value, read in values.items() if isinstance(read, dict | list)]
            if len(taken) > 1 and nested and are_few_differences(map(values.__getitem__, nested)):
                apart = [frozenset((value,)) for value in nested]
                if len(nested) < len(taken):
                    apart.append(taken.difference(nested))
                found = ANYTHING.union(*map(self._none_of, apart))
            else:
                listed = {"enum": list(values.values())}
                found = goal(self._owner.document.composed(listed, self._owner), False)
            self._goals[taken] = found
        return found

    def more(
        self, key: Hashable, index: int, taken: Taken, following: Callable[[Taken], Node]
    ) -> Node:
        """A comma, and the item of that index; `following` gives it behind what came."""
        hook = self._context.rules.hook(key, lambda: self._hook(key, index, taken, following))
        return concat(self._comma, hook)

    def _hook(
        self, key: Hashable, index: int, taken: Taken, following: Callable[[Taken], Node]
    ) -> Hook:
        blank = self._blank

        def body() -> Node:
            return concat(blank, following(taken))

        def resolve(text: bytes) -> Node:
            return concat(blank, following(taken | {canonical(value_before_comma(text))}))

        wanted, number = self._shape.goal_of(index), len(taken) + 4  # more than a token writes
        is_many = self._context.has_strings(wanted, number)
        openings = {b'"', b'"\\'} if is_many else set()  # any letter may be written as an escape
        brackets = set()  # blanks may follow
        for kind, bracket in (("object", b"{"), ("array", b"[")):
            if self._context.containers(wanted, kind, number) == number:
                brackets.add(bracket)
        if b"{" in brackets:
            openings.add(b'{"')
        if self._context.has_negatives(wanted):
            openings.add(b"-")

        def surely(text: bytes) -> Callable[[bytes], bool]:
            end = len(text[:-1].rstrip())
            value = text[value_start(text, end) : end]
            return lambda rest: (
                rest in openings
                or rest.rstrip(BLANKS) in brackets
                or is_other_string(value, rest, is_many)
            )

        def spare() -> int | None:
            strings = self._context.strings(wanted, number) if is_many else []
            if len(strings) == number:
                return 2 * (strings[-1] + 2)
            return NEVER if is_many else None

        most = self._bytes_needed(index) if index < self._shape.low else None
        return Hook(key, body, resolve, surely=surely, spare=spare, most=most)

    def _bytes_needed(self, index: int) -> int:
        """Of what follows the comma before an item of that index, if more are needed."""
        low = self._shape.low
        found = 1  # the bracket; with a whole separator more than what is left to write
        for place in range(index, low):
            strings = self._context.strings(self._shape.goal_of(place), place + 2)
            if len(strings) < place + 2:
                return NEVER
            found += strings[-1] + 2 + self._separator
        return found


_STRING = re.compile(rb'("[^"\\]*)(?:("[ \t\n\r]*)(,[ \t\n\r]*"?)?)?')


def is_other_string(value: bytes, rest: bytes, is_many: bool) -> bool:
    """Whether `rest`, behind a comma, begins with a string other than the value before it.

    False where an escape leaves that open, or where more follows that would have to be compared;
    `is_many`: another string may follow.
    """
    begun = _begun(rest)
    if begun is None or (begun[3] and not is_many):
        return False
    if value[:1] != b'"':
        return True
    if b"\\" in value:
        return False
    return value != begun[1] + b'"' if begun[2] else not value.startswith(begun[1])


@lru_cache(4096)  # of the tokens of a vocabulary, few are so
def _begun(rest: bytes) -> re.Match[bytes] | None:
    return _STRING.fullmatch(rest)


def value_before_comma(text: bytes) -> Any:
    """The JSON value at the end of a text, before a comma."""
    end = len(text[:-1].rstrip())
    value = text[value_start(text, end) : end]
    return json.loads(value, parse_float=Decimal)


def value_start(text: bytes, end: int) -> int:
    """Where the JSON value starts that ends before `end`, found from behind.

    A quote before which an even number of backslashes stands opens or closes a string, seen from
    within it too, so that brackets are only counted outside of strings.
    """
    depth = 0
    while True:
        last = text[end - 1]
        if last == 0x22:
            end = _string_start(text, end)
        elif last in b"]}":
            depth += 1
            end -= 1
        elif last in b"[{":
            depth -= 1
            end -= 1
        elif depth:
            end -= 1
        else:
            while end > 0 and text[end - 1] in b"0123456789+-.eEaflnrstu":
                end -= 1
            return end
        if not depth:
            return end


def _string_start(text: bytes, end: int) -> int:
    """Where the string starts that ends before `end`, with a quote."""
    start = end - 1
    while True:
        start = text.rindex(b'"', 0, start)
        escapes = start
        while text[escapes - 1 : escapes] == b"\\":
            escapes -= 1
        if not (start - escapes) % 2:
            return start


def canonical(value: Any) -> str:
    """A JSON value as a text, the same for equal values: 1 is 1.0, names have no order."""
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}:{canonical(value[name])}" for name in sorted(value))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return spelled(Fraction(value)).decode()
    return json.dumps(value)
