"""Work items for attention over pages of 2 and 4 bits and the few in full precision beside them.

    keys of a query at p    sinks  |  quantised, cut at SPLIT_TOKENS  |  first_recent(p) .. p
    items                   plain  |  coarse, shared as elsewhere     |  plain

Which keys are which is the law of kernels/kivi.py. Coarse and plain items are launches of two
kernels; their slots lie in one array and are merged from left to right by a third. Knows page
tables as numbers; no tensors of the device, no requests.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from radixgen.kernels.checks import require
from radixgen.kernels.kivi import PAGE_SIZE, KiviForm
from radixgen.kernels.triton.attention_items import (
    Ints,
    ItemBuilder,
    Items,
    Tables,
    key_runs,
    positions_of,
    queries_of,
)


@dataclass(frozen=True, slots=True)
class KiviItems:
    """The items of a step. `work.items` are the coarse ones, then the plain ones.

    recent [queries] int32: the first key of each that is no longer read from quantised pages.
    """

    work: Items
    num_coarse: int
    recent: Ints


def make_kivi_items(
    tables: Tables,
    plain_indices: Ints,
    form: KiviForm,
    max_rows: int,
    window: int | None = None,
    *,
    share: bool = True,
) -> KiviItems:
    """Items of at most `max_rows` queries each. plain_indices: like tables.kv_indices, where a page
    lies in full precision, or -1.

    Raises KernelError when a page that is seen in full precision lies nowhere.
    """
    positions = positions_of(tables, PAGE_SIZE)
    recent = positions // form.run * form.run  # form.first_recent of all at once
    recent = np.where(recent > form.sink, recent, 0).astype(np.int32)
    coarse = _coarse_tables(tables, recent)
    builder = ItemBuilder(PAGE_SIZE, max_rows, window, positions)
    for rows, first, end in key_runs(coarse, PAGE_SIZE, share=share):
        first = max(first, form.sink)
        builder.add(queries_of(tables, rows), recent - 1, coarse.pages(rows[0]), first, end)
    num_coarse = builder.num_items
    plain = Tables(tables.qo_indptr, tables.kv_indptr, plain_indices, tables.kv_last_page_len)
    _add_sinks(builder, plain, form, positions, recent)
    for row in range(len(plain.kv_last_page_len)):
        queries = queries_of(plain, [row])
        for first in np.unique(recent[queries]).tolist():
            own = queries[recent[queries] == first]
            builder.add(own, positions, plain.pages(row), first, int(positions[own[-1]]) + 1)
    work = builder.build()
    require(
        not bool((work.pages < 0).any()), "a page that is seen in full precision is not at hand"
    )
    return KiviItems(work, num_coarse, recent)


def _coarse_tables(tables: Tables, recent: Ints) -> Tables:
    """The pages of each sequence that any of its queries sees quantised."""
    batch = len(tables.kv_last_page_len)
    ends = [int(recent[queries_of(tables, [row])].max(initial=0)) for row in range(batch)]
    counts = np.array(ends, np.int32) // PAGE_SIZE
    kept = [tables.pages(row)[:count] for row, count in enumerate(counts)]
    return Tables(
        tables.qo_indptr,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.concatenate(kept) if kept else tables.kv_indices[:0],
        np.where(counts > 0, PAGE_SIZE, 0).astype(np.int32),
    )


def _add_sinks(
    builder: ItemBuilder, plain: Tables, form: KiviForm, positions: Ints, recent: Ints
) -> None:
    """The sinks, for the queries whose own run does not begin with them; the same ones once."""
    alike: dict[bytes, list[int]] = defaultdict(list)
    for row in range(len(plain.kv_last_page_len)):
        alike[plain.pages(row)[: form.sink_pages].tobytes()].append(row)
    for rows in alike.values():
        queries = queries_of(plain, rows)
        queries = queries[recent[queries] > 0]
        builder.add(queries, positions, plain.pages(rows[0]), 0, form.sink)
