"""The keywords that combine schemas, read into terms to compute with. Knows no sets."""

from collections.abc import Collection, Iterator
from typing import Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.json_document import LATEST, Schema
from radixgen.grammars.json_keywords import KINDS, admits, own_kinds
from radixgen.grammars.json_shapes import Goal

REFERRING = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
INCLUDING = REFERRING | {"allOf"}  # all of it holds
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
# Where a schema is the value of a member or an item by itself, not a part of another.
PLACES = frozenset(
    f"/{keyword}"
    for keyword in (
        *("properties", "patternProperties", "additionalProperties"),
        *("items", "prefixItems", "additionalItems"),
    )
)
Term = tuple[Any, ...]  # the keyword, then its parts


class TooMany(Exception):
    """A union of shapes grew beyond its limit."""


def fewer(keyword: str) -> str:
    """What to do where a keyword has too many alternatives."""
    if keyword in DEPENDENCIES:
        return "let fewer names depend on others, as each doubles the alternatives"
    return (
        "tell the alternatives apart by constants of one required property, list those that are "
        "constants in one enum, or take fewer"
    )


def too_many_meets(root: Schema, most: int) -> InvalidGrammar:
    """What is wrong with a schema whose alternatives are combined with each other too often."""
    return InvalidGrammar(
        f"the schema combines alternatives (of oneOf, anyOf, not or dependencies) in over {most} "
        f"ways; take fewer, nest them less, tell them apart by constants of one property, or list "
        f"those that are constants in one enum",
        root.path,
    )


def too_many_pairs(nodes: list[Schema], most: int) -> InvalidGrammar:
    """What is wrong with the schemas of a oneOf that have to be compared with each other."""
    owner = next(node.parent for node in nodes if node.parent is not None)
    return InvalidGrammar(
        f"oneOf has {len(nodes)} schemas of a kind, of which over {most} pairs would have to be "
        f"compared; tell them apart by type or by constants, or write anyOf",
        f"{owner.path}/oneOf",
    )


def hides_siblings(node: Schema) -> bool:
    """Whether a reference makes the keywords beside it void, as it did up to draft 7."""
    return "$ref" in node.value and (node.resource.draft or LATEST) <= 7


def terms(node: Schema) -> list[Term]:
    """The keywords of a schema that combine schemas, in a form to compute with."""
    found = node.memo.get("terms")
    if found is None:
        found = node.memo["terms"] = list(_terms(node))
    return found


def stated_as(term: Term) -> str:
    """The keyword of a term, as the schema states it."""
    if term[0] != "dependencies":
        return "if" if term[0] == "looks" else str(term[0])
    _, node, name, _ = term
    return next(k for k in DEPENDENCIES if name in node.value.get(k, ()))


def in_place(node: Schema) -> Iterator[Schema]:
    """The schemas that a schema applies to its own values, by whatever keyword."""
    for keyword, *parts in terms(node):
        for part in parts[2:] if keyword == "dependencies" else parts:
            if isinstance(part, Schema):
                yield part
            elif keyword != "dependencies":  # whose lists are of names
                yield from part


def kinds_of(wanted: Goal) -> Iterator[str]:
    """The kinds of values that every `type` of a goal lets through."""
    stated = [node for node, sign in wanted if sign and not hides_siblings(node)]
    return (kind for kind in KINDS if all(admits(node, kind) for node in stated))


def possible_kinds(node: Schema) -> Collection[str]:
    """The kinds of values that a schema may have by its types and listed values, and by those of
    what it combines: of most kinds this says that there is none, before any set is computed."""
    found: Collection[str] | None = node.memo.get("kinds")
    if found is None:
        node.memo["kinds"] = KINDS  # for what leads back here meanwhile
        found = node.memo["kinds"] = _possible_kinds(node)
    return found


def _possible_kinds(node: Schema) -> Collection[str]:
    if node is node.document.true:
        return KINDS
    if node is node.document.false:
        return ()
    found: Collection[str] = KINDS
    if not hides_siblings(node):
        found = own_kinds(node)
    for keyword, *parts in terms(node):
        if keyword in INCLUDING:
            for part in parts[0] if keyword == "allOf" else parts:
                possible = possible_kinds(part)
                found = [kind for kind in found if kind in possible]
        elif keyword in ("anyOf", "oneOf"):
            some = set[str]().union(*map(possible_kinds, parts[0]))
            found = [kind for kind in found if kind in some]
    return found


def _terms(node: Schema) -> Iterator[Term]:
    value, document = node.value, node.document
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in value:
            yield (keyword, document.resolve(node, keyword))
    if hides_siblings(node):
        return
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in value:
            yield (keyword, node.children(keyword))
    if "not" in value:
        yield ("not", node.child("not"))
    if "if" in value and "then" not in value and "else" not in value:
        yield ("looks", node.child("if"))
    elif "if" in value:
        then = node.child("then") if "then" in value else document.true
        other = node.child("else") if "else" in value else document.true
        yield ("if", node.child("if"), then, other)
    for keyword in DEPENDENCIES:
        for name, then in value.get(keyword, {}).items():
            stated = [then] if isinstance(then, str) else then
            yield ("dependencies", node, name, _dependent(node, keyword, name, stated))


def _dependent(node: Schema, keyword: str, name: str, stated: Any) -> Schema | list[str]:
    if isinstance(stated, list):
        return stated
    return node.document.at(stated, node, f"/{keyword}", name)
