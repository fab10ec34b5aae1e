"""Plain schemas that a native engine reads by itself: see `native/schemas.c`.

Owns what the engine asks of the front end then: fixed nodes, and scalars that only a front end can
read. Knows no keyword and no lock; the engine that has one calls here while it holds it.
"""

import contextlib
import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radixgen.errors import InvalidGrammar
from radixgen.grammars.chain import Marks
from radixgen.grammars.expr import Node
from radixgen.grammars.native_nodes import NativeNodes

MAX_SOURCE = 1 << 18  # characters; others wait while the engine reads
_MANY_NAMES = 16  # of an object, among which the first mask has to tell
_NODE = -1  # what the engine asks of a form that has a text: its node; else whether it has one


@dataclass(frozen=True, slots=True, eq=False)
class PlainSchemas:
    """What a front end says, for one layout. `nodes`: any value, string, number, integer, boolean,
    null. `scalars` reads a schema that speaks of scalars: how to make its node, or None where it is
    not surely right, or not sure to have a value."""

    nodes: Sequence[Node]
    members: Marks
    items: Marks
    scalars: Callable[[bytes], Callable[[], Node] | None]


class NativeSchemas:
    """The forms that the engine at `at` has made of schemas, among the rules of `nodes`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        at: int,
        nodes: NativeNodes,
        scalars: Callable[[bytes], Callable[[], Node] | None],
    ) -> None:
        self._library, self._at, self._checked, self._nodes = library, at, nodes.checked, nodes
        self._scalars = scalars
        self._fixed: dict[PlainSchemas, array[int]] = {}

    def read(self, source: bytes, plain: PlainSchemas) -> int | None:
        """The form of a schema, the first that it has; None for one that the front end reads."""
        fixed = self._fixed.get(plain)
        if fixed is None:
            fixed = self._fixed[plain] = self._fixed_nodes(plain)
        fixed_at = fixed.buffer_info()[0]
        form: int = self._library.rx_schema(self._at, source, len(source), fixed_at)
        self._nodes.note_own_rules()
        if form < 0:
            with contextlib.suppress(InvalidGrammar):  # a limit is the front end's to meet
                self._checked(form)
        return form - 1 if form > 0 else None

    def _fixed_nodes(self, plain: PlainSchemas) -> "array[int]":
        """The ids of nodes that no schema changes, in the order of native/engine.h."""
        found = array("I", map(self._nodes.kept, plain.nodes))
        return found + self._nodes.mark_nodes(plain.members) + self._nodes.mark_nodes(plain.items)

    def value(self, form: int) -> int:
        """The node of the values of a form."""
        return self._checked(self._library.rx_form(self._at, form))

    def next_text(self, form: int) -> int:
        """The first form from this one on that the front end has to read yet; -1 for none."""
        found: int = self._library.rx_next_text(self._at, form)
        return found

    def next_wide(self, form: int) -> int:
        """The first form from this one on of objects with many names; -1 for none."""
        found: int = self._library.rx_next_wide(self._at, form, _MANY_NAMES)
        return found

    def answer(self, form: int, what: int) -> int:
        """What the engine asks about a form that has a text."""
        make = self._scalars(self._library.rx_form_text(self._at, form))
        if what != _NODE:
            return int(make is not None)
        assert make is not None  # it was asked before
        return self._nodes.kept(make())
