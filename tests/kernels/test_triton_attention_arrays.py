"""Work items made of whole arrays are those that are built one by one."""

import random

import numpy as np
import pytest

from radixgen.kernels.triton import attention_arrays, attention_items
from radixgen.kernels.triton.attention_items import Items, Tables


def random_tables(rng: random.Random, page_size: int) -> Tables:
    """Sequences that leave each other at pages, of the same length now and then; some without a
    query."""
    trunk = [rng.randrange(1000) for _ in range(1 + 900 // page_size)]
    queries, used, pages, last = [0], [0], list[int](), list[int]()
    for _ in range(rng.randrange(1, 9)):
        length = rng.choice([1, 255, 256, 257, 512, rng.randrange(1, 900), 900])
        needed = -(-length // page_size)
        kept = rng.choice([0, needed // 3, needed, needed])
        own = [rng.randrange(1000) for _ in range(needed - kept)]
        if rng.random() < 0.2:  # the same pages behind others: not shared
            own = trunk[kept:needed]
            trunk[:1] = [rng.randrange(1000)]
        pages += [*trunk[:kept], *own]
        queries.append(queries[-1] + min(length, rng.choice([0, 1, 1, 3, 300])))
        used.append(used[-1] + needed)
        last.append(length - (needed - 1) * page_size)
    return Tables(*(np.array(table, np.int32) for table in (queries, used, pages, last)))


def described(items: Items, page_size: int) -> tuple[list[object], list[object]]:
    """Items as who reads what, in an order of its own, and what each query merges."""
    found: list[object] = []
    for first, count, page, low, high in items.items.tolist():
        num_pages = -(-high // page_size) - low // page_size
        read = tuple(items.pages[page : page + num_pages].tolist())
        found.append((low, high, read, tuple(items.rows[first : first + count].tolist())))
    item_of = np.repeat(np.arange(len(items.items)), items.items[:, 1])
    merged: list[object] = []
    for start, end in zip(items.merge_indptr[:-1], items.merge_indptr[1:], strict=True):
        slots = items.merge_slots[start:end]
        merged.append((items.rows[slots].tolist(), items.items[item_of[slots], 3].tolist()))
    return sorted(found, key=repr), merged


@pytest.mark.parametrize("page_size", [1, 16, 128, 512])
@pytest.mark.parametrize("window", [None, 1, 70, 300])
def test_they_are_those_built_one_by_one(page_size: int, window: int | None) -> None:
    rng = random.Random(page_size)
    for _ in range(25):
        tables = random_tables(rng, page_size)
        for share in (True, False):
            for max_rows in (1, 16):
                wanted, found = (
                    module.make_items(tables, page_size, max_rows, window, share=share)
                    for module in (attention_items, attention_arrays)
                )
                assert described(found, page_size) == described(wanted, page_size)
                assert np.array_equal(found.positions, wanted.positions)
                assert np.array_equal(found.merge_indptr, wanted.merge_indptr)
                for name in Items.__slots__:
                    assert getattr(found, name).dtype == np.int32


def test_hashes_that_meet_by_chance_join_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page has the same hash: pages are compared all the same."""
    monkeypatch.setattr(attention_arrays, "_FACTORS", np.zeros(1 << 16, np.uint64))
    rng = random.Random(5)
    for _ in range(10):
        tables = random_tables(rng, 16)
        made = attention_arrays.make_items(tables, 16, 16)
        for first, count, page, low, high in made.items.tolist():
            read = made.pages[page : page - (-high // 16) - low // 16].tolist()
            for query in made.rows[first : first + count].tolist():
                row = int(np.searchsorted(tables.qo_indptr, query, side="right")) - 1
                assert tables.pages(row)[low // 16 : -(-high // 16)].tolist() == read


def test_no_sequence_is_no_item() -> None:
    none = np.zeros(0, np.int32)
    made = attention_arrays.make_items(
        Tables(np.zeros(1, np.int32), np.zeros(1, np.int32), none, none), 16, 8
    )
    assert made.items.shape == (0, 5)
    assert made.num_slots == len(made.pages) == len(made.merge_slots) == 0
