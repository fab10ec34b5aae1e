"""The one intermediate form: every front end produces it, the automaton runs it.

An expression denotes a language. Two kinds of leaf carry symbols:

- `Chars`: a set of Unicode code points. A *text* expression is built from these.
- `Bytes` and `Literal`: a set of byte values, a byte string. *Byte* expressions have these.

A text expression becomes a byte expression by an encoding (`encode.py`): `utf8` for plain output,
or `json_string` for the inside of a JSON string, where a code point may have several spellings.
Both map distinct texts to disjoint sets of byte strings, so complement and intersection carry over.
Only byte expressions reach the automaton.

`And` and `Not` are regular only: below them there is no `Rule`. A `Rule` is a lazy reference into
a context-free grammar: `key` names it (hashable, unique within its grammar), `expand()` gives its
body when the automaton first enters it. A key may carry parameters (how many items came, which
members were seen), so an object of forty optional members costs what the text visits, not what it
could be.

Nodes are immutable and interned: the same construction gives the same object, so `is` compares.
Build them with the functions below, which also apply the cheap identities of each operator.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any
from weakref import ref

from radixgen.errors import InvalidGrammar
from radixgen.grammars.doubts import Doubts

MAX_CODE_POINT = 0x10FFFF
ALL_BYTES = (1 << 256) - 1

Ranges = tuple[tuple[int, int], ...]


class Expr:
    """A node. `args` are its parts; two nodes of one class with equal parts are one object."""

    __slots__ = ("__weakref__", "args", "facts")
    args: tuple[Any, ...]
    facts: Any  # what derivative.py has found out, unset until asked

    def __new__(cls, *args: Any) -> "Expr":
        key = (cls, *args)
        kept = _interned.get(key)
        node = None if kept is None else kept()
        while node is None:
            node = object.__new__(cls)
            node.args = args
            mine = _Kept(node, _forget)
            mine.key = key
            kept = _interned.setdefault(key, mine)
            if kept is not mine:  # another thread was first, or a dead one is not forgotten yet
                node = kept()
                if node is None:
                    _forget(kept)
        return node

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.args!r}"


class _Kept(ref[Expr]):
    """A weak reference to an interned node; WeakValueDictionary does the same at twice the cost."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_interned: dict[tuple[Any, ...], _Kept] = {}


def _forget(kept: ref[Expr]) -> None:
    assert isinstance(kept, _Kept)
    if _interned.get(kept.key) is kept:
        del _interned[kept.key]


class Chars(Expr):
    """One code point out of sorted, disjoint, non-adjacent inclusive ranges."""

    __slots__ = ()

    @property
    def ranges(self) -> Ranges:
        return self.args[0]  # type: ignore[no-any-return]  # args is untyped storage


class Bytes(Expr):
    """One byte out of a set: bit b of `mask` is byte b."""

    __slots__ = ()

    @property
    def mask(self) -> int:
        return self.args[0]  # type: ignore[no-any-return]  # args is untyped storage


class Literal(Expr):
    """A byte string; the empty one is `EPSILON`."""

    __slots__ = ()

    @property
    def value(self) -> bytes:
        return self.args[0]  # type: ignore[no-any-return]  # args is untyped storage


class Concat(Expr):
    """Its parts one after the other; at least two, none of them a `Concat`."""

    __slots__ = ()


class Union(Expr):
    """Any of its parts; none of them a `Union`. Without parts: `EMPTY`, the empty language."""

    __slots__ = ()


class And(Expr):
    """All of its parts at once; regular."""

    __slots__ = ()


class Not(Expr):
    """Every byte (or text) string that its part does not denote; regular."""

    __slots__ = ()

    @property
    def item(self) -> Expr:
        return self.args[0]  # type: ignore[no-any-return]  # args is untyped storage


class Repeat(Expr):
    """`item` from `low` to `high` times; `high` None: without bound."""

    __slots__ = ()

    @property
    def item(self) -> Expr:
        return self.args[0]  # type: ignore[no-any-return]  # args is untyped storage

    @property
    def low(self) -> int:
        return self.args[1]  # type: ignore[no-any-return]  # args is untyped storage

    @property
    def high(self) -> int | None:
        return self.args[2]  # type: ignore[no-any-return]  # args is untyped storage


class Rule:
    """A lazy reference. Compared by identity; a grammar keeps one Rule a key (see `RuleSet`).

    `productive` says whether any string is derivable: a front end that knows states it, and so
    spares the expansion that would find out; None leaves it to `productive.py`. A wrong True leads
    a request into a dead end, so a front end says it only of what it has proven.

    `most` is how many bytes its shortest text has at most, where a front end knows without a
    search among rules; then some next byte leads to one less. None leaves that to the search.
    `way` gives a part of the rule that has a shortest text of it, for that search to follow alone.
    """

    __slots__ = ("_body", "_expand", "key", "most", "normal", "productive", "way")

    @property
    def has_begun(self) -> bool:
        """Whether all its texts surely begin with a byte of its own: none with another rule's, and
        none is empty. Then its body is not looked into for that."""
        return False

    def __init__(
        self,
        key: Hashable,
        expand: Callable[[], "Node"],
        productive: bool | None = None,
        most: int | None = None,
        way: Callable[[], "Node"] | None = None,
    ) -> None:
        self.key = key
        self.productive = productive
        self.most = most
        self.way = way
        self.normal: Node | None = None  # the body as the automaton runs it, see normal_form.py
        self._expand: Callable[[], Node] | None = expand
        self._body: Node | None = None

    def body(self) -> "Node":
        """The rule's right-hand side, expanded on the first call and kept. Of a rule that grammars
        share, threads that come at once may each expand it; they find the same."""
        expand = self._expand
        if expand is not None:
            self._body = expand()
            self._expand = None
        assert self._body is not None
        return self._body

    def __repr__(self) -> str:
        return f"Rule({self.key!r})"


Node = Expr | Rule

EPSILON: Expr = Literal(b"")
EMPTY: Expr = Union()
ANY_BYTE = Bytes(ALL_BYTES)
ANY_CHAR = Chars(((0, 0xD7FF), (0xE000, MAX_CODE_POINT)))


class RuleSet:
    """The rules of one grammar by key, made on first mention. `whole`: that of a grammar which this
    one is a part of, with keys of its own."""

    def __init__(self, whole: "RuleSet | None" = None) -> None:
        self._whole = whole
        self._rules: dict[Hashable, Rule] = {}
        # Whether an intersection or complement has no string, by an engine if it is known.
        self.decide: Callable[[Expr], bool] | None = None if whole is None else whole.decide
        self.has_hooks = False  # then a text has to be kept; known before one is begun
        # What takes long to make, dearest first: seconds of all that one text asks for at once, of
        # this alone, and how to make it.
        self.dear: Sequence[tuple[float, float, Callable[[], Node]]] = ()
        self.doubts: Doubts = Doubts() if whole is None else whole.doubts
        self._is_closed = False

    def rule(
        self,
        key: Hashable,
        expand: Callable[[], Node],
        productive: bool | None = None,
        most: int | None = None,
        way: Callable[[], Node] | None = None,
    ) -> Rule:
        """The rule of that key; what is said of it counts only if the key is new."""
        found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = Rule(key, expand, productive, most, way)
        return found

    def expect_hooks(self) -> None:
        """Say that texts will meet hooks. Raises InvalidGrammar when texts have begun without."""
        if self._whole is not None:
            self._whole.expect_hooks()
        if self._is_closed and not self.has_hooks:
            raise InvalidGrammar("a rule that depends on the text before it was found too late")
        self.has_hooks = True

    def hook(self, key: Hashable, make: Callable[[], Rule]) -> Rule:
        """The hook of that key (see `hook.py`), made if it is new."""
        self.expect_hooks()
        return self._rules.get(key) or self._rules.setdefault(key, make())

    def close(self) -> bool:
        """Texts begin from now on; returns whether they meet hooks."""
        self._is_closed = self.doubts.is_over = True
        return self.has_hooks

    def __len__(self) -> int:
        return len(self._rules)


def _parts(item: Any, kind: type[Expr]) -> tuple[Any, ...]:
    """The parts of a node of that kind, or the item alone: what flattening needs."""
    return item.args if isinstance(item, kind) else (item,)


def literal(value: bytes) -> Expr:
    return Literal(value)


def byte_set(values: Iterable[int]) -> Expr:
    """One byte out of `values`; no value: `EMPTY`."""
    mask = 0
    for value in values:
        mask |= 1 << value
    return Bytes(mask) if mask else EMPTY


def chars(ranges: Iterable[tuple[int, int]]) -> Expr:
    """One code point out of inclusive ranges in any order; none: `EMPTY`."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Chars(tuple(merged)) if merged else EMPTY


def text(value: str) -> Node:
    """A text literal, as a text expression."""
    return concat(*(Chars(((ord(c), ord(c)),)) for c in value))


def concat(*items: Node) -> Node:
    """Items one after the other: flattened, epsilons dropped, neighbouring literals joined."""
    flat: list[Node] = []
    run: list[Expr] = []  # literals since the last other part, joined once: linear in their length
    for item in items:
        parts: tuple[Node, ...] = item.args if type(item) is Concat else (item,)
        for part in parts:
            if type(part) is Literal:
                run.append(part)
                continue
            if part is EMPTY:
                return EMPTY
            if run:
                _flush(run, flat)
            flat.append(part)
    if run:
        _flush(run, flat)
    if len(flat) == 1:
        return flat[0]
    return Concat(*flat) if flat else EPSILON


def _flush(run: list[Expr], flat: list[Node]) -> None:
    """Append the run of literals as one, if anything is in it."""
    whole = run[0] if len(run) == 1 else Literal(b"".join([part.args[0] for part in run]))
    run.clear()
    if whole is not EPSILON:
        flat.append(whole)


def union(*items: Node) -> Node:
    """Any of the items: flattened, duplicates and empties dropped, single symbols merged."""
    seen: dict[Node, None] = {}
    mask = 0
    ranges: list[tuple[int, int]] = []
    for item in items:
        parts: tuple[Any, ...] = item.args if type(item) is Union else (item,)
        for part in parts:
            kind = type(part)
            if kind is Bytes:
                mask |= part.args[0]
            elif kind is Chars:
                ranges.extend(part.args[0])
            else:
                seen[part] = None
    if mask:
        seen[Bytes(mask)] = None
    if ranges:
        seen[chars(ranges)] = None
    return next(iter(seen)) if len(seen) == 1 else Union(*seen)


def repeat(item: Node, low: int, high: int | None) -> Node:
    """`item` from `low` to `high` times (None: without bound)."""
    if high is not None and low > high:
        return EMPTY
    if high == 0 or item is EPSILON:
        return EPSILON
    if item is EMPTY:
        return EPSILON if low == 0 else EMPTY
    if low == high == 1:
        return item
    if isinstance(item, Repeat) and item.args[1:] == (0, None):
        return item
    return Repeat(item, low, high)


def star(item: Node) -> Node:
    return repeat(item, 0, None)


def optional(item: Node) -> Node:
    return union(EPSILON, item)


def conj(*items: Expr) -> Expr:
    """All items at once; no items: every string, as `Not(EMPTY)`."""
    parts: dict[Expr, None] = {}
    part: Expr
    for item in items:
        for part in _parts(item, And):
            if part is EMPTY:
                return EMPTY
            if part is not EVERYTHING:
                parts[part] = None
    merged = _meet_repeats(parts)
    if len(merged) > 1:
        return And(*sorted(merged, key=id))
    return merged[0] if merged else EVERYTHING


def _meet_repeats(parts: Iterable[Expr]) -> list[Expr]:
    """Repeats of one symbol meet in one: both count symbols, so bounds and sets intersect."""
    rest: list[Expr] = []
    met: Expr | None = None
    for part in parts:
        if not (isinstance(part, Repeat) and isinstance(part.item, Bytes | Chars)):
            rest.append(part)
        elif met is None:
            met = part
        else:
            both = _meet(met, part)
            if both is None:  # a byte beside a code point: not one alphabet
                rest.append(part)
            else:
                met = both
    if met is EMPTY or EMPTY in rest:
        return [EMPTY]
    return rest if met is None else [*rest, met]


def _meet(one: Expr, other: Expr) -> Expr | None:
    """The intersection of two repeats of symbols, None where one counts bytes, the other texts."""
    if not (isinstance(one, Repeat) and isinstance(other, Repeat)):
        return EMPTY
    low = max(one.low, other.low)
    highs = [h for h in (one.high, other.high) if h is not None]
    a, b = one.item, other.item
    if isinstance(a, Bytes) and isinstance(b, Bytes):
        item: Expr = Bytes(a.mask & b.mask) if a.mask & b.mask else EMPTY
    elif isinstance(a, Chars) and isinstance(b, Chars):
        item = chars(common(a.ranges, b.ranges))
    else:
        return None
    both = repeat(item, low, min(highs) if highs else None)
    return both if isinstance(both, Expr) else None


@lru_cache(256)
def common(one: Ranges, other: Ranges) -> Ranges:
    """The intersection of two sorted, disjoint sets."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(item: Expr) -> Expr:
    return item.item if isinstance(item, Not) else Not(item)


EVERYTHING: Expr = Not(EMPTY)
