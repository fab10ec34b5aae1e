"""The sets of values of each kind: the whole, the empty one, and complements of scalars."""

from typing import Any

from radixgen.grammars import json_numbers as num
from radixgen.grammars import json_texts as txt
from radixgen.grammars.json_shapes import ANY_ARRAY, ANY_OBJECT

EVERY: dict[str, Any] = {
    "null": frozenset((None,)),
    "boolean": frozenset((True, False)),
    "number": num.EVERY,
    "string": txt.EVERY,
    "array": (ANY_ARRAY,),
    "object": (ANY_OBJECT,),
}
NONE: dict[str, Any] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "number": num.NONE,
    "string": txt.NONE,
    "array": (),
    "object": (),
}


def complement(kind: str, found: Any) -> Any:
    """The complement of a set of scalars."""
    if kind in ("null", "boolean"):
        return EVERY[kind] - found
    return found.complement()
