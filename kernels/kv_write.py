"""Writes keys and values into KV pages and copies parts of pages. Knows slots, not sequences.

A slot is page * page_size + offset in the page.
"""

import torch
from torch import Tensor

from radixgen.kernels import pointwise
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.kv_types import head_dim_of, pack_rows, page_type
from radixgen.kernels.library import supported


def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
    """Store k, v [num_tokens, num_kv_heads, head_dim] at `slots` (int64 [num_tokens]), in place.

    k_pages, v_pages [num_pages, num_kv_heads, page_size, row width]; values are rounded to the
    pages' dtype, see kv_types.py. Slots must differ from each other. Raises KernelError for shapes
    that do not agree or a slot out of range.
    """
    num_pages, num_kv_heads, page_size, width = k_pages.shape
    page_type(k_pages)
    head_dim = head_dim_of(k_pages)
    shaped("k", k, slots.numel(), num_kv_heads, head_dim)
    shaped("v", v, slots.numel(), num_kv_heads, head_dim)
    shaped("v_pages", v_pages, num_pages, num_kv_heads, page_size, width)
    require(slots.dtype == torch.int64, f"slots are {slots.dtype}, expected int64")
    outside = (slots < 0) | (slots >= num_pages * page_size)
    require(not bool(outside.any()), f"a slot is outside the {num_pages * page_size} slots")
    pages_fit = (
        k_pages.is_contiguous() and v_pages.is_contiguous() and k_pages.dtype == v_pages.dtype
    )
    rows_fit = pointwise.takes_rows(k) and pointwise.takes_rows(v) and k.dtype == v.dtype
    on_cpu = k_pages.device.type == "cpu"
    if supported(k) and on_cpu and pages_fit and rows_fit and slots.is_contiguous():
        pointwise.kv_write(k, v, k_pages, v_pages, slots)
    else:
        write_kv_reference(k, v, k_pages, v_pages, slots)


def write_kv_reference(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor
) -> None:
    """`write_kv` by torch alone, slots known to be in range."""
    page_size = k_pages.shape[2]
    page, offset = slots // page_size, slots % page_size
    k_pages[page, :, offset] = pack_rows(k, k_pages.dtype)
    v_pages[page, :, offset] = pack_rows(v, v_pages.dtype)


def copy_pages(
    k_pages: Tensor, v_pages: Tensor, sources: Tensor, targets: Tensor, num_tokens: Tensor
) -> None:
    """Copy the first num_tokens[i] tokens of page sources[i] to page targets[i], one by one.

    The three are int64 [copies]. Raises KernelError for a page or a count out of range.
    """
    num_pages, _, page_size, _ = k_pages.shape
    shaped("targets", targets, sources.numel())
    shaped("num_tokens", num_tokens, sources.numel())
    for source, target, count in zip(
        sources.tolist(), targets.tolist(), num_tokens.tolist(), strict=True
    ):
        require(
            0 <= source < num_pages and 0 <= target < num_pages and 0 <= count <= page_size,
            f"cannot copy {count} tokens of page {source} to page {target}: "
            f"{num_pages} pages of {page_size} tokens",
        )
        for pages in (k_pages, v_pages):
            pages[target, :, :count] = pages[source, :, :count]
