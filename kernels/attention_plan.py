"""Plans for the C attention kernel: work items and pages that several sequences share.

Owns the life of a plan in C (cpu/plan.c). A plan serves every layer of a step with one window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.kv_types import PAGE_TYPES, page_type
from radixgen.kernels.library import (
    Kind,
    float_bits,
    is_half,
    library,
    num_threads,
    run,
    supported,
)


class AttentionPlan:
    """Who attends to what in one step; freed with the object.

    `page_size`, `num_kv_heads`, `group` (query heads a KV head) and `head_dim` are those it fits.
    """

    def __init__(
        self,
        tables: tuple[Tensor, Tensor, Tensor, Tensor],
        page_size: int,
        num_kv_heads: int,
        group: int,
        head_dim: int,
        window: int | None = None,
        share: bool = True,
    ) -> None:
        if any(t.dtype != torch.int32 or not t.is_contiguous() for t in tables):
            tables = tuple(t.to(torch.int32).contiguous() for t in tables)  # type: ignore[assignment]  # four
        self._tokens: Tensor | tuple[int] = tables[0]
        sizes = page_size, num_kv_heads, group, head_dim
        self._make([t.data_ptr() for t in tables], tables[3].numel(), sizes, window, share)

    @classmethod
    def at(
        cls,
        tables: Sequence[int],
        num_rows: int,
        num_tokens: int,
        sizes: tuple[int, int, int, int],
        window: int | None = None,
    ) -> "AttentionPlan":
        """Of tables by their addresses, int32, which may go afterwards; `sizes` as above."""
        plan = cls.__new__(cls)
        plan._tokens = (num_tokens,)
        plan._make(tables, num_rows, sizes, window, share=True)
        return plan

    def _make(
        self,
        tables: Sequence[int],
        num_rows: int,
        sizes: tuple[int, int, int, int],
        window: int | None,
        share: bool,
    ) -> None:
        loaded = library()
        if loaded is None:
            raise KernelError("the C kernels are not loaded")
        self.fits = (*sizes, window)
        self.pointer: int | None = loaded.rk_plan_new(
            *tables, num_rows, *sizes, window or 0, int(share), num_threads()
        )
        if not self.pointer:
            raise KernelError(f"no memory for the attention plan of {num_rows} rows")
        self._free = loaded.rk_plan_free

    @property
    def num_tokens(self) -> int:
        """Queries of all rows."""
        return int(self._tokens[-1])

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._free(self.pointer)


def tables_fit(
    num_queries: int,
    num_pages: int,
    page_size: int,
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
) -> bool:
    """Whether int32 qo_indptr, kv_indptr, kv_indices, kv_last_page_len agree; False: unknown."""
    loaded = library()
    if loaded is None or any(t.dtype != torch.int32 or not t.is_contiguous() for t in tables):
        return False
    pointers = (t.data_ptr() for t in tables)
    sizes = tables[3].numel(), num_queries, tables[2].numel(), num_pages, page_size
    return bool(loaded.rk_tables_fit(*pointers, *sizes))


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores come about: see `paged_attention`."""

    scale: float
    window: int | None
    softcap: float | None


def takes(q: Tensor, k_pages: Tensor, v_pages: Tensor) -> bool:
    """Whether the C kernel is there and takes these tensors; see cpu/attention.c for its shapes."""
    head_dim = q.shape[2]
    smallest = 32 if k_pages.dtype.itemsize == 2 else 16
    return (
        supported(q)
        and k_pages.device.type == v_pages.device.type == "cpu"
        and k_pages.dtype in PAGE_TYPES
        and k_pages.dtype == v_pages.dtype
        and head_dim % 16 == 0
        and smallest <= head_dim <= 1024
        and k_pages.is_contiguous()
        and v_pages.is_contiguous()
    )


def attention_native(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    plan: AttentionPlan,
    scoring: Scoring,
    codes: tuple[Tensor, Tensor] | None = None,
    bits: int = 0,
) -> Tensor:
    """q [num_tokens, num_heads, head_dim] over the plan's pages; see `paged_attention`.

    codes: pages in so few bits, beside which the others are plain; see `kivi_attention`.
    """
    group = q.shape[1] // k_pages.shape[1]
    wanted = (k_pages.shape[2], k_pages.shape[1], group, q.shape[2], scoring.window)
    if plan.fits != wanted or plan.num_tokens != q.shape[0]:
        raise KernelError(f"the attention plan is for {plan.fits}, not {wanted}")
    if not q.shape[0]:
        return torch.empty(q.shape, dtype=q.dtype)
    if q.stride(2) != 1 or q.stride(1) != q.shape[2]:
        q = q.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype)
    few = (*(each.data_ptr() for each in codes), codes[0].shape[0], bits) if codes else ()
    run(
        Kind.ATTENTION,
        (
            plan.pointer or 0,
            q.data_ptr(),
            q.stride(0),
            is_half(q),
            out.data_ptr(),
            k_pages.data_ptr(),
            v_pages.data_ptr(),
            page_type(k_pages),
            float_bits(scoring.scale),
            float_bits(scoring.softcap or 0.0),
            scoring.window or 0,
            *few,
        ),
    )
    return out
