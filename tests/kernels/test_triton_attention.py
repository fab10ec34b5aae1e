"""Attention on a GPU, interpreted: equal to the reference over shapes, types and page tables."""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.attention import paged_attention_reference
from radixgen.kernels.kv_types import pack_rows, unpack_rows
from radixgen.kernels.triton.attention import DeviceItems, cost, paged_attention
from radixgen.kernels.triton.attention_items import SPLIT_TOKENS, Items, Tables, make_items


@dataclass(frozen=True, slots=True)
class Case:
    """A step: queries, pages, and the four tables of `paged_attention`."""

    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    tables: tuple[Tensor, Tensor, Tensor, Tensor]

    def items(self, max_rows: int, window: int | None, *, share: bool) -> Items:
        arrays = [table.numpy() for table in self.tables]
        return make_items(Tables(*arrays), self.k_pages.shape[2], max_rows, window, share=share)

    def run(self, max_rows: int = 8, *, share: bool = True, **options: Any) -> Tensor:
        made = self.items(max_rows, options.get("window"), share=share)
        work = DeviceItems.of(made, max_rows, self.q.device)
        return paged_attention(
            self.q, self.k_pages, self.v_pages, work, scale=self.scale, **options
        )

    def expect(self, **options: Any) -> Tensor:
        return paged_attention_reference(
            self.q, self.k_pages, self.v_pages, *self.tables, scale=self.scale, **options
        )

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[2])


def make_case(
    page_size: int, head_dim: int, group: int, dtype: torch.dtype, *, num_kv_heads: int = 2
) -> Case:
    """Sequences that fork from each other at pages, some of many queries and some of one."""
    rng = random.Random(page_size * head_dim + group)
    torch.manual_seed(page_size + head_dim)
    num_pages = 3000 // page_size
    shape = (num_pages, num_kv_heads, page_size, head_dim)
    k_pages, v_pages = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    trunk = [rng.randrange(num_pages) for _ in range(-(-600 // page_size))]
    queries, used, pages, last = [0], [0], list[int](), list[int]()
    for number, (length, count) in enumerate([(560, 1), (540, 2), (290, 1), (9, 9), (1, 1)]):
        needed = -(-length // page_size)
        kept = needed * number // 4
        own = [rng.randrange(num_pages) for _ in range(kept)]
        pages += [*trunk[: needed - kept], *own]
        queries.append(queries[-1] + count)
        used.append(used[-1] + needed)
        last.append(length - (needed - 1) * page_size)
    q = torch.randn(queries[-1], num_kv_heads * group, head_dim).to(dtype)
    tables = [torch.tensor(table, dtype=torch.int32) for table in (queries, used, pages, last)]
    return Case(q, k_pages, v_pages, (tables[0], tables[1], tables[2], tables[3]))


@pytest.mark.parametrize(
    ("page_size", "head_dim", "group", "dtype", "tolerance"),
    [
        (1, 64, 3, torch.float32, 1e-5),
        (16, 128, 1, torch.bfloat16, 2e-2),
        (32, 80, 4, torch.float32, 1e-5),
        (128, 256, 2, torch.bfloat16, 2e-2),
        (64, 32, 7, torch.float32, 1e-5),
        (2, 96, 1, torch.float16, 1e-2),
        (4, 192, 2, torch.float32, 1e-5),
        (8, 64, 8, torch.bfloat16, 2e-2),
    ],
)
def test_equals_the_reference(
    page_size: int, head_dim: int, group: int, dtype: torch.dtype, tolerance: float
) -> None:
    case = make_case(page_size, head_dim, group, dtype)
    torch.testing.assert_close(case.run(), case.expect(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "options", [{"window": 37}, {"softcap": 5.0}, {"window": 300, "softcap": 2.0}]
)
def test_windows_and_softcaps(options: dict[str, Any]) -> None:
    case = make_case(16, 64, 2, torch.float32)
    torch.testing.assert_close(case.run(**options), case.expect(**options), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("page_dtype", "dtype", "tolerance"),
    [
        (torch.int8, torch.float32, 1e-5),
        (torch.int8, torch.bfloat16, 2e-2),
        (torch.float8_e4m3fn, torch.float32, 1e-5),
        (torch.float8_e4m3fn, torch.bfloat16, 2e-2),
    ],
)
def test_pages_of_8_bits_are_as_those_that_they_stand_for(
    page_dtype: torch.dtype, dtype: torch.dtype, tolerance: float
) -> None:
    case = make_case(32, 64, 3, torch.float32)
    scales = torch.tensor([0.5, 0.03]) if page_dtype == torch.float8_e4m3fn else None
    factors = torch.ones(2) if scales is None else scales
    q = case.q.to(dtype)
    factors = factors[:, None, None]
    k, v = (pack_rows(x / factors, page_dtype) for x in (case.k_pages, case.v_pages))
    meant = unpack_rows(k) * factors, unpack_rows(v) * factors
    work = DeviceItems.of(case.items(8, 300, share=True), 8, q.device)
    found = paged_attention(
        q, k, v, work, scale=case.scale, window=300, k_scales=scales, v_scales=scales
    )
    wanted = paged_attention_reference(
        q.float(), *meant, *case.tables, scale=case.scale, window=300
    )
    torch.testing.assert_close(found.float(), wanted, atol=tolerance, rtol=tolerance)


def test_every_byte_of_e4m3_is_read_as_what_it_means() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    pages = values.reshape(8, 1, 1, 32)  # a token a page: attention to one key is its value
    tables = [np.array(table, np.int32) for table in (range(9), range(9), range(8), [1] * 8)]
    work = DeviceItems.of(make_items(Tables(*tables), 1, 8), 8, pages.device)
    one, zeros = torch.ones(1), torch.zeros_like(pages)
    q = torch.zeros(8, 1, 32)
    found = paged_attention(q, zeros, pages, work, scale=1.0, k_scales=one, v_scales=one)
    assert torch.equal(found.isnan(), values.float().view(8, 1, 32).isnan())
    assert torch.equal(found.nan_to_num(0.0), values.float().view(8, 1, 32).nan_to_num(0.0))


def test_shared_pages_are_read_once_and_change_nothing() -> None:
    case = make_case(16, 64, 2, torch.float32)
    shared, alone = case.items(8, None, share=True), case.items(8, None, share=False)
    assert shared.num_slots == alone.num_slots
    assert len(shared.items) < len(alone.items)
    torch.testing.assert_close(case.run(share=True), case.run(share=False), atol=1e-6, rtol=1e-6)


def test_a_sequence_depends_on_itself_alone() -> None:
    """Bitwise, in a tree of several levels or by itself: its keys are cut at the same places."""
    case = make_case(16, 64, 2, torch.bfloat16, num_kv_heads=1)
    whole, lengths = case.run(), case.tables[3]
    queries, used = case.tables[0].tolist(), case.tables[1].tolist()
    for row in range(len(lengths)):
        first, end = queries[row], queries[row + 1]
        tables = (
            torch.tensor([0, end - first], dtype=torch.int32),
            torch.tensor([0, used[row + 1] - used[row]], dtype=torch.int32),
            case.tables[2][used[row] : used[row + 1]],
            lengths[row : row + 1],
        )
        alone = Case(case.q[first:end], case.k_pages, case.v_pages, tables).run()
        assert torch.equal(alone, whole[first:end])


def test_a_tree_of_several_levels_is_read_once_a_node() -> None:
    """A trunk of 512 keys, two branches of 256 on it, and three leaves on each of them."""
    trunk, branches = list(range(32)), [list(range(32, 48)), list(range(48, 64))]
    rows = [trunk + branches[i // 3] + [64 + i] for i in range(6)]
    tables = (
        torch.arange(7, dtype=torch.int32),
        torch.arange(7, dtype=torch.int32) * 49,
        torch.tensor(rows, dtype=torch.int32).flatten(),
        torch.tensor([3, 16, 1, 7, 7, 9], dtype=torch.int32),
    )
    torch.manual_seed(1)
    pages = (torch.randn(70, 1, 16, 64), torch.randn(70, 1, 16, 64))
    case = Case(torch.randn(6, 2, 64), *pages, tables)
    for window in (None, 300):
        found, wanted = case.run(window=window), case.expect(window=window)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    made = case.items(8, None, share=True)
    assert sorted(made.items[:, 1].tolist()) == [1] * 6 + [3, 3] + [6, 6]
    sizes = (2, 1, 64, torch.bfloat16, torch.bfloat16)
    alone = case.items(8, None, share=False)
    keys, all_keys = 512 + 2 * 256 + 43, 6 * 768 + 43
    saved = cost(alone, *sizes).bytes - cost(made, *sizes).bytes
    assert saved == (all_keys - keys) * 2 * 64 * 2
    assert cost(made, *sizes).flops == cost(alone, *sizes).flops == 4 * all_keys * 2 * 64


@pytest.mark.parametrize("window", [None, 50])
def test_every_query_sees_each_of_its_keys_in_one_item(window: int | None) -> None:
    case = make_case(32, 64, 2, torch.float32)
    made = case.items(4, window, share=True)
    queries = case.tables[0].tolist()
    seen: dict[int, list[tuple[int, int]]] = {}
    for first_row, num_rows, _, low, high in made.items.tolist():
        assert num_rows <= 4
        assert high - low <= SPLIT_TOKENS
        assert low % SPLIT_TOKENS == 0
        for query in made.rows[first_row : first_row + num_rows].tolist():
            seen.setdefault(query, []).append((low, high))
    for query in range(queries[-1]):
        position = int(made.positions[query])
        keys = sorted(key for low, high in seen[query] for key in range(low, high))
        assert len(keys) == len(set(keys))
        first = 0 if window is None else max(position - window + 1, 0)
        assert set(range(first, position + 1)) <= set(keys)
        slots = made.merge_slots[made.merge_indptr[query] : made.merge_indptr[query + 1]]
        assert made.rows[slots].tolist() == [query] * len(slots)
        assert len(slots) == len(seen[query])


def test_nothing_to_do() -> None:
    case = make_case(16, 64, 2, torch.float32)
    tables = tuple(torch.zeros(size, dtype=torch.int32) for size in (1, 1, 0, 0))
    empty = Case(case.q[:0], case.k_pages, case.v_pages, tables)  # type: ignore[arg-type]
    assert empty.run().shape == (0, 4, 64)


def test_a_row_of_weights_sums_to_one() -> None:
    case = make_case(16, 64, 2, torch.float32)
    ones = Case(case.q, case.k_pages, torch.ones_like(case.v_pages), case.tables)
    assert torch.allclose(ones.run(), torch.ones(()), atol=1e-6)
    assert math.isfinite(float(ones.run().sum()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"k_pages": (9, 2, 16, 32)}, "k_pages"),
        ({"q": (14, 3, 64)}, "3 heads, 2 KV heads"),
        ({"k_pages": (9, 2, 12, 64), "v_pages": (9, 2, 12, 64)}, "page_size=12"),
        ({"q": (14, 4, 72), "k_pages": (9, 2, 16, 72), "v_pages": (9, 2, 16, 72)}, "head_dim=72"),
    ],
)
def test_shapes_that_no_kernel_takes_are_refused(change: dict[str, Any], reason: str) -> None:
    case = make_case(16, 64, 2, torch.float32)
    shapes = {"q": case.q.shape, "k_pages": case.k_pages.shape, "v_pages": case.v_pages.shape}
    given = {name: torch.zeros(shape) for name, shape in (shapes | change).items()}
    work = DeviceItems.of(case.items(8, None, share=True), 8, case.q.device)
    with pytest.raises(KernelError, match=reason):
        paged_attention(given["q"], given["k_pages"], given["v_pages"], work, scale=1.0)


def test_scales_are_asked_for_where_pages_have_none() -> None:
    case = make_case(16, 64, 2, torch.float32)
    work = DeviceItems.of(case.items(8, None, share=True), 8, case.q.device)
    pages = case.k_pages.to(torch.float8_e4m3fn)
    with pytest.raises(KernelError, match="k_scales"):
        paged_attention(case.q, pages, pages, work, scale=1.0)
