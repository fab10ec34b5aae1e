"""Draft verification and page copies on a GPU, interpreted: what Python's loops do."""

import random

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.kv_write import copy_pages as copy_reference
from radixgen.kernels.sampling import Outcome
from radixgen.kernels.triton.page_copy import addresses_of, copy_pages
from radixgen.kernels.triton.verify import verify


def expected(drawn: list[int], outcomes: list[int], drafts: list[int]) -> tuple[int, int, int]:
    """Of one row, as the runner does it."""
    kept = next((i for i, draft in enumerate(drafts) if drawn[i] != draft), len(drafts))
    result = next((outcome for outcome in outcomes[: kept + 1] if outcome), int(Outcome.CHOSEN))
    return kept, drawn[kept], result


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_verified_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    drawn: list[int] = []
    outcomes: list[int] = []
    drafts: list[int] = []
    indptr, rows = [0], []
    for count in [0, 1, 3, 63, 64, 65, 200, *(rng.randrange(6) for _ in range(5))]:
        given = [rng.randrange(1 << 40) for _ in range(count)]
        wrong = rng.randrange(2 * count + 1)
        draws = [token + (i == wrong) for i, token in enumerate(given)] + [rng.randrange(99)]
        said = [rng.choice((1, 2)) if rng.random() < 0.02 else 0 for _ in draws]
        rows.append(expected(draws, said, given))
        drawn, outcomes, drafts = drawn + draws, outcomes + said, drafts + given
        indptr.append(len(drawn))
    found = verify(
        torch.tensor(drawn),
        torch.tensor(outcomes, dtype=torch.int32),
        torch.tensor(drafts),
        torch.tensor(indptr, dtype=torch.int32),
    )
    assert list(zip(*(column.tolist() for column in found), strict=True)) == rows


def test_no_rows() -> None:
    empty, one = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    assert [len(column) for column in verify(empty, one[:0], empty, one)] == [0, 0, 0]


def test_tables_that_do_not_agree_are_refused() -> None:
    ids, numbers = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(KernelError, match="drafts has shape"):
        verify(ids, numbers, ids, numbers[:2])
    with pytest.raises(KernelError, match="indptr must be contiguous int32"):
        verify(ids, numbers, ids[:1], ids)
    with pytest.raises(KernelError, match="indptr is empty"):
        verify(ids, numbers, ids, numbers[:0])


@pytest.mark.parametrize(
    ("dtype", "width", "page_size"),
    [(torch.float32, 64, 16), (torch.bfloat16, 6, 1), (torch.int8, 84, 32)],
)
def test_pages_are_copied_as_the_reference_does(
    dtype: torch.dtype, width: int, page_size: int
) -> None:
    generator = torch.Generator().manual_seed(width)
    before = [
        torch.randint(-99, 99, (7, 3, page_size, width), generator=generator).to(dtype)
        for _ in range(4)
    ]
    after = [each.clone() for each in before]
    table = torch.tensor([[0, 4, page_size], [1, 5, page_size // 2], [0, 6, 1], [2, 3, 0]])
    sources, targets, counts = (column.contiguous() for column in table.T)
    for k_pages, v_pages in zip(before[0::2], before[1::2], strict=True):
        copy_reference(k_pages, v_pages, sources, targets, counts)
    copy_pages(after, addresses_of(after), sources, targets, counts)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def copied(pages: list[Tensor], *table: list[int]) -> list[Tensor]:
    copy_pages(pages, addresses_of(pages), *(torch.tensor(column) for column in table))
    return pages


def test_pages_out_of_range_are_left_alone_and_shapes_are_checked() -> None:
    pages = [torch.arange(48.0).view(3, 1, 4, 4)]
    before = pages[0].clone()
    assert torch.equal(copied(pages, [0, -1, 3], [3, 1, 0], [4, 4, 4])[0], before)
    assert torch.equal(copied(pages, [0], [1], [9])[0][1], before[0])  # no more than a page
    with pytest.raises(KernelError, match="targets has shape"):
        copied(pages, [0], [1, 2], [4])
    with pytest.raises(KernelError, match="rows of 2 bytes"):
        copied([torch.zeros(3, 1, 4, 2, dtype=torch.int8)], [0], [1], [4])
    with pytest.raises(KernelError, match="pages has shape"):
        copied([pages[0], pages[0][:2]], [0], [1], [4])
