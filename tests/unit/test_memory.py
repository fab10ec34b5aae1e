"""How a GPU's memory is shared; its answers are made up here."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers import random_blocks, tiny_decoder

from radixgen.batch import ScheduledBatch, StepResult
from radixgen.config import CacheConfig, ScheduleConfig
from radixgen.errors import ConfigError
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.triton.packed import pack_for_gpu
from radixgen.model.config import DecoderConfig, RopeConfig
from radixgen.model.kv_cache import KVLayout
from radixgen.model.load import pages_beside
from radixgen.model.memory import (
    GpuMemory,
    check_weights_fit,
    largest_steps,
    measure,
    weight_bytes,
)
from radixgen.model.runner import ModelRunner
from radixgen.model.weights import expected_shapes

GIB = 2**30


@dataclass(slots=True)
class Memory:
    """A GPU of which so much is free, and whose steps need `step`."""

    left: int
    step: int = GIB
    asked: list[str] = field(default_factory=list)

    def free(self) -> int:
        return self.left

    def total(self) -> int:
        return 24 * GIB

    def start_peak(self) -> None:
        self.asked.append("start")

    def peak(self) -> int:
        self.asked.append("peak")
        return self.step


CONFIG = DecoderConfig(
    family="llama",
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=14336,
    vocab_size=128256,
    max_context=8192,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    tied_head=False,
)


EIGHT = {name: torch.empty(shape, device="meta") for name, shape in expected_shapes(CONFIG).items()}


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded() -> None:
    half = weight_bytes(EIGHT, torch.bfloat16)
    assert half == 8_030_261_248 * 2
    check_weights_fit(half, torch.bfloat16, Memory(16 * GIB))
    with pytest.raises(ConfigError, match=r"29.92 GiB in float32, but .* 24.00 GiB 23.00 GiB"):
        check_weights_fit(2 * half, torch.float32, Memory(23 * GIB))
    with pytest.raises(ConfigError, match=r"dtype='bfloat16' needs 14.96 GiB, or take a smaller"):
        check_weights_fit(2 * half, torch.float32, Memory(23 * GIB))
    with pytest.raises(ConfigError, match="free; take a smaller or quantised model"):
        check_weights_fit(half, torch.bfloat16, Memory(8 * GIB))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_1", "q8_0", "q6_k"])
def test_packed_weights_take_what_they_are_tiled_to(kind: str) -> None:
    blocks = torch.from_numpy(random_blocks(kind.upper(), 128, 256))
    weight = PackedWeight(kind, (128, 256), blocks)
    found = weight_bytes({"w": weight}, torch.bfloat16)
    made = pack_for_gpu(weight)
    tensors = (made.codes, made.scales, *(() if made.lows is None else (made.lows,)))
    assert found == sum(t.numel() * t.element_size() for t in tensors)


def test_a_step_that_does_not_fit_is_told_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(runner: ModelRunner, batch: ScheduledBatch) -> StepResult:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ModelRunner, "run", run)
    decoder = tiny_decoder(num_layers=1, head_dim=32, kernels="triton", max_context=20)
    layout, schedule = decoder.kv_layout(8), ScheduleConfig(max_step_tokens=300, max_running=9)
    with pytest.raises(
        ConfigError,
        match=r"24.00 GiB, 1.00 GiB are left; lower max_step_tokens=300 or max_running=9",
    ):
        pages_beside(decoder, layout, CacheConfig(page_size=8), schedule, Memory(left=GIB))


def test_pages_get_their_share_of_what_a_step_leaves() -> None:
    decoder = tiny_decoder(num_layers=1, head_dim=32, kernels="triton", max_context=20)
    layout, schedule = decoder.kv_layout(8), ScheduleConfig(max_step_tokens=3, max_running=2)
    memory = Memory(left=3 * GIB, step=GIB)
    found = pages_beside(decoder, layout, CacheConfig(page_size=8), schedule, memory)
    assert found == int(2 * GIB * 0.9) // layout.page_bytes
    assert memory.asked == ["start", "peak"]
    half = CacheConfig(page_size=8, memory_fraction=0.5)
    share = measure(memory, lambda: None, half.memory_fraction)
    assert share.for_pages == GIB
    fixed = CacheConfig(page_size=8, num_pages=7)
    assert pages_beside(decoder, layout, fixed, schedule, memory) == 7


@pytest.mark.parametrize(
    ("cache", "left", "said"),
    [
        (
            CacheConfig(),
            GIB,
            r"one KV page does not fit into the GPU's 24.00 GiB: .* the largest step 1.00 GiB; "
            r"0.00 MiB are left, .* would fit: 0 pages, a context of 0 tokens; take a smaller "
            r"model or dtype, or lower max_step_tokens=2",
        ),
        (
            CacheConfig(num_pages=3 * 10**6),
            3 * GIB,
            r"3000000 KV pages do not fit .* would fit: \d+ pages, a context of \d+ tokens; "
            r"lower num_pages",
        ),
    ],
)
def test_pages_that_do_not_fit_are_refused_with_what_would(
    cache: CacheConfig, left: int, said: str
) -> None:
    decoder = tiny_decoder(num_layers=1, head_dim=32, kernels="triton", max_context=20)
    schedule = ScheduleConfig(max_step_tokens=2, max_running=1)
    with pytest.raises(ConfigError, match=said):
        pages_beside(decoder, decoder.kv_layout(16), cache, schedule, Memory(left))


def test_a_gpus_answers_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    allocated = iter([700])
    said: dict[str, Any] = {
        "empty_cache": lambda: asked.append("empty"),
        "synchronize": lambda device: asked.append("wait"),
        "reset_peak_memory_stats": lambda device: asked.append("reset"),
        "mem_get_info": lambda device: (300, 1000),
        "memory_allocated": lambda device: next(allocated),
        "max_memory_allocated": lambda device: 850,
    }
    for name, answer in said.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    memory = GpuMemory(torch.device("cuda"))
    assert (memory.free(), memory.total()) == (300, 1000)
    memory.start_peak()
    assert memory.peak() == 150
    assert asked == ["empty", "wait", "reset", "wait"]


def test_the_largest_steps_end_a_context_and_fill_a_batch() -> None:
    schedule = ScheduleConfig(max_step_tokens=512, max_running=64)
    prompt, decodes = largest_steps(schedule, 8192, 16)
    (last,) = prompt.rows
    assert (last.start, len(last.token_ids), len(last.page_ids)) == (7680, 512, 512)
    assert [len(each.token_ids) for each in decodes.rows] == [1] * 64
    (short,) = largest_steps(schedule, 100, 16)[0].rows
    assert (short.start, len(short.token_ids)) == (0, 100)


def test_a_page_counts_keys_and_values_of_all_layers() -> None:
    layout = KVLayout(32, 8, 128, 16, torch.bfloat16)
    assert layout.page_bytes == 32 * 2 * 8 * 128 * 16 * 2
