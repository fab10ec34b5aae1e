"""The kernels on the device under test: right, and then how much of its own rates they reach.

Right: each against its reference, which computes in float32 on the CPU. Fast: bytes and operations
of the cost functions, over the time taken, as a share of the device's copy and product rates.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_rates import Bench
from benchmarks.gpu_roofline import (
    PAGE_SIZE,
    Work,
    attention_cost,
    batch_items,
    batch_tables,
    most_rows,
)
from radixgen.kernels import kivi
from radixgen.kernels.activation import silu_mul_reference
from radixgen.kernels.attention import paged_attention_reference
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.kivi import KiviForm
from radixgen.kernels.kv_types import FP8, pack_rows, unpack_rows
from radixgen.kernels.kv_write import write_kv_reference
from radixgen.kernels.linear import linear_reference
from radixgen.kernels.norm import rms_norm_reference
from radixgen.kernels.rope import rotate_reference
from radixgen.kernels.triton import activation, linear, norm, packed, page_copy, rope_write
from radixgen.kernels.triton import kivi as triton_kivi
from radixgen.kernels.triton.attention import DeviceItems, paged_attention
from radixgen.kernels.triton.kivi_items import make_kivi_items
from radixgen.model.config import DecoderConfig
from radixgen.model.sampler import Draw, Sampler
from radixgen.model.triton_sampler import TritonChooser
from radixgen.types import SamplingParams

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


# ---- attention over a batch ----


class Attention:
    """A step's attention of one layer, with random queries, keys and values."""

    def __init__(self, bench: Bench, config: DecoderConfig, work: Work) -> None:
        self.config, self.tables = config, batch_tables(work)
        num_pages = int(self.tables.kv_indices.max()) + 1
        shape = (num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim)
        self.q = _random(bench, work.tokens, config.num_heads, config.head_dim)
        self.k_pages, self.v_pages = _random(bench, *shape), _random(bench, *shape)
        self.scale = config.head_dim**-0.5

    def items(self, share: bool = True) -> DeviceItems:
        made, most = batch_items(self.config, self.tables, share)
        return DeviceItems.of(made, most, self.q.device)

    def run(self, items: DeviceItems) -> Tensor:
        return paged_attention(self.q, self.k_pages, self.v_pages, items, scale=self.scale)

    def reference(self) -> Tensor:
        tables = (
            torch.from_numpy(getattr(self.tables, name))
            for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")
        )
        given = (each.float().cpu() for each in (self.q, self.k_pages, self.v_pages))
        return paged_attention_reference(*given, *tables, scale=self.scale)


class FewBits:
    """A step's attention of one layer over pages of 2 or 4 bits, the last ones in full precision.

    All pages lie in both, so that whatever is read is there.
    """

    def __init__(self, bench: Bench, config: DecoderConfig, work: Work, form: KiviForm) -> None:
        self.config, self.form = config, form
        self.tables = batch_tables(work, kivi.PAGE_SIZE)
        num_pages = int(self.tables.kv_indices.max()) + 1
        shape = (num_pages, config.num_kv_heads, kivi.PAGE_SIZE, config.head_dim)
        self.q = _random(bench, work.tokens, config.num_heads, config.head_dim)
        self.plain = _random(bench, *shape), _random(bench, *shape)
        width = form.page_bytes(config.head_dim)
        codes = torch.empty(*shape[:2], width, dtype=torch.uint8, device=self.q.device)
        self.pages = codes, torch.empty_like(codes)
        every = torch.arange(num_pages, device=self.q.device)
        triton_kivi.store_pages(*self.plain, *self.pages, every, every, form.bits)
        made = make_kivi_items(self.tables, self.tables.kv_indices, form, most_rows(config))
        self.items = triton_kivi.DeviceKiviItems.of(made, most_rows(config), self.q.device)
        self.scale = config.head_dim**-0.5

    def run(self) -> Tensor:
        return triton_kivi.kivi_attention(
            self.q, self.pages, self.plain, self.form, self.items, scale=self.scale
        )

    def reference(self) -> Tensor:
        queries, used, pages_of, last = (
            torch.from_numpy(getattr(self.tables, name))
            for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")
        )
        pages, plain = ((k.cpu(), v.cpu()) for k, v in (self.pages, self.plain))
        tables = (queries, used, pages_of, last)
        return kivi.kivi_attention_reference(
            self.q.float().cpu(), pages, plain, self.form, tables, pages_of, scale=self.scale
        )

    def excess(self) -> float:
        """By how much of half its scale, at most, a stored key is too far from what it was.

        Its scale is a little wider than its channel's spread, as float16 holds it.
        """
        bits, k = self.form.bits, self.plain[0].float().cpu()
        off = (kivi.dequantize_keys(self.pages[0].cpu(), bits) - k).abs()
        spread = (k.amax(-2, keepdim=True) - k.amin(-2, keepdim=True)) / (2**bits - 1)
        return max(0.0, float((off / spread.clamp(min=1e-9)).max() * 2 / 1.01 - 1))


def _random(bench: Bench, *shape: int) -> Tensor:
    if bench.device.type == "cpu":
        generator = torch.Generator().manual_seed(math.prod(shape))
        return torch.randn(shape, generator=generator).to(bench.dtype)
    return torch.randn(shape, device=bench.device, dtype=bench.dtype)


# ---- right ----


def errors(bench: Bench, config: DecoderConfig) -> dict[str, float]:
    """Kernel -> the largest difference from its reference, relative to the largest number."""
    checks: dict[str, Callable[[Bench, DecoderConfig], float]] = {
        "attention, decode": lambda b, c: _attention(b, c, Work(3, 1, 300)),
        "attention, prefill": lambda b, c: _attention(b, c, Work(1, 20, 270)),
        "attention, shared prefix": lambda b, c: _attention(b, c, Work(4, 1, 280, shared=256)),
        "attention, KV int8": lambda b, c: _narrow(b, c, torch.int8),
        "attention, KV float8": lambda b, c: _narrow(b, c, torch.float8_e4m3fn),
        "attention, KV 4 bits": lambda b, c: _few_bits(b, c, KiviForm(4)),
        "attention, KV 2 bits": lambda b, c: _few_bits(b, c, KiviForm(2, 2, 1)),
        "norm": _norm,
        "activation": _activation,
        "rotation and KV": _rope_write,
        "linear": _linear,
        "linear, packed": _packed,
        "page copy": _page_copy,
        "draws": _draws,
    }
    return {name: check(bench, config) for name, check in checks.items()}


def _error(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.float().cpu(), wanted.float().cpu()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))


def _attention(bench: Bench, config: DecoderConfig, work: Work) -> float:
    case = Attention(bench, config, work)
    return _error(case.run(case.items()), case.reference())


def _narrow(bench: Bench, config: DecoderConfig, dtype: torch.dtype) -> float:
    case = Attention(bench, config, Work(2, 1, 70))
    pages = [pack_rows(x, dtype) for x in (case.k_pages, case.v_pages)]
    ones = torch.ones(config.num_kv_heads, device=case.q.device) if dtype == FP8 else None
    found = paged_attention(
        case.q, pages[0], pages[1], case.items(), scale=case.scale, k_scales=ones, v_scales=ones
    )
    case.k_pages, case.v_pages = (unpack_rows(x) for x in pages)
    return _error(found, case.reference())


def _few_bits(bench: Bench, config: DecoderConfig, form: KiviForm) -> float:
    case = FewBits(bench, config, Work(2, 2, 80), form)
    return max(_error(case.run(), case.reference()), case.excess())


def _norm(bench: Bench, config: DecoderConfig) -> float:
    x, more = _random(bench, 5, config.hidden_size), _random(bench, 5, config.hidden_size)
    weight = _random(bench, config.hidden_size)
    found, total = norm.add_rms_norm(x, more, weight, 1e-5)
    wanted = rms_norm_reference((x + more).cpu(), weight.cpu(), 1e-5)
    return max(_error(found, wanted), _error(total, x + more))


def _activation(bench: Bench, config: DecoderConfig) -> float:
    x = _random(bench, 5, 2 * config.ffn_size)
    return _error(activation.silu_mul(x), silu_mul_reference(x.cpu()))


def _rope_write(bench: Bench, config: DecoderConfig) -> float:
    c, tokens = config, 5
    qkv = _random(bench, tokens, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim)
    angles = torch.rand(64, c.head_dim // 2, generator=torch.Generator().manual_seed(1)) * 6
    cos, sin = (torch.cat((each, each), dim=1) for each in (angles.cos(), angles.sin()))
    positions, slots = torch.tensor([3, 0, 63, 7, 8]), torch.tensor([5, 16, 31, 40, 2])
    shape = (3, c.num_kv_heads, PAGE_SIZE, c.head_dim)
    pages = [torch.zeros(shape, dtype=bench.dtype, device=bench.device) for _ in range(2)]
    turn = [each.to(bench.device) for each in (cos, sin)]
    places = [each.to(bench.device) for each in (positions, slots)]
    k_pages, v_pages = pages
    q = rope_write.rope_write(
        qkv, turn[0], turn[1], places[0], places[1], k_pages, v_pages, c.num_heads
    )
    heads = qkv.cpu().view(tokens, -1, c.head_dim)
    parts = torch.split(heads, [c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
    rows = cos[positions], sin[positions]
    k_wanted, v_wanted = (torch.zeros(shape, dtype=bench.dtype) for _ in range(2))
    write_kv_reference(rotate_reference(parts[1], *rows), parts[2], k_wanted, v_wanted, slots)
    kept = max(_error(k_pages, k_wanted), _error(v_pages, v_wanted))
    return max(_error(q, rotate_reference(parts[0], *rows)), kept)


def _linear(bench: Bench, config: DecoderConfig) -> float:
    worst = 0.0
    for rows in (1, 20, 70):
        x, weight = _random(bench, rows, config.hidden_size), _random(bench, 96, config.hidden_size)
        wanted = linear_reference(x.float().cpu(), weight.float().cpu())
        worst = max(worst, _error(linear.linear(x, weight), wanted))
    return worst


def _packed(bench: Bench, config: DecoderConfig) -> float:
    """4 bits with a scale and a low for 32 columns, as Q4_1 of GGUF has them."""
    columns = config.hidden_size // 32 * 32
    generator = torch.Generator().manual_seed(2)
    halves = torch.rand(96, columns // 32, 2, generator=generator).half() * 0.02
    codes = torch.randint(0, 256, (96, columns // 32, 16), generator=generator).to(torch.uint8)
    blocks = torch.cat((halves.view(torch.uint8), codes), dim=2).flatten(1)
    weight = PackedWeight("q4_1", (96, columns), blocks)
    x = _random(bench, 20, columns)
    found = linear.linear(x, packed.pack_for_gpu(weight, bench.device))
    return _error(found, linear_reference(x.float().cpu(), weight))


def _page_copy(bench: Bench, config: DecoderConfig) -> float:
    shape = (6, config.num_kv_heads, PAGE_SIZE, config.head_dim)
    pages = [_random(bench, *shape) for _ in range(2)]
    wanted = [each.cpu().clone() for each in pages]
    copies = [(0, 3, 5), (1, 4, PAGE_SIZE)]
    for each in wanted:
        for source, target, count in copies:
            each[target, :, :count] = each[source, :, :count]
    columns = (torch.tensor(column, device=bench.device) for column in zip(*copies, strict=True))
    page_copy.copy_pages(pages, page_copy.addresses_of(pages), *columns)
    return max(_error(*pair) for pair in zip(pages, wanted, strict=True))


def _draws(bench: Bench, config: DecoderConfig) -> float:
    """The share of draws that torch on the CPU draws otherwise; rounding turns none of so few."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 7},
        {"top_p": 0.6, "temperature": 1.4},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": ((3, 9.0),)},
    ]
    before = list(range(0, config.vocab_size, 7))
    draws = [
        Draw(SamplingParams(**kind), 5, i, output_ids=before, mask_row=0)
        for i, kind in enumerate(kinds)
    ]
    vocab = config.vocab_size
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(len(draws), vocab, generator=generator) * 4
    words = torch.randint(-(2**31), 2**31, (1, -(-vocab // 32)), generator=generator)
    mask = words.to(torch.int32)
    wanted = Sampler(vocab).sample(logits.clone(), draws, mask)
    there = logits.to(bench.device)
    found = Sampler(vocab, chooser=TritonChooser(bench.device)).sample(there, draws, mask)
    return sum(a != b for a, b in zip(found, wanted, strict=True)) / len(draws)


# ---- fast ----


def attention_share(bench: Bench, config: DecoderConfig, work: Work, rate: float) -> float:
    """The share of `rate` (bytes a second) at which a step's attention moves what it must."""
    case = Attention(bench, config, work)
    items = case.items()
    taken = bench.seconds(lambda: case.run(items), in_a_row=3)
    return attention_cost(config, work, bench.dtype).bytes / taken / rate


def prefill_share(bench: Bench, config: DecoderConfig, work: Work, rate: float) -> float:
    """The share of `rate` (operations a second) that prefill's attention reaches."""
    case = Attention(bench, config, work)
    items = case.items()
    taken = bench.seconds(lambda: case.run(items), in_a_row=3)
    return attention_cost(config, work, bench.dtype).flops / taken / rate


def few_bits_gain(bench: Bench, config: DecoderConfig, work: Work) -> float:
    """How many times sooner a step attends over pages of 4 bits than over plain ones."""
    plain = Attention(bench, config, work)
    items = plain.items()
    wide = bench.seconds(lambda: plain.run(items), in_a_row=3)
    return wide / bench.seconds(FewBits(bench, config, work, KiviForm(4)).run, in_a_row=3)


def tree_gain(bench: Bench, config: DecoderConfig, work: Work) -> float:
    """How many times sooner shared keys are attended to than when every row reads its own."""
    case = Attention(bench, config, work)
    tree, plain = case.items(), case.items(share=False)
    wide = bench.seconds(lambda: case.run(plain), in_a_row=3)
    return wide / bench.seconds(lambda: case.run(tree), in_a_row=3)


def linear_shares(
    bench: Bench, config: DecoderConfig, copy: float, product: float
) -> tuple[float, float]:
    """Of the copy rate at 64 rows, and of the product rate at 2,048; the layer's largest map."""
    shape = (2 * config.ffn_size, config.hidden_size)
    weight = _random(bench, *shape)
    few, many = (16, 64) if bench.small else (64, 2048)
    x, wide = _random(bench, few, shape[1]), _random(bench, many, shape[1])
    moved = linear.cost(few, *shape, bench.dtype).bytes
    computed = linear.cost(many, *shape, bench.dtype).flops
    return (
        moved / bench.seconds(lambda: linear.linear(x, weight), in_a_row=3) / copy,
        computed / bench.seconds(lambda: linear.linear(wide, weight), in_a_row=3) / product,
    )
