"""A decoder's weights as Triton's kernels read them: packed ones tiled, all on the device.

Block types that no kernel reads become floats. Knows forms of weights, no computation.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.linear import Weight, dequantize_rows
from radixgen.kernels.triton.packed import FORMS, TiledWeight, pack_for_gpu
from radixgen.model.layers import Projection

if TYPE_CHECKING:
    from radixgen.model.decoder import DecoderWeights, Layer

Matrix = Tensor | TiledWeight
Parts = tuple[tuple[Matrix, Tensor | None], ...]  # weights of one input, each with its bias


@dataclass(frozen=True, slots=True, eq=False)
class LaunchLayer:
    """One layer: `own` for norms and window, and its projections."""

    own: "Layer"
    qkv: Parts
    output: Parts
    gate_up: Parts
    down: Parts


@dataclass(frozen=True, slots=True, eq=False)
class LaunchWeights:
    """What a forward pass of launches reads."""

    embedding: Matrix
    layers: tuple[LaunchLayer, ...]
    final_norm: Tensor
    head: Matrix


def launch_weights(weights: "DecoderWeights", dtype: torch.dtype) -> LaunchWeights:
    """Those of a decoder; floats are taken as they are, and norms say which device is meant."""
    device = weights.final_norm.device

    def there(weight: Weight) -> Matrix:
        return _form(weight, dtype, device)

    def parts(projection: Projection) -> Parts:
        return tuple((there(weight), bias) for weight, bias in projection.parts)

    layers = tuple(
        LaunchLayer(layer, *map(parts, (layer.qkv, layer.output, layer.gate_up, layer.down)))
        for layer in weights.layers
    )
    embedding = there(weights.embedding)
    tied = _same(weights.head, weights.embedding)
    head = embedding if tied else there(weights.head)
    return LaunchWeights(embedding, layers, weights.final_norm, head)


def _form(weight: Weight, dtype: torch.dtype, device: torch.device) -> Matrix:
    if isinstance(weight, Tensor):
        return weight
    if weight.kind in FORMS:
        return pack_for_gpu(weight, device)
    return dequantize_rows(weight, None).to(device, dtype)


def _same(one: Weight, other: Weight) -> bool:
    """Whether they are the same numbers in the same place."""
    ours = one.data if isinstance(one, PackedWeight) else one
    theirs = other.data if isinstance(other, PackedWeight) else other
    return ours.data_ptr() == theirs.data_ptr() and ours.shape == theirs.shape
