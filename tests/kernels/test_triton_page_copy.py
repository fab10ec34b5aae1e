"""Page copies on a GPU, interpreted: those of the reference."""

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.kv_write import copy_pages as copy_reference
from radixgen.kernels.triton.page_copy import addresses_of, copy_pages


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
