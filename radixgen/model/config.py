"""What a decoder looks like: sizes, biases, rotary embedding, windows, end tokens.

Owns the reading of a Hugging Face config and of GGUF metadata into one frozen form. Knows no
tensors: `weights` loads them, `decoder` computes with them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from radixgen.errors import ModelError, UnsupportedModel
from radixgen.gguf_header import GgufHeader

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
StoredDtype = Literal["float32", "bfloat16", "float16"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SUPPORTED = "Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3 (dense)"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding; the fields mean what the rope parameters of transformers mean.

    default   inverse frequency i is theta ** (-2 i / head_dim)
    linear    all divided by `factor`
    dynamic   theta grows with the context beyond `original_max_context` (NTK)
    llama3    long waves divided by `factor`, short ones kept, smooth between `low_freq_factor` and
              `high_freq_factor` turns in the original context
    yarn      a ramp between the two over `beta_fast`..`beta_slow`; cos and sin are scaled by
              `attention_factor`, or when None by the rule of the paper (`mscale`, `mscale_all_dim`)

    `divisors`, when not empty, holds one number per frequency [head_dim / 2] that divides it after
    all the above: the form in which GGUF files state llama3 scaling.
    """

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_context: int = 0  # tokens; 0 where the kind has no use for it
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-family decoder. Sizes in elements, contexts and windows in tokens."""

    family: str  # one of FAMILIES
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_context: int
    rms_norm_eps: float
    rope: RopeConfig
    tied_head: bool  # the head is the embedding matrix
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm over head_dim of every query and key head, before rope
    # One a layer: a token sees the last `window` tokens, itself included; None: all before it.
    sliding_windows: tuple[int | None, ...] = ()
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    dtype: StoredDtype = "bfloat16"  # the float type the checkpoint was made for

    def __post_init__(self) -> None:
        if not self.sliding_windows:
            object.__setattr__(self, "sliding_windows", (None,) * self.num_layers)
        for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
                     "ffn_size", "vocab_size", "max_context"):  # fmt: skip
            _require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} must be at least 1")
        _require(self.head_dim % 2 == 0, f"head_dim={self.head_dim} must be even")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"{self.num_heads} query heads do not share {self.num_kv_heads} KV heads evenly",
        )
        _require(
            len(self.sliding_windows) == self.num_layers,
            f"{len(self.sliding_windows)} sliding windows for {self.num_layers} layers",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelError(f"the model's config is inconsistent: {message}")


def _supported(condition: bool, source: object, what: str) -> None:
    if not condition:
        raise UnsupportedModel(f"{source}: {what}. Supported: {SUPPORTED}")


# --- Hugging Face ---------------------------------------------------------------------------------


def config_from_hf(directory: Path) -> DecoderConfig:
    """Read `config.json` (and the end tokens of `generation_config.json`) of a model directory.

    Raises ModelError for a missing or malformed file, UnsupportedModel for what is not run.
    """
    from transformers import AutoConfig

    file = directory / "config.json"
    if not file.is_file():
        raise ModelError(f"{directory} has no config.json, so it is not a Hugging Face model")
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # transformers raises whatever its validators raise
        raise _unreadable(file, error) from error
    return translate_hf_config(config, file, _generation_eos(directory))


def _unreadable(file: Path, error: Exception) -> ModelError:
    text = str(error)
    if "model type" in text or "does not recognize this architecture" in text:
        return UnsupportedModel(f"{file}: {text.splitlines()[0]} Supported: {SUPPORTED}")
    return ModelError(f"{file} cannot be read: {text}")


def _generation_eos(directory: Path) -> tuple[int, ...] | None:
    """The end tokens that generation_config.json names, None when it names none."""
    import json

    file = directory / "generation_config.json"
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
        return _ids(content.get("eos_token_id")) or None
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def translate_hf_config(
    config: "PreTrainedConfig", source: object = "config", eos_ids: tuple[int, ...] | None = None
) -> DecoderConfig:
    """The DecoderConfig of a transformers config; `eos_ids` replaces the end tokens it names."""
    c: Any = config
    family = str(c.model_type)
    _supported(family in FAMILIES, source, f"architecture {family!r} is not supported")
    quantization = getattr(c, "quantization_config", None)
    _supported(quantization is None, source, "quantised safetensors are not read (GGUF files are)")
    _supported(c.hidden_act == "silu", source, f"activation {c.hidden_act!r} is not supported")
    attention_bias = bool(getattr(c, "attention_bias", False))
    return DecoderConfig(
        family=family,
        hidden_size=c.hidden_size,
        num_layers=c.num_hidden_layers,
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        ffn_size=c.intermediate_size,
        vocab_size=c.vocab_size,
        max_context=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope=_hf_rope(c, source),
        tied_head=bool(c.tie_word_embeddings),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=bool(getattr(c, "mlp_bias", False)),
        qk_norm=family == "qwen3",
        sliding_windows=_hf_windows(c),
        eos_ids=_ids(c.eos_token_id) if eos_ids is None else eos_ids,
        bos_id=c.bos_token_id,
        dtype=_stored_dtype(getattr(c, "dtype", None)),
    )


def _stored_dtype(dtype: object) -> StoredDtype:
    name = str(dtype).removeprefix("torch.")
    return cast(StoredDtype, name) if name in ("float32", "bfloat16", "float16") else "float32"


def _hf_windows(c: Any) -> tuple[int | None, ...]:
    window: int | None = getattr(c, "sliding_window", None)
    kinds = getattr(c, "layer_types", None) or ["sliding_attention"] * c.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _hf_rope(c: Any, source: object) -> RopeConfig:
    p: dict[str, Any] = dict(c.rope_parameters or {})
    kind = p.get("rope_type", "default")
    _supported(
        kind in ("default", "linear", "dynamic", "llama3", "yarn"),
        source,
        f"rope type {kind!r} is not supported (default, linear, dynamic, llama3 and yarn are)",
    )
    partial = p.get("partial_rotary_factor") or 1.0
    _supported(partial == 1.0, source, "rotary embedding of a part of each head is not supported")
    original = p.get("original_max_position_embeddings") or c.max_position_embeddings
    return RopeConfig(
        kind=kind,
        theta=float(p.get("rope_theta") or 10_000.0),
        factor=float(p.get("factor") or _yarn_factor(c, kind, original)),
        original_max_context=0 if kind in ("default", "linear") else int(original),
        low_freq_factor=float(p.get("low_freq_factor") or 1.0),
        high_freq_factor=float(p.get("high_freq_factor") or 4.0),
        beta_fast=float(p.get("beta_fast") or 32.0),
        beta_slow=float(p.get("beta_slow") or 1.0),
        attention_factor=p.get("attention_factor"),
        mscale=p.get("mscale"),
        mscale_all_dim=p.get("mscale_all_dim"),
        truncate=p.get("truncate", True),
    )


def _yarn_factor(c: Any, kind: str, original: int) -> float:
    """Yarn may leave its factor to the ratio of the two contexts."""
    return c.max_position_embeddings / original if kind == "yarn" else 1.0


# --- GGUF -----------------------------------------------------------------------------------------


def config_from_gguf(header: GgufHeader, rope_divisors: tuple[float, ...] = ()) -> DecoderConfig:
    """Read GGUF metadata. `rope_divisors`: the tensor `rope_freqs.weight` where the file has one.

    Raises ModelError when a key is missing, UnsupportedModel for what is not run.
    """
    m = _Metadata(header)
    hidden_size, num_heads = m.integer("embedding_length"), m.integer("attention.head_count")
    head_dim = m.integer("attention.key_length", hidden_size // max(num_heads, 1))
    m.check_supported(head_dim)
    window = m.integer("attention.sliding_window", 0) or None
    num_layers = m.integer("block_count")
    return DecoderConfig(
        family=header.architecture,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=m.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        ffn_size=m.integer("feed_forward_length"),
        vocab_size=m.tensor_shape("token_embd.weight")[0],
        max_context=m.integer("context_length"),
        rms_norm_eps=m.number("attention.layer_norm_rms_epsilon"),
        rope=_gguf_rope(m, rope_divisors),
        tied_head="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        o_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        sliding_windows=(window,) * num_layers,
        eos_ids=header.eos_ids,
        bos_id=header.token_id("bos_token_id"),
        dtype=_gguf_dtype(header),
    )


def _gguf_dtype(header: GgufHeader) -> StoredDtype:
    """The type of the first layer's query matrix; quantised files come from bfloat16 models."""
    query = header.tensors.get("blk.0.attn_q.weight")
    by_type: dict[int, StoredDtype] = {0: "float32", 1: "float16"}
    return by_type.get(query.type_id, "bfloat16") if query else "bfloat16"


class _Metadata:
    """Typed look-ups in the keys that begin with the file's architecture."""

    def __init__(self, header: GgufHeader) -> None:
        self.header, self.path = header, header.path
        architecture = header.architecture
        _supported(
            architecture in FAMILIES, self.path, f"architecture {architecture!r} is not supported"
        )

    def get(self, key: str) -> Any:
        return self.header.metadata.get(f"{self.header.architecture}.{key}")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(
                f"{self.path}: {self.header.architecture}.{key} is {value!r}, not a number"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.number(key, default))

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        info = self.header.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path} has no tensor {name}")
        return info.shape

    def check_supported(self, head_dim: int) -> None:
        _supported(not self.get("expert_count"), self.path, "mixtures of experts are not supported")
        _supported(
            self.header.metadata.get("split.count", 1) in (0, 1),
            self.path,
            "a GGUF model split over several files is not read: merge it into one file",
        )
        same_values = self.integer("attention.value_length", head_dim) == head_dim
        _supported(same_values, self.path, "value heads of another size are not supported")
        whole = self.integer("rope.dimension_count", head_dim) == head_dim
        _supported(whole, self.path, "rotary embedding of a part of each head is not supported")


def _gguf_rope(m: _Metadata, divisors: tuple[float, ...]) -> RopeConfig:
    kind = m.get("rope.scaling.type") or "none"
    theta = float(m.number("rope.freq_base", 10_000.0))
    if kind == "none":
        return RopeConfig(theta=theta, divisors=divisors)
    _supported(
        kind in ("linear", "yarn"), m.path, f"rope scaling {kind!r} is not supported (linear, yarn)"
    )
    factor = float(m.number("rope.scaling.factor"))
    if kind == "linear":
        return RopeConfig("linear", theta, factor, divisors=divisors)
    _supported(
        not m.get("rope.scaling.yarn_log_multiplier"),
        m.path,
        "yarn_log_multiplier is not supported",
    )
    return RopeConfig(
        "yarn",
        theta,
        factor,
        original_max_context=m.integer("rope.scaling.original_context_length"),
        beta_fast=float(m.number("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(m.number("rope.scaling.yarn_beta_slow", 1.0)),
        attention_factor=_yarn_attention_factor(m, factor),
        divisors=divisors,
    )


def _yarn_attention_factor(m: _Metadata, factor: float) -> float | None:
    """GGUF states a multiplier of the paper's factor; None when that stands unchanged."""
    import math

    multiplier = float(m.number("rope.scaling.attn_factor", 1.0))
    return None if multiplier == 1.0 else multiplier * (1.0 + 0.1 * math.log(factor))
