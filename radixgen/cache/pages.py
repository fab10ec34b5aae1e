"""Owns which KV pages are free, held by a request, or in the tree. Knows page ids, nothing else.

    free --allocate--> held --adopt--> tree
      ^-----release-----'                |
      ^-------------reclaim-------------'

Each page is in exactly one of the three states, so free + held + tree = total at any time.
"""

from collections.abc import Iterable
from typing import Final

FREE: Final = 0
HELD: Final = 1
TREE: Final = 2
_STATES: Final = ("free", "held", "tree")


class OutOfPages(Exception):
    """Fewer free pages than asked for. The scheduler evicts or preempts; no caller sees it."""


class PagePool:
    """`num_pages` page ids, 0 .. num_pages - 1, and the state of each."""

    __slots__ = ("_free", "_state", "num_held", "num_pages", "num_tree")

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages={num_pages}: at least 1")
        self.num_pages = num_pages
        self.num_held = 0
        self.num_tree = 0
        self._state = bytearray(num_pages)
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: low ids leave first

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Free pages become held. Raises OutOfPages and changes nothing when there are too few."""
        if num_pages > len(self._free):
            raise OutOfPages(f"{num_pages} pages wanted, {len(self._free)} free")
        if num_pages <= 0:
            return []
        pages = self._free[-num_pages:]
        del self._free[-num_pages:]
        pages.reverse()
        self._move(pages, FREE, HELD)
        self.num_held += num_pages
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Held pages become free."""
        pages = list(pages)
        self._move(pages, HELD, FREE)
        self.num_held -= len(pages)
        self._free.extend(reversed(pages))

    def adopt(self, pages: Iterable[int]) -> None:
        """Held pages become the tree's."""
        pages = list(pages)
        self._move(pages, HELD, TREE)
        self.num_held -= len(pages)
        self.num_tree += len(pages)

    def reclaim(self, pages: Iterable[int]) -> None:
        """The tree's pages become free."""
        pages = list(pages)
        self._move(pages, TREE, FREE)
        self.num_tree -= len(pages)
        self._free.extend(reversed(pages))

    def state(self, page: int) -> int:
        """FREE, HELD or TREE."""
        return self._state[page]

    def check(self) -> None:
        """Raises AssertionError unless every page is counted once, in the state it is in."""
        counts = [self._state.count(state) for state in (FREE, HELD, TREE)]
        assert counts == [len(self._free), self.num_held, self.num_tree], counts
        assert sum(counts) == self.num_pages
        assert all(self._state[page] == FREE for page in self._free), "a free page is in use"
        assert len(set(self._free)) == len(self._free), "a page is free twice"

    def _move(self, pages: list[int], old: int, new: int) -> None:
        state = self._state
        for page in pages:
            if state[page] != old:
                raise AssertionError(
                    f"page {page} is {_STATES[state[page]]}, not {_STATES[old]}, as it becomes "
                    f"{_STATES[new]}"
                )
            state[page] = new
