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
    """Items of at most `max_rows` queries each. `window`: keys before it are in no item."""
    builder = _Builder(tables, page_size, max_rows, window)
    batch = len(tables.kv_last_page_len)
    if share:
        for rows, first, end in _shared_runs(tables, page_size, batch):
            builder.add(rows, first, end)
    else:
        for row in range(batch):
            builder.add([row], 0, tables.length(row, page_size))
    return builder.build()


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


class _Builder:
    def __init__(self, tables: Tables, page_size: int, max_rows: int, window: int | None) -> None:
        self._tables = tables
        self._page_size = page_size
        self._max_rows = max_rows
        self._window = window
        self._items: list[tuple[int, int, int, int, int]] = []
        self._rows: list[Ints] = []
        self._pages: list[Ints] = []
        self._num_rows = self._num_pages = 0
        starts, ends = tables.qo_indptr[:-1], tables.qo_indptr[1:]
        lengths = [tables.length(row, page_size) for row in range(len(starts))]
        self._first = np.array(lengths, np.int32) - (ends - starts)  # position of a first query
        self.positions = np.concatenate(
            [np.arange(a, a + b - s) for a, s, b in zip(self._first, starts, ends, strict=True)]
            or [np.zeros(0)]
        ).astype(np.int32)
        self._slots: list[tuple[int, int]] = []  # (first key, slot) in the order of slots

    def add(self, sequences: Sequence[int], first: int, end: int) -> None:
        """Keys [first, end) for all queries of some sequences that can see any of them."""
        for low in range(first, end, SPLIT_TOKENS):
            self._add_split(sequences, low, min(low + SPLIT_TOKENS, end))

    def _add_split(self, sequences: Sequence[int], low: int, high: int) -> None:
        queries = np.concatenate([self._seeing(row, low, high) for row in sequences])
        if not len(queries):
            return
        pages = self._tables.pages(sequences[0])
        used = pages[low // self._page_size : -(-high // self._page_size)]
        page_start, self._num_pages = self._num_pages, self._num_pages + len(used)
        self._pages.append(used)
        for start in range(0, len(queries), self._max_rows):
            part = queries[start : start + self._max_rows]
            self._items.append((self._num_rows, len(part), page_start, low, high))
            self._slots += [(low, self._num_rows + i) for i in range(len(part))]
            self._rows.append(part)
            self._num_rows += len(part)

    def _seeing(self, row: int, low: int, high: int) -> Ints:
        """The queries of a sequence that see a key of [low, high)."""
        start, end = int(self._tables.qo_indptr[row]), int(self._tables.qo_indptr[row + 1])
        queries = np.arange(start, end, dtype=np.int32)
        positions = self.positions[start:end]
        seen = positions >= low
        if self._window is not None:
            seen &= positions - self._window < high - 1
        return queries[seen]

    def build(self) -> Items:
        rows = _joined(self._rows)
        lows = np.array([low for low, _ in self._slots], np.int64)
        order = np.lexsort((lows, rows)).astype(np.int32)  # by query, then from left to right
        counts = np.bincount(rows, minlength=len(self.positions))
        return Items(
            items=np.array(self._items, np.int32).reshape(-1, ITEM_FIELDS),
            rows=rows,
            pages=_joined(self._pages),
            positions=self.positions,
            merge_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            merge_slots=order,
        )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)
