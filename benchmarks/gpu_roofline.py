"""How long a step takes on a GPU by the bytes and operations of its kernels: no GPU is asked.

Each kernel's file says what it costs; here they are counted for a decoder's step. What comes out is
a bound that well-made kernels get near to, to be held against what is measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.harness import Report, table
from radixgen.kernels.triton import activation, attention, linear, norm, rope_write, sampling
from radixgen.kernels.triton.attention_arrays import make_items
from radixgen.kernels.triton.attention_items import Items, Tables
from radixgen.kernels.triton.cost import DEVICES, Cost, Device, seconds
from radixgen.model.config import DecoderConfig, RopeConfig
from radixgen.model.triton_forward import TILE_ROWS

HALF = torch.bfloat16
PAGE_SIZE = 16

SHAPES: dict[str, DecoderConfig] = {
    "8B": DecoderConfig(
        family="llama",
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        ffn_size=14336,
        vocab_size=128256,
        max_context=16384,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=5e5),
        tied_head=False,
    ),
    "1B": DecoderConfig(
        family="llama",
        hidden_size=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        ffn_size=8192,
        vocab_size=128256,
        max_context=16384,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=5e5),
        tied_head=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Work:
    """A step: `rows` sequences of `new` tokens each after `context` others, one drawn from each.

    `shared`: how many of the first tokens all rows have in common, whose keys are read once.
    """

    rows: int
    new: int
    context: int
    shared: int = 0

    @property
    def tokens(self) -> int:
        return self.rows * self.new


WORKS = {
    "decode, 1 row at 4k": Work(1, 1, 4096),
    "decode, 64 rows at 4k": Work(64, 1, 4096),
    "decode, 64 rows, 8k shared": Work(64, 1, 8192 + 256, shared=8192),
    "prefill of 2k": Work(1, 2048, 0),
}


def batch_tables(work: Work, page_size: int = PAGE_SIZE) -> Tables:
    """Page tables of a step: each row's own pages, after those that all share."""
    length = work.context + work.new
    pages, common = -(-length // page_size), work.shared // page_size
    own = pages - common
    indices = [
        np.concatenate([np.arange(common), common + row * own + np.arange(own)])
        for row in range(work.rows)
    ]
    return Tables(
        (np.arange(work.rows + 1) * work.new).astype(np.int32),
        (np.arange(work.rows + 1) * pages).astype(np.int32),
        np.concatenate(indices).astype(np.int32),
        np.full(work.rows, (length - 1) % page_size + 1, np.int32),
    )


def batch_items(config: DecoderConfig, tables: Tables, share: bool = True) -> tuple[Items, int]:
    """Items as the model's forward pass makes them, and the most queries that each may have."""
    most = most_rows(config)
    return make_items(tables, PAGE_SIZE, most, share=share), most


def most_rows(config: DecoderConfig) -> int:
    """Queries of an item."""
    return max(1, TILE_ROWS // (config.num_heads // config.num_kv_heads))


def attention_cost(config: DecoderConfig, work: Work, dtype: torch.dtype) -> Cost:
    """Of one layer, by the items that the step's page tables are cut into."""
    items, _ = batch_items(config, batch_tables(work))
    heads = config.num_heads, config.num_kv_heads, config.head_dim
    return attention.cost(items, *heads, dtype, dtype)


def step_costs(config: DecoderConfig, work: Work, dtype: torch.dtype) -> Mapping[str, Cost]:
    """Of all launches of a step, by kernel; those of all layers together."""
    c, tokens = config, work.tokens
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    maps = (
        (queries + 2 * keys, c.hidden_size),
        (c.hidden_size, queries),
        (2 * c.ffn_size, c.hidden_size),
        (c.hidden_size, c.ffn_size),
    )
    rope = rope_write.cost(tokens, c.num_heads, c.num_kv_heads, c.head_dim, dtype, dtype)
    layer = {
        "linear": _sum(*(linear.cost(tokens, *shape, dtype) for shape in maps)),
        "attention": attention_cost(c, work, dtype),
        "rotation and KV": rope,
        "norms": _times(norm.cost(tokens, c.hidden_size, dtype), 2),
        "activation": activation.cost(tokens, c.ffn_size, dtype),
    }
    costs = {name: _times(cost, c.num_layers) for name, cost in layer.items()}
    costs["head"] = linear.cost(work.rows, c.vocab_size, c.hidden_size, dtype)
    draws = sampling.cost(work.rows, c.vocab_size, masked=True, filtered=True)
    costs["mask and draw"] = draws
    return costs


def _times(cost: Cost, count: int) -> Cost:
    launches = cost.launches * count
    return replace(cost, bytes=cost.bytes * count, flops=cost.flops * count, launches=launches)


def _sum(*costs: Cost) -> Cost:
    return Cost(
        sum(cost.bytes for cost in costs),
        sum(cost.flops for cost in costs),
        costs[0].on_tensor_cores,
        sum(cost.launches for cost in costs),
    )


def predict(config: DecoderConfig, work: Work, device: Device) -> dict[str, float]:
    """Seconds of a step by kernel, and of all as "step"."""
    costs = step_costs(config, work, HALF)
    found = {name: seconds(cost, device) for name, cost in costs.items()}
    return {**found, "step": sum(found.values())}


def report() -> int:
    """Print predictions of every model, GPU and kind of step; the exit status."""
    made = Report("gpu", {"predict": True, "dtype": "bfloat16"})
    rows = []
    for (model, config), (name, work) in (
        (shape, each) for shape in SHAPES.items() for each in WORKS.items()
    ):
        for device in DEVICES.values():
            found = predict(config, work, device)
            made.results[f"{model}, {name}, {device.name}"] = found
            step = found["step"]
            per_second = (work.tokens if work.context == 0 else work.rows) / step
            shares = (found[key] / step for key in ("linear", "attention", "mask and draw"))
            cells = [f"{step * 1e3:.2f}", f"{per_second:,.0f}", *(f"{s:.0%}" for s in shares)]
            rows.append([f"{model}, {name}", device.name, *cells])
    header = ["predicted", "GPU", "ms a step", "tokens/s", "linear", "attention", "mask, draw"]
    table(header, rows)
    return made.finish()
