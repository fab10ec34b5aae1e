"""Causal attention over KV pages: decode, chunked prefill and any mix of them in one call.

Owns the split of the KV axis. Knows nothing of requests, trees or where pages come from.

    sequence b:  queries [qo_indptr[b], qo_indptr[b+1])    the last query is the last KV position
                 pages   kv_indices[kv_indptr[b] : kv_indptr[b+1]], the last of them holds
                         kv_last_page_len[b] tokens

    KV axis      | split 0: tokens 0..255 | split 1: 256..511 | ... |     a query stops at itself
                   (max, sum, out)          (max, sum, out)      merged from left to right

Splits lie at multiples of SPLIT_TOKENS of the sequence, whatever the page size, chunk or batch, so
a query's result is the same bits however it is computed. Merging partial softmax results by their
maxima and sums is the flash-decoding scheme (Dao et al. 2023).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from radixgen.kernels.attention_plan import (
    AttentionPlan,
    Scoring,
    attention_native,
    tables_fit,
    takes,
)
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.kv_types import page_type, row_width, unpack_rows
from radixgen.kernels.tiles import matmul_rows

SPLIT_TOKENS = 256


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    plan: AttentionPlan | None = None,
) -> Tensor:
    """Attention of q [num_tokens, num_heads, head_dim] over pages: the same shape and dtype as q.

    k_pages, v_pages [num_pages, num_kv_heads, page_size, row width], of a type and width that
    kv_types.py names: head_dim, but for int8; qo_indptr, kv_indptr
    [batch + 1], kv_indices [pages in use] and kv_last_page_len [batch] are int32. `window`: a query
    sees itself and the window - 1 tokens before. `softcap`: scores become cap * tanh(score / cap).
    `plan`: made of the same tables by `plan_attention`, which then are not checked again; worth it
    where several layers attend alike.
    Raises KernelError for shapes that do not agree, page ids out of range, or fewer KV tokens than
    queries in a sequence.
    """
    _check(q, k_pages, v_pages, qo_indptr, kv_indptr, kv_last_page_len, window)
    if plan is None:
        num_pages, _, page_size, _ = k_pages.shape
        tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
        _check_tables(q.shape[0], num_pages, page_size, *tables)
    if takes(q, k_pages, v_pages):
        heads = (k_pages.shape[2], k_pages.shape[1], q.shape[1] // k_pages.shape[1], q.shape[2])
        plan = plan or AttentionPlan(
            (qo_indptr, kv_indptr, kv_indices, kv_last_page_len), *heads, window
        )
        return attention_native(q, k_pages, v_pages, plan, Scoring(scale, window, softcap))
    return paged_attention_reference(
        q,
        k_pages,
        v_pages,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_last_page_len,
        scale=scale,
        window=window,
        softcap=softcap,
    )


def _check(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    window: int | None,
) -> None:
    shaped("q", q, None, None, None)
    page_type(k_pages)
    shaped("k_pages", k_pages, None, None, None, row_width(q.shape[2], k_pages.dtype))
    require(k_pages.dtype == v_pages.dtype, f"k_pages {k_pages.dtype}, v_pages {v_pages.dtype}")
    shaped("v_pages", v_pages, *k_pages.shape)
    batch = kv_last_page_len.numel()
    shaped("qo_indptr", qo_indptr, batch + 1)
    shaped("kv_indptr", kv_indptr, batch + 1)
    require(
        q.shape[1] % k_pages.shape[1] == 0,
        f"{q.shape[1]} query heads do not divide into {k_pages.shape[1]} KV heads",
    )
    require(window is None or window >= 1, f"window={window} must be at least 1")


def _check_tables(
    num_queries: int,
    num_pages: int,
    page_size: int,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
) -> None:
    tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    if tables_fit(num_queries, num_pages, page_size, tables):
        return
    queries, pages, last = qo_indptr.diff(), kv_indptr.diff(), kv_last_page_len
    ends = int(qo_indptr[0]), int(qo_indptr[-1])
    require(
        ends == (0, num_queries) and not bool((queries < 0).any()),
        f"qo_indptr must rise from 0 to the {num_queries} queries",
    )
    require(
        int(kv_indptr[0]) == 0
        and int(kv_indptr[-1]) <= kv_indices.numel()
        and not bool((pages < 0).any()),
        f"kv_indptr must rise from 0 to at most the {kv_indices.numel()} page ids",
    )
    used = kv_indices[: int(kv_indptr[-1])]
    require(
        not bool(((used < 0) | (used >= num_pages)).any()),
        f"a page id in kv_indices is outside the {num_pages} pages",
    )
    lengths = (pages - 1).clamp(min=0) * page_size + last
    bad = (pages > 0) & ((last < 1) | (last > page_size)) | ((pages == 0) & (last != 0))
    require(not bool(bad.any()), f"kv_last_page_len must be 1 to {page_size}, 0 without pages")
    require(not bool((lengths < queries).any()), "a sequence has fewer KV tokens than queries")


def plan_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
    *,
    window: int | None = None,
    share: bool = True,
) -> AttentionPlan | None:
    """A plan for calls of `paged_attention` with these tables and shapes, checked once for all.

    Sequences whose page tables begin with the same pages read those once (`share`); results are
    bitwise those without. None where the torch reference runs. Raises as `paged_attention` does.
    """
    _check(q, k_pages, v_pages, qo_indptr, kv_indptr, kv_last_page_len, window)
    num_pages, num_kv_heads, page_size, _ = k_pages.shape
    tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    _check_tables(q.shape[0], num_pages, page_size, *tables)
    if not takes(q, k_pages, v_pages):
        return None
    group = q.shape[1] // num_kv_heads
    return AttentionPlan(tables, page_size, num_kv_heads, group, q.shape[2], window, share)


def paged_attention_reference(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """`paged_attention` by torch alone, in float32: gathers a sequence, runs split by split."""
    out = torch.empty_like(q)
    q_starts, kv_starts = qo_indptr.tolist(), kv_indptr.tolist()
    page_size = k_pages.shape[2]
    for row, last in enumerate(kv_last_page_len.tolist()):
        first, end = q_starts[row], q_starts[row + 1]
        if first == end:
            continue
        pages = kv_indices[kv_starts[row] : kv_starts[row + 1]].long()
        length = (pages.numel() - 1) * page_size + last
        view = _View(length - (end - first), scale, window, softcap)
        keys, values = _gather(k_pages, pages, length), _gather(v_pages, pages, length)
        out[first:end] = _attend(q[first:end].float(), keys, values, view)
    return out


@dataclass(frozen=True, slots=True)
class _View:
    """How queries see keys: the position of the first query, and what shapes the scores."""

    first_position: int
    scale: float
    window: int | None
    softcap: float | None

    def scores(self, products: Tensor, positions: Tensor, first_key: int) -> Tensor:
        """Scaled scores [rows, keys], -inf where a query must not look."""
        scores = products * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        keys = torch.arange(first_key, first_key + products.shape[1])
        hidden = keys > positions[:, None]
        if self.window is not None:
            hidden |= keys <= positions[:, None] - self.window
        return scores.masked_fill(hidden, -math.inf)


def _gather(pages: Tensor, page_ids: Tensor, length: int) -> Tensor:
    """float32 [num_kv_heads, length rounded up to whole splits, head_dim], zeros past `length`."""
    tokens = unpack_rows(pages[page_ids]).transpose(1, 2).flatten(0, 1)[:length].transpose(0, 1)
    padding = -length % SPLIT_TOKENS
    return torch.nn.functional.pad(tokens, (0, 0, 0, padding)).contiguous()


def _attend(q: Tensor, keys: Tensor, values: Tensor, view: _View) -> Tensor:
    """One sequence: q [tokens, num_heads, head_dim] over [num_kv_heads, padded, head_dim]."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    group = num_heads // num_kv_heads
    positions = torch.arange(num_tokens).repeat_interleave(group) + view.first_position
    grouped = q.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1)
    heads = [
        _attend_head(grouped[head].reshape(-1, head_dim), keys[head], values[head], positions, view)
        for head in range(num_kv_heads)
    ]
    joined = torch.stack(heads).view(num_kv_heads, num_tokens, group, head_dim)
    return joined.transpose(0, 1).reshape(num_tokens, num_heads, head_dim)


def _attend_head(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, view: _View) -> Tensor:
    """Rows of queries [rows, head_dim] of one KV head, split by split, merged left to right."""
    best = q.new_full((q.shape[0], 1), -math.inf)
    total = q.new_zeros((q.shape[0], 1))
    out = torch.zeros_like(q)
    for first in range(0, keys.shape[0], SPLIT_TOKENS):
        split = slice(first, first + SPLIT_TOKENS)
        scores = view.scores(matmul_rows(q, keys[split]), positions, first)
        top = scores.max(dim=1, keepdim=True).values
        safe = torch.where(top == -math.inf, 0.0, top)  # a split no key of which is visible
        weights = torch.exp(scores - safe)
        new_best = torch.maximum(best, top)
        safe_best = torch.where(new_best == -math.inf, 0.0, new_best)
        old_share, new_share = torch.exp(best - safe_best), torch.exp(top - safe_best)
        out = out * old_share + matmul_rows(weights, values[split].T.contiguous()) * new_share
        total = total * old_share + weights.sum(dim=1, keepdim=True) * new_share
        best = new_best
    return out / total
