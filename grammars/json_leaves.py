"""Schemas that say no more than which scalars there are, as most inside of others do: read from the
values of their keywords, before any schema is made of them.

Knows no document, no set and no rule; the grammar is the one that `json_values.py` finds by way of
these. A schema that does not plainly say so much is none of them.
"""

from typing import Any

from radixgen.grammars.expr import Node, literal, union
from radixgen.grammars.json_decimals import ANY_INTEGER, ANY_NUMBER
from radixgen.grammars.json_layout import ANY_STRING, TRIE_FROM, WORDS
from radixgen.grammars.json_texts import all_spelled

# The keywords that say something of a string, a number, a boolean or null, beside `type`.
_SAYING = frozenset(
    (
        *("enum", "const", "pattern", "format", "minLength", "maxLength", "minimum", "maximum"),
        *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy"),
        *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
        *("disallow", "extends"),
    )
)
_BESIDE_LISTS = _SAYING - {"enum"}
OF_TYPE = {
    "string": ANY_STRING,
    "number": ANY_NUMBER,
    "integer": ANY_INTEGER,
    "boolean": union(WORDS[False], WORDS[True]),
    "null": WORDS[None],
}
_TEXT = {str}


def leaf(value: Any) -> Node | None:
    """The texts of a schema that allows all scalars of one type, or listed strings; None for all
    others."""
    if type(value) is not dict:
        return None
    if "enum" in value:
        listed = listed_texts(value)
        if listed is None or len(listed) > TRIE_FROM:
            return None
        return union(*map(literal, sorted(all_spelled([*frozenset(listed)]))))
    stated = value.get("type")
    if type(stated) is not str or not _SAYING.isdisjoint(value):
        return None
    return OF_TYPE.get(stated)


def listed_texts(value: dict[str, Any]) -> list[str] | None:
    """The strings that a schema lists if these, at least one, are plainly all of its values."""
    listed = value.get("enum")
    if type(listed) is not list or value.get("type", "string") != "string":
        return None
    if not _BESIDE_LISTS.isdisjoint(value) or set(map(type, listed)) != _TEXT:
        return None
    return listed
