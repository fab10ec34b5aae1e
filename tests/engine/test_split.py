"""A model split among ranks: parts that make up the whole, and the bits of one rank.

The ranks are threads here; tests/process has them as processes.
"""

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    llama_gguf_shapes,
    random_blocks,
    write_adapter,
    write_tiny_gguf,
    write_tiny_model,
)
from torch import Tensor

from radixgen.batch import ScheduledRow
from radixgen.config import TensorExchange, TensorSplit
from radixgen.errors import ConfigError
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.linear import Weight
from radixgen.model.adapters import load_adapters
from radixgen.model.assemble import assemble
from radixgen.model.attention import build_inputs
from radixgen.model.config import DecoderConfig
from radixgen.model.decoder import Decoder
from radixgen.model.exchange import join
from radixgen.model.hub import ModelFiles
from radixgen.model.kv_cache import KVCache
from radixgen.model.peers import Peers
from radixgen.model.split import Split, even_parts
from radixgen.model.weights import load_config, load_model
from radixgen.types import SamplingParams

EVERYWHERE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOKENS = [(7 * i + i * i // 3) % 256 for i in range(45)]
# Two ranks share three KV heads as two and one.
UNEVEN = {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 75}
KINDS: tuple[TensorSplit, ...] = ("exact", "fast")


def write_packed(path: Path, kind: str) -> ModelFiles:
    tensors: dict[str, Any] = {}
    for number, (name, shape) in enumerate(llama_gguf_shapes().items()):
        if len(shape) == 1:
            tensors[name] = ("F32", torch.ones(shape).numpy())
        else:
            tensors[name] = (kind, random_blocks(kind, shape[0], shape[1], number))
    return ModelFiles("gguf", write_tiny_gguf(path, tensors), "tiny")


# ---- parts ----


def test_parts_are_even_and_cut_no_block_where_they_can() -> None:
    assert even_parts(3, 2) == (range(2), range(2, 3))
    assert even_parts(1536, 4) == (
        range(512),
        range(512, 1024),
        range(1024, 1280),
        range(1280, 1536),
    )
    assert even_parts(576, 2) == (range(288), range(288, 576))
    assert even_parts(7, 3) == (range(3), range(3, 5), range(5, 7))


def assert_whole(whole: Weight, parts: Sequence[Weight]) -> None:
    data, *own = (w.data if isinstance(w, PackedWeight) else w for w in (whole, *parts))
    if own[0].shape == data.shape:
        assert all(torch.equal(each, data) for each in own)
    else:
        assert torch.equal(torch.cat(own, dim=int(own[0].shape[0] == data.shape[0])), data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["safetensors", "Q8_0"])
def test_parts_make_up_the_whole(tmp_path: Path, stored: str, kind: TensorSplit) -> None:
    if stored == "safetensors":
        files = ModelFiles("hf", write_tiny_model(tmp_path, "qwen2", **UNEVEN), "tiny")
    else:
        files = write_packed(tmp_path / "m.gguf", stored)
    config = load_config(files)
    parts = [load_model(files, split=Split(config, 2, n, kind)).weights for n in range(2)]
    for name, whole in load_model(files).weights.items():
        assert_whole(whole, [part[name] for part in parts])
        is_cut = name.endswith(
            ("q", "k", "v", "o", "gate", "up", "down", "embed", "head", "k.bias")
        )
        assert (parts[0][name].shape != whole.shape) == is_cut or "norm" in name or "bias" in name


def test_the_fast_split_refuses_to_cut_blocks(tmp_path: Path) -> None:
    files = write_packed(tmp_path / "m.gguf", "Q6_K")
    config = load_config(files)
    with pytest.raises(ConfigError, match=r"inside its blocks of 256; tensor_split='exact'"):
        load_model(files, split=Split(config, 2, 0, "fast"))
    load_model(files, split=Split(config, 2, 0, "exact"))


def test_more_ranks_than_kv_heads_are_refused(tmp_path: Path) -> None:
    config = load_config(ModelFiles("hf", write_tiny_model(tmp_path), "tiny"))
    with pytest.raises(ConfigError, match=r"tensor_parallel=3: .* 2 KV heads .* at most 2 ranks"):
        Split(config, 3)


# ---- numbers ----


def make(
    files: ModelFiles, dtype: torch.dtype, adapters: dict[str, str], split: Split | None = None
) -> Decoder:
    loaded = load_model(files, dtype, split=split)
    return Decoder(
        loaded.config if split is None else split.own_config,
        assemble(loaded.config, dict(loaded.weights), dtype),
        dtype,
        adapters=load_adapters(adapters, loaded.config, split=split),
        peers=None if split is None else Peers(split),
    )


@torch.inference_mode()
def logits_of(decoder: Decoder, kv_dtype: torch.dtype, lora: str) -> Tensor:
    """[tokens, vocab], of a sequence computed in three steps."""
    cache = KVCache.allocate(decoder.kv_layout(16, kv_dtype), 3)
    found = []
    for low, high in ((0, 20), (20, 44), (44, 45)):
        row = ScheduledRow(
            "r", 0, TOKENS[low:high], low, [2, 0, 1], False, SamplingParams(), 0,
            logprobs_from=0, next_id=0, lora=lora,
        )  # fmt: skip
        inputs = build_inputs([row], cache, decoder.config.vocab_size, decoder.max_context)
        found.append(decoder.logits(decoder.forward(inputs, cache)))
    return torch.cat(found)


FLOAT = torch.float32
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
CASES: dict[str, tuple[str, dict[str, Any], torch.dtype, torch.dtype]] = {
    "plain": ("llama", {}, FLOAT, FLOAT),
    "adapter": ("llama", {}, FLOAT, FLOAT),
    "uneven, q and k normed": ("qwen3", UNEVEN, FLOAT, FLOAT),
    "biases, tied": ("qwen2", {"tie_word_embeddings": True}, FLOAT, FLOAT),
    "every bias": ("llama", {"attention_bias": True, "mlp_bias": True}, FLOAT, FLOAT),
    "bfloat16": ("llama", {}, torch.bfloat16, torch.bfloat16),
    "8-bit pages": ("llama", UNEVEN, FLOAT, torch.int8),
    "packed": ("Q8_0", {}, FLOAT, FLOAT),
}


def on_two_ranks(
    kind: TensorSplit, config: DecoderConfig, run: Callable[[Split], Tensor]
) -> Tensor:
    """What both ranks say."""
    found: dict[int, Tensor] = {}

    def rank(number: int) -> None:
        found[number] = run(Split(config, 2, number, kind))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert torch.equal(found[0], found[1])
    return found[0]


@pytest.mark.parametrize("case", CASES)
def test_ranks_compute_what_one_computes(tmp_path: Path, case: str) -> None:
    """The exact split to the bit; the fast one but for the rounding of sums."""
    family, overrides, dtype, kv_dtype = CASES[case]
    if case == "packed":
        files = write_packed(tmp_path / "m.gguf", family)
    else:
        files = ModelFiles("hf", write_tiny_model(tmp_path / "m", family, **overrides), "tiny")
    adapters, lora = {}, ""
    if case == "adapter":
        adapters, lora = {"x": str(write_adapter(tmp_path / "x", files.path, EVERYWHERE))}, "x"
    whole = logits_of(make(files, dtype, adapters), kv_dtype, lora)

    meetings = {kind: tmp_path / kind for kind in KINDS}
    for meeting in meetings.values():
        meeting.mkdir()

    def run(split: Split) -> Tensor:
        decoder = make(files, dtype, adapters, split)
        assert decoder.peers is not None
        exchange: TensorExchange = "gloo" if split.kind == "exact" else "sockets"
        decoder.peers.join(exchange, meetings[split.kind])
        return logits_of(decoder, kv_dtype, lora)

    config = load_config(files)
    assert torch.equal(on_two_ranks("exact", config, run), whole)
    fast = on_two_ranks("fast", config, run)
    if dtype == torch.float32 and case != "packed":  # whose inputs are rounded to 8 bits
        assert torch.allclose(fast, whole, atol=1e-3)
    assert (fast - whole).abs().mean() < 0.1 * whole.std()


def test_gpus_exchange_by_nccl_or_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="GPUs exchange by NCCL, which the installed torch"):
        join("auto", tmp_path, 0, 2, torch.device("cuda", 0))


@pytest.mark.parametrize("kind", ["sockets", "gloo"])
def test_ranks_hand_each_other_what_they_have(tmp_path: Path, kind: TensorExchange) -> None:
    """Three of them, numbers of every size and type, in the order of ranks."""
    sizes = [(1,), (3, 5), (0, 4), (700, 300)]
    found: dict[int, list[Tensor]] = {}

    def sent(rank: int, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.arange(math.prod(size)).view(size).add(1000 * rank).to(dtype)

    def rank(number: int) -> None:
        exchange = join(kind, tmp_path, number, 3, torch.device("cpu"))
        found[number] = [
            exchange.all(sent(number, size, dtype)) for size in sizes for dtype in DTYPES
        ]

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    pairs = [(size, dtype) for size in sizes for dtype in DTYPES]
    for i, (size, dtype) in enumerate(pairs):
        wanted = torch.stack([sent(number, size, dtype) for number in range(3)])
        assert all(torch.equal(found[number][i], wanted) for number in range(3))
