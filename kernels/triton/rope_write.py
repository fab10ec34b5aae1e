"""From the joint projection to queries and written KV pages on a GPU, in one launch.

    qkv [tokens, q heads | k heads | v heads]
        q   norm, rotation                          -> q
        k   norm, rotation, packed as the pages     -> k_pages at the token's slot
        v                   packed as the pages     -> v_pages

One program a token and BLOCK_HEADS heads of one kind. A head is held as its two halves, which turn
into each other. Rounds where norm.py, rope.py and kv_types.py do. A slot outside the pages writes
nothing, so rows that only pad a step have slot -1.
"""

# What a kernel computes with has Triton's types, whatever Python's operators say.
# pyright: reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.kv_types import FP8, SCALE_BYTES, head_dim_of, page_type
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import (
    check_device,
    check_floats,
    launch,
    power_of_two,
    rounded,
    to_kind,
)

NUM_WARPS = 1
MAX_HEAD_DIM = 512


@triton.jit
def _rint(x):
    """The nearest whole number, of two the even one, for |x| < 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _norm(low, high, weight, dims, inside, eps, HALF: tl.constexpr):
    """Both halves [heads, BLOCK_HALF] float32, normed, with the roundings of norm.py."""
    squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    scale = (1.0 / tl.sqrt(squares / (2 * HALF) + eps))[:, None]
    kind = weight.dtype.element_ty
    low_weight = tl.load(weight + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
    high_weight = tl.load(weight + HALF + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
    low = rounded(rounded(low * scale, kind) * low_weight, kind)
    high = rounded(rounded(high * scale, kind) * high_weight, kind)
    return low, high


@triton.jit
def _e4m3(x):
    """The bytes of float32 x, to the nearest, of two the even one; by bits, as not every GPU knows
    the type. What is beyond 448 is 448, what is not finite is NaN."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)  # of 448
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960  # a bias of 7, not 127
    small = _rint(magnitude.to(tl.float32, bitcast=True) * 512.0).to(tl.int32)
    code = tl.where(magnitude < 0x3C800000, small, normal) | ((bits >> 24) & 0x80)  # of 2**-6
    return tl.where((bits & 0x7FFFFFFF) >= 0x7F800000, 0x7F, code)


@triton.jit
def _write(
    pages,
    scales,
    low,
    high,
    row,
    dims,
    inside,
    HALF: tl.constexpr,
    PACKED: tl.constexpr,
    FP8: tl.constexpr,
):
    """Store both halves [heads, BLOCK_HALF] float32 as the rows `row` [heads] of pages."""
    if PACKED:
        width = 2 * HALF + 4
        finite = tl.where((low - low == 0) & (high - high == 0), 1, 0)
        finite = tl.min(tl.where(inside, finite, 1), 1) == 1
        low = tl.where(finite[:, None], low, 0.0)
        high = tl.where(finite[:, None], high, 0.0)
        peak = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
        scale = tl.div_rn(peak, 127.0)
        has_scale = scale > 1e-30
        inverse = tl.where(has_scale, tl.div_rn(1.0, tl.where(has_scale, scale, 1.0)), 0.0)
        low = tl.minimum(tl.maximum(_rint(low * inverse[:, None]), -127.0), 127.0)
        high = tl.minimum(tl.maximum(_rint(high * inverse[:, None]), -127.0), 127.0)
        stored = tl.where(finite, tl.where(has_scale, scale, 0.0), float("nan"))
        head = tl.max(inside.to(tl.int32), 1) == 1
        tl.store(scales + row * (width // 4) + HALF // 2, stored, mask=head)
    else:
        width = 2 * HALF
    if FP8:
        low, high = _e4m3(low), _e4m3(high)
    kind = pages.dtype.element_ty
    at = pages + row[:, None] * width + dims[None, :]
    tl.store(at, to_kind(low, kind), mask=inside)
    tl.store(at + HALF, to_kind(high, kind), mask=inside)


@triton.jit
def rope_write_kernel(
    qkv,
    cos,
    sin,
    positions,
    slots,
    q_norm,
    k_norm,
    q,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    qkv_stride,
    max_context,
    num_slots,
    num_heads,
    num_kv_heads,
    eps,
    NORMS: tl.constexpr,
    PACKED: tl.constexpr,
    FP8: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """BLOCK_HEADS heads of one kind and token. k_scales, v_scales: packed pages as float32.
    FP8: pages are bytes of e4m3."""
    token = tl.program_id(0)
    q_blocks = tl.cdiv(num_heads, BLOCK_HEADS)
    kv_blocks = tl.cdiv(num_kv_heads, BLOCK_HEADS)
    block = tl.program_id(1)
    is_q = block < q_blocks
    is_v = block >= q_blocks + kv_blocks
    block -= tl.where(is_q, 0, tl.where(is_v, q_blocks + kv_blocks, q_blocks))
    first = tl.where(is_q, 0, tl.where(is_v, num_heads + num_kv_heads, num_heads))
    head = block * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, BLOCK_HALF)
    is_dim = dims < HALF
    inside = (head < tl.where(is_q, num_heads, num_kv_heads))[:, None] & is_dim[None, :]

    at = (
        qkv + token.to(tl.int64) * qkv_stride + (first + head)[:, None] * (2 * HALF) + dims[None, :]
    )
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    kind = qkv.dtype.element_ty
    if not is_v:
        if NORMS:
            if is_q:
                low, high = _norm(low, high, q_norm, dims, is_dim, eps, HALF)
            else:
                low, high = _norm(low, high, k_norm, dims, is_dim, eps, HALF)
        position = tl.load(positions + token)
        known = dims < tl.where((position >= 0) & (position < max_context), HALF, 0)
        table = position * (2 * HALF) + dims
        low_cos = tl.load(cos + table, mask=known, other=0.0)[None, :]
        low_sin = tl.load(sin + table, mask=known, other=0.0)[None, :]
        high_cos = tl.load(cos + table + HALF, mask=known, other=0.0)[None, :]
        high_sin = tl.load(sin + table + HALF, mask=known, other=0.0)[None, :]
        turned = low * low_cos - high * low_sin
        high = rounded(high * high_cos + low * high_sin, kind)
        low = rounded(turned, kind)
    if is_q:
        out = q + (token.to(tl.int64) * num_heads + head[:, None]) * (2 * HALF) + dims[None, :]
        tl.store(out, low.to(kind), mask=inside)
        tl.store(out + HALF, high.to(kind), mask=inside)
    else:
        slot = tl.load(slots + token)
        writes = tl.where((slot >= 0) & (slot < num_slots), num_kv_heads, 0)
        inside = (head < writes)[:, None] & is_dim[None, :]
        row = (slot // PAGE_SIZE * num_kv_heads + head) * PAGE_SIZE + slot % PAGE_SIZE
        if is_v:
            _write(v_pages, v_scales, low, high, row, dims, inside, HALF, PACKED, FP8)
        else:
            _write(k_pages, k_scales, low, high, row, dims, inside, HALF, PACKED, FP8)


def rope_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """The rotated queries [tokens, num_heads, head_dim]; keys and values go to slots of the pages.

    qkv [tokens, (num_heads + 2 * num_kv_heads) * head_dim]; cos, sin float32 [max_context,
    head_dim], both halves filled; positions and slots int64 [tokens]; k_pages, v_pages [num_pages,
    num_kv_heads, page_size, row width], of a type of kv_types.py; q_norm, k_norm [head_dim],
    both or none. Positions must lie in the table; a slot outside the pages writes nothing. Raises
    KernelError for shapes or types that do not agree.
    """
    num_pages, num_kv_heads, page_size, width = k_pages.shape
    head_dim, tokens = head_dim_of(k_pages), len(qkv)
    shaped("qkv", qkv, None, (num_heads + 2 * num_kv_heads) * head_dim)
    shaped("cos", cos, None, head_dim)
    shaped("sin", sin, *cos.shape)
    shaped("v_pages", v_pages, num_pages, num_kv_heads, page_size, width)
    norms = _norms(q_norm, k_norm, qkv, head_dim)
    _check(qkv, cos, sin, positions, slots, k_pages, v_pages, head_dim)
    q = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    packed, is_fp8 = k_pages.dtype == torch.int8, k_pages.dtype == FP8
    if is_fp8:
        k_pages, v_pages = k_pages.view(torch.uint8), v_pages.view(torch.uint8)
    scales = [pages.view(torch.float32) if packed else pages for pages in (k_pages, v_pages)]
    if tokens:
        at_once = block_heads(head_dim)
        kv_blocks = triton.cdiv(num_kv_heads, at_once)
        blocks = triton.cdiv(num_heads, at_once) + 2 * kv_blocks
        launch(
            rope_write_kernel,
            (tokens, blocks),
            qkv,
            cos,
            sin,
            positions,
            slots,
            *(norms or (qkv, qkv)),
            q,
            k_pages,
            v_pages,
            *scales,
            qkv.stride(0),
            len(cos),
            num_pages * page_size,
            num_heads,
            num_kv_heads,
            eps,
            NORMS=norms is not None,
            PACKED=packed,
            FP8=is_fp8,
            PAGE_SIZE=page_size,
            HALF=head_dim // 2,
            BLOCK_HALF=power_of_two(head_dim // 2),
            BLOCK_HEADS=at_once,
            num_warps=NUM_WARPS,
        )
    return q


def block_heads(head_dim: int) -> int:
    """As many as make wide loads of the halves that a thread holds."""
    return max(512 // power_of_two(head_dim), 1)


def _norms(
    q_norm: Tensor | None, k_norm: Tensor | None, qkv: Tensor, head_dim: int
) -> tuple[Tensor, Tensor] | None:
    if q_norm is None or k_norm is None:
        require(q_norm is k_norm, "q_norm and k_norm: give both or none")
        return None
    shaped("q_norm", q_norm, head_dim)
    shaped("k_norm", k_norm, head_dim)
    check_floats(qkv=qkv, q_norm=q_norm, k_norm=k_norm)
    return q_norm, k_norm


def _check(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    head_dim: int,
) -> None:
    check_floats(qkv=qkv)
    if k_pages.dtype != FP8:
        page_type(k_pages)
    require(k_pages.dtype == v_pages.dtype, f"k_pages {k_pages.dtype}, v_pages {v_pages.dtype}")
    limit = f"head_dim={head_dim} must be even and at most {MAX_HEAD_DIM}"
    require(head_dim % 2 == 0 and 0 < head_dim <= MAX_HEAD_DIM, limit)
    if k_pages.dtype == torch.int8:
        limit = f"head_dim={head_dim} must divide by {SCALE_BYTES} for int8 pages"
        require(head_dim % SCALE_BYTES == 0, limit)
    for name, table in (("cos", cos), ("sin", sin)):
        fits = table.dtype == torch.float32 and table.is_contiguous()
        require(fits, f"{name} must be contiguous float32")
    for name, column in (("positions", positions), ("slots", slots)):
        shaped(name, column, len(qkv))
        fits = column.dtype == torch.int64 and column.is_contiguous()
        require(fits, f"{name} must be contiguous int64")
    require(qkv.stride(1) == 1, "the columns of qkv must lie one after the other")
    require(k_pages.is_contiguous() and v_pages.is_contiguous(), "pages must be contiguous")
    check_device(
        qkv=qkv, cos=cos, positions=positions, slots=slots, k_pages=k_pages, v_pages=v_pages
    )


def cost(
    tokens: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    pages: torch.dtype,
) -> Cost:
    """qkv is read, q written, k and v written to pages; each token reads its row of both tables.

    A rotated value takes 2 products and a sum.
    """
    heads = num_heads + 2 * num_kv_heads
    packed = SCALE_BYTES if pages == torch.int8 else 0
    moved = (heads + num_heads) * head_dim * dtype.itemsize
    moved += 2 * num_kv_heads * (head_dim * pages.itemsize + packed) + 2 * head_dim * 4
    return Cost(tokens * moved, tokens * (num_heads + num_kv_heads) * head_dim * 3)
