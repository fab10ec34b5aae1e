"""KV pages in 2 or 4 bits: the layout, its torch reference, and which keys a query sees in it.

After KIVI (Z. Liu et al., 2024): a page is 32 tokens, and of one KV head its bytes are

    keys     codes [32, head_dim], `bits` each, low bits first;  scales, zeros  float16 [head_dim]
    values   codes [32, head_dim], `bits` each, low bits first;  scales, zeros  float16 [32, groups]

so that a key's channel is of one scale over the page's tokens, and a value's 32 channels are over
one token. What is meant is zero + scale * code; zeros lie below the least value and scales are
rounded up, so no value is further from what is meant than half its scale.

A page is quantised once it is full, as a function of its own keys and values alone; until then it
lives in a pool of full precision. When it is full matters to the exactness of the engine, so it is
not left to the order of steps:

    tokens   0             sink                     first_recent(p)             p
             | full pages  |  quantised             | full precision            |  not seen
               sink_pages                             recent_pages at most

    first_recent(p) = p rounded down to whole runs of `recent_pages` pages, or 0 within the sinks

What a query sees is a function of its position alone. It is the same whether its sequence came in
one step or token by token, cold or over pages that another sequence left; a known prefix is taken
over in whole runs, whose quantised pages (and sinks) are all that has to be kept.

Knows pages and tables, not requests.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from radixgen.kernels.attention import paged_attention_reference
from radixgen.kernels.attention_plan import AttentionPlan, Scoring, attention_native, takes
from radixgen.kernels.checks import require, shaped
from radixgen.kernels.kv_types import page_type
from radixgen.kernels.library import Kind, library, run

Tables = tuple[Tensor, Tensor, Tensor, Tensor]

PAGE_SIZE = 32  # tokens, and channels of a value's group
BITS = (2, 4)
MAX_DIM = 1024  # of a head, that the C kernels take; cpu/ops.h
# Both are exact in float32 and outweigh what rounding to float16 takes from normal numbers and from
# those below.
SLACK = 2.0**-10
TINY = 2.0**-24
LARGEST = 65000.0  # that is stored: float16 holds it, and its group's zero and scale


@dataclass(frozen=True, slots=True)
class KiviForm:
    """How pages are quantised: to how many bits, and which are not.

    `recent_pages`: of a run, which is quantised as a whole when its last page is full.
    `sink_pages`: at the start of a sequence, kept in full precision for good.
    Raises KernelError for what there is no form for.
    """

    bits: int
    recent_pages: int = 1
    sink_pages: int = 0

    def __post_init__(self) -> None:
        require(self.bits in BITS, f"bits={self.bits}: pages are quantised to 2 or 4 bits")
        require(self.recent_pages >= 1, f"recent_pages={self.recent_pages}: 1 at least")
        require(self.sink_pages >= 0, f"sink_pages={self.sink_pages}: 0 at least")

    @property
    def run(self) -> int:
        """Tokens that are quantised together."""
        return self.recent_pages * PAGE_SIZE

    @property
    def sink(self) -> int:
        """Tokens at the start of a sequence that never are."""
        return self.sink_pages * PAGE_SIZE

    def first_recent(self, position: int) -> int:
        """The first of the recent keys that the query at a position sees in full precision."""
        first = position // self.run * self.run
        return first if first > self.sink else 0

    def page_bytes(self, head_dim: int) -> int:
        """Bytes of a page's keys, or values, of one head."""
        require(
            head_dim % PAGE_SIZE == 0, f"head_dim={head_dim} is no multiple of {PAGE_SIZE} channels"
        )
        return code_bytes(self.bits, head_dim) + 4 * head_dim


def code_bytes(bits: int, head_dim: int) -> int:
    """Bytes of a page's codes of one head."""
    return PAGE_SIZE * head_dim * bits // 8


def head_dim_of(pages: Tensor, bits: int) -> int:
    """Channels of pages [..., page bytes] in so many bits."""
    return pages.shape[-1] // (code_bytes(bits, PAGE_SIZE) // PAGE_SIZE + 4)


def quantize_pages(k: Tensor, v: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """k, v [..., 32, head_dim], full pages, as uint8 [..., page bytes].

    A group with a value that is not finite, or beyond LARGEST, is NaN as a whole.
    """
    KiviForm(bits).page_bytes(k.shape[-1])
    shaped("v", v, *k.shape)
    require(k.shape[-2] == PAGE_SIZE, f"pages of {k.shape[-2]} tokens, expected {PAGE_SIZE}")
    return (
        _pack(*_quantize(k.float(), -2, bits), bits, -2),
        _pack(*_quantize(torch.unflatten(v.float(), -1, (-1, PAGE_SIZE)), -1, bits), bits, -3),
    )


def _quantize(x: Tensor, group: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (whole numbers), scales and zeros of x in groups along a dimension."""
    held = x.abs() <= LARGEST
    all_held = held.all(group, keepdim=True)
    x = torch.where(held, x, 0.0)
    low, high = x.amin(group, keepdim=True), x.amax(group, keepdim=True)
    zero = (low - low.abs() * SLACK - TINY).half()
    scale = ((high - zero.float()) * ((1 + SLACK) / (2**bits - 1)) + TINY).half()
    codes = torch.floor((x - zero.float()) * (1.0 / scale.float()) + 0.5).clamp(0, 2**bits - 1)
    return codes, torch.where(all_held, scale, torch.nan), torch.where(all_held, zero, torch.nan)


def _pack(codes: Tensor, scale: Tensor, zero: Tensor, bits: int, first: int) -> Tensor:
    """The bytes of pages, whose dimensions begin with `first`."""
    flat = codes.to(torch.uint8).flatten(first)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    words = (torch.unflatten(flat, -1, (-1, 8 // bits)) << shifts).sum(-1, dtype=torch.uint8)
    numbers = (x.flatten(first).contiguous().view(torch.uint8) for x in (scale, zero))
    return torch.cat((words, *numbers), -1)


def dequantize_keys(pages: Tensor, bits: int) -> Tensor:
    """What keys' pages [..., page bytes] mean: float32 [..., 32, head_dim]."""
    codes, scale, zero = _unpack(pages, bits)
    return torch.unflatten(codes, -1, (PAGE_SIZE, -1)) * scale[..., None, :] + zero[..., None, :]


def dequantize_values(pages: Tensor, bits: int) -> Tensor:
    """What values' pages [..., page bytes] mean: float32 [..., 32, head_dim]."""
    codes, scale, zero = _unpack(pages, bits)
    values = torch.unflatten(codes, -1, (-1, PAGE_SIZE)) * scale[..., None] + zero[..., None]
    return torch.unflatten(values.flatten(-2), -1, (PAGE_SIZE, -1))


def _unpack(pages: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """float32 codes [..., 32 * head_dim], scales and zeros [..., head_dim]."""
    head_dim = head_dim_of(pages, bits)
    words, numbers = torch.split(pages, [code_bytes(bits, head_dim), 4 * head_dim], -1)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    codes = ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2).float()
    scale, zero = numbers.contiguous().view(torch.float16).float().chunk(2, -1)
    return codes, scale, zero


def kivi_attention_reference(
    q: Tensor,
    pages: tuple[Tensor, Tensor],
    plain: tuple[Tensor, Tensor],
    form: KiviForm,
    tables: Tables,
    plain_indices: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of q [num_tokens, num_heads, head_dim] over quantised and plain pages.

    pages: keys' and values', uint8 [num_pages, num_kv_heads, page bytes]. plain: those in full
    precision, [num_plain, num_kv_heads, 32, head_dim]. tables: qo_indptr, kv_indptr, kv_indices,
    kv_last_page_len as `paged_attention` takes them, and plain_indices, int32 like kv_indices:
    where a page lies in full precision, if it is asked for. By torch alone: each run of queries is
    a sequence of its own over a pool of what the pages in use mean.
    """
    joined = join_runs(form, tables, plain_indices, pages[0].shape[0])
    pools, over_pools = _gathered(pages, plain, form, joined)
    return paged_attention_reference(
        q, *pools, *over_pools, scale=scale, window=window, softcap=softcap
    )


def _gathered(
    pages: tuple[Tensor, Tensor], plain: tuple[Tensor, Tensor], form: KiviForm, joined: Tables
) -> tuple[tuple[Tensor, Tensor], Tables]:
    """What the pages in use mean, float32, and the tables over them."""
    num_pages = pages[0].shape[0]
    queries, used, indices, last = joined
    found, places = torch.unique(indices, return_inverse=True)
    coarse, fine = found[found < num_pages], found[found >= num_pages] - num_pages
    pools = (
        torch.cat((dequantize_keys(pages[0][coarse], form.bits), plain[0][fine].float())),
        torch.cat((dequantize_values(pages[1][coarse], form.bits), plain[1][fine].float())),
    )
    return pools, (queries, used, places.int(), last)


def kivi_attention(
    q: Tensor,
    pages: tuple[Tensor, Tensor],
    plain: tuple[Tensor, Tensor],
    form: KiviForm,
    joined: Tables,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """`kivi_attention_reference` on a CPU. `joined`: the tables that `join_runs` makes of a step's,
    once for all layers. That pages lie in range is the caller's affair."""
    if takes(q, *plain):
        heads = PAGE_SIZE, plain[0].shape[1], q.shape[1] // plain[0].shape[1], q.shape[2]
        plan = AttentionPlan(joined, *heads, window)
        scoring = Scoring(scale, window, softcap)
        return attention_native(q, *plain, plan, scoring, pages, form.bits)
    pools, tables = _gathered(pages, plain, form, joined)
    return paged_attention_reference(
        q, *pools, *tables, scale=scale, window=window, softcap=softcap
    )


def store_pages(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    sources: Tensor,
    targets: Tensor,
    bits: int,
) -> None:
    """Quantise full pages, of k, v [pages, num_kv_heads, 32, head_dim], sources[i] to targets[i] of
    k_pages, v_pages [num_pages, num_kv_heads, page bytes], int64 [count]."""
    if library() is None or k.shape[3] > MAX_DIM:
        if sources.numel():
            k_pages[targets], v_pages[targets] = quantize_pages(k[sources], v[sources], bits)
        return
    numbers = sources.numel(), k.shape[1], k.shape[3], bits
    codes = k_pages.data_ptr(), v_pages.data_ptr(), sources.data_ptr(), targets.data_ptr()
    run(Kind.STORE_PAGES, (k.data_ptr(), v.data_ptr(), page_type(k), *codes, *numbers))


def join_runs(form: KiviForm, tables: Tables, plain_indices: Tensor, num_pages: int) -> Tables:
    """Each run's queries as a sequence of its own, over `num_pages` pages of few bits and, numbered
    from there on, plain ones: int32 tables as `paged_attention` takes them.

    Raises KernelError where a page that is seen in full precision lies nowhere.
    """
    queries, used, pages, lasts = (table.tolist() for table in tables)
    fine = [-1 if index < 0 else index + num_pages for index in plain_indices.tolist()]
    ends, indptr, last = [0], [0], list[int]()
    indices: list[int] = []
    for row, last_len in enumerate(lasts):
        first, stop = used[row], used[row + 1]
        length = (stop - first - 1) * PAGE_SIZE + last_len
        position = length - (queries[row + 1] - queries[row])
        while position < length:
            end = min((position // form.run + 1) * form.run, length)
            recent = first + form.first_recent(position) // PAGE_SIZE
            sinks = min(first + form.sink_pages, recent)
            stop = first - (-end // PAGE_SIZE)
            indices += fine[first:sinks] + pages[sinks:recent] + fine[recent:stop]
            indptr.append(len(indices))
            last.append((end - 1) % PAGE_SIZE + 1)
            ends.append(ends[-1] + end - position)
            position = end
    require(min(indices, default=0) >= 0, "a page that is seen in full precision is not at hand")
    made = [torch.tensor(x, dtype=torch.int32) for x in (ends, indptr, indices, last)]
    return made[0], made[1], made[2], made[3]
