"""Low-rank adapters (LoRA: Hu et al., 2021) of a decoder's linear maps. Knows PEFT's folders and
tensors; no requests.

    y = x W^T             every token
      + s (x A^T) B^T     tokens of the adapter;  A [r, in], B [out, r],  s = alpha / r

    folder/adapter_config.json           what the adapter is; what is not understood is refused
           adapter_model.safetensors     base_model.model.<matrix>.lora_A.weight, .lora_B.weight
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radixgen.errors import ModelError, ModelNotFound, UnsupportedModel
from radixgen.kernels.tiles import matmul_rows
from radixgen.model.config import DecoderConfig
from radixgen.model.forms import Place
from radixgen.model.safetensors import SafetensorsFiles, open_file
from radixgen.model.split import WHOLE, Cut, Split, as_slices
from radixgen.model.weights import expected_shapes, hf_name
from radixgen.types import shown

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 4096

# The matrices that an adapter may add to, in the order of their outputs in a projection.
MATRICES: dict[Place, tuple[str, ...]] = {
    "qkv": ("attention.q", "attention.k", "attention.v"),
    "output": ("attention.o",),
    "gate_up": ("mlp.gate", "mlp.up"),
    "down": ("mlp.down",),
}
_TARGETS = {
    hf_name(name).split(".")[-2]: name for names in MATRICES.values() for name in names
}  # q_proj: attention.q

# Keys of adapter_config.json that change no output of a finished adapter.
_IDLE = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode",
    "loftq_config", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size",
    "revision", "runtime_config", "task_type",
})  # fmt: skip
_READ = frozenset({
    "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "init_lora_weights",
})  # fmt: skip
# Beginnings that leave the model's own weights as they are; others train against changed ones.
_PLAIN_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What an adapter adds to the outputs from `start` on of one projection.

    `cut`: the part of the matrix that a rank of a split model holds. All of `b` is multiplied even
    so: a product of fewer outputs may have other bits, and the cost is small.
    """

    a: Tensor  # float32 [r, in]
    b: Tensor  # float32 [out, r]
    scale: float
    start: int
    cut: Cut = WHOLE

    def add(self, y: Tensor, x: Tensor, tokens: Tensor) -> None:
        """Add to the rows `tokens` (int64) of y [rows, outputs], given x [len(tokens), in].

        In float32, each row by itself in one fixed order.
        """
        added = matmul_rows(matmul_rows(x, self.a) * self.scale, self.b)
        if self.cut.rows is not None:
            added = added[:, self.cut.rows.start : self.cut.rows.stop]
        columns = y[:, self.start : self.start + added.shape[1]]
        columns[tokens] = (columns[tokens].float() + added).to(y.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """One adapter's additions, by layer and place; a place that it leaves alone is not there."""

    name: str
    parts: Mapping[tuple[int, Place], Sequence[LowRank]]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterTokens:
    """The tokens of a step that are an adapter's, each int64, and those of its outputs."""

    name: str
    tokens: Tensor
    outputs: Tensor  # places among the outputs of the step


def adapt(
    y: Tensor,
    x: Tensor,
    layer: int,
    place: Place,
    chosen: Sequence[tuple[Adapter, Tensor]],
) -> None:
    """Add to y [rows, out], the projection of x [rows, in] at a place, what adapters add there.

    `chosen`: adapters, each with its rows (int64).
    """
    for adapter, rows in chosen:
        parts = adapter.parts.get((layer, place), ())
        if parts and len(rows):
            given = x[rows].float()
            for part in parts:
                part.add(y, given, rows)


def load_adapters(
    folders: Mapping[str, str], config: DecoderConfig, split: Split | None = None
) -> dict[str, Adapter]:
    """The adapters of a model from PEFT's folders, by name. Errors as `load_adapter`."""
    return {name: load_adapter(name, Path(path), config, split) for name, path in folders.items()}


def load_adapter(
    name: str, folder: Path, config: DecoderConfig, split: Split | None = None
) -> Adapter:
    """One adapter, whose every tensor must be one that its config and the model ask for.

    `config`: that of the whole model. `split`: add to a rank's part of it.

    Raises ModelNotFound when a file is missing, UnsupportedModel for what its config asks and is
    not done here, ModelError for what cannot be read or does not fit the model.
    """
    folder = folder.expanduser()
    where = f"adapter {shown(name)} in {folder}"
    said = _read_config(folder / CONFIG, where)
    rank, scale, targets = _rank(said, where), _scale(said, where), _targets(said, where)
    source = _open(folder, where)
    wanted = dict(_matrices(config, targets, split))
    _check_names(source, wanted.values(), where)
    shapes = expected_shapes(config)
    parts: dict[tuple[int, Place], list[LowRank]] = {}
    for (layer, place, start), matrix in wanted.items():
        out_size, in_size = shapes[matrix]
        a = _tensor(source, _stored(matrix, "A"), (rank, in_size), where)
        b = _tensor(source, _stored(matrix, "B"), (out_size, rank), where)
        cut = WHOLE if split is None else split.cut(matrix)
        a = a[as_slices(Cut(columns=cut.columns))].contiguous()
        parts.setdefault((layer, place), []).append(LowRank(a, b, scale, start, cut))
    return Adapter(name, parts)


def _matrices(
    config: DecoderConfig, targets: frozenset[str], split: Split | None
) -> Iterator[tuple[tuple[int, Place, int], str]]:
    """(layer, place, first output in it) and name of every matrix that is added to."""
    shapes = expected_shapes(config)
    for layer in range(config.num_layers):
        for place, names in MATRICES.items():
            start = 0
            for short in names:
                name = f"layers.{layer}.{short}"
                if short in targets:
                    yield (layer, place, start), name
                rows = None if split is None else split.cut(name).rows
                start += shapes[name][0] if rows is None else len(rows)


def _stored(matrix: str, side: str) -> str:
    return f"base_model.model.{hf_name(matrix).removesuffix('weight')}lora_{side}.weight"


# ---- its config ----


def _read_config(path: Path, where: str) -> dict[str, Any]:
    """Raises for a key that is not known to be without effect, unless its value says nothing."""
    if not path.is_file():
        raise ModelNotFound(f"{where}: there is no {CONFIG}; name a folder that PEFT has written")
    try:
        said = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{where}: {CONFIG} cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise ModelError(f"{where}: {CONFIG} holds no object")
    for key, value in said.items():
        says_nothing = value is None or value is False or value in ({}, [])
        if key not in _IDLE | _READ and not says_nothing:
            raise UnsupportedModel(f"{where}: {key}={shown(value)} is not supported; {_ADVICE}")
    if said.get("peft_type") != "LORA":
        kind = shown(said.get("peft_type"))
        raise UnsupportedModel(f"{where}: peft_type={kind} is not supported, 'LORA' is")
    if said.get("bias", "none") != "none":
        raise UnsupportedModel(f"{where}: bias={shown(said['bias'])} is not supported; {_ADVICE}")
    beginning = said.get("init_lora_weights")
    if beginning not in _PLAIN_BEGINNINGS:
        raise UnsupportedModel(
            f"{where}: init_lora_weights={shown(beginning)} changes the model's own weights; "
            "save the adapter converted to plain LoRA (path_initial_model_for_weight_conversion)"
        )
    return said


_ADVICE = "merge such an adapter into its model (PEFT's merge_and_unload) and serve that"


def _rank(said: Mapping[str, Any], where: str) -> int:
    rank = said.get("r")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise ModelError(f"{where}: r={shown(rank)} is not a whole number from 1 to {MAX_RANK}")
    return rank


def _scale(said: Mapping[str, Any], where: str) -> float:
    alpha, rank, by_root = said.get("lora_alpha"), said["r"], said.get("use_rslora", False)
    if not isinstance(by_root, bool):
        raise ModelError(f"{where}: use_rslora={shown(by_root)} is not true or false")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e9:
        raise ModelError(f"{where}: lora_alpha={shown(alpha)} is not a finite number")
    scale: float = alpha / (rank**0.5 if by_root else rank)
    return scale


def _targets(said: Mapping[str, Any], where: str) -> frozenset[str]:
    """The matrices named, as `weights` names them in a layer."""
    modules = said.get("target_modules")
    if modules == "all-linear":
        return frozenset(_TARGETS.values())
    known = f"a list of {', '.join(_TARGETS)}"
    if not isinstance(modules, list) or not modules:
        raise UnsupportedModel(f"{where}: target_modules={shown(modules)} is not {known}")
    for module in modules:
        if not isinstance(module, str) or module not in _TARGETS:
            raise UnsupportedModel(f"{where}: target_modules holds {shown(module)}; it is {known}")
    return frozenset(_TARGETS[module] for module in modules)


# ---- its tensors ----


def _open(folder: Path, where: str) -> SafetensorsFiles:
    path = folder / TENSORS
    if not path.is_file():
        raise ModelNotFound(
            f"{where}: there is no {TENSORS}; other formats are not read "
            "(save the adapter with save_pretrained)"
        )
    return open_file(path)


def _check_names(source: SafetensorsFiles, matrices: Iterable[str], where: str) -> None:
    wanted = {_stored(matrix, side) for matrix in matrices for side in "AB"}
    for missing in sorted(wanted - source.places.keys()):
        raise ModelError(f"{where}: the tensor {missing} is missing")
    for other in sorted(source.places.keys() - wanted):
        raise ModelError(f"{where}: the tensor {other} is of no target module of this model")


def _tensor(source: SafetensorsFiles, name: str, shape: tuple[int, ...], where: str) -> Tensor:
    if source.shape(name) != shape:
        raise ModelError(
            f"{where}: tensor {name} has shape {source.shape(name)}, the model and r say {shape}"
        )
    values = source.values(name, torch.float32).clone()  # not mapped: the folder may go
    if not bool(torch.isfinite(values).all()):
        raise ModelError(f"{where}: tensor {name} holds numbers that are not finite")
    return values
