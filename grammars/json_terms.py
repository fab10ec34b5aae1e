"""The keywords that combine schemas, read into terms to compute with. Knows no sets."""

from collections.abc import Iterator
from typing import Any

from radixgen.grammars.json_document import LATEST, Schema

INCLUDING = frozenset(("$ref", "$dynamicRef", "$recursiveRef", "allOf"))  # all of it holds
Term = tuple[Any, ...]  # the keyword, then its parts


class TooMany(Exception):
    """A union of shapes grew beyond its limit."""


def hides_siblings(node: Schema) -> bool:
    """Whether a reference makes the keywords beside it void, as it did up to draft 7."""
    return "$ref" in node.value and (node.resource.draft or LATEST) <= 7


def terms(node: Schema) -> list[Term]:
    """The keywords of a schema that combine schemas, in a form to compute with."""
    found = node.memo.get("terms")
    if found is None:
        found = node.memo["terms"] = list(_terms(node))
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
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        for name, then in value.get(keyword, {}).items():
            stated = [then] if isinstance(then, str) else then
            yield ("dependencies", node, name, _dependent(node, keyword, name, stated))


def _dependent(node: Schema, keyword: str, name: str, stated: Any) -> Schema | list[str]:
    if isinstance(stated, list):
        return stated
    return node.document.at(stated, node, f"/{keyword}", name)
