"""One pass over every schema that can be reached: malformed keywords, and those to refuse.

Owns what is an error, what is refused and what is left out because the standard says so: unknown
keywords and formats, and the keywords of other drafts. Computes nothing.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from radixgen.errors import InvalidGrammar
from radixgen.grammars.formats import NARROWED, is_known
from radixgen.grammars.json_document import LATEST, Document, Schema
from radixgen.grammars.json_source import shown
from radixgen.grammars.regex import parse

MAX_SCHEMAS = 100_000
MAX_COUNT = 10**9  # of characters, items or members
MAX_LEAST = 1 << 16  # that have to be there: a longer text takes more memory than one may
MAX_OPTIONAL = 1 << 14  # names in a row that may be left out: each is a way on from one place
_FEW_DIGITS = 10**18  # whole numbers below have far less than MAX_DIGITS
MAX_DIGITS = 80  # of a divisor or a bound, each of which is a level of the grammar
TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))


NO_EXPONENT = "its multiples are written without an exponent, as 0.0000001 is"


class Note(NamedTuple):
    """A keyword that is not enforced: where, and why."""

    keyword: str
    node: Schema
    reason: str

    @property
    def path(self) -> str:
        """Where the schema with the keyword stands, as a URI fragment."""
        return self.node.path


@dataclass(slots=True)
class Notes:
    """What is not enforced. `ignored`: the standard says so. `unchecked`: it cannot be.

    `impossible`: what no value satisfies, and no value needs, so that it is never written.
    `narrowed`: what allows more than is ever written.
    """

    ignored: list[Note] = field(default_factory=list)
    unchecked: list[Note] = field(default_factory=list)
    impossible: list[InvalidGrammar] = field(default_factory=list)
    narrowed: list[Note] = field(default_factory=list)


class Checker:
    """Checks the schemas of a document. `refuse` raises, or returns to leave a keyword out. What
    is not enforced is noted where somebody reads it: large schemas have hundreds of such words."""

    def __init__(
        self,
        document: Document,
        refuse: Callable[[str, Schema, str], None],
        notes: Notes | None,
        formats: bool,
    ) -> None:
        self._document = document
        self._refuse = refuse
        self._notes = notes
        self._unknown_check = None if notes is None else Checker._unknown
        self._formats = formats
        self._waiting: list[Schema] = []

    def run(self) -> dict[Schema, list[Schema]]:
        """Check everything that the root reaches: each schema with those that it leads to."""
        found: dict[Schema, list[Schema]] = {}
        trivial = (self._document.true, self._document.false)
        waiting = self._waiting
        waiting.append(self._document.root)
        while waiting:
            node = waiting.pop()
            if node in found or node in trivial:
                continue
            if len(found) >= MAX_SCHEMAS:
                raise InvalidGrammar(
                    f"over {MAX_SCHEMAS} schemas in one document; share equal ones by $ref"
                )
            size = len(waiting)
            self._check(node)
            found[node] = waiting[size:]
        return found

    def _check(self, node: Schema) -> None:
        value = node.value
        if "$ref" in value and (node.resource.draft or LATEST) <= 7:
            self._reference(node, "$ref")
            if (
                "$ref" not in node.value
            ):  # left out; what stands beside it says nothing all the same
                node.value = {}
            return
        for keyword, stated in value.items():  # as it was, where some are left out on the way
            if keyword == "type" and type(stated) is str and stated in TYPES:
                continue  # as most say
            check = _CHECKS.get(keyword, self._unknown_check)
            if check is not None:
                check(self, node, keyword)

    # --- leaving out ---------------------------------------------------------------------------

    def _ignore(self, node: Schema, keyword: str, why: str) -> None:
        if self._notes is not None:
            self._notes.ignored.append(Note(keyword, node, why))

    def _narrow(self, node: Schema, keyword: str, why: str) -> None:
        if self._notes is not None:
            self._notes.narrowed.append(Note(keyword, node, why))

    def _unknown(self, node: Schema, keyword: str) -> None:
        self._ignore(node, keyword, "no keyword of JSON Schema")

    def _leave_out(self, node: Schema, keyword: str) -> None:
        node.value = {k: v for k, v in node.value.items() if k != keyword}

    def _foreign(self, node: Schema, keyword: str, why: str) -> None:
        self._ignore(node, keyword, why)
        self._leave_out(node, keyword)

    def _wrong(self, node: Schema, keyword: str, wanted: str) -> None:
        given = shown(node.value[keyword])
        raise InvalidGrammar(f"{keyword} is {wanted}, not {given}", f"{node.path}/{keyword}")

    # --- shapes of values ----------------------------------------------------------------------

    def _type(self, node: Schema, keyword: str) -> None:
        stated = node.value[keyword]
        types = stated if isinstance(stated, list) else [stated]
        if "any" in types:
            self._foreign(node, keyword, "type 'any' of draft 3 allows everything")
            return
        for name in types:
            if not isinstance(name, str) or name not in TYPES:
                self._wrong(node, keyword, f"one of {', '.join(sorted(TYPES))}, or a list of them")

    def _count(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if type(value) is int and 0 <= value <= MAX_LEAST:
            return
        if not _is_number(value) or value < 0 or value != int(value):
            self._wrong(node, keyword, "a whole number from 0 up")
        if value > MAX_LEAST and keyword.startswith("min"):
            self._wrong(
                node, keyword, f"at most {MAX_LEAST}, as a longer text takes too much memory"
            )
        if value > MAX_COUNT:
            self._foreign(node, keyword, f"a bound over {MAX_COUNT} is none to any text")

    def _number(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if type(value) is int and -_FEW_DIGITS < value < _FEW_DIGITS:
            return
        if isinstance(value, bool) and keyword.startswith("exclusive"):
            return
        if not _is_number(value):
            self._wrong(node, keyword, "a number")
        self._digits(node, keyword)

    def _step(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if not _is_number(value) or value <= 0:
            self._wrong(node, keyword, "a number above 0")
        self._digits(node, keyword)
        if value % 1:
            self._narrow(node, keyword, NO_EXPONENT)

    def _digits(self, node: Schema, keyword: str) -> None:
        if _num_levels(node.value[keyword], keyword) > MAX_DIGITS:
            wanted = f"a number of at most {MAX_DIGITS} digits without an exponent"
            self._wrong(node, keyword, wanted)

    def _flag(self, node: Schema, keyword: str) -> None:
        if not isinstance(node.value[keyword], bool):
            self._wrong(node, keyword, "true or false")

    def _listed(self, node: Schema, keyword: str) -> None:
        if not isinstance(node.value[keyword], list):
            self._wrong(node, keyword, "a list of values")

    def _names(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if isinstance(value, bool):
            self._foreign(node, keyword, "a boolean, as in draft 3; here it is a list of names")
        elif not _are_names(value):
            self._wrong(node, keyword, "a list of names")

    def _needed_names(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if not isinstance(value, dict) or not all(map(_are_names, value.values())):
            self._wrong(node, keyword, "an object of lists of names")

    def _pattern(self, node: Schema, keyword: str) -> None:
        if not isinstance(node.value[keyword], str):
            self._wrong(node, keyword, "a regular expression")
        if not self._parses(node, keyword, [node.value[keyword]]):
            self._leave_out(node, keyword)

    def _parses(self, node: Schema, keyword: str, patterns: Iterable[str]) -> bool:
        for source in patterns:
            try:
                parse(source, dialect="ecma", mode="search")
            except InvalidGrammar as error:
                self._refuse(keyword, node, str(error))
                return False
        return True

    def _format(self, node: Schema, keyword: str) -> None:
        name = node.value[keyword]
        if not self._formats:
            self._ignore(node, keyword, "formats are annotations by choice")
            return
        try:
            known = isinstance(name, str) and is_known(name)
        except InvalidGrammar as error:
            self._refuse(keyword, node, str(error))
            self._leave_out(node, keyword)
            return
        if not known:
            self._ignore(node, keyword, f"the format {shown(name)} is not defined")
        elif name in NARROWED:
            self._narrow(node, keyword, f"{name}: {NARROWED[name]}")

    # --- schemas inside ------------------------------------------------------------------------

    def _one(self, node: Schema, keyword: str) -> None:
        if not _is_leaf(node.value[keyword]):
            self._waiting.append(node.child(keyword))

    def _many(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if not isinstance(value, list) or (not value and keyword != "prefixItems"):
            self._wrong(node, keyword, "a list of schemas that is not empty")
        self._waiting.extend(node.children(keyword))

    def _named(self, node: Schema, keyword: str) -> None:
        value = node.value[keyword]
        if not isinstance(value, dict):
            self._wrong(node, keyword, "an object of schemas")
        at, waiting, key = self._document.at, self._waiting, f"/{keyword}"
        for name, inner in value.items():
            if not _is_leaf(inner):
                waiting.append(at(inner, node, key, name))

    def _properties(self, node: Schema, keyword: str) -> None:
        self._named(node, keyword)
        if len(node.value[keyword]) <= MAX_OPTIONAL:
            return
        stated: Any = node.value.get("required")
        required, run, most = frozenset(stated if _are_names(stated) else ()), 0, 0
        for name in node.value[keyword]:
            run = 0 if name in required else run + 1
            most = max(most, run)
        if most > MAX_OPTIONAL:
            why = f"{most} names in a row may be left out, at most {MAX_OPTIONAL} can be kept apart"
            self._refuse(
                keyword, node, f"{why}; require some, or describe them by patternProperties"
            )
            self._leave_out(node, keyword)

    def _patterned(self, node: Schema, keyword: str) -> None:
        self._named(node, keyword)
        if not self._parses(node, keyword, node.value[keyword]):
            self._leave_out(node, keyword)

    def _items(self, node: Schema, keyword: str) -> None:
        if isinstance(node.value[keyword], list):
            self._waiting.extend(node.children(keyword))
        else:
            self._one(node, keyword)

    def _more_items(self, node: Schema, keyword: str) -> None:
        if isinstance(node.value.get("items"), list):
            self._one(node, keyword)
        else:
            self._ignore(node, keyword, "it says nothing without a list of items")

    def _dependencies(self, node: Schema, keyword: str) -> None:
        if (node.resource.draft or 7) > 7:
            self._foreign(node, keyword, "split into dependentRequired and dependentSchemas")
            return
        value = node.value[keyword]
        if not isinstance(value, dict):
            self._wrong(node, keyword, "an object of schemas and lists of names")
        for name, then in value.items():
            if not isinstance(then, str) and not _are_names(then):
                self._waiting.append(self._document.at(then, node, f"/{keyword}", name))

    def _reference(self, node: Schema, keyword: str) -> None:
        try:
            self._waiting.append(self._document.resolve(node, keyword))
        except InvalidGrammar as error:
            self._refuse(keyword, node, _without_path(error))
            self._leave_out(node, keyword)

    def _conditional(self, node: Schema, keyword: str) -> None:
        if keyword == "if" or "if" in node.value:
            self._one(node, keyword)
        else:
            self._ignore(node, keyword, "it says nothing without if")

    def _left_alone(self, node: Schema, keyword: str) -> None:
        self._refuse(keyword, node, _LEFT_ALONE[keyword])
        self._leave_out(node, keyword)


def _is_leaf(value: Any) -> bool:
    """Whether a schema says no more than one type, and which values there are, as most do, or what
    items say so, or no more than true or false: right, and leads nowhere."""
    if type(value) is not dict:
        return type(value) is bool
    if not _LEAF.issuperset(value):
        return False
    stated = value.get("type", "null")
    if type(stated) is not str or stated not in TYPES:
        return False
    if "items" in value:
        items = value["items"]
        if type(items) is not dict or "items" in items or not _is_leaf(items):
            return False
    return type(value.get("enum", _NO_VALUES)) is list


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _num_levels(value: int | Decimal, keyword: str) -> int:
    """How many digits a grammar compares with a bound one inside the other: those before and behind
    the point, but for the zeros that end the bound farther from zero."""
    number = Decimal(value)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    is_far = keyword == ("minimum" if number < 0 else "maximum")
    if is_far and exponent >= 0:
        return len("".join(map(str, digits)).rstrip("0"))
    return max(number.adjusted() + 1, 1) + max(-exponent, 0)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and _TEXT.issuperset(map(type, value))


def _without_path(error: InvalidGrammar) -> str:
    return re.sub(r" \(at [^)]*\)$", "", str(error))


_TEXT = frozenset((str,))
_NO_VALUES: list[Any] = []
_LEAF = frozenset(("type", "enum", "items", "title", "description", "default", "examples"))
_LEFT_ALONE = {
    "extends": "it is a keyword of draft 3; write allOf",
    "disallow": "it is a keyword of draft 3; write not",
}
_CHECKS: dict[str, Callable[[Checker, Schema, str], None] | None] = {
    "type": Checker._type,
    "enum": Checker._listed,
    "pattern": Checker._pattern,
    "format": Checker._format,
    "required": Checker._names,
    "uniqueItems": Checker._flag,
    "multipleOf": Checker._step,
    "divisibleBy": Checker._step,
    "minimum": Checker._number,
    "maximum": Checker._number,
    "exclusiveMinimum": Checker._number,
    "exclusiveMaximum": Checker._number,
    "properties": Checker._properties,
    "patternProperties": Checker._patterned,
    "dependentSchemas": Checker._named,
    "dependentRequired": Checker._needed_names,
    "dependencies": Checker._dependencies,
    "items": Checker._items,
    "additionalItems": Checker._more_items,
    "allOf": Checker._many,
    "anyOf": Checker._many,
    "oneOf": Checker._many,
    "prefixItems": Checker._many,
    "not": Checker._one,
    "if": Checker._conditional,
    "then": Checker._conditional,
    "else": Checker._conditional,
    "additionalProperties": Checker._one,
    "propertyNames": Checker._one,
    "contains": Checker._one,
    "unevaluatedProperties": Checker._one,
    "unevaluatedItems": Checker._one,
    "$ref": Checker._reference,
    "$dynamicRef": Checker._reference,
    "$recursiveRef": Checker._reference,
    **dict.fromkeys(_LEFT_ALONE, Checker._left_alone),
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        Checker._count,
    ),
    **dict.fromkeys(  # nothing to check
        (
            "$schema",
            "$id",
            "id",
            "$anchor",
            "$dynamicAnchor",
            "$recursiveAnchor",
            "$vocabulary",
            "$comment",
            "$defs",
            "definitions",
            "const",
            "title",
            "description",
            "default",
            "examples",
            "deprecated",
            "readOnly",
            "writeOnly",
            "contentEncoding",
            "contentMediaType",
            "contentSchema",
        )
    ),
}
