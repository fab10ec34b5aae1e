"""A JSON Schema as a graph: its schemas, where each lies, and what its references point to.

Owns drafts, base URIs, anchors and references. Knows no keyword but those that
name or nest schemas, and nothing of grammars.

What an older draft writes differently is read here into the words of 2020-12, so that the rest of
the front end knows one vocabulary: `prefix_items`, `rest_items`, `dependencies`.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

from radixgen.errors import InvalidGrammar
from radixgen.grammars.json_source import read_json, shown

LATEST = 2020
_DRAFTS = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "draft/2019-09": 2019,
    "draft/2020-12": 2020,
}
_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor")
# What gives a name, but for members so named. Each begins with what is seldom written, which is
# searched for much sooner than a quote.
_ID = re.compile(r'id"\s*:\s*"')
_ANCHOR = re.compile(r'nchor"\s*:\s*"')
_NAMING_KEYS = frozenset((*_NAMES, "$recursiveAnchor"))
_ESCAPED_LETTER = re.compile(r"\\u00[2467]")  # of a name of these; hardly ever written so
_RECURSIVE = "$recursiveAnchor"  # as a dynamic anchor that has no name of its own

# Keywords whose value is one schema, a list of schemas, a mapping of schemas.
ONE = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "items",
        "additionalItems",
        "additionalProperties",
        "propertyNames",
        "contains",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
MANY = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
NAMED = frozenset(
    ["properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"]
)


class Resource:
    """A schema with a URI of its own, and the anchors inside it."""

    __slots__ = ("anchors", "draft", "dynamic", "node", "uri")

    def __init__(self, uri: str, draft: int | None) -> None:
        self.uri = uri
        self.draft = draft  # None: not stated
        self.node: Schema | None = None
        self.anchors: dict[str, Schema] = {}
        self.dynamic: set[str] = set()


# What dynamic anchors mean on the way to a schema: each name with the first resource on that way
# that defines it. Only names that several resources define are kept.
Scope = tuple[tuple[str, Resource], ...]


class Schema:
    """One schema of a document. Compared by identity; `serial` orders by first mention.

    Where dynamic anchors are contested it is the schema as reached in one `scope`.
    """

    __slots__ = (
        "alone",
        "document",
        "key",
        "memo",
        "parent",
        "resource",
        "scope",
        "serial",
        "step",
        "value",
    )

    def __init__(
        self,
        value: Any,
        parent: "Schema | None",
        key: str,
        resource: Resource,
        document: "Document",
        step: "str | int | None" = None,
    ) -> None:
        self.value: dict[str, Any] = value
        self.parent = parent
        self.key = key  # the pointer from the parent, but for its last step if that is apart
        self.step = step
        self.resource = resource
        self.document = document
        self.scope: Scope = () if parent is None else parent.scope
        document.num_schemas += 1
        self.serial = document.num_schemas
        self.memo: dict[Any, Any] = {}
        # What `json_shapes.goal` makes of it, made once: it is asked for at each mention.
        self.alone: frozenset[tuple[Schema, bool]] | None = None

    @property
    def path(self) -> str:
        """A JSON pointer as a URI fragment."""
        above, node = [], self
        while node.parent is not None:
            above.append(_pointed(node.key, node.step))
            node = node.parent
        return "#" + "".join(reversed(above))

    def __repr__(self) -> str:
        return f"Schema({self.path})"

    def get(self, keyword: str) -> Any:
        return self.value.get(keyword)

    def child(self, keyword: str) -> "Schema":
        """The schema that a keyword holds."""
        return self.document.at(self.value[keyword], self, f"/{keyword}")

    def children(self, keyword: str) -> list["Schema"]:
        """The schemas that a keyword lists."""
        found: list[Schema] | None = self.memo.get(keyword)
        if found is None:
            at, key = self.document.at, f"/{keyword}"
            found = [at(v, self, key, i) for i, v in enumerate(self.value[keyword])]
            self.memo[keyword] = found
        return found

    def named(self, keyword: str) -> dict[str, "Schema"]:
        """The schemas that a keyword names."""
        found: dict[str, Schema] | None = self.memo.get(keyword)
        if found is None:
            at, key = self.document.at, f"/{keyword}"
            found = {name: at(v, self, key, name) for name, v in self.value[keyword].items()}
            self.memo[keyword] = found
        return found

    def member(self, keyword: str, name: str) -> "Schema":
        """The schema that a keyword names so."""
        return self.document.at(self.value[keyword][name], self, f"/{keyword}", name)

    def prefix_items(self) -> list["Schema"]:
        """The schemas of the first items: `prefixItems`, or `items` as a list."""
        if isinstance(self.value.get("items"), list):
            return self.children("items")
        return self.children("prefixItems") if "prefixItems" in self.value else []

    def rest_items(self) -> "Schema | None":
        """The schema of the items behind the prefix."""
        if isinstance(self.value.get("items"), list):
            return self.child("additionalItems") if "additionalItems" in self.value else None
        return self.child("items") if "items" in self.value else None


class Document:
    """The schemas of one text, made on first mention."""

    def __init__(self, source: str) -> None:
        self.root_value = read_json(source)
        self.num_schemas = 0
        self._nodes: dict[int, Schema] = {}
        self._owners: dict[int, Resource] = {}
        self._targets: dict[tuple[Resource, str], Schema] = {}
        self._resources: dict[str, Resource] = {}
        self._contested: frozenset[str] = frozenset()
        self._in_scope: dict[tuple[int, Scope], Schema] = {}
        stated = self.root_value.get("$schema") if isinstance(self.root_value, dict) else None
        base = Resource("", draft_of(stated))
        self.true = Schema({}, None, "", base, self)
        self.false = Schema({"not": {}}, None, "", base, self)
        self.root = self._root(base)
        named = _num_names(source)
        if named == 0:
            return
        if named is None or named > self._num_own_names():
            self._index(self.root)
            self._contested = self._find_contested()
        else:
            self._anchor(self.root_value, self._enter(self.root_value, base), self.root)
        if self._contested:
            self.root = self._scoped(self.root, ())

    def _root(self, base: Resource) -> Schema:
        self._resources[""] = base
        root = self.at(self.root_value, None, "", resource=base)
        base.node = root
        return root

    def _num_own_names(self) -> int:
        """How many names the root gives itself, as most documents have no other."""
        value = self.root_value
        return sum(isinstance(value.get(n), str) for n in _NAMES) if isinstance(value, dict) else 0

    def at(
        self,
        value: Any,
        parent: Schema | None,
        key: str,
        step: str | int | None = None,
        resource: Resource | None = None,
    ) -> Schema:
        """The schema of a value, which lies at a pointer from its parent: `key`, then `step`, which
        may hold any character. The trivial ones are `true` and `false`."""
        if type(value) is not dict or not value:
            return self._trivial(value, parent, key, step)
        node = self._nodes.get(id(value))
        if node is None:
            owner = self._owners.get(id(value), resource) if self._owners else resource
            if owner is None:
                assert parent is not None
                owner = parent.resource
            node = self._nodes[id(value)] = Schema(value, parent, key, owner, self, step)
        if self._contested:
            assert parent is not None
            return self._scoped(node, parent.scope)
        return node

    def _trivial(
        self, value: Any, parent: Schema | None, key: str, step: str | int | None
    ) -> Schema:
        if value is True or value == {}:
            return self.true
        if value is False:
            return self.false
        where = f"{parent.path if parent else '#'}{_pointed(key, step)}"
        raise InvalidGrammar(f"a schema is an object or a boolean, not {shown(value)}", where)

    def constant(self, value: Any, parent: Schema, key: str) -> Schema:
        """A schema that only this value satisfies."""
        made = parent.memo.get(("constant", key))
        if made is None:
            made = Schema({"const": value}, parent, key, parent.resource, self)
            parent.memo["constant", key] = made
        return made

    def composed(self, value: dict[str, Any], parent: Schema) -> Schema:
        """A schema out of others, for what no keyword says directly."""
        return Schema(value, parent, "", parent.resource, self)

    # --- references ------------------------------------------------------------------------

    def resolve(self, node: Schema, keyword: str = "$ref") -> Schema:
        """What a reference of `node` points to. Raises InvalidGrammar when it is not here."""
        found = node.memo.get(keyword)
        if found is None:
            found = node.memo[keyword] = self._resolve(node, keyword)
        return found

    def _resolve(self, node: Schema, keyword: str) -> Schema:
        reference = node.value[keyword]
        if not isinstance(reference, str):
            raise InvalidGrammar(f"{keyword} is a string, not {shown(reference)}", node.path)
        target = node.resource, reference
        found = self._targets.get(target)
        if found is None:
            found = self._targets[target] = self._static(node, keyword, reference)
        if keyword == "$ref":
            return self._scoped(found, node.scope)
        name = _RECURSIVE if keyword == "$recursiveRef" else unquote(reference.partition("#")[2])
        if name in found.resource.dynamic:
            owner = dict(node.scope).get(name, found.resource)
            found = owner.anchors[name]
        return self._scoped(found, node.scope)

    def _static(self, node: Schema, keyword: str, reference: str) -> Schema:
        """What a reference points to wherever it is met."""
        target, _, fragment = reference.partition("#")
        resource = self._resource(node, target, reference, keyword)
        fragment = unquote(fragment)
        if not fragment:
            assert resource.node is not None
            return resource.node
        if fragment.startswith("/"):
            return self._pointer(resource, fragment, node, reference)
        found = resource.anchors.get(fragment)
        if found is None:
            raise InvalidGrammar(f"{keyword} {reference!r} points to nothing", node.path)
        return found

    def _resource(self, node: Schema, target: str, reference: str, keyword: str) -> Resource:
        if not target:
            return node.resource
        uri = urljoin(node.resource.uri, target)
        found = self._resources.get(uri) or self._resources.get(target)
        if found is None:
            raise InvalidGrammar(
                f"{keyword} {reference!r} points outside of this schema; put its target under "
                f"$defs and refer to that",
                node.path,
            )
        return found

    def _pointer(self, resource: Resource, pointer: str, node: Schema, reference: str) -> Schema:
        here = resource.node
        assert here is not None
        value: Any = here.value if here.value else self.root_value
        for token in pointer[1:].split("/"):
            token = token.replace("~1", "/").replace("~0", "~")
            try:
                value = value[_index(token)] if isinstance(value, list) else value[token]
            except (KeyError, IndexError, ValueError, TypeError):
                raise InvalidGrammar(f"$ref {reference!r} points to nothing", node.path) from None
            resource = self._owners.get(id(value)) or resource
        return self.at(value, here, pointer, resource=resource)

    # --- dynamic scope ----------------------------------------------------------------------

    def _find_contested(self) -> frozenset[str]:
        """The dynamic anchors that several resources define."""
        owners = set(self._resources.values())
        names = [name for owner in owners for name in owner.dynamic]
        return frozenset(name for name in names if names.count(name) > 1)

    def _scoped(self, node: Schema, scope: Scope) -> Schema:
        """The schema as it is when reached in a scope."""
        if not self._contested or node is self.true or node is self.false:
            return node
        entered = self._contested & node.resource.dynamic
        scope += tuple((n, node.resource) for n in sorted(entered) if n not in dict(scope))
        key = (id(node.value), scope)
        found = self._in_scope.get(key)
        if found is None:
            found = Schema(node.value, node.parent, node.key, node.resource, self, node.step)
            found.scope = scope
            self._in_scope[key] = found
        return found

    # --- ids and anchors -------------------------------------------------------------------

    def _index(self, root: Schema) -> None:
        """Find every schema with an id or an anchor, each base URI on the way."""
        waiting: list[tuple[Any, Resource, Schema, str, str | int | None]] = []
        if isinstance(self.root_value, dict) and self.root_value:
            waiting.append((self.root_value, root.resource, root, "", None))
        seen: set[int] = set()
        while waiting:
            value, resource, parent, key, step = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            has_name = not _NAMING_KEYS.isdisjoint(value)
            if has_name:
                resource = self._enter(value, resource)
            node = root if value is root.value else self.at(value, parent, key, step, resource)
            if has_name:
                if resource.node is None:
                    resource.node = node
                self._anchor(value, resource, node)
            waiting.extend((v, resource, node, k, s) for k, s, v in nested(value))

    def _enter(self, value: dict[str, Any], resource: Resource) -> Resource:
        name = value.get("$id", value.get("id"))
        hidden = "$ref" in value and (resource.draft or LATEST) <= 7
        if not isinstance(name, str) or hidden:
            return resource
        uri, _, fragment = name.partition("#")
        if fragment and not uri:
            return resource  # up to draft 7 an anchor is written so; see _anchor
        uri = urljoin(resource.uri, uri)
        if value is self.root_value:
            resource.uri = uri
        else:
            stated = draft_of(value.get("$schema")) or resource.draft
            resource = Resource(uri, stated)
            self._owners[id(value)] = resource
        self._resources[uri] = resource
        return resource

    def _anchor(self, value: dict[str, Any], resource: Resource, node: Schema) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = value.get(keyword)
            if isinstance(name, str):
                resource.anchors[name] = node
                if keyword == "$dynamicAnchor":
                    resource.dynamic.add(name)
        name = value.get("$id", value.get("id"))
        if isinstance(name, str) and name.startswith("#"):
            resource.anchors[name[1:]] = node
        if value.get("$recursiveAnchor") is True and resource.node is node:
            resource.anchors[_RECURSIVE] = node
            resource.dynamic.add(_RECURSIVE)


def _num_names(source: str) -> int | None:
    """How many ids and anchors a text has at most; None where some may be spelled with escapes."""
    if "\\u00" in source and _ESCAPED_LETTER.search(source):
        return None
    found = 0
    if 'id"' in source:
        found = sum(source.endswith(('"', '"$'), 0, at.start()) for at in _ID.finditer(source))
    if 'nchor"' in source:
        begun = ('"$a', '"$dynamicA')
        found += sum(source.endswith(begun, 0, at.start()) for at in _ANCHOR.finditer(source))
    return found


def nested(value: dict[str, Any]) -> Iterator[tuple[str, str | int | None, dict[str, Any]]]:
    """The schemas directly inside a schema, each with the pointer to it, but for its last step if
    that is apart, and that step."""
    for keyword, inner in value.items():
        if keyword in ONE and isinstance(inner, dict):
            yield f"/{keyword}", None, inner
        elif keyword in MANY and isinstance(inner, list):
            yield from ((f"/{keyword}", i, v) for i, v in enumerate(inner) if isinstance(v, dict))
        elif keyword in NAMED and isinstance(inner, dict):
            yield from ((f"/{keyword}", k, v) for k, v in inner.items() if isinstance(v, dict))


def _index(token: str) -> int:
    """The place of an item, by RFC 6901: decimal digits without leading zeros."""
    if token == "0" or (token.isascii() and token.isdigit() and token[0] != "0"):
        return int(token)
    raise ValueError(token)


def draft_of(stated: Any) -> int | None:
    """The draft that a `$schema` names; None when it names none that is known."""
    if isinstance(stated, str):
        for name, draft in _DRAFTS.items():
            if name in stated:
                return draft
    return None


def escape(name: str) -> str:
    """A name as one step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _pointed(key: str, step: str | int | None) -> str:
    """A pointer and one more step, if there is one."""
    if step is None:
        return key
    return f"{key}/{escape(step) if isinstance(step, str) else step}"
