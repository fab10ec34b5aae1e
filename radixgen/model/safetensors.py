"""Tensors of the safetensors files of a Hugging Face directory, mapped. Knows no architecture."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from radixgen.errors import ModelError, ModelNotFound
from radixgen.model.split import WHOLE, Cut, as_slices

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsFiles:
    """Open files of one checkpoint; `places`: the file of each tensor."""

    directory: Path
    places: dict[str, Any]

    def has(self, name: str) -> bool:
        return name in self.places

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file(name).get_slice(name).get_shape())

    def values(self, name: str, dtype: torch.dtype, cut: Cut = WHOLE) -> Tensor:
        """A part of the tensor in `dtype`; all of it is mapped, without a copy, if it is stored so.

        Of a part no more is read than it holds.
        """
        file = self._file(name)
        if cut == WHOLE:
            found: Tensor = file.get_tensor(name)
        else:
            found = file.get_slice(name)[as_slices(cut)]
        if not found.is_floating_point():
            raise ModelError(f"{self.directory}: tensor {name} holds {found.dtype}, not floats")
        return found.to(dtype).contiguous()

    def _file(self, name: str) -> Any:
        if name not in self.places:
            raise ModelError(f"{self.directory}: no safetensors file has the tensor {name}")
        return self.places[name]


def open_safetensors(directory: Path) -> SafetensorsFiles:
    """Map `model.safetensors`, or the shards that its index names.

    Raises ModelNotFound when there are none, ModelError, naming the file, for a missing shard or a
    truncated or damaged file.
    """
    index = directory / _INDEX
    shards = _shards(index) if index.is_file() else (directory / _SINGLE,)
    if not index.is_file() and not shards[0].is_file():
        raise ModelNotFound(
            f"{directory} has neither {_SINGLE} nor {_INDEX}; other weight formats are not read"
            " (convert the model with save_pretrained, or use a GGUF file)"
        )
    places: dict[str, Any] = {}
    for shard in shards:
        opened = _open(shard)
        places.update(dict.fromkeys(opened.keys(), opened))
    return SafetensorsFiles(directory, places)


def open_file(file: Path) -> SafetensorsFiles:
    """Map one file. Raises ModelError when it is missing, truncated or no safetensors file."""
    opened = _open(file)
    return SafetensorsFiles(file.parent, dict.fromkeys(opened.keys(), opened))


def _shards(index: Path) -> tuple[Path, ...]:
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        return tuple(index.parent / Path(name).name for name in sorted(names))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a safetensors index: {error!r}") from None


def _open(file: Path) -> Any:
    if not file.is_file():
        raise ModelError(f"{file} is missing: the index names it; fetch the model again")
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} is truncated or damaged ({error}); fetch it again") from None
