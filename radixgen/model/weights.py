"""A decoder's weights under one set of names, from safetensors or GGUF. Knows no computation.

    embed                        [vocab, hidden]
    layers.I.attention_norm      [hidden]
    layers.I.attention.q         [num_heads * head_dim, hidden]
    layers.I.attention.k, .v     [num_kv_heads * head_dim, hidden]
    layers.I.attention.o         [hidden, num_heads * head_dim]
    layers.I.attention.q_norm    [head_dim]       where config.qk_norm, and k_norm
    layers.I.mlp_norm            [hidden]
    layers.I.mlp.gate, .up       [ffn, hidden]
    layers.I.mlp.down            [hidden, ffn]
    norm                         [hidden]
    head                         [vocab, hidden]  unless config.tied_head

A bias is named after its matrix: `layers.I.attention.q.bias`. Query and key rows are in the
half-split order of Hugging Face models: dimension i turns with i + head_dim / 2.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from radixgen.errors import ModelError
from radixgen.kernels.linear import PackedWeight, Weight
from radixgen.model.config import DecoderConfig, config_from_gguf, config_from_hf
from radixgen.model.gguf import GgufFile, open_gguf
from radixgen.model.hub import ModelFiles
from radixgen.model.safetensors import open_safetensors
from radixgen.model.split import WHOLE, Cut, Split

_HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "attention.q": "self_attn.q_proj.weight",
    "attention.k": "self_attn.k_proj.weight",
    "attention.v": "self_attn.v_proj.weight",
    "attention.o": "self_attn.o_proj.weight",
    "attention.q_norm": "self_attn.q_norm.weight",
    "attention.k_norm": "self_attn.k_norm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}
_GGUF_NAMES = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "attention.q": "attn_q.weight",
    "attention.k": "attn_k.weight",
    "attention.v": "attn_v.weight",
    "attention.o": "attn_output.weight",
    "attention.q_norm": "attn_q_norm.weight",
    "attention.k_norm": "attn_k_norm.weight",
    "mlp.gate": "ffn_gate.weight",
    "mlp.up": "ffn_up.weight",
    "mlp.down": "ffn_down.weight",
}


class _Source(Protocol):
    """An open checkpoint."""

    def has(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def values(self, name: str, dtype: torch.dtype, cut: Cut) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a decoder is built from."""

    config: DecoderConfig
    weights: Mapping[str, Weight]


def load_config(files: ModelFiles) -> DecoderConfig:
    """The config of a model without its weights. Errors as `load_model`."""
    if files.kind == "hf":
        return config_from_hf(files.path)
    return _gguf_config(open_gguf(files.path))


def load_model(
    files: ModelFiles,
    dtype: torch.dtype = torch.float32,
    packed: bool = True,
    split: Split | None = None,
) -> LoadedModel:
    """Config and weights, floats in `dtype`.

    packed: keep quantised GGUF matrices as PackedWeight; else they are dequantised to `dtype`.
    split: read a rank's part of each tensor alone; the config is that of the whole model.
    Tensors that are stored as they are wanted stay mapped and cost no memory of their own.
    Raises ModelError, naming file and tensor, for anything missing or of another shape, and
    ConfigError where a part would end inside a block of packed weights.
    """
    if files.kind == "hf":
        loaded = _load_hf(files, dtype, split)
    else:
        loaded = _load_gguf(open_gguf(files.path), dtype, packed, split)
    if split is None:
        return loaded
    left_out = {
        name: torch.zeros_like(weight)
        for name, weight in loaded.weights.items()
        if isinstance(weight, Tensor) and split.is_left_out(name)
    }
    return LoadedModel(loaded.config, {**loaded.weights, **left_out})


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every name that `load_model` gives for a config, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        shapes.update((f"layers.{layer}.{name}", shape) for name, shape in _layer_shapes(config))
    shapes["norm"] = (config.hidden_size,)
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn = config.hidden_size, config.ffn_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "attention_norm", (hidden,)
    yield "mlp_norm", (hidden,)
    for name, rows, columns, bias in (
        ("attention.q", queries, hidden, config.qkv_bias),
        ("attention.k", keys, hidden, config.qkv_bias),
        ("attention.v", keys, hidden, config.qkv_bias),
        ("attention.o", hidden, queries, config.o_bias),
        ("mlp.gate", ffn, hidden, config.mlp_bias),
        ("mlp.up", ffn, hidden, config.mlp_bias),
        ("mlp.down", hidden, ffn, config.mlp_bias),
    ):
        yield name, (rows, columns)
        if bias:
            yield f"{name}.bias", (rows,)
    if config.qk_norm:
        yield "attention.q_norm", (config.head_dim,)
        yield "attention.k_norm", (config.head_dim,)


def hf_name(name: str) -> str:
    """As Hugging Face checkpoints call it: `layers.3.mlp.up` is `model.layers.3.mlp.up_proj.weight`
    and `mlp.up` alone `mlp.up_proj.weight`."""
    return _stored_name(name, _HF_NAMES, "model.layers")


def _stored_name(name: str, names: Mapping[str, str], layers: str) -> str:
    """As the checkpoint calls it: `layers.3.attention.q.bias` -> `blk.3.attn_q.bias`."""
    prefix = ""
    if name.startswith("layers."):
        _, layer, name = name.split(".", 2)
        prefix = f"{layers}.{layer}."
    stored = names[name.removesuffix(".bias")]
    return prefix + (stored.removesuffix("weight") + "bias" if name.endswith(".bias") else stored)


def _checked(source: _Source, stored: str, shape: tuple[int, ...], where: object) -> str:
    if not source.has(stored):
        raise ModelError(f"{where}: the tensor {stored} is missing")
    if source.shape(stored) != shape:
        raise ModelError(
            f"{where}: tensor {stored} has shape {source.shape(stored)}, the config says {shape}"
        )
    return stored


def _in_parallel(load: Callable[[str], Weight], names: list[str]) -> dict[str, Weight]:
    """Conversions release the interpreter lock, so threads share the work."""
    with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as pool:
        return dict(zip(names, pool.map(load, names), strict=True))


def _load_hf(files: ModelFiles, dtype: torch.dtype, split: Split | None) -> LoadedModel:
    config, source = config_from_hf(files.path), open_safetensors(files.path)
    shapes = expected_shapes(config)

    def load(name: str) -> Tensor:
        stored = _checked(source, hf_name(name), shapes[name], files.path)
        return source.values(stored, dtype, _cut(split, name))

    return LoadedModel(config, _in_parallel(load, list(shapes)))


def _gguf_config(file: GgufFile) -> DecoderConfig:
    divisors: tuple[float, ...] = ()
    if file.has("rope_freqs.weight"):
        divisors = tuple(file.values("rope_freqs.weight", torch.float32).tolist())
    return config_from_gguf(file.header, divisors)


def _cut(split: Split | None, name: str) -> Cut:
    return WHOLE if split is None else split.cut(name)


def _load_gguf(
    file: GgufFile, dtype: torch.dtype, packed: bool, split: Split | None
) -> LoadedModel:
    config = _gguf_config(file)
    own_config = config if split is None else split.own_config
    shapes = expected_shapes(config)

    def load(name: str) -> Weight:
        stored = _stored_name(name, _GGUF_NAMES, "blk")
        _checked(file, stored, shapes[name], file.header.path)
        cut = _cut(split, name)
        kept = file.packed(stored, cut) if packed and len(shapes[name]) == 2 else None
        weight = kept if kept is not None else file.values(stored, dtype, cut)
        heads = _interleaved_heads(own_config, name)
        return weight if heads is None else _half_split(weight, heads)

    return LoadedModel(config, _in_parallel(load, list(shapes)))


def _interleaved_heads(config: DecoderConfig, name: str) -> int | None:
    """The heads of a matrix (or bias) whose rows a GGUF of the llama architecture interleaves."""
    if config.family != "llama":
        return None
    name = name.removesuffix(".bias")
    if name.endswith("attention.q"):
        return config.num_heads
    return config.num_kv_heads if name.endswith("attention.k") else None


def _half_split(weight: Weight, heads: int) -> Weight:
    """Move each head's rows from pairs side by side (0 1 2 3) to half a head apart (0 2 1 3).

    Rows move whole, so quantised ones move as they are.
    """
    if isinstance(weight, PackedWeight):
        return PackedWeight(weight.kind, weight.shape, _regroup(weight.joined(), heads))
    return _regroup(weight, heads)


def _regroup(rows: Tensor, heads: int) -> Tensor:
    """[heads * head_dim, ...] with the last bit of the index in a head moved to the front."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
