"""Cuts a step's attention into work items for a GPU: who reads which keys, and what is merged.

An item is a run of keys that some queries read together. Keys are cut at multiples of SPLIT_TOKENS
of a sequence, whatever page, chunk or batch, and each query merges its items from left to right: so
its result does not depend on who else is in the step. Sequences whose page tables begin with the
same pages share the items of those pages (Hydragen, J. Juravsky et al., 2024; here on every level
of the tree that the tables spell):

    pages  a a a b b          sequence 0      items:  [a a a | 0 1 2]  [b b | 0 1]
           a a a b b c        sequence 1              [c | 1]  [d | 2]
           a a a d            sequence 2              queries, those of all heads of a group

Knows page tables as numbers; no tensors of the device, no requests.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPLIT_TOKENS = 256
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tables:
    """As `paged_attention` takes them, on the CPU: int32 [batch + 1], [batch + 1], [pages used],
    [batch]."""

    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints

    def pages(self, row: int) -> Ints:
        return self.kv_indices[self.kv_indptr[row] : self.kv_indptr[row + 1]]

    def length(self, row: int, page_size: int) -> int:
        """KV tokens of a sequence."""
        num_pages = int(self.kv_indptr[row + 1] - self.kv_indptr[row])
        return max(num_pages - 1, 0) * page_size + int(self.kv_last_page_len[row])


@dataclass(frozen=True, slots=True)
class Items:
    """What the kernel reads. A slot is a partial result of one query: (max, sum, out) a head.

    items [n, ITEM_FIELDS] int32: first of `rows`, number of rows, first of `pages`, first key and
    end of keys (positions in the sequence); the slot of row i of an item is its place in `rows`.
    rows: queries of the items, one after the other. positions [queries]: each one's own.
    merge_indptr [queries + 1] and merge_slots: a query's slots from left to right.
    """

    items: Ints
    rows: Ints
    pages: Ints
    positions: Ints
    merge_indptr: Ints
    merge_slots: Ints

    @property
    def num_slots(self) -> int:
        return len(self.rows)


ITEM_FIELDS = 5


def make_items(
    tables: Tables, page_size: int, max_rows: int, window: int | None = None, *, share: bool = True
) -> Items:
    """Items of at most `max_rows` queries each. `window`: keys before it are in no item.

    Plain and slow; `attention_arrays.make_items` gives the same.
    """
    positions = positions_of(tables, page_size)
    builder = ItemBuilder(page_size, max_rows, window, positions)
    for rows, first, end in key_runs(tables, page_size, share=share):
        builder.add(queries_of(tables, rows), positions, tables.pages(rows[0]), first, end)
    return builder.build()


def positions_of(tables: Tables, page_size: int) -> Ints:
    """Of every query, in its sequence; the last query is the last KV token."""
    counts = np.diff(tables.qo_indptr)
    lengths = np.array([tables.length(row, page_size) for row in range(len(counts))], np.int32)
    shifts = np.repeat(lengths - tables.qo_indptr[1:], counts)
    return (np.arange(len(shifts)) + shifts).astype(np.int32)


def queries_of(tables: Tables, rows: Sequence[int]) -> Ints:
    """The queries of some sequences."""
    starts, ends = tables.qo_indptr[:-1], tables.qo_indptr[1:]
    return _joined([np.arange(starts[row], ends[row], dtype=np.int32) for row in rows])


def key_runs(
    tables: Tables, page_size: int, *, share: bool = True
) -> list[tuple[list[int], int, int]]:
    """(sequences, first key, end of keys): of every sequence all keys, those that several share
    once."""
    batch = len(tables.kv_last_page_len)
    if share:
        return _shared_runs(tables, page_size, batch)
    return [([row], 0, tables.length(row, page_size)) for row in range(batch)]


def _shared_runs(tables: Tables, page_size: int, batch: int) -> list[tuple[list[int], int, int]]:
    """(sequences, first key, end of keys) for every run of keys that the same sequences have.

    A run ends at a multiple of SPLIT_TOKENS unless it is the end of its sequences, so that sharing
    cuts nowhere where a sequence alone would not be cut.
    """
    step = SPLIT_TOKENS // page_size if page_size <= SPLIT_TOKENS else 0
    runs: list[tuple[list[int], int, int]] = []
    waiting: list[tuple[list[int], int]] = [(list(range(batch)), 0)]
    while waiting:
        rows, split = waiting.pop()
        if not step or len(rows) == 1:
            runs += [([row], split * SPLIT_TOKENS, tables.length(row, page_size)) for row in rows]
            continue
        alike: dict[bytes, list[int]] = defaultdict(list)
        for row in rows:
            whole = tables.length(row, page_size) // SPLIT_TOKENS
            key = tables.pages(row)[split * step : (split + 1) * step].tobytes()
            alike[key if split < whole else f"end {row}".encode()].append(row)
        for group in alike.values():
            if len(group) == 1:
                row = group[0]
                runs.append((group, split * SPLIT_TOKENS, tables.length(row, page_size)))
            else:
                runs.append((group, split * SPLIT_TOKENS, (split + 1) * SPLIT_TOKENS))
                waiting.append((group, split + 1))
    return runs


class ItemBuilder:
    """Collects items. `positions`: of every query of the step."""

    def __init__(self, page_size: int, max_rows: int, window: int | None, positions: Ints) -> None:
        self._page_size = page_size
        self._max_rows = max_rows
        self._window = window
        self._positions = positions
        self._items: list[tuple[int, int, int, int, int]] = []
        self._rows: list[Ints] = []
        self._pages: list[Ints] = []
        self._num_rows = self._num_pages = 0
        self._slots: list[tuple[int, int]] = []  # (first key, slot) in the order of slots

    @property
    def num_items(self) -> int:
        return len(self._items)

    def add(self, queries: Ints, last_seen: Ints, pages: Ints, first: int, end: int) -> None:
        """Keys [first, end) of a sequence's pages for those of some queries that see any of them.

        last_seen: of every query of the step, the last key that it sees.
        """
        while first < end:
            high = min(first // SPLIT_TOKENS * SPLIT_TOKENS + SPLIT_TOKENS, end)
            seen = last_seen[queries] >= first
            if self._window is not None:
                seen &= self._positions[queries] - self._window < high - 1
            used = pages[first // self._page_size : -(-high // self._page_size)]
            self._add_split(queries[seen], used, first, high)
            first = high

    def _add_split(self, queries: Ints, used: Ints, low: int, high: int) -> None:
        if not len(queries):
            return
        page_start, self._num_pages = self._num_pages, self._num_pages + len(used)
        self._pages.append(used)
        for start in range(0, len(queries), self._max_rows):
            part = queries[start : start + self._max_rows]
            self._items.append((self._num_rows, len(part), page_start, low, high))
            self._slots += [(low, self._num_rows + i) for i in range(len(part))]
            self._rows.append(part)
            self._num_rows += len(part)

    def build(self) -> Items:
        rows = _joined(self._rows)
        lows = np.array([low for low, _ in self._slots], np.int64)
        order = np.lexsort((lows, rows)).astype(np.int32)  # by query, then from left to right
        counts = np.bincount(rows, minlength=len(self._positions))
        return Items(
            items=np.array(self._items, np.int32).reshape(-1, ITEM_FIELDS),
            rows=rows,
            pages=_joined(self._pages),
            positions=self._positions,
            merge_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            merge_slots=order,
        )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)
