"""Configs of every family, from transformers and from GGUF metadata."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import llama_gguf_shapes, write_tiny_gguf
from transformers import AutoConfig

from radixgen.errors import ModelError, UnsupportedModel
from radixgen.gguf_header import read_header
from radixgen.model.config import DecoderConfig, config_from_gguf, config_from_hf

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def read(folder: Path, family: str, **fields: Any) -> DecoderConfig:
    AutoConfig.for_model(family, **{**SIZES, **fields}).save_pretrained(folder)
    return config_from_hf(folder)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", {"qkv_bias": False, "o_bias": False, "qk_norm": False}),
        ("mistral", {"qkv_bias": False, "o_bias": False, "qk_norm": False}),
        ("qwen2", {"qkv_bias": True, "o_bias": False, "qk_norm": False}),
        ("qwen3", {"qkv_bias": False, "o_bias": False, "qk_norm": True}),
    ],
)
def test_families(tmp_path: Path, family: str, expected: dict[str, bool]) -> None:
    config = read(tmp_path, family, sliding_window=None)
    assert config.family == family
    assert (config.hidden_size, config.ffn_size, config.vocab_size) == (64, 96, 1000)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (3, 4, 2)
    assert config.head_dim == (128 if family == "qwen3" else 16)  # Qwen3 states it apart
    assert config.max_context == 256
    assert config.sliding_windows == (None,) * 3
    assert {name: getattr(config, name) for name in expected} == expected


def test_llama_biases_tied_head_and_end_tokens(tmp_path: Path) -> None:
    config = read(
        tmp_path, "llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        eos_token_id=[7, 8], bos_token_id=3, dtype="float16",
    )  # fmt: skip
    assert config.qkv_bias
    assert config.o_bias
    assert config.mlp_bias
    assert config.tied_head
    assert config.eos_ids == (7, 8)
    assert config.bos_id == 3
    assert config.dtype == "float16"


def test_generation_config_overrules_the_end_tokens(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read(tmp_path, "llama", eos_token_id=2).eos_ids == (5, 6)


def test_every_layer_of_mistral_has_its_window(tmp_path: Path) -> None:
    assert read(tmp_path, "mistral", sliding_window=32).sliding_windows == (32,) * 3


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows_begin_at_a_layer(tmp_path: Path, family: str) -> None:
    fields = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}
    assert read(tmp_path, family, **fields).sliding_windows == (None, 32, 32)


def test_rope_scalings(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128, "rope_theta": 5e5,
    }  # fmt: skip
    rope = read(tmp_path, "llama", rope_parameters=llama3).rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_context) == (
        "llama3",
        5e5,
        8,
        128,
    )
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "rope_theta": 1e6, "beta_fast": 16}  # fmt: skip
    rope = read(tmp_path, "qwen2", rope_parameters=yarn).rope
    assert (rope.kind, rope.factor, rope.original_max_context) == ("yarn", 4, 64)
    assert (rope.beta_fast, rope.beta_slow, rope.attention_factor) == (16, 1, None)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    rope = read(tmp_path, "llama", rope_parameters=dynamic).rope
    assert (rope.kind, rope.factor, rope.original_max_context) == ("dynamic", 2, 256)


def test_the_older_form_of_rope_parameters(tmp_path: Path) -> None:
    old = {**SIZES, "model_type": "llama", "rope_theta": 5000.0,
           "rope_scaling": {"type": "linear", "factor": 2.0}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(old))
    rope = config_from_hf(tmp_path).rope
    assert (rope.kind, rope.theta, rope.factor) == ("linear", 5000.0, 2.0)


@pytest.mark.parametrize(
    ("family", "fields", "what"),
    [
        ("gpt2", {}, "architecture 'gpt2'"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ],
)
def test_unsupported_models_are_told_what_is_supported(
    tmp_path: Path, family: str, fields: dict[str, Any], what: str
) -> None:
    config = {**SIZES, "model_type": family, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=what) as caught:
        config_from_hf(tmp_path)
    assert "Supported: Llama 2 and 3" in str(caught.value)


@pytest.mark.parametrize("text", ['{"model_type": "llama"', "{}", '{"model_type": "nonesuch"}'])
def test_unreadable_configs_name_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        config_from_hf(tmp_path)


def test_a_missing_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        config_from_hf(tmp_path)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not share 3 KV heads"):
        read(tmp_path, "llama", num_key_value_heads=3)


# --- GGUF -----------------------------------------------------------------------------------------


def gguf_config(
    path: Path,
    keys: dict[str, Any] | None = None,
    arch: str = "llama",
    extra: tuple[str, ...] = (),
) -> DecoderConfig:
    shapes = llama_gguf_shapes(arch)
    for name in extra:
        shapes[name] = (256,)
    tensors = {name: ("F32", np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    write_tiny_gguf(path / "model.gguf", tensors, arch, **(keys or {}))
    return config_from_gguf(read_header(path / "model.gguf"))


def test_gguf_of_every_family(tmp_path: Path) -> None:
    ids = {
        f"tokenizer__ggml__{name}_token_id": i for name, i in (("eos", 2), ("eot", 9), ("bos", 1))
    }
    plain = gguf_config(tmp_path, {"rope__freq_base": 5e5, **ids})
    assert (plain.family, plain.hidden_size, plain.num_layers) == ("llama", 256, 2)
    assert (plain.head_dim, plain.vocab_size, plain.max_context) == (64, 259, 512)
    assert plain.tied_head
    assert plain.rope.theta == 5e5
    assert (plain.eos_ids, plain.bos_id, plain.dtype) == ((2, 9), 1, "float32")
    biased = gguf_config(tmp_path, None, "qwen2", ("blk.0.attn_q.bias", "output.weight"))
    assert biased.qkv_bias
    assert not biased.o_bias
    assert not biased.tied_head
    assert gguf_config(tmp_path, None, "qwen3").qk_norm


def test_gguf_rope_scalings(tmp_path: Path) -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
            "rope__scaling__original_context_length": 128}  # fmt: skip
    rope = gguf_config(tmp_path, yarn).rope
    assert (rope.kind, rope.factor, rope.original_max_context) == ("yarn", 4.0, 128)
    assert rope.attention_factor is None
    scaled = gguf_config(tmp_path, {**yarn, "rope__scaling__attn_factor": 2.0}).rope
    assert scaled.attention_factor == pytest.approx(2 * (1 + 0.1 * np.log(4)))
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}
    assert gguf_config(tmp_path, linear).rope.kind == "linear"


@pytest.mark.parametrize(
    ("arch", "keys", "what"),
    [
        ("gemma", {}, "architecture 'gemma'"),
        ("llama", {"expert_count": 8}, "mixtures of experts"),
        ("llama", {"rope__scaling__type": "longrope"}, "rope scaling 'longrope'"),
        ("llama", {"rope__dimension_count": 32}, "a part of each head"),
        ("llama", {"attention__value_length": 32}, "value heads"),
    ],
)
def test_unsupported_gguf(tmp_path: Path, arch: str, keys: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedModel, match=what):
        gguf_config(tmp_path, keys, arch)


def test_missing_and_mistyped_gguf_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"llama\.context_length is None"):
        gguf_config(tmp_path, {"context_length": None})
    with pytest.raises(ModelError, match=r"llama\.block_count is 'two'"):
        gguf_config(tmp_path, {"block_count": "two"})
