"""Law 6 at the runner: however tokens are cut into steps, logits are the same bits."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers import tiny_decoder
from torch import Tensor

from radixgen.batch import PageCopy, ScheduledRow
from radixgen.config import CacheConfig, ModelConfig
from radixgen.model.attention import build_inputs, copy_pages
from radixgen.model.config import RopeConfig
from radixgen.model.decoder import Decoder
from radixgen.model.kv_cache import KVCache
from radixgen.model.load import load_runner
from radixgen.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0)

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_windows": (40, None)},
    "qk norm, biases, tied": {
        "qk_norm": True,
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
        "tied_head": True,
        "num_kv_heads": 1,
    },
    "odd sizes": {
        "hidden_size": 33,
        "num_layers": 1,
        "num_heads": 6,
        "num_kv_heads": 3,
        "head_dim": 10,
        "ffn_size": 51,
        "vocab_size": 101,
    },
    "long": {"max_context": 1024, "rope": RopeConfig("llama3", 5e5, 8.0, 256)},
    "bfloat16": {"dtype": torch.bfloat16},
    "bfloat16 pages": {"kv_dtype": torch.bfloat16},
    "float16 pages": {"kv_dtype": torch.float16},
    "8-bit pages": {"kv_dtype": torch.int8},
}


def cache_for(
    decoder: Decoder, page_size: int, num_pages: int, dtype: torch.dtype | None = None
) -> KVCache:
    """Pages full of NaN: what a page held before must not matter."""
    cache = KVCache.allocate(decoder.kv_layout(page_size, dtype), num_pages)
    for pages in (*cache.k_pages, *cache.v_pages):
        pages.view(torch.uint8).fill_(255)  # NaN in every type, as a scale too
    return cache


def row_of(tokens: list[int], start: int, pages: list[int]) -> ScheduledRow:
    """A row every token of which is an output."""
    return ScheduledRow("r", 0, tokens, start, pages, False, GREEDY, 0, logprobs_from=0, next_id=0)


def forward(decoder: Decoder, cache: KVCache, rows: list[ScheduledRow]) -> list[Tensor]:
    """The logits of every token, a tensor [tokens, vocab] a row."""
    with torch.inference_mode():
        inputs = build_inputs(rows, cache, decoder.config.vocab_size, decoder.max_context)
        logits = decoder.logits(decoder.forward(inputs, cache))
    return list(torch.split(logits, [len(row.token_ids) for row in rows]))


def one_shot(decoder: Decoder, tokens: list[int], kv_dtype: torch.dtype | None) -> Tensor:
    cache = cache_for(decoder, 16, -(-len(tokens) // 16), kv_dtype)
    return forward(decoder, cache, [row_of(tokens, 0, list(range(cache.num_pages)))])[0]


@dataclass
class Sequence:
    tokens: list[int]
    wanted: Tensor
    pages: list[int] = field(default_factory=list)
    computed: int = 0


class Steps:
    """Drives sequences by random chunks, batches, page tables, forks and preemptions."""

    def __init__(self, decoder: Decoder, cache: KVCache, seed: int) -> None:
        self.decoder, self.cache = decoder, cache
        self.choose = random.Random(seed)
        self.free = list(range(cache.num_pages))
        self.choose.shuffle(self.free)
        self.copies: list[PageCopy] = []

    def rows(self, sequences: list[Sequence]) -> list[tuple[Sequence, ScheduledRow]]:
        chosen = self.choose.sample(sequences, self.choose.randint(1, len(sequences)))
        return [(s, self.row(s)) for s in chosen if s.computed < len(s.tokens)]

    def row(self, s: Sequence) -> ScheduledRow:
        left = len(s.tokens) - s.computed
        size = self.choose.choice([1, 1, 2, 3, 5, 17, 64, 130, left])
        end = s.computed + min(size, left)
        while len(s.pages) * self.cache.layout.page_size < end:
            s.pages.append(self.free.pop())
        return row_of(s.tokens[s.computed : end], s.computed, s.pages)

    def preempt(self, s: Sequence) -> None:
        """Lose the pages after some point, or all, and go on from there in other pages."""
        keep = self.choose.randint(0, s.computed // self.cache.layout.page_size)
        self.free[:0] = s.pages[keep:]
        s.pages, s.computed = s.pages[:keep], keep * self.cache.layout.page_size

    def copy_tail(self, s: Sequence) -> None:
        """Move the last page, as a fork does when it is written on."""
        page_size = self.cache.layout.page_size
        used = s.computed - (len(s.pages) - 1) * page_size
        if s.pages and 0 < used <= page_size:
            target = self.free.pop(0)
            self.copies.append(PageCopy(s.pages[-1], target, used))
            self.free.append(s.pages[-1])
            s.pages = [*s.pages[:-1], target]

    def run(self, sequences: list[Sequence]) -> None:
        while any(s.computed < len(s.tokens) for s in sequences):
            s = self.choose.choice(sequences)
            event = self.choose.random()
            if event < 0.05:
                self.preempt(s)
            elif event < 0.2:
                self.copy_tail(s)
            copy_pages(self.copies, self.cache)
            self.copies.clear()
            chosen = self.rows(sequences)
            if chosen:
                self.step(chosen)

    def step(self, chosen: list[tuple[Sequence, ScheduledRow]]) -> None:
        found = forward(self.decoder, self.cache, [row for _, row in chosen])
        for (s, row), logits in zip(chosen, found, strict=True):
            end = row.start + len(row.token_ids)
            assert torch.equal(logits, s.wanted[row.start : end]), (row.start, end, len(chosen))
            s.computed = end


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", MODELS)
def test_any_schedule_gives_the_bits_of_one_prefill(name: str, page_size: int) -> None:
    fields = dict(MODELS[name])
    kv_dtype = fields.pop("kv_dtype", None)
    decoder = tiny_decoder(3, **fields)
    choose = random.Random(page_size)
    limit = 700 if name == "long" else 140
    lengths = [1, 2, limit, *(choose.randint(3, limit) for _ in range(3))]
    vocab = decoder.config.vocab_size
    tokens = [[choose.randrange(vocab) for _ in range(n)] for n in lengths]
    sequences = [Sequence(t, one_shot(decoder, t, kv_dtype)) for t in tokens]
    pages_needed = sum(-(-n // page_size) for n in lengths) + 8
    cache = cache_for(decoder, page_size, pages_needed, kv_dtype)
    Steps(decoder, cache, seed=page_size).run(sequences)


def test_a_shared_prefix_is_read_from_one_set_of_pages() -> None:
    """Two continuations over the same pages, also in the very step that writes the prefix."""
    decoder = tiny_decoder(4)
    choose = random.Random(0)
    prefix = [choose.randrange(259) for _ in range(32)]
    tails = [[choose.randrange(259) for _ in range(n)] for n in (1, 9, 20)]
    cache = cache_for(decoder, 16, 12)
    rows = [row_of(prefix, 0, [7, 2])]
    rows += [row_of(tail, 32, [7, 2, 3 + 2 * i, 4 + 2 * i]) for i, tail in enumerate(tails[:2])]
    found = forward(decoder, cache, rows)[1:]
    found += forward(decoder, cache, [row_of(tails[2], 32, [7, 2, 0, 11])])
    for tail, logits in zip(tails, found, strict=True):
        assert torch.equal(logits, one_shot(decoder, prefix + tail, None)[32:])


def test_a_row_is_the_same_in_a_batch_of_any_size() -> None:
    decoder = tiny_decoder(6, ffn_size=1104)  # so many numbers that threads share them
    choose = random.Random(2)
    cache = cache_for(decoder, 16, 210)
    contexts = [choose.choices(range(259), k=choose.randint(1, 40)) for _ in range(70)]
    pages = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(70)]
    forward(decoder, cache, [row_of(t, 0, p) for t, p in zip(contexts, pages, strict=True)])
    rows = [row_of([i], len(t), p) for i, (t, p) in enumerate(zip(contexts, pages, strict=True))]
    alone = [forward(decoder, cache, [row])[0] for row in rows]
    for count in (1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 48, 70):
        chosen = choose.sample(range(70), count)
        found = forward(decoder, cache, [rows[i] for i in chosen])
        for i, logits in zip(chosen, found, strict=True):
            assert torch.equal(logits, alone[i]), (count, i)


def test_outputs_alone_pass_the_last_layer_and_keep_their_bits() -> None:
    decoder = tiny_decoder(5)
    tokens = [(7 * i) % 259 for i in range(50)]
    wanted = one_shot(decoder, tokens, None)
    cache = cache_for(decoder, 16, 8)
    rows = [
        ScheduledRow("a", 0, tokens[:20], 0, [0, 1], False, GREEDY, 0),
        ScheduledRow("b", 0, tokens, 0, [2, 3, 4, 5], True, GREEDY, 0),
    ]
    with torch.inference_mode():
        inputs = build_inputs(rows, cache, 259, 512)
        hidden = decoder.forward(inputs, cache)
        assert list(inputs.output_ends) == [0, 1]
        assert torch.equal(decoder.logits(hidden), wanted[-1:])
    # The row without outputs has still written its KV.
    assert torch.equal(
        forward(decoder, cache, [row_of(tokens[20:], 20, [0, 1, 6, 7])])[0], wanted[20:]
    )


@pytest.mark.model
@pytest.mark.slow
def test_the_embedded_model_is_exact_too() -> None:
    decoder = load_runner(ModelConfig(), CacheConfig(num_pages=1)).decoder
    choose = random.Random(7)
    tokens = [choose.choices(range(49_152), k=n) for n in (1, 40, 150)]
    sequences = [Sequence(t, one_shot(decoder, t, None)) for t in tokens]
    cache = cache_for(decoder, 16, 24)
    Steps(decoder, cache, seed=1).run(sequences)
