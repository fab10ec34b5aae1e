"""The forward pass as one program gives the bits of its operations called one by one."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny_decoder

from radixgen.batch import ScheduledRow
from radixgen.kernels import library
from radixgen.model import decoder as decoder_module
from radixgen.model.attention import build_inputs, list_step
from radixgen.model.decoder import Decoder
from radixgen.model.fused import fits
from radixgen.model.kv_cache import KVCache
from radixgen.types import SamplingParams


def row(name: str, tokens: list[int], start: int, pages: list[int], **more: object) -> ScheduledRow:
    fields = {"sample": True, "sampling": SamplingParams(), "seed": 0, **more}
    return ScheduledRow(name, 0, tokens, start, pages, **fields)  # type: ignore[arg-type]


def steps() -> list[list[ScheduledRow]]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 250, 300).tolist()
    return [
        [row("a", tokens[:90], 0, [3, 1, 4, 0, 2, 9], sample=False), row("b", [5, 6], 0, [7])],
        [row("a", [8], 90, [3, 1, 4, 0, 2, 9]), row("c", tokens, 0, list(range(10, 29)))],
        [row("a", [9], 91, [3, 1, 4, 0, 2, 9]), row("b", [1, 2, 3], 2, [7], num_drafts=2)],
        [row("c", [9], 300, list(range(10, 29)), sample=False)],
    ]


def hidden_states(decoder: Decoder, kv_dtype: torch.dtype) -> list[torch.Tensor]:
    cache = KVCache.allocate(decoder.kv_layout(16, kv_dtype), 32)
    assert fits(decoder, cache)
    made = []
    for rows in steps():
        inputs = build_inputs(rows, cache, decoder.config.vocab_size, decoder.max_context)
        made.append(decoder.forward(inputs, cache))
    return made


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_one_program_gives_the_bits_of_single_operations(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kv_dtype: torch.dtype, qk_norm: bool
) -> None:
    if library.library() is None:
        pytest.skip("no C compiler")
    options: dict[str, Any] = {"head_dim": 32, "qk_norm": qk_norm, "qkv_bias": True}
    fused = hidden_states(tiny_decoder(dtype=dtype, **options), kv_dtype)
    monkeypatch.setattr(decoder_module, "fits", lambda *_: False)
    plain = tiny_decoder(dtype=dtype, **options)
    cache = KVCache.allocate(plain.kv_layout(16, kv_dtype), 32)
    for rows, expected in zip(steps(), fused, strict=True):
        inputs = build_inputs(rows, cache, plain.config.vocab_size, plain.max_context)
        assert torch.equal(plain.forward(inputs, cache), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_the_same_call_are_those_of_one_of_their_own(dtype: torch.dtype) -> None:
    decoder = tiny_decoder(dtype=dtype, head_dim=32)
    cache = KVCache.allocate(decoder.kv_layout(16), 32)
    for rows in steps():
        inputs = build_inputs(rows, cache, decoder.config.vocab_size, decoder.max_context)
        hidden, logits = decoder.step(inputs, cache, want_logits=True)
        assert logits is None or torch.equal(logits, decoder.logits(hidden))
        assert logits is not None or not len(hidden) or library.library() is None


@pytest.mark.parametrize("windows", [(None, None), (20, None), (None, 20), (20, 20)])
def test_bare_numbers_give_the_bits_of_tensors(windows: tuple[int | None, ...]) -> None:
    if library.library() is None:
        pytest.skip("no C compiler")
    decoder = tiny_decoder(head_dim=32, sliding_windows=windows)
    caches = [KVCache.allocate(decoder.kv_layout(16), 32) for _ in "ab"]
    pages = [[*cache.k_pages, *cache.v_pages] for cache in caches]
    for page in (*pages[0], *pages[1]):
        page.zero_()  # they begin as anything, and not all of them is written
    for rows in steps():
        lists = list_step(rows, caches[0], decoder.config.vocab_size, decoder.max_context)
        found = decoder.step_of_lists(lists, caches[0], want_logits=True)
        assert found is not None
        kept = [None if each is None else each.clone() for each in found]
        inputs = build_inputs(rows, caches[1], decoder.config.vocab_size, decoder.max_context)
        expected = decoder.step(inputs, caches[1], want_logits=True)
        for ours, theirs in zip(kept, expected, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or theirs is None or torch.equal(ours, theirs)
    assert all(torch.equal(a, b) for a, b in zip(*pages, strict=True))


def test_pages_of_few_bits_take_tensors_alone() -> None:
    decoder = tiny_decoder(head_dim=32)
    cache = KVCache.allocate(decoder.kv_layout(32, bits=4), 32)
    rows = [row("a", [1, 2], 0, [3], plain_ids=[0])]
    lists = list_step(rows, cache, decoder.config.vocab_size, decoder.max_context)
    assert decoder.step_of_lists(lists, cache, want_logits=True) is None
