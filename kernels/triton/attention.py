"""Attention over KV pages on a GPU: decode, chunked prefill and shared prefixes in two launches.

    partials   one program an item and KV head: its queries times the heads of the group, as the
               rows of one tile, over at most SPLIT_TOKENS keys         -> (max, sum, out) a slot
    merge      one program a query and head: its slots from left to right         -> output

Flash decoding (T. Dao et al., 2023) with fixed splits: a row is reduced in the same order whatever
tile it lies in. Scores and sums are float32; weights are rounded to the pages' type for the second
product, as tensor cores want them.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.attention_plan import Scoring
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.kv_types import row_width
from radixgen.kernels.triton.attention_items import Items
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import (
    AMD_OPTIONS,
    check_device,
    check_floats,
    interpreted,
    launch,
    on_amd,
    power_of_two,
    to_kind,
)

MIN_TILE = 16  # rows or columns that a tensor core's product needs
HEAD_SIZES = (32, 64, 80, 96, 128, 192, 256)
PAGE_SIZES = tuple(2**n for n in range(8))  # 1 to 128


@triton.jit
def tanh(x):
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """a @ b in float32. WIDEN: the interpreter multiplies the bits of bfloat16 as whole numbers."""
    if WIDEN:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def weigh(scores, best):
    """The rows' largest so far, what their sums are then times, and the weights of scores."""
    largest = tl.maximum(best, tl.max(scores, 1))
    safe = tl.where(largest == float("-inf"), 0.0, largest)  # no key so far is seen
    return largest, tl.exp(best - safe), tl.exp(scores - safe[:, None])


@triton.jit
def _values(codes, INT8: tl.constexpr, FP8: tl.constexpr, dtype: tl.constexpr):
    """What pages hold, less their scales, in the type of a product."""
    if INT8:
        return codes.to(tl.float32).to(dtype)  # integers up to 127 are exact in every type
    elif FP8:  # noqa: RET505 - Triton compiles the branches that are not returned from
        return _fp8(codes).to(tl.float32).to(dtype)
    else:
        return codes


@triton.jit
def _fp8(codes):
    """float16 of e4m3 bytes, 2**8 times too small: its bits are float16's, with a bias of 7.

    By bits, as not every GPU knows the type; numbers below the least normal one come out right,
    too.
    """
    wide = codes.to(tl.uint16)
    magnitude = wide & 0x7F
    magnitude = tl.where(magnitude == 0x7F, 0x7E00, magnitude << 7)  # the last one is NaN
    return (((wide & 0x80) << 8) | magnitude).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def partials_kernel(
    q,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    out,
    stats,
    items,
    rows,
    pages,
    positions,
    scale,
    softcap,
    q_stride,
    page_stride,
    num_heads,
    GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INT8: tl.constexpr,
    FP8: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """out [slots, heads, HEAD_DIM] and stats [slots, heads, 2] float32 of one item and KV head.

    Pages of INT8 are rows as kv_types.py has them, and their scales float32 views of the same; of
    FP8, bytes of e4m3 with a scale a KV head.
    """
    item = items + tl.program_id(0) * 5
    kv_head = tl.program_id(1)
    first_row = tl.load(item)
    num_rows = tl.load(item + 1)
    first_page = tl.load(item + 2)
    low = tl.load(item + 3)
    high = tl.load(item + 4)

    tile = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    row = tile // GROUP
    head = kv_head * GROUP + tile % GROUP
    is_row = row < num_rows
    query = tl.load(rows + first_row + row, mask=is_row, other=0)
    position = tl.load(positions + query, mask=is_row, other=0)
    is_dim = dims < HEAD_DIM
    inside = is_row[:, None] & is_dim[None, :]
    q_at = query.to(tl.int64)[:, None] * q_stride + head[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + q_at, mask=inside, other=0.0)

    best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    gathered = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    base = low // PAGE_SIZE
    ROW: tl.constexpr = HEAD_DIM + 4 if INT8 else HEAD_DIM
    if FP8:
        scale *= tl.load(k_scales + kv_head) * 256
    for start in range(low, high, BLOCK_KEYS):
        key = start + tl.arange(0, BLOCK_KEYS)
        is_key = key < high
        page = tl.load(pages + first_page + key // PAGE_SIZE - base, mask=is_key, other=0)
        kv_at = page.to(tl.int64) * page_stride + (kv_head * PAGE_SIZE + key % PAGE_SIZE) * ROW
        valid = is_key[:, None] & is_dim[None, :]
        keys = tl.load(k_pages + kv_at[:, None] + dims[None, :], mask=valid, other=0.0)
        keys = _values(keys, INT8, FP8, q.dtype.element_ty)
        scores = dot(queries, tl.trans(keys), PRECISION, WIDEN) * scale
        scale_at = (kv_at + HEAD_DIM) // 4
        if INT8:
            scores *= tl.load(k_scales + scale_at, mask=is_key, other=0.0)[None, :]
        if SOFTCAP:
            scores = tanh(scores / softcap) * softcap
        sees = is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            sees = sees & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(sees, scores, float("-inf"))
        best, share, weights = weigh(scores, best)
        values = tl.load(v_pages + kv_at[:, None] + dims[None, :], mask=valid, other=0.0)
        values = _values(values, INT8, FP8, q.dtype.element_ty)
        total = total * share + tl.sum(weights, 1)
        if INT8:
            weights *= tl.load(v_scales + scale_at, mask=is_key, other=0.0)[None, :]
        gathered *= share[:, None]
        gathered += dot(to_kind(weights, values.dtype), values, PRECISION, WIDEN)
    if FP8:
        gathered *= tl.load(v_scales + kv_head) * 256

    place = (first_row + row) * num_heads + head
    tl.store(stats + place * 2, best, mask=is_row)
    tl.store(stats + place * 2 + 1, total, mask=is_row)
    out_at = place.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + out_at, gathered, mask=inside)


@triton.jit
def merge_kernel(
    partial,
    stats,
    out,
    merge_indptr,
    merge_slots,
    num_heads,
    out_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Bring together the partial results of one query and head."""
    query = tl.program_id(0)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < HEAD_DIM
    best = float("-inf")
    total = 0.0
    gathered = tl.zeros([BLOCK_DIM], tl.float32)
    end = tl.load(merge_indptr + query + 1)
    for place in range(tl.load(merge_indptr + query), end):
        slot = tl.load(merge_slots + place).to(tl.int64) * num_heads + head
        top = tl.load(stats + slot * 2)
        new_best = tl.maximum(best, top)
        safe = tl.where(new_best == float("-inf"), 0.0, new_best)
        old_share = tl.exp(best - safe)
        new_share = tl.exp(top - safe)
        total = total * old_share + tl.load(stats + slot * 2 + 1) * new_share
        part = tl.load(partial + slot * HEAD_DIM + dims, mask=is_dim, other=0.0)
        gathered = gathered * old_share + part * new_share
        best = new_best
    at = out + query.to(tl.int64) * out_stride + head * HEAD_DIM + dims
    tl.store(at, to_kind(gathered / total, out.dtype.element_ty), mask=is_dim)


@dataclass(frozen=True, slots=True)
class DeviceItems:
    """`Items` on the device, and how many rows a tile may have."""

    max_rows: int
    items: Tensor
    rows: Tensor
    pages: Tensor
    positions: Tensor
    merge_indptr: Tensor
    merge_slots: Tensor

    @classmethod
    def of(cls, made: Items, max_rows: int, device: torch.device) -> "DeviceItems":
        names = ("items", "rows", "pages", "positions", "merge_indptr", "merge_slots")
        tensors = (torch.from_numpy(getattr(made, name)).to(device) for name in names)
        return cls(max_rows, *tensors)


@dataclass(frozen=True, slots=True)
class Partials:
    """float32 results of slots before they are merged: out [slots, heads, head_dim], and stats
    [slots, heads, 2], the maximum and the sum."""

    out: Tensor
    stats: Tensor

    @classmethod
    def empty(cls, num_slots: int, q: Tensor) -> Self:
        out = q.new_empty(num_slots, *q.shape[1:], dtype=torch.float32)
        return cls(out, out.new_empty(*out.shape[:2], 2))


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    work: DeviceItems,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """Attention of q [num_tokens, num_heads, head_dim] over pages: the same shape and dtype as q.

    k_pages, v_pages [num_pages, num_kv_heads, page_size, row width], in q's dtype or of 8 bits as
    kv_types.py has them; float8_e4m3fn ones with k_scales and v_scales, float32 [num_kv_heads].
    `work`: items made with at most `work.max_rows` queries each. Raises KernelError for shapes that
    do not agree or that no kernel is made for.
    """
    _check(q, k_pages, v_pages, k_scales, v_scales)
    partials = Partials.empty(work.rows.numel(), q)
    scoring = Scoring(scale, window, softcap)
    scales = (k_scales, v_scales)
    launch_partials(q, k_pages, v_pages, work.items, work, partials, scoring, scales)
    return launch_merge(q, work, partials)


def _check(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, k_scales: Tensor | None, v_scales: Tensor | None
) -> None:
    _, num_heads, head_dim = q.shape
    form = form_of(k_pages)
    shaped("k_pages", k_pages, None, None, None, row_width(head_dim, k_pages.dtype))
    shaped("v_pages", v_pages, *k_pages.shape)
    _, num_kv_heads, page_size, _ = k_pages.shape
    require(num_heads % num_kv_heads == 0, f"{num_heads} heads, {num_kv_heads} KV heads")
    require(head_dim in HEAD_SIZES, f"head_dim={head_dim} is none of {HEAD_SIZES}")
    require(page_size in PAGE_SIZES, f"page_size={page_size} is none of {PAGE_SIZES}")
    require(k_pages.dtype == v_pages.dtype, "the pages differ in dtype")
    require(form != "plain" or q.dtype == k_pages.dtype, "q and the pages differ in dtype")
    check_floats(q=q)
    check_device(q=q, k_pages=k_pages, v_pages=v_pages)
    require(q.stride()[1:] == (head_dim, 1), "the heads of q must lie one after the other")
    require(k_pages.is_contiguous() and v_pages.is_contiguous(), "pages must be contiguous")
    for name, scales in (("k_scales", k_scales), ("v_scales", v_scales)):
        require((scales is not None) == (form == "fp8"), f"{name} are for float8_e4m3fn pages")
        if scales is not None:
            shaped(name, scales, num_kv_heads)
            require(scales.dtype == torch.float32, f"{name} are {scales.dtype}, expected float32")


def form_of(pages: Tensor) -> str:
    """Of pages: int8, fp8 or plain."""
    return {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}.get(pages.dtype, "plain")


def launch_partials(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    items: Tensor,
    work: DeviceItems,
    partials: Partials,
    scoring: Scoring,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> None:
    """Fill the slots of `items`, some of `work`'s. As `paged_attention` checks its arguments."""
    if not len(items):
        return
    _, num_kv_heads, page_size, _ = k_pages.shape
    num_heads, head_dim = q.shape[1:]
    group = num_heads // num_kv_heads
    form = form_of(k_pages)
    pages = (k_pages, v_pages)
    if form == "int8":
        scales = (k_pages.view(torch.float32), v_pages.view(torch.float32))
    elif form == "fp8":
        pages = (k_pages.view(torch.uint8), v_pages.view(torch.uint8))
    else:
        scales = pages  # which are not read
    rows = tile_rows(work.max_rows, group)
    keys, warps, stages = block_keys(head_dim, on_amd()), num_warps(rows, head_dim, form), 2
    if q.dtype == torch.float32:
        keys, warps, stages = 16, wide_warps(head_dim, on_amd()), 1
    launch(
        partials_kernel,
        (len(items), num_kv_heads),
        q,
        *pages,
        *scales,
        partials.out,
        partials.stats,
        items,
        work.rows,
        work.pages,
        work.positions,
        scoring.scale,
        scoring.softcap or 1.0,
        q.stride(0),
        k_pages.stride(0),
        num_heads,
        GROUP=group,
        PAGE_SIZE=page_size,
        HEAD_DIM=head_dim,
        BLOCK_DIM=max(power_of_two(head_dim), MIN_TILE),
        BLOCK_ROWS=rows,
        BLOCK_KEYS=keys,
        WINDOW=scoring.window or 0,
        SOFTCAP=scoring.softcap is not None,
        INT8=form == "int8",
        FP8=form == "fp8",
        PRECISION=precision(q),
        WIDEN=interpreted(),
        num_warps=warps,
        num_stages=stages,
        **(AMD_OPTIONS if on_amd() else {}),
    )


def launch_merge(q: Tensor, work: DeviceItems, partials: Partials) -> Tensor:
    """The attention of q: its slots brought together."""
    out = torch.empty_like(q)
    num_tokens, num_heads, head_dim = q.shape
    if not num_tokens:
        return out
    launch(
        merge_kernel,
        (num_tokens, num_heads),
        partials.out,
        partials.stats,
        out,
        work.merge_indptr,
        work.merge_slots,
        num_heads,
        out.stride(0),
        HEAD_DIM=head_dim,
        BLOCK_DIM=max(power_of_two(head_dim), MIN_TILE),
        num_warps=1,
    )
    return out


def precision(q: Tensor) -> str:
    """Of products: whole float32 numbers are not rounded to tf32."""
    return "ieee" if q.dtype == torch.float32 else "tf32"


def tile_rows(max_rows: int, group: int) -> int:
    """Rows of a tile that holds `max_rows` queries of all heads of a group."""
    return max(power_of_two(max_rows * group), MIN_TILE)


def block_keys(head_dim: int, amd: bool = False) -> int:
    """Keys of a block: 32 of more than 64 dimensions, as 64 keys take the registers and shared
    memory with which twice as many programs of a multiprocessor fetch just as much at once. 16 of
    more than 128, as values made of codes, or padded, take registers that 32 keys leave none of."""
    if head_dim > 128:
        return 16
    return 64 if head_dim <= 64 and not amd else 32


def num_warps(rows: int, head_dim: int = MIN_TILE, form: str = "plain") -> int:
    """One for each 16 rows, four at least: they divide the keys' loads among them. Twice as many
    of large heads that are padded, whose values made of codes take registers."""
    is_padded = form != "plain" and 128 < head_dim < power_of_two(head_dim)
    return 8 if rows > 64 or is_padded else 4


def wide_warps(head_dim: int, amd: bool = False) -> int:
    """Of float32: its products take registers, as they run on no tensor cores of NVIDIA's."""
    return 8 if head_dim <= 64 or amd else 16


def cost(
    work: Items,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    pages: torch.dtype,
) -> Cost:
    """Each item reads its keys and values once, whoever shares them, and its queries; partial
    results are written and read in float32. A query, head and key take two products of head_dim.
    """
    num_rows = work.items[:, 1].astype(np.int64)
    num_keys = (work.items[:, 4] - work.items[:, 3]).astype(np.int64)
    row_bytes = row_width(head_dim, pages) * pages.itemsize
    moved = 2 * int(num_keys.sum()) * num_kv_heads * row_bytes
    moved += work.num_slots * num_heads * (head_dim * (dtype.itemsize + 2 * 4) + 2 * 2 * 4)
    moved += len(work.positions) * num_heads * head_dim * dtype.itemsize
    flops = 4 * int((num_rows * num_keys).sum()) * num_heads * head_dim
    return Cost(moved, flops, on_tensor_cores=dtype != torch.float32, launches=2)
