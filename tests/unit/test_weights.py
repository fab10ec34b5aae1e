"""Weights under canonical names: every family from safetensors and GGUF, and what is refused."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from helpers import llama_gguf_shapes, random_blocks, write_tiny_gguf, write_tiny_model
from safetensors.torch import load_file, save_file

from radixgen.errors import ModelError, ModelNotFound
from radixgen.kernels.linear import PackedWeight, dequantize
from radixgen.model.config import FAMILIES, translate_hf_config
from radixgen.model.hub import ModelFiles, resolve
from radixgen.model.weights import expected_shapes, load_config, load_model


def hf(path: Path) -> ModelFiles:
    return ModelFiles("hf", path, "tiny")


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_of_every_family(tmp_path: Path, family: str) -> None:
    write_tiny_model(tmp_path, family)
    loaded = load_model(hf(tmp_path))
    theirs = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(w.shape) for name, w in loaded.weights.items()} == expected_shapes(
        loaded.config
    )
    assert len(loaded.weights) == len(theirs)
    assert loaded.config == load_config(hf(tmp_path))
    query = loaded.weights["layers.1.attention.q"]
    assert isinstance(query, torch.Tensor)
    assert torch.equal(query, theirs["model.layers.1.self_attn.q_proj.weight"])
    total = sum(
        float(w.double().sum()) for w in loaded.weights.values() if isinstance(w, torch.Tensor)
    )
    assert total == pytest.approx(sum(float(w.double().sum()) for w in theirs.values()))


def test_biases_and_a_tied_head(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    weights = load_model(hf(tmp_path)).weights
    assert "head" not in weights
    theirs = load_file(tmp_path / "model.safetensors")
    for ours, name in (("attention.o", "self_attn.o_proj"), ("mlp.down", "mlp.down_proj")):
        bias = weights[f"layers.0.{ours}.bias"]
        assert isinstance(bias, torch.Tensor)
        assert torch.equal(bias, theirs[f"model.layers.0.{name}.bias"])


def test_shards_and_conversion_give_the_same(tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    write_tiny_model(one, dtype="bfloat16")
    write_tiny_model(many, dtype="bfloat16", max_shard_size="20KB")
    assert len(list(many.glob("model-*.safetensors"))) > 2
    expected, found = load_model(hf(one)).weights, load_model(hf(many), torch.bfloat16).weights
    for name, weight in expected.items():
        other = found[name]
        assert isinstance(weight, torch.Tensor)
        assert isinstance(other, torch.Tensor)
        assert other.dtype == torch.bfloat16
        assert torch.equal(weight, other.float())


def test_damaged_checkpoints_name_the_file(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    with pytest.raises(ModelError, match=rf"{shard.name} is truncated or damaged"):
        load_model(hf(tmp_path))
    shard.unlink()
    with pytest.raises(ModelError, match=rf"{shard.name} is missing: the index names it"):
        load_model(hf(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ModelError, match=r"index\.json is not a safetensors index"):
        load_model(hf(tmp_path))
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelNotFound, match=r"has neither model\.safetensors nor"):
        load_model(hf(tmp_path))


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model/outside\.safetensors is missing"):
        load_model(hf(tmp_path / "model"))


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name][:-1].clone()}, file)
    with pytest.raises(ModelError, match=r"up_proj\.weight has shape \(79, 48\), the config says"):
        load_model(hf(tmp_path))
    save_file({n: t for n, t in tensors.items() if n != name}, file)
    with pytest.raises(ModelError, match=r"up_proj\.weight is missing"):
        load_model(hf(tmp_path))


# --- GGUF -----------------------------------------------------------------------------------------


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What the conversion to a llama GGUF does to query and key rows."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def make_gguf(path: Path, arch: str, kind: str) -> tuple[ModelFiles, dict[str, Any]]:
    """A GGUF file whose matrices are of `kind`, and its rows in Hugging Face's order."""
    plain: dict[str, Any] = {}
    written: dict[str, tuple[str, Any]] = {}
    for index, (name, shape) in enumerate(llama_gguf_shapes(arch).items()):
        if len(shape) == 1:
            plain[name] = np.random.default_rng(index).normal(size=shape).astype(np.float32)
            written[name] = ("F32", plain[name])
            continue
        rows = random_blocks(kind, shape[0], shape[1], index)
        plain[name] = rows
        heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2]) if arch == "llama" else None
        written[name] = (kind, interleaved(rows, heads) if heads else rows)
    return ModelFiles("gguf", write_tiny_gguf(path, written, arch), "tiny"), plain


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_gguf_rows_are_in_half_split_order(tmp_path: Path, arch: str, kind: str) -> None:
    files, plain = make_gguf(tmp_path / "model.gguf", arch, kind)
    packed, floats = load_model(files), load_model(files, packed=False)
    assert set(packed.weights) == set(expected_shapes(packed.config))
    names = {"attention.q": "attn_q", "attention.k": "attn_k", "mlp.down": "ffn_down"}
    for ours, theirs in names.items():
        stored = plain[f"blk.1.{theirs}.weight"]
        weight, value = packed.weights[f"layers.1.{ours}"], floats.weights[f"layers.1.{ours}"]
        expected = torch.from_numpy(quants.dequantize(stored, GGMLQuantizationType[kind]))
        assert isinstance(weight, PackedWeight)
        assert isinstance(value, torch.Tensor)
        assert torch.equal(weight.data, torch.from_numpy(stored))
        assert torch.equal(dequantize(weight), expected)
        assert torch.equal(value, expected)
    norm = packed.weights["layers.0.mlp_norm"]
    assert isinstance(norm, torch.Tensor)
    assert torch.equal(norm, torch.from_numpy(plain["blk.0.ffn_norm.weight"]))


def test_gguf_divisors_of_rope(tmp_path: Path) -> None:
    shapes = llama_gguf_shapes()
    tensors = {name: ("F32", np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    tensors["rope_freqs.weight"] = ("F32", divisors)
    files = ModelFiles("gguf", write_tiny_gguf(tmp_path / "model.gguf", tensors), "tiny")
    assert load_config(files).rope.divisors == tuple(divisors.tolist())


def test_gguf_that_lacks_a_tensor(tmp_path: Path) -> None:
    shapes = llama_gguf_shapes()
    del shapes["blk.1.attn_v.weight"]
    tensors = {name: ("F32", np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    files = ModelFiles("gguf", write_tiny_gguf(tmp_path / "model.gguf", tensors), "tiny")
    with pytest.raises(ModelError, match=r"blk\.1\.attn_v\.weight is missing"):
        load_model(files)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # in transformers
def test_the_embedded_weights_equal_transformers_reading() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    files = resolve()
    loader, read_gguf = cast(Any, AutoModelForCausalLM), cast(Any, load_gguf_checkpoint)
    config = AutoConfig.from_pretrained(files.path.parent, gguf_file=files.path.name)
    with torch.device("meta"):
        model = loader.from_config(config)
    theirs = read_gguf(str(files.path), return_tensors=True, model_to_load=model)["tensors"]
    loaded, packed = load_model(files, packed=False), load_model(files).weights
    assert len(loaded.weights) == len(theirs)
    for name, weight in loaded.weights.items():
        assert isinstance(weight, torch.Tensor)
        assert torch.equal(weight, theirs[hf_name(name)]), name
        kept = packed[name]
        assert torch.equal(dequantize(kept) if isinstance(kept, PackedWeight) else kept, weight)
    ours, expected = loaded.config, translate_hf_config(config)
    for field in ("rope", "head_dim", "ffn_size", "max_context", "rms_norm_eps", "eos_ids"):
        assert getattr(ours, field) == getattr(expected, field), field


def hf_name(name: str) -> str:
    """Ours to transformers', written out apart from the table under test."""
    whole = {"embed": "model.embed_tokens", "norm": "model.norm"}
    if name in whole:
        return f"{whole[name]}.weight"
    _, layer, rest = name.split(".", 2)
    part = {
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    }.get(rest) or f"self_attn.{rest[-1]}_proj"  # fmt: skip
    return f"model.layers.{layer}.{part}.weight"
