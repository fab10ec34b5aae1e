"""The forward pass as launches: the numbers of C's, padded and recorded too. Interpreted here."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers import tiny_decoder
from numpy.typing import NDArray
from torch import Tensor

from radixgen.batch import ScheduledRow
from radixgen.errors import ModelError
from radixgen.kernels.kv_types import FP8, pack_rows, unpack_rows
from radixgen.kernels.triton.attention_items import Items, Tables, make_items
from radixgen.model.adapters import Adapter, LowRank
from radixgen.model.attention import StepInputs, build_inputs
from radixgen.model.decoder import Decoder
from radixgen.model.kv_cache import KVCache
from radixgen.model.padding import NOWHERE, idle_inputs, pad_items, pad_rows, size_for, sizes_to
from radixgen.model.recordings import Outputs, Recordings
from radixgen.model.staging import Staging
from radixgen.types import SamplingParams

CPU = torch.device("cpu")
PAGE_SIZE, NUM_PAGES = 8, 40


def row(name: str, tokens: list[int], start: int, pages: list[int], **more: Any) -> ScheduledRow:
    fields = {"sample": True, "sampling": SamplingParams(temperature=0), "seed": 0, **more}
    return ScheduledRow(name, 0, tokens, start, pages, **fields)


PROMPT = [(7 * i) % 251 for i in range(12)]


def steps() -> list[list[ScheduledRow]]:
    """Prompts, one without an output; decodes beside a chunk; drafts; decodes alone."""
    a, b = [3, 1], [4]
    return [
        [row("a", PROMPT[:9], 0, a, sample=False), row("b", [5, 6], 0, b)],
        [row("a", [8], 9, a), row("b", [7, 8, 9], 2, b)],
        [row("a", [9, 4, 4], 10, a, num_drafts=2), row("b", [1], 5, b)],
        [row("b", [1], 6, b), row("a", [2], 11, a)],
    ]


Kernels = Literal["c", "triton"]


def cache_of(decoder: Decoder, dtype: torch.dtype | None = None) -> KVCache:
    """Pages of which every byte is NaN's."""
    cache = KVCache.allocate(decoder.kv_layout(PAGE_SIZE, dtype), NUM_PAGES)
    for pages in (*cache.k_pages, *cache.v_pages):
        pages.view(torch.uint8).fill_(255)
    return cache


def inputs_of(rows: list[ScheduledRow], cache: KVCache) -> StepInputs:
    return build_inputs(rows, cache, 259, 512)


OPTIONS: dict[str, Any] = {
    "head_dim": 32,
    "qk_norm": True,
    "qkv_bias": True,
    "sliding_windows": (6, None),
}


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        (torch.float32, torch.float32, 1e-4),
        (torch.bfloat16, torch.bfloat16, 6e-2),
        (torch.float32, torch.int8, 1e-2),
    ],
    ids=str,
)
def test_launches_give_the_numbers_of_c(
    dtype: torch.dtype, kv_dtype: torch.dtype, tolerance: float
) -> None:
    caches, found = [], []
    both: tuple[Kernels, Kernels] = ("c", "triton")
    for kernels in both:
        decoder = tiny_decoder(2, dtype=dtype, kernels=kernels, **OPTIONS)
        cache = cache_of(decoder, kv_dtype)
        caches.append(cache)
        found.append([decoder.forward(inputs_of(rows, cache), cache) for rows in steps()[:3]])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    for pages in zip(caches[0].k_pages, caches[1].k_pages, strict=True):
        ours, theirs = map(unpack_rows, pages)
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_pages_of_fp8_hold_what_float_pages_do_to_the_nearest() -> None:
    """The keys of the first layer are those of the tokens, whatever is attended to."""
    decoder = tiny_decoder(2, kernels="triton", **OPTIONS)
    caches = [cache_of(decoder, torch.float32), cache_of(decoder, FP8)]
    found = [
        [decoder.forward(inputs_of(rows, cache), cache) for rows in steps()[:3]] for cache in caches
    ]
    ours, theirs = (cache.k_pages[0] for cache in caches)
    assert torch.equal(
        pack_rows(ours, FP8).view(torch.uint8) & 0x7F, theirs.view(torch.uint8) & 0x7F
    )
    for exact, rounded in zip(*found, strict=True):
        torch.testing.assert_close(exact, rounded, atol=0.3, rtol=0.3)
        assert not torch.equal(exact, rounded) or not exact.numel()


# ---- recorded steps ----


class Repeater:
    """A device that repeats launches by launching them again: into the same results, as a GPU."""

    device = CPU

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.num_recorded = 0

    def record(self, launch: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        if self.fails:
            raise RuntimeError("out of memory while capturing")
        self.num_recorded += 1
        hidden, logits = launch()
        assert logits is not None
        hidden.fill_(torch.nan)
        logits.fill_(torch.nan)

        def repeat() -> None:
            again = launch()
            hidden.copy_(again[0])
            assert again[1] is not None
            logits.copy_(again[1])

        return repeat, (hidden, logits)


def decodes() -> Iterator[list[ScheduledRow]]:
    """Two prompts, then steps all tokens of which are drawn from, some of an adapter."""
    yield steps()[0]
    yield [row("a", PROMPT[9:12], 9, [3, 1]), row("b", [7, 8, 9], 2, [4])]
    for turn in range(4):
        b = row("b", [turn], 5 + turn, [4, 0])
        yield [row("a", [turn], 12 + turn, [3, 1], lora="x" if turn % 2 else ""), b]
    yield [row("a", [9, 4], 16, [3, 1, 6], num_drafts=1), row("b", [3], 9, [4, 0])]
    for turn in range(2):
        yield [row("b", [turn, 7, 7, 8, 9], 10 + 5 * turn, [4, 0, 11], num_drafts=4)]


def run(decoder: Decoder, cache: KVCache) -> list[Tensor]:
    logits = []
    for rows in decodes():
        hidden, found = decoder.step(inputs_of(rows, cache), cache, want_logits=True)
        logits.append((decoder.logits(hidden) if found is None else found).clone())
    return logits


def recording_decoder(recorder: Any) -> Decoder:
    decoder = tiny_decoder(2, num_layers=1, head_dim=32, kernels="triton")
    decoder.recorder = recorder
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(shape, generator=generator) * 0.3 for shape in ((3, 48), (64, 3)))
    decoder.adapters = {"x": Adapter("x", {(0, "qkv"): [LowRank(a, b, 0.5, 128)]})}
    return decoder


def test_recorded_steps_are_those_that_are_launched() -> None:
    plain, recorder = recording_decoder(None), Repeater()
    recording = recording_decoder(recorder)
    caches = cache_of(plain), cache_of(recording)
    wanted, found = run(plain, caches[0]), run(recording, caches[1])
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(caches[1].k_pages, caches[0].k_pages, strict=True):
        # What pads a step has written nowhere: pages that no row has are as they were.
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)
    recordings = recording.launched_over(caches[1]).recordings
    assert recordings is not None
    # Of two tokens, without and with an adapter, and of five as six.
    assert len(recordings) == recorder.num_recorded == recordings.num_repeated == 3


def doubled(sent: Sequence[Tensor]) -> Outputs:
    return sent[0].float() * 2, sent[0].float()


def ask(recordings: Recordings, size: int, value: int) -> bool:
    """Whether it was repeated; its result is right either way."""
    before = recordings.num_repeated
    hidden, _ = recordings.run(size, [np.full(size, value, np.int64)], doubled)
    assert hidden.tolist() == [2.0 * value] * size
    return recordings.num_repeated > before


def test_where_recording_fails_steps_are_launched(caplog: pytest.LogCaptureFixture) -> None:
    recordings = Recordings(Repeater(fails=True))
    with caplog.at_level(logging.WARNING):
        assert not any(ask(recordings, size, value) for size in (1, 2) for value in range(4))
    assert [record.message for record in caplog.records] == [
        "steps are launched one by one, slower: recording failed: out of memory while capturing"
    ]


def test_the_recording_used_longest_ago_leaves_first() -> None:
    recordings = Recordings(Repeater(), most=2)
    assert [ask(recordings, size, size) for size in (1, 2)] == [False, False]
    assert [ask(recordings, size, size + 3) for size in (1, 2, 1)] == [True, True, True]
    assert not ask(recordings, 3, 1)
    assert ask(recordings, 3, 2)  # for which that of 2 leaves
    assert len(recordings) == 2
    assert ask(recordings, 1, 3)
    assert ask(recordings, 2, 4)  # recorded anew
    assert len(recordings) == 2


def test_warming_up_records_every_size() -> None:
    recorder = Repeater()
    decoder = recording_decoder(recorder)
    cache = cache_of(decoder)
    decoder.launched_over(cache).warm_up(3)
    assert recorder.num_recorded == 3
    for pages in (*cache.k_pages, *cache.v_pages):
        assert bool(pages.isnan().all()), "nothing is written"


def test_an_adapter_of_too_high_a_rank_is_refused() -> None:
    decoder = tiny_decoder(num_layers=1, head_dim=32, kernels="triton")
    part = LowRank(torch.zeros(300, 48), torch.zeros(48, 300), 1.0, 0)
    decoder.adapters = {"wide": Adapter("wide", {(0, "down"): [part]})}
    with pytest.raises(ModelError, match="adapter 'wide' has rank 300; a GPU takes up to 256"):
        decoder.launched_over(cache_of(decoder))


# ---- padding ----


def test_sizes_are_few_and_less_than_half_too_large() -> None:
    assert sizes_to(20) == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    for count in range(1, 3000):
        assert count <= size_for(count) < 1.5 * count
        assert size_for(size_for(count)) == size_for(count)


def test_padded_rows_change_nothing_of_the_others() -> None:
    cache = cache_of(tiny_decoder(1))
    rows = [row("a", [1, 2, 3], 14, [3, 1, 2], num_drafts=2), row("b", [4], 8, [5, 6])]
    inputs = inputs_of(rows, cache)
    padded = pad_rows(inputs, 6)
    for name in ("token_ids", "positions", "slots"):
        assert torch.equal(getattr(padded, name)[:4], getattr(inputs, name))
    assert padded.slots[4:].tolist() == [NOWHERE] * 2
    meta = padded.attention
    assert meta.qo_indptr.tolist() == [0, 3, 4, 5, 6]
    assert meta.kv_indptr.tolist() == [0, 3, 5, 6, 7]
    assert meta.kv_indices.tolist() == [3, 1, 2, 5, 6, 0, 0]
    assert meta.kv_last_page_len.tolist() == [1, 1, 1, 1]
    assert pad_rows(inputs, 4) is inputs
    idle = idle_inputs(3)
    assert idle.slots.tolist() == [NOWHERE] * 3
    assert idle.attention.qo_indptr.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("page_size", [1, 16, 128])
def test_padded_items_are_the_items_and_idle_ones(page_size: int) -> None:
    lengths = (700, 3, 260)
    pages = [-(-length // page_size) for length in lengths]
    tables = Tables(
        np.array([0, 1, 2, 4], np.int32),
        np.cumsum([0, *pages], dtype=np.int32),
        np.arange(sum(pages), dtype=np.int32),
        np.array([(n - 1) % page_size + 1 for n in lengths], np.int32),
    )
    made = make_items(tables, page_size, 8)
    padded = pad_items(made, page_size)
    for name in Items.__slots__:
        ours, theirs = getattr(padded, name), getattr(made, name)
        assert np.array_equal(ours[: len(theirs)], theirs)
        assert ours.dtype == theirs.dtype
        assert not ours[len(theirs) :].any()
    assert len(padded.items) == size_for(len(made.items))
    assert len(padded.rows) == len(padded.merge_slots) == size_for(made.num_slots)


# ---- staging ----


class Queue:
    """A device whose copies wait: a fence that says when it was asked."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def record(self) -> None:
        self.said.append("record")

    def synchronize(self) -> None:
        self.said.append("synchronize")


def test_arrays_arrive_in_their_types_and_keep_their_places() -> None:
    staging = Staging(CPU, 64)
    arrays: list[NDArray[Any]] = [
        np.arange(3),
        np.arange(5, dtype=np.int32),
        np.zeros(0, np.int32),
        np.ones(1),
    ]
    sent = staging.send(arrays)
    assert [t.tolist() for t in sent] == [[0, 1, 2], [0, 1, 2, 3, 4], [], [1.0]]
    assert [t.dtype for t in sent] == [torch.int64, torch.int32, torch.int32, torch.float64]
    again = staging.send([array + 1 for array in arrays])
    assert [t.data_ptr() for t in again] == [t.data_ptr() for t in sent]
    assert all(t.data_ptr() % 16 == 0 for t in again if len(t))
    assert sent[0].tolist() == [1, 2, 3]
    (large,) = staging.send([np.arange(1000)])
    assert large.tolist() == list(range(1000))


def test_pinned_memory_is_written_again_when_its_copy_has_run() -> None:
    queue = Queue()
    staging = Staging(CPU, 64, queue)
    for _ in range(2):
        staging.send([np.arange(3)])
    assert queue.said == ["synchronize", "record"] * 2
