"""Work items of a step by whole arrays: what `attention_items` builds one by one, many times
sooner, for a step is planned while the device waits.

    part    one sequence's queries at one split of its keys
    run     parts that read the same pages, by the hash of all pages up to there: one or more items

    parts, run by run    | 0 1 2 | 0 1 2 | 0 1 | 2 | ...        their queries, one after the other
    items                | max_rows | rest |                    of each run

Knows page tables as numbers; no tensors of the device, no requests.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixgen.kernels.triton.attention_items import ITEM_FIELDS, SPLIT_TOKENS, Items, Tables

Numbers = NDArray[Any]  # whole ones
_FACTORS = np.random.default_rng(0).integers(1, 2**63, 1 << 16, dtype=np.uint64) * 2 + 1


@dataclass(frozen=True, slots=True)
class _Parts:
    """Columns, one entry a part: its sequence, the split's keys, and its first query and count."""

    row: Numbers
    low: Numbers
    high: Numbers
    query: Numbers
    count: Numbers

    def take(self, chosen: NDArray[Any]) -> "_Parts":
        columns = (self.row, self.low, self.high, self.query, self.count)
        return _Parts(*(column[chosen] for column in columns))


def make_items(
    tables: Tables, page_size: int, max_rows: int, window: int | None = None, *, share: bool = True
) -> Items:
    """Items of at most `max_rows` queries each. `window`: keys before it are in no item."""
    counts = np.diff(tables.qo_indptr).astype(np.int64)
    num_pages = np.diff(tables.kv_indptr).astype(np.int64)
    lengths = np.maximum(num_pages - 1, 0) * page_size + tables.kv_last_page_len
    parts = _parts(tables, counts, lengths, window)
    if share and page_size <= SPLIT_TOKENS and len(counts) > 1:
        heads = _runs(tables, page_size, lengths, parts)
    else:
        heads = np.arange(len(parts.row))
    order = np.argsort(heads, kind="stable")  # run by run, in each by sequence
    parts, heads = parts.take(order), heads[order]
    return _assemble(tables, parts, heads, page_size, max_rows, counts, lengths)


def _parts(tables: Tables, counts: Numbers, lengths: Numbers, window: int | None) -> _Parts:
    """Every split of every sequence that any of its queries sees."""
    splits = -(-lengths // SPLIT_TOKENS)
    row = np.repeat(np.arange(len(counts)), splits)
    low = _ranges(splits) * SPLIT_TOKENS
    high = np.minimum(low + SPLIT_TOKENS, lengths[row])
    first = (lengths - counts)[row]  # position of a sequence's first query
    start, end = np.maximum(first, low), lengths[row]
    if window is not None:
        end = np.minimum(end, high - 1 + window)
    seen = end > start
    made = _Parts(row, low, high, tables.qo_indptr[row] + start - first, end - start)
    return made.take(seen)


def _runs(tables: Tables, page_size: int, lengths: Numbers, parts: _Parts) -> Numbers:
    """For each part the first part that reads the same pages: itself where it is alone.

    A hash may be that of other pages too, so pages are compared before they are taken as the same.
    """
    step = SPLIT_TOKENS // page_size
    whole = lengths // SPLIT_TOKENS
    widest = int(whole.max(initial=0)) * step
    alone = np.arange(len(parts.row))
    if not widest:
        return alone
    pages = _page_matrix(tables, widest)
    factors = np.resize(_FACTORS, widest)
    terms = ((pages.astype(np.uint64) + 1) * factors).reshape(len(pages), -1, step)
    # Wraps around: what all pages up to the end of a split say.
    hashes = np.cumsum(terms.sum(axis=2, dtype=np.uint64), axis=1, dtype=np.uint64)
    split = parts.low // SPLIT_TOKENS
    full = np.flatnonzero(split < whole[parts.row])
    keys = hashes[parts.row[full], split[full]]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    heads = alone.copy()
    heads[full] = full[first[inverse]]
    shared = np.flatnonzero(heads != alone)
    ends = (split[shared] + 1) * step
    same = _same_beginnings(pages, parts.row[shared], parts.row[heads[shared]], ends)
    same &= split[shared] == split[heads[shared]]
    heads[shared[~same]] = shared[~same]
    return heads


def _page_matrix(tables: Tables, width: int) -> NDArray[np.int32]:
    """The first pages of every sequence [sequences, width], -1 beyond its last."""
    used = np.minimum(np.diff(tables.kv_indptr), width)
    pages = np.full((len(used), width), -1, np.int32)
    at = _ranges(used)
    row = np.repeat(np.arange(len(used)), used)
    pages[row, at] = tables.kv_indices[tables.kv_indptr[row] + at]
    return pages


def _same_beginnings(
    pages: NDArray[np.int32], ours: Numbers, theirs: Numbers, ends: Numbers
) -> NDArray[np.bool_]:
    """Whether two sequences have the same first `ends` pages; a pair of them is compared once."""
    pairs, inverse = np.unique(ours * len(pages) + theirs, return_inverse=True)
    differs = pages[pairs // len(pages)] != pages[pairs % len(pages)]
    width = pages.shape[1]
    alike = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
    same: NDArray[np.bool_] = alike[inverse] >= ends
    return same


def _assemble(
    tables: Tables,
    parts: _Parts,
    heads: Numbers,
    page_size: int,
    max_rows: int,
    counts: Numbers,
    lengths: Numbers,
) -> Items:
    """Items of parts that lie run by run."""
    starts = np.flatnonzero(np.diff(heads, prepend=-1))  # the first part of each run
    slot_ends = np.cumsum(parts.count)
    first_slot = slot_ends[starts] - parts.count[starts]
    run_slots = np.diff(np.append(first_slot, slot_ends[-1] if len(slot_ends) else 0))
    low, high = parts.low[starts], parts.high[starts]
    page, page_end = low // page_size, -(-high // page_size)
    run_pages = page_end - page
    first_page = np.cumsum(run_pages) - run_pages
    table = tables.kv_indptr[parts.row[starts]] + page

    num_items = -(-run_slots // max_rows)
    run, inner = np.repeat(np.arange(len(starts)), num_items), _ranges(num_items) * max_rows
    items = np.empty((len(run), ITEM_FIELDS), np.int32)
    items[:, 0] = first_slot[run] + inner
    items[:, 1] = np.minimum(run_slots[run] - inner, max_rows)
    items[:, 2], items[:, 3], items[:, 4] = first_page[run], low[run], high[run]

    rows = np.repeat(parts.query, parts.count) + _ranges(parts.count)
    order = np.lexsort((np.repeat(parts.low, parts.count), rows))  # by query, from left to right
    shifts = np.repeat(lengths - tables.qo_indptr[1:], counts)
    merged = np.bincount(rows, minlength=len(shifts))
    return Items(
        items=items,
        rows=rows.astype(np.int32),
        pages=tables.kv_indices[np.repeat(table, run_pages) + _ranges(run_pages)].astype(np.int32),
        positions=(np.arange(len(shifts)) + shifts).astype(np.int32),
        merge_indptr=np.concatenate([[0], np.cumsum(merged)]).astype(np.int32),
        merge_slots=order.astype(np.int32),
    )


def _ranges(counts: NDArray[Any]) -> Numbers:
    """0 .. counts[0] - 1, 0 .. counts[1] - 1, ..."""
    ends = np.cumsum(counts)
    found: Numbers = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return found
