"""Why no value satisfies a schema: which of its schemas is the first to blame, by which keywords.

Looked for only when a schema is refused: the way goes down to a schema that every value needs and
that nothing satisfies by itself, as long as there is one. There, what could be left out is guilty.
"""

from collections.abc import Callable, Iterable, Iterator

from radixgen.errors import InvalidGrammar
from radixgen.grammars.json_document import Schema
from radixgen.grammars.json_shapes import Goal, goal

MAX_TRIED = 100  # schemas, each of them a part of one that was read in time
MAX_SOUGHT = 1000  # schemas among which impossible ones are looked for
_MAY_FAIL = frozenset(("not", "if"))


class _Blame:
    def __init__(self, is_possible: Callable[[Goal], bool], tries: int = MAX_TRIED) -> None:
        self._is_possible = is_possible
        self._left = tries

    def fails(self, node: Schema) -> bool:
        """Whether nothing satisfies a schema. What cannot be told is taken to be satisfied."""
        self._left -= 1
        if self._left < 0:
            return False
        try:
            return not self._is_possible(goal(node))
        except InvalidGrammar:
            return False


def unsatisfied(root: Schema, is_possible: Callable[[Goal], bool]) -> InvalidGrammar:
    """The error for a schema that nothing satisfies; `is_possible` tells of a goal whether a value
    does."""
    blame, node, passed = _Blame(is_possible), root, {root, root.document.false}
    while True:
        new = (part for part in _needed(node) if part not in passed)
        part = next((part for part in new if blame.fails(part)), None)
        if part is None:
            break
        passed.add(part)
        node = part
    blame = _Blame(is_possible)  # however long the way was
    return InvalidGrammar(f"no value satisfies the schema{_why(node, blame)}", node.path)


def impossible(
    schemas: Iterable[Schema], is_possible: Callable[[Goal], bool]
) -> list[InvalidGrammar]:
    """What of a schema that something satisfies nothing satisfies, such as members that may be left
    out, and so are: an error for each, by path. Not what is `false`, or asked to fail."""
    blame, found = _Blame(is_possible, MAX_SOUGHT), dict[str, InvalidGrammar]()
    for node in schemas:
        if _MAY_FAIL.isdisjoint(node.path.split("/")) and blame.fails(node):
            error = unsatisfied(node, is_possible)
            found.setdefault(error.path, error)
    return [found[path] for path in sorted(found)]


def _why(node: Schema, blame: _Blame) -> str:
    if node is node.document.false:
        return ""
    keywords = list(node.value)[:MAX_TRIED]
    guilty = [key for key in keywords if not blame.fails(_without(node, key))]
    if len(guilty) < 2:
        return f": {guilty[0]} leaves none" if guilty else ""
    return f": {', '.join(guilty[:-1])} and {guilty[-1]} together leave none"


def _needed(node: Schema) -> Iterator[Schema]:
    """Schemas that something in every value has to satisfy, by a schema's plain words."""
    if "$ref" in node.value:
        yield node.document.resolve(node)
    if "allOf" in node.value:
        yield from node.children("allOf")
    if "properties" in node.value:
        for name in node.get("required") or ():
            if name in node.value["properties"]:
                yield node.member("properties", name)
    least = node.get("minItems") or 0
    prefix = node.prefix_items()
    yield from prefix[:least]
    rest = node.rest_items() if least > len(prefix) else None
    if rest is not None:
        yield rest


def _without(node: Schema, keyword: str) -> Schema:
    value = {key: words for key, words in node.value.items() if key != keyword}
    return Schema(value, node.parent, node.key, node.resource, node.document, node.step)
