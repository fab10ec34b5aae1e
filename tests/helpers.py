"""What several test files share. Knows the package, no test."""

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from radixgen.grammars.automaton import State
    from radixgen.grammars.expr import Node
    from radixgen.model.decoder import Decoder


def tiny_decoder(
    seed: int = 0,
    *,
    dtype: "torch.dtype | None" = None,
    max_context: int | None = None,
    kernels: Literal["c", "triton"] = "c",
    **overrides: Any,
) -> "Decoder":
    """A Llama-family decoder of two layers with random weights; `overrides` are config fields."""
    import torch

    from radixgen.kernels.linear import Weight
    from radixgen.model.assemble import assemble
    from radixgen.model.config import DecoderConfig, RopeConfig
    from radixgen.model.decoder import Decoder
    from radixgen.model.weights import expected_shapes

    fields: dict[str, Any] = {
        "family": "llama",
        "hidden_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "ffn_size": 80,
        "vocab_size": 259,
        "max_context": 512,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(),
        "tied_head": False,
        **overrides,
    }
    config = DecoderConfig(**fields)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Weight] = {
        name: torch.randn(shape, generator=generator) * 0.3 + (1.0 if "norm" in name else 0.0)
        for name, shape in expected_shapes(config).items()
    }
    dtype = dtype or torch.float32
    weights = assemble(config, tensors, dtype)
    return Decoder(config, weights, dtype, max_context, kernels=kernels)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 256, 257, 258


def write_byte_tokenizer(
    path: "Path", chat_template: str | None = CHATML, merges: "Sequence[tuple[str, str]]" = ()
) -> None:
    """A Hugging Face tokenizer whose id is the byte, 0 to 255, then `merges` of ASCII text, then
    SPECIAL_TOKENS; eos 258 without merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    alphabet: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    vocab = {character: byte for byte, character in alphabet.items()}
    vocab |= {"".join(pair): 256 + place for place, pair in enumerate(merges)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    loader: Any = PreTrainedTokenizerFast
    tokenizer = loader(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(path)


def write_tiny_model(
    path: "Path", family: str = "llama", seed: int = 0, **overrides: Any
) -> "Path":
    """A random Hugging Face model made by transformers' own classes, with a byte tokenizer.

    `overrides` are fields of the family's transformers config, and `max_shard_size` of
    save_pretrained. Load it with AutoModelForCausalLM for a reference.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {"max_shard_size": overrides.pop("max_shard_size", "1GB")}
    fields: dict[str, Any] = {
        "vocab_size": 259,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 258,
        "initializer_range": 0.3,
        **overrides,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loader: Any = AutoModelForCausalLM
        model = loader.from_config(AutoConfig.for_model(family, **fields))
        for name, parameter in model.named_parameters():  # norms and biases start at 1 and 0
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter.data, 1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(path, **options)
    write_byte_tokenizer(path)
    return path


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> "NDArray[np.uint8]":
    """Bytes of a quantised matrix [rows, columns] of a GGUF type, with small finite scales."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    per_block, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows * columns // per_block, num_bytes), dtype=np.uint8)
    starts = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(kind, (0, 2))
    for start in starts:  # the float16 scale and minimum of a block
        scales = random.uniform(0.001, 0.02, len(blocks)).astype(np.float16)
        blocks[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def write_tiny_gguf(
    path: "Path", tensors: "dict[str, tuple[str, NDArray[Any]]]", arch: str = "llama", **keys: Any
) -> "Path":
    """A GGUF file of the `tensors` (name: type and stored values) with the metadata of a 2-layer
    decoder; `keys` replace metadata, dots written as `__`, None leaves one out."""
    from gguf import GGMLQuantizationType, GGUFWriter

    metadata: dict[str, Any] = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    writer = GGUFWriter(path, arch)
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in metadata.items():
        add: Any = adders.get(type(value), writer.add_string)
        if value is not None:
            add(key if key.startswith("tokenizer") else f"{arch}.{key}", value)
    for name, (kind, values) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_gguf_shapes(arch: str = "llama") -> dict[str, tuple[int, ...]]:
    """The tensors of the decoder that `write_tiny_gguf` describes."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (259, 256), "output_norm": (256,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_norm": (256,),
            f"blk.{layer}.ffn_norm": (256,),
            f"blk.{layer}.attn_q": (256, 256),
            f"blk.{layer}.attn_k": (128, 256),
            f"blk.{layer}.attn_v": (128, 256),
            f"blk.{layer}.attn_output": (256, 256),
            f"blk.{layer}.ffn_gate": (256, 256),
            f"blk.{layer}.ffn_up": (256, 256),
            f"blk.{layer}.ffn_down": (256, 256),
        }
        if arch == "qwen3":
            shapes |= {f"blk.{layer}.attn_{x}_norm": (64,) for x in "qk"}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def recognised(node: "Node", texts: "Iterable[str]") -> "list[bool]":
    """For each text, whether its UTF-8 bytes are in the language of a byte expression."""
    from radixgen.grammars.automaton import Automaton
    from radixgen.grammars.oracle import run

    automaton = Automaton()
    start = automaton.start(node)
    found = []
    for text in texts:
        state = run(automaton, start, text.encode())
        found.append(state is not None and automaton.is_accepting(state))
    return found


class GrammarSampler:
    """Texts of a grammar by random walk, each finished by the shortest way out."""

    def __init__(self, node: "Node", seed: int, most_bytes: int = 60) -> None:
        import random

        from radixgen.grammars.automaton import Automaton

        self._automaton = Automaton()
        self._start = self._automaton.start(node)
        self._random = random.Random(seed)
        self._most_bytes = most_bytes

    def sample(self) -> bytes | None:
        """A text; None where the search for a way out was given up. A dead end is an error."""
        assert self._start is not None, "the grammar derives nothing"
        text, state = bytearray(), self._start
        while len(text) < self._most_bytes:
            if self._automaton.is_accepting(state) and self._random.random() < 0.3:
                return bytes(text)
            classes = self._automaton.classes(state)
            self._random.shuffle(classes)
            for mask in classes:
                byte = self._random.choice([b for b in range(256) if mask >> b & 1])
                after = self._automaton.step(state, byte)
                if after is not None:
                    break
            else:
                assert self._automaton.is_accepting(state), f"dead end after {bytes(text)!r}"
                return bytes(text)
            text.append(byte)
            state = after
        rest = self._way_out(state)
        return None if rest is None else bytes(text) + rest

    def _way_out(self, state: "State") -> bytes | None:
        waiting, seen = [(state, b"")], {state}
        for here, path in waiting:
            if self._automaton.is_accepting(here):
                return path
            for mask in self._automaton.classes(here):
                byte = (mask & -mask).bit_length() - 1
                there = self._automaton.step(here, byte)
                if there is not None and there not in seen:
                    seen.add(there)
                    waiting.append((there, path + bytes((byte,))))
            if len(seen) > 3000:
                return None
        raise AssertionError("dead end")


def write_adapter(
    path: "Path", model: "Path", targets: "Sequence[str]", seed: int = 0, **config: Any
) -> "Path":
    """A folder as PEFT writes it: a random LoRA adapter of the Hugging Face model at `model`, for
    its matrices `targets` (q_proj ...). `config` are keys of adapter_config.json; r is 4."""
    import json

    import torch
    from safetensors.torch import load_file, save_file

    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.1,
        "bias": "none",
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "use_dora": False,
        "target_modules": list(targets),
        **config,
    }
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and module.split(".")[-1] in targets:
            for side, shape in (("A", (4, weight.shape[1])), ("B", (weight.shape[0], 4))):
                values = torch.randn(shape, generator=generator) * 0.1
                tensors[f"base_model.model.{module}.lora_{side}.weight"] = values
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(said))
    return path


def merge_adapter(path: "Path", model: "Path", adapter: "Path") -> "Path":
    """The model with the adapter's products added to its own weights, computed in float64."""
    import json
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(model, path)
    said = json.loads((adapter / "adapter_config.json").read_text())
    scale = said["lora_alpha"] / (said["r"] ** 0.5 if said.get("use_rslora") else said["r"])
    parts = load_file(adapter / "adapter_model.safetensors")
    weights = load_file(model / "model.safetensors")
    for name, a in parts.items():
        if name.endswith("lora_A.weight"):
            b = parts[name.replace("lora_A", "lora_B")]
            own = name.removeprefix("base_model.model.").replace("lora_A.", "")
            merged = weights[own].double() + scale * b.double() @ a.double()
            weights[own] = merged.float()
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def wait_for_end(pid: int, seconds: float) -> None:
    """Until no such process runs; a zombie that nobody has waited for is none."""
    import time

    import psutil
    import pytest

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there after {seconds} s")
