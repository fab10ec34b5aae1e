"""Small values that show that a goal has some: guessed, then asked about as a validator does.

Most goals that combine schemas are satisfied by an empty object, or by one of the members that it
needs; to find that out takes a fraction of what their sets take. Knows no sets.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_keywords import (
    KINDS,
    admits,
    bounds,
    kind_of,
    required_names,
    same_key,
    types_of,
    whole,
)
from radixgen.grammars.json_shapes import Goal
from radixgen.grammars.json_terms import hides_siblings, possible_kinds

MAX_PARTS = 16  # schemas that hold of one value, and members that it gets
MAX_ALTERNATIVES = 4  # that a value which is not empty is compared with
MAX_GUESSES = 2  # at alternatives
MAX_LISTED = 64
MAX_DEPTH = 4  # of values within each other
MAX_LETTERS = 64
EMPTY: dict[str, Any] = {
    "object": {},
    "array": [],
    "string": "",
    "number": 0,
    "boolean": False,
    "null": None,
}
# Of these, and of keywords that only an older draft knows, a look tells nothing.
_UNREAD = frozenset(("$dynamicRef", "$recursiveRef", "extends", "disallow"))
_OF_NUMBERS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "divisibleBy"),
    )
)
# The keywords besides `type` by which an empty value may fail a schema.
_ASKING = _UNREAD | frozenset(
    (
        *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
        *("required", "minProperties", "minItems", "contains"),
        *("minLength", "pattern", "format", *_OF_NUMBERS),
    )
)
# Those besides `type` and `minLength` by which strings may fail a schema.
_NARROWING = _UNREAD | frozenset(
    (
        *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
        *("maxLength", "pattern", "format"),
    )
)
_UNREAD_MEMBERS = frozenset(("patternProperties", "propertyNames", "unevaluatedProperties"))


def has_example(wanted: Goal) -> bool:
    """Whether a guess satisfies a goal. False says nothing, as of most scalars alone: their sets
    are soon made."""
    if len(wanted) > 1:
        return _has_example(wanted)
    ((node, sign),) = wanted
    found: bool | None = node.memo.get(("example", sign))
    if found is None:
        found = node.memo["example", sign] = _has_example(wanted)
    return found


def _has_example(wanted: Goal) -> bool:
    stated = [node for node, sign in wanted if sign]
    kinds: Collection[str] = KINDS
    for node in stated:
        kinds = [kind for kind in possible_kinds(node) if kind in kinds]
    if "object" not in kinds and "array" not in kinds:
        return "string" in kinds and _has_strings(wanted)
    if any(_all_hold(wanted, EMPTY[kind]) for kind in kinds):
        return True
    return "object" in kinds and any(_all_hold(wanted, guess) for guess in _guesses(stated))


def _has_strings(wanted: Goal) -> bool:
    """Whether a goal that admits strings plainly leaves some of them out only: listed ones, and
    those that are too short."""
    return all(
        _NARROWING.isdisjoint(node.value)
        if sign
        else "$ref" not in node.value and ("const" in node.value or "enum" in node.value)
        for node, sign in wanted
    )


def _all_hold(wanted: Goal, value: Any) -> bool:
    return all(holds(node, value) is sign for node, sign in wanted)


# --- whether a value satisfies a schema ----------------------------------------------------------


def holds(node: Schema, value: Any) -> bool | None:
    """Whether a value satisfies a schema; None where a look does not tell, as of a schema that is
    looked at already."""
    kind = kind_of(value)
    if not value and _ASKING.isdisjoint(node.value):
        return admits(node, kind)
    key = ("holds", None if value else kind)  # those that say something are seldom asked about
    if key in node.memo:
        known: bool | None = node.memo[key]
        return known
    node.memo[key] = None
    found = _all(_answers(node, value, kind))
    if value:
        del node.memo[key]
    else:
        node.memo[key] = found
    return found


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Whether all are true: None where none is false, and some are not known."""
    found: bool | None = True
    for answer in answers:
        if answer is False:
            return False
        found = answer and found
    return found


def _answers(node: Schema, value: Any, kind: str) -> Iterator[bool | None]:
    """What each keyword of a schema says of a value."""
    said = node.value
    if "$ref" in said:
        yield holds(node.document.resolve(node), value)
        if hides_siblings(node):
            return
    yield admits(node, kind)
    if kind == "number" and "number" not in (types_of(node) or ("number",)):
        yield Fraction(value).denominator == 1
    if "enum" in said:
        yield _is_listed(value, said["enum"])
    if "const" in said:
        yield same_key(value) == same_key(said["const"])
    if kind == "object":
        yield from _of_object(node, value)
    elif kind == "array":
        asks = "contains" in said and whole(said.get("minContains", 1)) > 0
        yield None if value else not asks and not said.get("minItems")
    elif kind == "string":
        yield whole(said.get("minLength", 0)) <= len(value)
        yield len(value) <= whole(said.get("maxLength", len(value)))
        yield None if "pattern" in said or "format" in said else True
    elif kind == "number" and not _OF_NUMBERS.isdisjoint(said):
        yield bounds(said).holds(Fraction(value))
    if not _UNREAD.isdisjoint(said):
        yield None
    yield from _combined(node, value)


def _is_listed(value: Any, listed: list[Any]) -> bool | None:
    key = same_key(value)
    if any(same_key(one) == key for one in listed[:MAX_LISTED]):
        return True
    return False if len(listed) <= MAX_LISTED else None


def _combined(node: Schema, value: Any) -> Iterator[bool | None]:
    """What the keywords say that combine schemas."""
    said = node.value
    for part in node.children("allOf") if "allOf" in said else ():
        yield holds(part, value)
    if value and _has_many(node):
        yield None
        return
    if "anyOf" in said:
        answers = [holds(part, value) for part in node.children("anyOf")]
        yield True if True in answers else (None if None in answers else False)
    if "oneOf" in said:
        answers = [holds(part, value) for part in node.children("oneOf")]
        number = answers.count(True)
        yield None if None in answers and number < 2 else number == 1
    if "not" in said:
        answer = holds(node.child("not"), value)
        yield None if answer is None else not answer
    if "if" in said:
        test = holds(node.child("if"), value)
        branch = "then" if test else "else"
        if test is None:
            yield None
        elif branch in said:
            yield holds(node.child(branch), value)


def _has_many(node: Schema) -> bool:
    """Whether a schema has many alternatives, which to ask about takes longer than it saves."""
    return any(len(node.value.get(word, ())) > MAX_ALTERNATIVES for word in ("anyOf", "oneOf"))


def _of_object(node: Schema, value: dict[str, Any]) -> Iterator[bool | None]:
    """What the keywords say that speak of members."""
    said = node.value
    yield all(name in value for name in required_names(node))
    yield whole(said.get("minProperties", 0)) <= len(value)
    if not value:
        return
    yield len(value) <= whole(said.get("maxProperties", len(value)))
    declared = said.get("properties") or {}
    rules_others = "additionalProperties" in said and "patternProperties" not in said
    if rules_others and said["additionalProperties"] is False:
        yield declared.keys() >= value.keys()
    if not _UNREAD_MEMBERS.isdisjoint(said):
        yield None
    for name, member in value.items():
        if name in declared:
            yield holds(node.member("properties", name), member)
        elif rules_others:
            yield holds(node.child("additionalProperties"), member)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            if name in said.get(keyword, ()):
                yield _of_dependent(node, keyword, name, value)


def _of_dependent(node: Schema, keyword: str, name: str, value: dict[str, Any]) -> bool | None:
    then = node.value[keyword][name]
    if isinstance(then, list):
        return all(other in value for other in then)
    return then in value if isinstance(then, str) else holds(node.member(keyword, name), value)


# --- guesses -------------------------------------------------------------------------------------


def _guesses(nodes: Iterable[Schema]) -> Iterator[dict[str, Any]]:
    """Objects, not empty, that may satisfy some schemas at once."""
    parts = _included(nodes)
    if any(map(_has_many, parts)):
        return
    if any(map(required_names, parts)):
        yield _object(parts, MAX_DEPTH)
    for keyword in ("oneOf", "anyOf"):
        for part in parts:
            for one in part.children(keyword)[:MAX_GUESSES] if keyword in part.value else ():
                yield _object([*parts, *_included((one,))], MAX_DEPTH)


def _included(nodes: Iterable[Schema]) -> list[Schema]:
    """Some schemas and those that they include by allOf and $ref: at most MAX_PARTS are looked at,
    as references may lead back."""
    found: list[Schema] = []
    waiting = [*nodes]
    for _ in range(MAX_PARTS):
        if not waiting:
            break
        node = waiting.pop()
        if "$ref" in node.value:
            waiting.append(node.document.resolve(node))
            if hides_siblings(node):
                continue
        if "allOf" in node.value:
            waiting += node.children("allOf")
        found.append(node)
    return found


def _guess(parts: list[Schema], kind: str, depth: int) -> Any:
    """A value of a kind that some schemas may have."""
    for part in parts:
        if "const" in part.value:
            return part.value["const"]
        if part.value.get("enum"):
            return part.value["enum"][0]
    if kind == "object":
        return _object(parts, depth)
    if kind == "string":
        length = max((whole(part.value.get("minLength", 0)) for part in parts), default=0)
        return "a" * min(length, MAX_LETTERS)
    if kind == "number":
        ends = (part.value.get(end) for part in parts for end in ("minimum", "maximum"))
        return next((end for end in ends if end is not None), 0)
    return EMPTY[kind]


def _object(parts: list[Schema], depth: int) -> dict[str, Any]:
    """An object of the members that some schemas need."""
    names = dict.fromkeys(name for part in parts for name in required_names(part))
    if not depth or len(names) > MAX_PARTS:
        return {}
    return {name: _member(parts, name, depth - 1) for name in names}


def _member(parts: list[Schema], name: str, depth: int) -> Any:
    declaring = (part for part in parts if name in (part.value.get("properties") or ()))
    members = _included(part.member("properties", name) for part in declaring)
    kinds: Sequence[str] = KINDS
    for node in members:
        kinds = [kind for kind in kinds if admits(node, kind)]
    return _guess(members, kinds[-1], depth) if members and kinds else None
