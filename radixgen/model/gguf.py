"""Tensors of a GGUF file, mapped: raw quantised blocks or float values. Knows no architecture.

A quantised row is a run of blocks; `PackedWeight` keeps them as they lie in the file, and the gguf
library turns them into floats.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray
from torch import Tensor

from radixgen.errors import ConfigError, ModelError, UnsupportedModel
from radixgen.gguf_header import GgufHeader, TensorInfo, read_header
from radixgen.kernels.linear import BLOCK_SIZES, PackedWeight
from radixgen.model.split import WHOLE, Cut, as_slices

_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_PACKED = {GGMLQuantizationType[kind.upper()]: kind for kind in BLOCK_SIZES}
_PIECE = 1 << 18  # weights
SUPPORTED_TYPES = ", ".join(kind.name for kind in (*_FLOATS, *_PACKED))


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """An open GGUF file. The map is copy-on-write: the file itself is never changed."""

    header: GgufHeader
    data: NDArray[np.uint8]

    def has(self, name: str) -> bool:
        return name in self.header.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def packed(self, name: str, cut: Cut = WHOLE) -> PackedWeight | None:
        """A part of the matrix as raw blocks, None when it is stored in floats.

        Raises ConfigError for a part that ends inside a block.
        """
        info = self._info(name)
        kind = _PACKED.get(GGMLQuantizationType(info.type_id))
        if kind is None:
            return None
        blocks = _part(self._rows(info), info, cut)
        per_block, num_bytes = BLOCK_SIZES[kind]
        shape = len(blocks), blocks.shape[1] // num_bytes * per_block
        return PackedWeight(kind, shape, torch.from_numpy(blocks))

    def values(self, name: str, dtype: torch.dtype, cut: Cut = WHOLE) -> Tensor:
        """A part of the tensor in `dtype`; the map itself, without a copy, when it is stored so."""
        info = self._info(name)
        kind = GGMLQuantizationType(info.type_id)
        rows = self._rows(info)
        stored = _FLOATS.get(kind)
        if stored is not None:
            whole = torch.from_numpy(rows).view(stored).view(info.shape)
            return whole[as_slices(cut)].to(dtype).contiguous()
        if cut == WHOLE:
            return _dequantize(rows, kind, info.shape, dtype)
        rows = rows[as_slices(cut)[0]]
        found = _dequantize(rows, kind, (len(rows), info.shape[-1]), dtype)
        return found[as_slices(Cut(columns=cut.columns))].contiguous()

    def _info(self, name: str) -> TensorInfo:
        info = self.header.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.header.path} has no tensor {name}")
        return info

    def _rows(self, info: TensorInfo) -> NDArray[np.uint8]:
        """The stored bytes, uint8 [product of the other dimensions, bytes of a row]."""
        start = info.offset
        return self.data[start : start + _num_bytes(info)].reshape(-1, _row_bytes(info))


def _part(rows: NDArray[np.uint8], info: TensorInfo, cut: Cut) -> NDArray[np.uint8]:
    """Those rows and columns of a quantised matrix, in whole blocks."""
    low, high = (cut.columns.start, cut.columns.stop) if cut.columns else (0, info.shape[-1])
    per_block, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(info.type_id)]
    if low % per_block or high % per_block:
        raise ConfigError(
            f"tensor_split='fast' cuts {info.name} at columns {low} and {high}, inside its blocks "
            f"of {per_block}; tensor_split='exact' cuts no blocks"
        )
    columns = slice(low // per_block * num_bytes, high // per_block * num_bytes)
    return rows[as_slices(cut)[0], columns]


def _dequantize(
    rows: NDArray[np.uint8], kind: GGMLQuantizationType, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Blocks to floats, in pieces that stay in the CPU's caches: three times as fast as at once."""
    result = torch.empty(shape, dtype=dtype)
    flat = result.view(-1, shape[-1])
    step = max(1, _PIECE // shape[-1])
    for start in range(0, len(rows), step):
        piece = quants.dequantize(rows[start : start + step].reshape(1, -1), kind)
        flat[start : start + step] = torch.from_numpy(piece).view(-1, shape[-1])
    return result


def open_gguf(path: Path) -> GgufFile:
    """Map `path` and check that each tensor has a known type and lies inside the file.

    Raises ModelError when it is truncated or damaged, UnsupportedModel for other types.
    """
    header = read_header(path)
    data = np.memmap(path, dtype=np.uint8, mode="c")
    for info in header.tensors.values():
        _check(header, info, len(data))
    return GgufFile(header, data)


def _check(header: GgufHeader, info: TensorInfo, file_size: int) -> None:
    known = info.type_id in (*_FLOATS, *_PACKED)
    if not known:
        name = _type_name(info.type_id)
        raise UnsupportedModel(
            f"{header.path}: tensor {info.name} is of type {name}. Supported: {SUPPORTED_TYPES}"
        )
    per_block, _ = GGML_QUANT_SIZES[GGMLQuantizationType(info.type_id)]
    if not info.shape or info.shape[-1] % per_block or math.prod(info.shape) == 0:
        raise ModelError(f"{header.path} is damaged: tensor {info.name} has shape {info.shape}")
    end = info.offset + _num_bytes(info)
    if end > file_size:
        raise ModelError(
            f"{header.path} is truncated: tensor {info.name} ends at byte {end}, the file at"
            f" {file_size}; fetch it again"
        )


def _type_name(type_id: int) -> str:
    try:
        return GGMLQuantizationType(type_id).name
    except ValueError:
        return f"number {type_id}"


def _row_bytes(info: TensorInfo) -> int:
    per_block, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(info.type_id)]
    return info.shape[-1] // per_block * num_bytes


def _num_bytes(info: TensorInfo) -> int:
    return math.prod(info.shape[:-1]) * _row_bytes(info)
