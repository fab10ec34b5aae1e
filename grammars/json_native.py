"""What the native engine asks of this front end where it reads a schema by itself: what is the same
in all schemas, and scalars that say more than which type they are.

Their grammar is the one that `json_values.py` finds, where no option is of more than the layout.
"""

from collections.abc import Callable
from functools import lru_cache

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import Node, RuleSet
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_chain import member_marks
from radixgen.grammars.json_check import Checker
from radixgen.grammars.json_document import Document, Schema
from radixgen.grammars.json_layout import LAYOUT_OPTIONS, any_value, layout
from radixgen.grammars.json_leaves import OF_TYPE
from radixgen.grammars.json_plain import item_marks
from radixgen.grammars.json_shapes import goal
from radixgen.grammars.json_values import Values
from radixgen.grammars.native_schemas import PlainSchemas
from radixgen.types import OptionValue

MAX_SCALARS = 1024  # texts whose reading is kept: many schemas say the same of a string


@lru_cache(MAX_SCALARS)
def scalars(text: bytes) -> Callable[[], Node] | None:
    """See `PlainSchemas.scalars`."""
    try:
        document = Document(text.decode())
        Checker(document, _refuse, None, formats=True).run()
        algebra = Algebra(document, _refuse, formats=True)
        values, wanted = (
            Values(algebra, RuleSet(), layout({}), any_order=False),
            goal(document.root),
        )
        has_value = values.productive(wanted)  # where that is open, an engine has to be asked
    except InvalidGrammar:  # to be raised with its place in the whole schema
        return None
    return (lambda: values.value(wanted)) if has_value else None


def _refuse(keyword: str, node: Schema, why: str) -> None:
    raise InvalidGrammar(f"{keyword} cannot be enforced: {why}", node.path)


@lru_cache(64)
def plain_schemas(options: tuple[tuple[str, OptionValue], ...]) -> PlainSchemas | None:
    """What is said for some options; None for those that are not right, or not of the layout."""
    if not LAYOUT_OPTIONS.issuperset(name for name, _ in options):
        return None
    try:
        laid = layout(dict(options))
    except InvalidGrammar:  # to be raised when all else is right
        return None
    types = ("string", "number", "integer", "boolean", "null")
    nodes = (any_value(laid), *(OF_TYPE[name] for name in types))
    return PlainSchemas(nodes, member_marks(laid), item_marks(laid), scalars)
