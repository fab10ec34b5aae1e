"""Pages of 2 and 4 bits on a GPU, interpreted: equal to the reference over shapes and tables."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.kivi import (
    PAGE_SIZE,
    KiviForm,
    kivi_attention_reference,
    quantize_pages,
)
from radixgen.kernels.triton.attention import cost as attention_cost
from radixgen.kernels.triton.attention_items import SPLIT_TOKENS, Tables
from radixgen.kernels.triton.kivi import (
    DeviceKiviItems,
    cost,
    kivi_attention,
    store_cost,
    store_pages,
)
from radixgen.kernels.triton.kivi_items import KiviItems, make_kivi_items

LENGTHS = [(420, 1), (400, 2), (260, 12), (4, 4), (1, 1)]  # of a sequence: KV tokens, queries
MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A step over pages whose contents have nothing to do with each other."""

    form: KiviForm
    q: Tensor
    pages: tuple[Tensor, Tensor]
    plain: tuple[Tensor, Tensor]
    tables: tuple[Tensor, Tensor, Tensor, Tensor]
    plain_indices: Tensor

    def items(self, window: int | None = None, *, share: bool = True) -> KiviItems:
        tables = Tables(*(table.numpy() for table in self.tables))
        return make_kivi_items(
            tables, self.plain_indices.numpy(), self.form, MAX_ROWS, window, share=share
        )

    def run(self, *, share: bool = True, **options: Any) -> Tensor:
        made = self.items(options.get("window"), share=share)
        work = DeviceKiviItems.of(made, MAX_ROWS, self.q.device)
        return kivi_attention(
            self.q, self.pages, self.plain, self.form, work, scale=0.125, **options
        )

    def expect(self, **options: Any) -> Tensor:
        return kivi_attention_reference(
            self.q, self.pages, self.plain, self.form, self.tables, self.plain_indices,
            scale=0.125, **options,
        )  # fmt: skip


def make_case(
    form: KiviForm, head_dim: int = 64, group: int = 2, dtype: torch.dtype = torch.float32
) -> Case:
    """Sequences that fork from each other at pages, some of many queries and some of one."""
    rng, generator = random.Random(3), torch.Generator().manual_seed(4)
    shape = (40, 2, PAGE_SIZE, head_dim)
    k, v, plain_k, plain_v = (torch.randn(shape, generator=generator) for _ in range(4))
    trunk = [rng.randrange(40) for _ in range(18)]
    tables: tuple[list[int], ...] = ([0], [0], [], [])
    plain_indices = list[int]()
    for number, (length, count) in enumerate(LENGTHS):
        used = -(-length // PAGE_SIZE)
        kept = used * number // 4
        tables[0].append(tables[0][-1] + count)
        tables[1].append(tables[1][-1] + used)
        tables[2].extend(trunk[: used - kept] + [rng.randrange(40) for _ in range(kept)])
        tables[3].append(length - (used - 1) * PAGE_SIZE)
        recent = form.first_recent(length - count) // PAGE_SIZE
        needed = [place < form.sink_pages or place >= recent for place in range(used)]
        plain_indices += [rng.randrange(40) if needs else -1 for needs in needed]
    q = torch.randn(tables[0][-1], 2 * group, head_dim, generator=generator).to(dtype)
    narrow = [torch.tensor(table, dtype=torch.int32) for table in tables]
    return Case(
        form, q, quantize_pages(k, v, form.bits), (plain_k.to(dtype), plain_v.to(dtype)),
        (narrow[0], narrow[1], narrow[2], narrow[3]),
        torch.tensor(plain_indices, dtype=torch.int32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "head_dim", "group", "dtype", "tolerance", "options"),
    [
        (KiviForm(2), 64, 3, torch.float32, 1e-5, {}),
        (KiviForm(4, recent_pages=4), 128, 1, torch.bfloat16, 2e-2, {}),
        (KiviForm(4, recent_pages=2, sink_pages=1), 64, 2, torch.float32, 1e-5, {"window": 70}),
        (KiviForm(2, recent_pages=3, sink_pages=4), 32, 4, torch.float32, 1e-5, {"softcap": 2.0}),
    ],
)
def test_equals_the_reference(
    form: KiviForm,
    head_dim: int,
    group: int,
    dtype: torch.dtype,
    tolerance: float,
    options: dict[str, Any],
) -> None:
    case = make_case(form, head_dim, group, dtype)
    found, wanted = case.run(**options), case.expect(**options)
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


def test_shared_pages_are_read_once_and_change_nothing() -> None:
    case = make_case(KiviForm(4, sink_pages=1), group=1)
    shared, alone = case.items(share=True), case.items(share=False)
    assert shared.work.num_slots == alone.work.num_slots
    assert shared.num_coarse < alone.num_coarse
    torch.testing.assert_close(case.run(share=True), case.run(share=False), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("form", [KiviForm(2), KiviForm(2, 3, 4), KiviForm(4, 16, 9)])
def test_every_query_sees_each_of_its_keys_in_one_item(form: KiviForm, window: int | None) -> None:
    case = make_case(form)
    made = case.items(window)
    positions = made.work.positions.tolist()
    wanted = [p for length, count in LENGTHS for p in range(length - count, length)]
    assert positions == wanted
    seen: list[list[tuple[int, bool]]] = [[] for _ in positions]
    for number, item in enumerate(made.work.items.tolist()):
        first_row, num_rows, _, low, high = item
        assert num_rows <= MAX_ROWS
        assert low // SPLIT_TOKENS == (high - 1) // SPLIT_TOKENS
        coarse = number < made.num_coarse
        for query in made.work.rows[first_row : first_row + num_rows].tolist():
            end = min(high, int(made.recent[query]) if coarse else positions[query] + 1)
            seen[query] += [(key, coarse) for key in range(low, end)]
    for query, position in enumerate(positions):
        recent = form.first_recent(position)
        assert made.recent[query] == recent
        first = 0 if window is None else max(position - window + 1, 0)
        keys = sorted(seen[query])
        assert len({key for key, _ in keys}) == len(keys)
        assert {(key, form.sink <= key < recent) for key in range(first, position + 1)} <= {*keys}
        slots = made.work.merge_slots[slice(*made.work.merge_indptr[query : query + 2])]
        assert made.work.rows[slots].tolist() == [query] * len(slots)


@pytest.mark.parametrize(("bits", "dtype"), [(2, torch.bfloat16), (4, torch.float32)])
def test_pages_are_stored_to_the_byte_as_by_the_reference(bits: int, dtype: torch.dtype) -> None:
    torch.manual_seed(bits)
    k, v = (torch.randn(4, 2, PAGE_SIZE, 64).to(dtype) for _ in range(2))
    k[2], v[1] = 1000.3, v[1] * 1e-7
    k[3, 0, 4, 5], v[3, 1, 4, 5] = torch.inf, 1e6
    pages = [torch.full((6, 2, KiviForm(bits).page_bytes(64)), 7, dtype=torch.uint8)] * 2
    pages = [page.clone() for page in pages]
    sources, targets = torch.tensor([3, 0, 1, 2]), torch.tensor([5, 1, 0, 4])
    store_pages(k, v, pages[0], pages[1], sources, targets, bits)
    for found, wanted in zip(pages, quantize_pages(k, v, bits), strict=True):
        assert torch.equal(found[targets], wanted[sources])
        assert (found[[2, 3]] == 7).all()


def test_costs_count_what_moves() -> None:
    """A page of 64 channels in 2 bits is 768 bytes of keys, and of values; 4096 in bfloat16."""
    stored = store_cost(3, 2, 64, 2, torch.bfloat16)
    assert stored.bytes == 3 * 2 * 2 * (4096 + 768)
    made = make_case(KiviForm(2)).items()
    items = made.work.items[: made.num_coarse]
    pages = int((items[:, 4] - items[:, 3]).sum()) // PAGE_SIZE
    found = cost(made, 4, 2, 64, torch.bfloat16, 2)
    plain = attention_cost(made.work, 4, 2, 64, torch.bfloat16, torch.bfloat16)
    assert plain.bytes - found.bytes == pages * 2 * 2 * (4096 - 768)
    assert (found.flops, found.launches) == (plain.flops, 3)


def test_what_no_kernel_takes_is_refused() -> None:
    case = make_case(KiviForm(2))
    work = DeviceKiviItems.of(case.items(), MAX_ROWS, case.q.device)
    with pytest.raises(KernelError, match="k_pages has shape"):
        kivi_attention(case.q, case.pages, case.plain, KiviForm(4), work, scale=1.0)
    signed = (case.pages[0].to(torch.int8), case.pages[1])
    with pytest.raises(KernelError, match="expected uint8"):
        kivi_attention(case.q, signed, case.plain, case.form, work, scale=1.0)
    with pytest.raises(KernelError, match="3 heads, 2 KV heads"):
        kivi_attention(
            case.q[:, :3].contiguous(), case.pages, case.plain, case.form, work, scale=1.0
        )
    numbers = torch.zeros(1, dtype=torch.int64)
    k = torch.zeros(1, 2, 32, 96)
    with pytest.raises(KernelError, match="head_dim=96 is none of"):
        store_pages(k, k, *case.pages, numbers, numbers, 2)
    with pytest.raises(KernelError, match="expected int64"):
        store_pages(*case.plain, *case.pages, numbers.int(), numbers, 2)
    lost = np.full_like(case.plain_indices.numpy(), -1)
    with pytest.raises(KernelError, match="not at hand"):
        make_kivi_items(Tables(*(x.numpy() for x in case.tables)), lost, case.form, MAX_ROWS)
