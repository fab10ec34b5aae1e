"""A model of quantised weights, as loaded from its GGUF, is the model of the dequantised ones."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers import llama_gguf_shapes, random_blocks, write_tiny_gguf
from numpy.typing import NDArray
from torch import Tensor

from radixgen.batch import ScheduledRow
from radixgen.config import ActivationForm
from radixgen.kernels import library
from radixgen.kernels.block_types import PackedWeight
from radixgen.model.assemble import assemble
from radixgen.model.attention import build_inputs
from radixgen.model.decoder import Decoder
from radixgen.model.forms import choose_forms
from radixgen.model.hub import ModelFiles
from radixgen.model.kv_cache import KVCache
from radixgen.model.weights import load_model
from radixgen.types import SamplingParams

TOKENS = [(7 * i) % 259 for i in range(40)]
GREEDY = SamplingParams(temperature=0.0)


def tiny_gguf(folder: Path, kind: str) -> ModelFiles:
    random = np.random.default_rng(1)
    tensors: dict[str, tuple[str, NDArray[Any]]] = {}
    for name, shape in llama_gguf_shapes().items():
        if len(shape) == 1:
            tensors[name] = ("F32", random.normal(1, 0.1, shape).astype(np.float32))
        else:
            tensors[name] = (kind, random_blocks(kind, shape[0], shape[1], len(tensors)))
    path = write_tiny_gguf(folder / "tiny.gguf", tensors, vocab_size=259)
    return ModelFiles("gguf", path, "tiny")


def logits(
    files: ModelFiles,
    setting: ActivationForm | None,
    kernels: Literal["c", "triton"] = "c",
    tokens: list[int] = TOKENS,
    step: int | None = None,
) -> Tensor:
    """[tokens, vocab] with packed weights, their inputs as set; None: with dequantised weights.
    `step`: so many tokens at a time; None: all."""
    loaded = load_model(files, packed=setting is not None)
    forms = choose_forms(setting or "float32", library.multiplies_by_tiles())
    weights = assemble(loaded.config, dict(loaded.weights), torch.float32, forms)
    decoder = Decoder(loaded.config, weights, kernels=kernels)
    assert isinstance(decoder.weights.head, PackedWeight) == (setting is not None)
    cache = KVCache.allocate(decoder.kv_layout(16), 3)
    parts, size = [], step or len(tokens)
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        row = ScheduledRow(
            "r", 0, part, start, [0, 1, 2], False, GREEDY, 0, logprobs_from=start, next_id=0
        )
        with torch.inference_mode():
            inputs = build_inputs([row], cache, 259, decoder.max_context)
            parts.append(decoder.logits(decoder.forward(inputs, cache)))
    return torch.cat(parts)


@pytest.mark.parametrize("setting", ["int8", "int16", "bfloat16"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
def test_however_tokens_are_cut_into_steps_their_bits_are_the_same(
    tmp_path: Path, kind: str, setting: ActivationForm
) -> None:
    if library.library() is None or (setting == "bfloat16" and not library.multiplies_by_tiles()):
        pytest.skip("no kernel here for such inputs")
    files = tiny_gguf(tmp_path, kind)
    together = logits(files, setting)
    for step in (1, 3, 17):
        assert torch.equal(logits(files, setting, step=step), together), step


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_the_loaded_model_equals_the_dequantised_one_to_rounding(tmp_path: Path, kind: str) -> None:
    if library.library() is None:
        pytest.skip("no C compiler")
    files = tiny_gguf(tmp_path, kind)
    expected = logits(files, None)
    errors = {
        setting: float((logits(files, setting) - expected).abs().max() / expected.abs().max())
        for setting in ("float32", "int16", "int8")
    }
    assert errors["float32"] < 1e-4, errors  # a random model doubles each error a few times
    assert errors["int16"] < 3e-2, errors
    assert errors["int8"] > errors["int16"] > errors["float32"], errors
    if library.multiplies_by_tiles():
        error = (logits(files, "bfloat16") - expected).abs().max() / expected.abs().max()
        assert errors["float32"] < float(error) < max(3e-2, errors["int8"]), (error, errors)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
def test_packed_weights_by_triton_are_the_dequantised_ones(tmp_path: Path, kind: str) -> None:
    """Interpreted. No kernel reads Q6_K, so it becomes floats."""
    files, few = tiny_gguf(tmp_path, kind), TOKENS[:4]
    expected = logits(files, None, tokens=few)
    found = logits(files, "float32", "triton", few)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4
