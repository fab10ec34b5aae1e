"""Sequences that grow at their end and whose past copies share: a copy takes no time.

    a:  [ past ........ ][ tail of a ]
    b:  [ past ........ ][ tail of b ]        b = a.copy(), however long the past is

Knows nothing of what is in them.
"""

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Generic, Self, TypeVar

T = TypeVar("T")

MAX_CHUNKS = 64  # of a past, before it is made one


class _Chunk(Generic[T]):
    """Items that will never change, and those before them."""

    __slots__ = ("before", "depth", "items", "start")

    def __init__(self, items: Sequence[T], before: "_Chunk[T] | None") -> None:
        self.items = items
        self.before = before
        self.start: int = before.stop if before else 0
        self.depth: int = before.depth + 1 if before else 1

    @property
    def stop(self) -> int:
        return self.start + len(self.items)


class Shared(Generic[T]):
    """`make` gives an empty list or array. Copies may be written to independently."""

    __slots__ = ("_make", "_parts")

    def __init__(self, make: Callable[[], MutableSequence[T]]) -> None:
        self._make = make
        # One attribute, so that a reader in another thread sees both or neither of its changes.
        self._parts: tuple[_Chunk[T] | None, MutableSequence[T]] = (None, make())

    def __len__(self) -> int:
        past, tail = self._parts
        return len(tail) + (past.stop if past else 0)

    def append(self, item: T) -> None:
        self._parts[1].append(item)

    def extend(self, items: Iterable[T]) -> None:
        self._parts[1].extend(items)

    def copy(self) -> Self:
        """The same items, in O(1); of every 64th copy of a copy the past is put together."""
        past, tail = self._parts
        if tail:
            is_long = past is not None and past.depth >= MAX_CHUNKS
            past = _Chunk(self.since(0), None) if is_long else _Chunk(tail, past)
            self._parts = past, self._make()
        twin = type(self)(self._make)
        twin._parts = past, self._make()
        return twin

    def since(self, start: int) -> MutableSequence[T]:
        """A new list or array of the items from `start` on; looks at no others."""
        chunk, tail = self._parts
        chunks: list[Sequence[T]] = [tail[max(start - (chunk.stop if chunk else 0), 0) :]]
        while chunk is not None and chunk.stop > start:
            chunks.append(chunk.items[max(start - chunk.start, 0) :])
            chunk = chunk.before
        found = self._make()
        for items in reversed(chunks):
            found.extend(items)
        return found
