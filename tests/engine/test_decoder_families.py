"""Every family and every rope scaling against transformers' own forward of the same weights."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from radixgen.batch import ScheduledRow
from radixgen.model.assemble import assemble
from radixgen.model.attention import build_inputs
from radixgen.model.config import RopeConfig, translate_hf_config
from radixgen.model.decoder import Decoder
from radixgen.model.hub import ModelFiles, resolve
from radixgen.model.kv_cache import KVCache
from radixgen.model.rope import rope_table
from radixgen.model.weights import load_model
from radixgen.types import SamplingParams

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 150,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("Llama", {"num_key_value_heads": 4}),
    "llama 3": ("Llama", rope("llama3", original_max_position_embeddings=32, **LLAMA3)),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, **rope("default", rope_theta=1e5)}),
    "mistral": ("Mistral", {"sliding_window": 20, "head_dim": 32}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "linear": ("Llama", rope("linear", factor=2.5)),
    "dynamic": ("Llama", rope("dynamic", factor=2.0)),
    "yarn": ("Qwen2", rope("yarn", **YARN)),
    "yarn mscale": ("Llama", rope("yarn", mscale=0.7, mscale_all_dim=0.9, **YARN)),
    "yarn factor": ("Qwen3", rope("yarn", attention_factor=1.3, truncate=False, **YARN)),
}


def hf_model(name: str) -> Any:
    """A random model whose biases and norms are random too."""
    family, fields = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | fields)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in key else 0.0, 0.2)
    return model


def logits_of(decoder: Decoder, tokens: list[int], chunk: int) -> Tensor:
    """Logits of every position, computed in chunks: [tokens, vocab]."""
    page_size = 16
    cache = KVCache.allocate(decoder.kv_layout(page_size), -(-len(tokens) // page_size))
    parts = []
    for start in range(0, len(tokens), chunk):
        row = ScheduledRow(
            "r",
            0,
            tokens[start : start + chunk],
            start,
            range(cache.num_pages),
            False,
            SamplingParams(),
            0,
            logprobs_from=0,
            next_id=0,
        )
        inputs = build_inputs([row], cache, decoder.config.vocab_size, len(tokens))
        with torch.inference_mode():
            parts.append(decoder.logits(decoder.forward(inputs, cache)))
    return torch.cat(parts)


def reference_logits(model: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers(name: str, tmp_path: Path) -> None:
    model = hf_model(name)
    model.save_pretrained(tmp_path)
    loaded = load_model(ModelFiles("hf", tmp_path, name))
    decoder = Decoder(loaded.config, assemble(loaded.config, dict(loaded.weights), torch.float32))
    tokens = random.Random(0).choices(range(150), k=200)
    wanted = reference_logits(model, tokens)
    assert wanted.std() > 0.5, "logits too small to tell a mistake"
    found = logits_of(decoder, tokens, chunk=70)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))


def test_dynamic_rope_beyond_the_trained_context_is_scaled_for_the_whole_context() -> None:
    model = hf_model("dynamic")
    config = translate_hf_config(model.config)
    cos, sin = rope_table(config.rope, config.head_dim, 1024)
    positions = torch.arange(1024)[None]
    wanted = model.model.rotary_emb(torch.zeros(1), positions)
    torch.testing.assert_close(cos, wanted[0][0], atol=1e-4, rtol=0)
    torch.testing.assert_close(sin, wanted[1][0], atol=1e-4, rtol=0)


def test_divisors_divide_each_frequency() -> None:
    plain = rope_table(RopeConfig(), 8, 64)
    slowed = rope_table(RopeConfig(divisors=(1.0, 2.0, 4.0, 8.0)), 8, 64)
    for i, divisor in enumerate((1, 2, 4, 8)):
        for table, slow in zip(plain, slowed, strict=True):
            assert torch.allclose(slow[::divisor, i], table[: 64 // divisor, i], atol=1e-6)


def hf_model_of_gguf(path: Path) -> Any:
    """The file's weights as transformers reads and dequantises them."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    auto: Any = transformers.AutoModelForCausalLM
    load: Any = load_gguf_checkpoint
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = auto.from_config(config, dtype=torch.float32).eval()
    tensors = load(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert not model.load_state_dict(tensors, strict=False).unexpected_keys
    model.tie_weights()
    return model


@pytest.mark.model
@pytest.mark.slow
def test_the_embedded_model_matches_transformers() -> None:
    files = resolve("")
    model = hf_model_of_gguf(files.path)
    tokens = random.Random(1).choices(range(49_152), k=60)
    wanted = reference_logits(model, tokens)
    loaded = load_model(files, packed=False)
    decoder = Decoder(loaded.config, assemble(loaded.config, dict(loaded.weights), torch.float32))
    found = logits_of(decoder, tokens, chunk=33)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))
