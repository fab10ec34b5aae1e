"""KV pages of 2 and 4 bits on a GPU: quantised where they lie, and read without being unpacked.

    store      one program a full page and KV head: its keys and values in full precision -> codes
    partials   one program an item and KV head, a page at a time                -> as attention.py's
    merge      that of attention.py, over quantised pages' slots and the others'

Only codes, scales and zeros are read; keys and values are made of them in registers. The layout and
its law are those of kernels/kivi.py.
"""

# What a kernel computes with has Triton's types, whatever Python's operators say.
# pyright: reportArgumentType=false

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels import kivi
from radixgen.kernels.attention_plan import Scoring
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.kivi import KiviForm
from radixgen.kernels.triton import attention
from radixgen.kernels.triton.attention import DeviceItems, Partials, dot, tanh, weigh
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.kivi_items import KiviItems
from radixgen.kernels.triton.launch import (
    AMD_OPTIONS,
    check_device,
    check_floats,
    interpreted,
    launch,
    on_amd,
    to_kind,
)

HEAD_SIZES = (32, 64, 128)
PAGE = tl.constexpr(kivi.PAGE_SIZE)  # tokens of a page, and channels of a value's group
SLACK = tl.constexpr(kivi.SLACK)
TINY = tl.constexpr(kivi.TINY)
LARGEST = tl.constexpr(kivi.LARGEST)
STORE_WARPS = 4
NUM_STAGES = 2
WIDE_WARPS = 32  # of float32


@triton.jit
def _quantize(x, axis: tl.constexpr, BITS: tl.constexpr):
    """Codes, scales and zeros, float16, of float32 x in groups along an axis, which stays as 1."""
    LEVELS: tl.constexpr = 2**BITS - 1
    held = tl.abs(x) <= LARGEST
    all_held = tl.min(held.to(tl.int32), axis, keep_dims=True) == 1
    x = tl.where(held, x, 0.0)
    low = tl.min(x, axis, keep_dims=True)
    high = tl.max(x, axis, keep_dims=True)
    zero = (low - tl.abs(low) * SLACK - TINY).to(tl.float16)
    scale = ((high - zero.to(tl.float32)) * ((1 + SLACK) / LEVELS) + TINY).to(tl.float16)
    codes = tl.floor((x - zero.to(tl.float32)) * (1.0 / scale.to(tl.float32)) + 0.5)
    codes = tl.clamp(codes, 0.0, LEVELS)
    none = float("nan")
    return codes, tl.where(all_held, scale, none), tl.where(all_held, zero, none)


@triton.jit
def _packed(codes, BITS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Bytes [PAGE, HEAD_DIM * BITS / 8] of codes [PAGE, HEAD_DIM]."""
    EACH: tl.constexpr = 8 // BITS
    apart = tl.reshape(codes.to(tl.int32), [PAGE, HEAD_DIM // EACH, EACH])
    shifts = tl.arange(0, EACH) * BITS
    return tl.sum(apart << shifts[None, None, :], 2).to(tl.uint8)


@triton.jit
def store_kernel(
    k,
    v,
    k_codes,
    v_codes,
    k_numbers,
    v_numbers,
    sources,
    targets,
    BITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Quantise page sources[i] of k, v [pages, heads, PAGE, HEAD_DIM] to targets[i], if any."""
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    if tl.load(targets + tl.program_id(0)) < 0:
        return
    source = tl.load(sources + tl.program_id(0)) * num_heads + head
    target = tl.load(targets + tl.program_id(0)) * num_heads + head
    ROW: tl.constexpr = HEAD_DIM * BITS // 8
    NUMBERS: tl.constexpr = PAGE * ROW // 2
    GROUPS: tl.constexpr = HEAD_DIM // PAGE
    tokens = tl.arange(0, PAGE)
    dims = tl.arange(0, HEAD_DIM)
    groups = tl.arange(0, GROUPS)
    from_at = source * PAGE * HEAD_DIM + tokens[:, None] * HEAD_DIM + dims[None, :]
    codes_at = target * (PAGE * ROW + 4 * HEAD_DIM)
    numbers_at = codes_at // 2 + NUMBERS
    codes_at += tokens[:, None] * ROW + tl.arange(0, ROW)[None, :]

    codes, scale, zero = _quantize(tl.load(k + from_at).to(tl.float32), 0, BITS)
    tl.store(k_codes + codes_at, _packed(codes, BITS, HEAD_DIM))
    tl.store(k_numbers + numbers_at + dims[None, :], scale)
    tl.store(k_numbers + numbers_at + HEAD_DIM + dims[None, :], zero)

    values = tl.reshape(tl.load(v + from_at).to(tl.float32), [PAGE, GROUPS, PAGE])
    codes, scale, zero = _quantize(values, 2, BITS)
    tl.store(v_codes + codes_at, _packed(tl.reshape(codes, [PAGE, HEAD_DIM]), BITS, HEAD_DIM))
    group_at = numbers_at + tokens[:, None] * GROUPS + groups[None, :]
    tl.store(v_numbers + group_at, tl.reshape(scale, [PAGE, GROUPS]))
    tl.store(v_numbers + group_at + HEAD_DIM, tl.reshape(zero, [PAGE, GROUPS]))


@triton.jit
def _codes(words, BITS: tl.constexpr):
    """float32 codes [PAGE, head_dim] of bytes [PAGE, head_dim * BITS / 8]."""
    if BITS == 4:
        codes = tl.interleave(words & 15, words >> 4)
    else:
        even = tl.interleave(words & 3, (words >> 4) & 3)
        odd = tl.interleave((words >> 2) & 3, words >> 6)
        codes = tl.interleave(even, odd)
    return codes.to(tl.float32)


@triton.jit
def kivi_partials_kernel(
    q,
    k_codes,
    v_codes,
    k_numbers,
    v_numbers,
    out,
    stats,
    items,
    rows,
    pages,
    positions,
    recent,
    scale,
    softcap,
    q_stride,
    num_heads,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """out [slots, heads, HEAD_DIM] and stats [slots, heads, 2] float32 of one item and KV head.

    Of pages in BITS; a query sees the keys before recent[query]. The numbers are float16 views of
    the codes' pages.
    """
    item = items + tl.program_id(0) * 5
    kv_head = tl.program_id(1)
    first_row = tl.load(item)
    num_rows = tl.load(item + 1)
    page_at = pages + tl.load(item + 2)
    low = tl.load(item + 3)
    high = tl.load(item + 4)

    ROW: tl.constexpr = HEAD_DIM * BITS // 8
    NUMBERS: tl.constexpr = PAGE * ROW // 2
    GROUPS: tl.constexpr = HEAD_DIM // PAGE
    tile = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, HEAD_DIM)
    tokens = tl.arange(0, PAGE)
    groups = tl.arange(0, GROUPS)
    row = tile // GROUP
    head = kv_head * GROUP + tile % GROUP
    is_row = row < num_rows
    query = tl.load(rows + first_row + row, mask=is_row, other=0)
    position = tl.load(positions + query, mask=is_row, other=0)
    end = tl.load(recent + query, mask=is_row, other=0)
    q_at = query.to(tl.int64)[:, None] * q_stride + head[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + q_at, mask=is_row[:, None], other=0.0)

    best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    gathered = tl.zeros([BLOCK_ROWS, HEAD_DIM], tl.float32)
    num_kv_heads = num_heads // GROUP
    for start in range(low, high, PAGE):
        page = tl.load(page_at + (start - low) // PAGE).to(tl.int64) * num_kv_heads + kv_head
        codes_at = page * (PAGE * ROW + 4 * HEAD_DIM)
        numbers_at = codes_at // 2 + NUMBERS
        codes_at += tokens[:, None] * ROW + tl.arange(0, ROW)[None, :]

        k_scale = tl.load(k_numbers + numbers_at + dims).to(tl.float32)
        k_zero = tl.load(k_numbers + numbers_at + HEAD_DIM + dims).to(tl.float32)
        keys = _codes(tl.load(k_codes + codes_at), BITS) * k_scale[None, :] + k_zero[None, :]
        keys = to_kind(keys, queries.dtype)
        scores = dot(queries, tl.trans(keys), PRECISION, WIDEN) * scale
        if SOFTCAP:
            scores = tanh(scores / softcap) * softcap
        key = start + tokens
        sees = key[None, :] < end[:, None]
        if WINDOW > 0:
            sees = sees & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(sees, scores, float("-inf"))
        best, share, weights = weigh(scores, best)
        total = total * share + tl.sum(weights, 1)

        group_at = numbers_at + tokens[:, None] * GROUPS + groups[None, :]
        v_scale = tl.load(v_numbers + group_at).to(tl.float32)
        v_zero = tl.load(v_numbers + group_at + HEAD_DIM).to(tl.float32)
        values = tl.reshape(_codes(tl.load(v_codes + codes_at), BITS), [PAGE, GROUPS, PAGE])
        values = values * v_scale[:, :, None] + v_zero[:, :, None]
        values = to_kind(tl.reshape(values, [PAGE, HEAD_DIM]), queries.dtype)
        gathered *= share[:, None]
        gathered += dot(to_kind(weights, queries.dtype), values, PRECISION, WIDEN)

    place = (first_row + row) * num_heads + head
    tl.store(stats + place * 2, best, mask=is_row)
    tl.store(stats + place * 2 + 1, total, mask=is_row)
    out_at = place.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + out_at, gathered, mask=is_row[:, None])


@dataclass(frozen=True, slots=True)
class DeviceKiviItems:
    """`KiviItems` on the device."""

    work: DeviceItems
    num_coarse: int
    recent: Tensor

    @classmethod
    def of(cls, made: KiviItems, max_rows: int, device: torch.device) -> Self:
        work = DeviceItems.of(made.work, max_rows, device)
        return cls(work, made.num_coarse, torch.from_numpy(made.recent).to(device))


def store_pages(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    sources: Tensor,
    targets: Tensor,
    bits: int,
) -> None:
    """Quantise full pages: sources[i] of k, v [pages, num_kv_heads, 32, head_dim], in floats, to
    targets[i] of k_pages, v_pages, uint8 [num_pages, num_kv_heads, page bytes].

    sources, targets: int64 [count], on the device; a target of -1 is none. Raises KernelError for
    shapes and types that do not agree; that pages lie in range is the caller's affair, who made the
    numbers.
    """
    check_floats(k=k, v=v)
    check_device(k=k, k_pages=k_pages, v_pages=v_pages, sources=sources, targets=targets)
    _, num_kv_heads, _, head_dim = k.shape
    shaped("k", k, None, None, kivi.PAGE_SIZE, None)
    shaped("v", v, *k.shape)
    _check_pages(k_pages, v_pages, num_kv_heads, head_dim, KiviForm(bits))
    require(k.is_contiguous() and v.is_contiguous(), "k and v must be contiguous")
    shaped("sources", sources, targets.numel())
    for name, numbers in (("sources", sources), ("targets", targets)):
        require(numbers.dtype == torch.int64, f"{name} are {numbers.dtype}, expected int64")
    if not sources.numel():
        return
    halves = (k_pages.view(torch.float16), v_pages.view(torch.float16))
    pages = (k_pages, v_pages, *halves)
    launch(
        store_kernel,
        (sources.numel(), num_kv_heads),
        k,
        v,
        *pages,
        sources,
        targets,
        BITS=bits,
        HEAD_DIM=head_dim,
        num_warps=STORE_WARPS,
    )


def kivi_attention(
    q: Tensor,
    pages: tuple[Tensor, Tensor],
    plain: tuple[Tensor, Tensor],
    form: KiviForm,
    items: DeviceKiviItems,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of q [num_tokens, num_heads, head_dim]: the same shape and dtype as q.

    pages: keys' and values', uint8 [num_pages, num_kv_heads, page bytes]. plain: those in full
    precision, in q's dtype, [num_plain, num_kv_heads, 32, head_dim]. Raises KernelError for shapes
    that do not agree or that no kernel is made for.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = pages[0].shape[1]
    check_floats(q=q, k=plain[0], v=plain[1])
    shaped("k", plain[0], None, num_kv_heads, kivi.PAGE_SIZE, head_dim)
    shaped("v", plain[1], *plain[0].shape)
    require(plain[0].is_contiguous() and plain[1].is_contiguous(), "pages must be contiguous")
    require(num_heads % num_kv_heads == 0, f"{num_heads} heads, {num_kv_heads} KV heads")
    require(q.stride()[1:] == (head_dim, 1), "the heads of q must lie one after the other")
    _check_pages(*pages, num_kv_heads, head_dim, form)
    work = items.work
    partials = Partials.empty(work.rows.numel(), q)
    scoring = Scoring(scale, window, softcap)
    coarse, others = work.items[: items.num_coarse], work.items[items.num_coarse :]
    if len(coarse):
        _launch_coarse(q, pages, coarse, items, partials, scoring, form.bits)
    attention.launch_partials(q, *plain, others, work, partials, scoring)
    return attention.launch_merge(q, work, partials)


def _launch_coarse(
    q: Tensor,
    pages: tuple[Tensor, Tensor],
    coarse: Tensor,
    items: DeviceKiviItems,
    partials: Partials,
    scoring: Scoring,
    bits: int,
) -> None:
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = pages[0].shape[1]
    group = num_heads // num_kv_heads
    rows = attention.tile_rows(items.work.max_rows, group)
    warps, stages = attention.num_warps(rows), NUM_STAGES
    if q.dtype == torch.float32 and not on_amd():  # whose products take registers
        warps, stages = WIDE_WARPS, 1
    launch(
        kivi_partials_kernel,
        (len(coarse), num_kv_heads),
        q,
        *pages,
        *(each.view(torch.float16) for each in pages),
        partials.out,
        partials.stats,
        coarse,
        items.work.rows,
        items.work.pages,
        items.work.positions,
        items.recent,
        scoring.scale,
        scoring.softcap or 1.0,
        q.stride(0),
        num_heads,
        GROUP=group,
        BITS=bits,
        HEAD_DIM=head_dim,
        BLOCK_ROWS=rows,
        WINDOW=scoring.window or 0,
        SOFTCAP=scoring.softcap is not None,
        PRECISION=attention.precision(q),
        WIDEN=interpreted(),
        num_warps=warps,
        num_stages=stages,
        **(AMD_OPTIONS if on_amd() else {}),
    )


def _check_pages(
    k_pages: Tensor, v_pages: Tensor, num_kv_heads: int, head_dim: int, form: KiviForm
) -> None:
    require(head_dim in HEAD_SIZES, f"head_dim={head_dim} is none of {HEAD_SIZES}")
    for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
        require(pages.dtype == torch.uint8, f"{name} are {pages.dtype}, expected uint8")
        require(pages.is_contiguous(), f"{name} must be contiguous")
        shaped(name, pages, None, num_kv_heads, form.page_bytes(head_dim))
    shaped("v_pages", v_pages, *k_pages.shape)


def cost(
    made: KiviItems, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, bits: int
) -> Cost:
    """As attention.py's, but that coarse items read pages in `bits`. Unpacking is not counted."""
    whole = attention.cost(made.work, num_heads, num_kv_heads, head_dim, dtype, dtype)
    coarse = made.work.items[: made.num_coarse].astype(np.int64)
    head_pages = int((coarse[:, 4] - coarse[:, 3]).sum()) // kivi.PAGE_SIZE * num_kv_heads
    plain_bytes = kivi.PAGE_SIZE * head_dim * dtype.itemsize
    saved = 2 * head_pages * (plain_bytes - KiviForm(bits).page_bytes(head_dim))
    return replace(whole, bytes=whole.bytes - saved, launches=whole.launches + 1)


def store_cost(
    num_pages: int, num_kv_heads: int, head_dim: int, bits: int, dtype: torch.dtype
) -> Cost:
    """A page is read once in full precision and written once in `bits`.

    A value is compared three times, moved, scaled, rounded, shifted and added: 8 operations.
    """
    values = 2 * num_pages * num_kv_heads * kivi.PAGE_SIZE * head_dim
    written = 2 * num_pages * num_kv_heads * KiviForm(bits).page_bytes(head_dim)
    return Cost(values * dtype.itemsize + written, 8 * values)
