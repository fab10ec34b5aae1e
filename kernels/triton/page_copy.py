"""Copies parts of KV pages on a GPU, for the pages of all layers in one launch.

Pages of a layer's keys or values are a tensor of their own, so the kernel is given a table of their
addresses. One program a copy, tensor and KV head moves the first tokens of a page of that head,
which lie one after the other.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device, launch

BLOCK = 512  # words of 4 bytes
NUM_WARPS = 1


@triton.jit
def page_copy_kernel(
    addresses,
    sources,
    targets,
    num_tokens,
    num_pages,
    page_words,
    head_words,
    row_words,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A copy of one KV head's tokens. ALIGNED: rows are multiples of 16 bytes."""
    copy = tl.program_id(0)
    pages = tl.load(addresses + tl.program_id(1)).to(tl.pointer_type(tl.int32))
    source, target = tl.load(sources + copy), tl.load(targets + copy)
    is_page = (source >= 0) & (source < num_pages) & (target >= 0) & (target < num_pages)
    tokens = tl.where(is_page, tl.load(num_tokens + copy), 0)
    words = tl.minimum(tokens * row_words, head_words).to(tl.int32)
    head = tl.program_id(2) * head_words
    read = pages + source * page_words + head
    written = pages + target * page_words + head
    if ALIGNED:  # which a pointer out of a table does not tell
        read, written = tl.multiple_of(read, 16), tl.multiple_of(written, 16)
        words = tl.multiple_of(words, 4)
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        tl.store(written + word, tl.load(read + word, mask=word < words), mask=word < words)


def addresses_of(pages: Sequence[Tensor]) -> Tensor:
    """The table of their addresses, int64 [tensors] on their device; good while they live."""
    table = torch.tensor([each.data_ptr() for each in pages], dtype=torch.int64)
    return table.to(pages[0].device)


def copy_pages(
    pages: Sequence[Tensor],
    addresses: Tensor,
    sources: Tensor,
    targets: Tensor,
    num_tokens: Tensor,
) -> None:
    """Copy the first num_tokens[i] tokens of page sources[i] to targets[i] in each tensor of pages.

    pages: [num_pages, num_kv_heads, page_size, row width], of one shape and dtype; `addresses`
    those of them (`addresses_of`); the others int64 [copies], on the pages' device. All copies are
    done at once: no page may be both a source and a target, or a target twice. A page out of range
    is not copied. Raises KernelError for shapes or types that do not agree.
    """
    first = pages[0]
    for each in pages:
        shaped("pages", each, *first.shape)
        require(each.is_contiguous(), "pages must be contiguous")
        require(each.dtype == first.dtype, f"pages are {first.dtype} and {each.dtype}")
    num_pages, num_heads, page_size, width = first.shape
    row_bytes = width * first.itemsize
    require(row_bytes % 4 == 0, f"rows of {row_bytes} bytes are not words of 4")
    shaped("addresses", addresses, len(pages))
    columns = {"sources": sources, "targets": targets, "num_tokens": num_tokens}
    for name, column in columns.items():
        shaped(name, column, sources.numel())
        fits = column.dtype == torch.int64 and column.is_contiguous()
        require(fits, f"{name} must be contiguous int64")
    check_device(pages=first, addresses=addresses, **columns)
    if len(sources):
        head_words = page_size * row_bytes // 4
        launch(
            page_copy_kernel,
            (len(sources), len(pages), num_heads),
            addresses,
            sources,
            targets,
            num_tokens,
            num_pages,
            num_heads * head_words,
            head_words,
            row_bytes // 4,
            ALIGNED=row_bytes % 16 == 0,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )


def cost(num_tokens: int, token_bytes: int) -> Cost:
    """`token_bytes`, a token's keys and values in all layers, are read and written."""
    return Cost(2 * num_tokens * token_bytes, 0)
