"""A decoder's weights as Triton's kernels read them: packed ones tiled, all on the device.

Knows forms of weights, no computation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixgen.errors import ModelError
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.linear import Weight
from radixgen.kernels.triton.lora import MAX_RANK, LoraWeights
from radixgen.kernels.triton.packed import TiledWeight, pack_for_gpu
from radixgen.model.adapters import MATRICES, Adapter, LowRank
from radixgen.model.config import DecoderConfig
from radixgen.model.forms import Place
from radixgen.model.layers import Projection
from radixgen.model.split import WHOLE, Cut, Split, as_slices
from radixgen.model.weights import expected_shapes

if TYPE_CHECKING:
    from radixgen.model.decoder import DecoderWeights, Layer

Matrix = Tensor | TiledWeight
Parts = tuple[tuple[Matrix, Tensor | None], ...]  # weights of one input, each with its bias


@dataclass(frozen=True, slots=True, eq=False)
class LaunchLayer:
    """One layer: `own` for norms and window, its projections, and what adapters add to them."""

    own: "Layer"
    lora: Mapping[Place, LoraWeights]
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


def launch_weights(
    weights: "DecoderWeights",
    config: DecoderConfig,
    adapters: Sequence[Adapter],
    dtype: torch.dtype,
    split: Split | None = None,
) -> LaunchWeights:
    """Those of a decoder; floats are taken as they are, and norms say which device is meant.

    `split`: of which the decoder's weights are a rank's part.
    Raises ModelError for an adapter whose rank no kernel takes.
    """
    device = weights.final_norm.device

    def there(weight: Weight) -> Matrix:
        return weight if isinstance(weight, Tensor) else pack_for_gpu(weight, device)

    def parts(projection: Projection) -> Parts:
        return tuple((there(weight), bias) for weight, bias in projection.parts)

    def layer(index: int, own: "Layer") -> LaunchLayer:
        projections = map(parts, (own.qkv, own.output, own.gate_up, own.down))
        return LaunchLayer(own, _lora(places, adapters, index, dtype, device), *projections)

    places = _places(config, split)
    layers = tuple(layer(index, own) for index, own in enumerate(weights.layers))
    embedding = there(weights.embedding)
    tied = _same(weights.head, weights.embedding)
    head = embedding if tied else there(weights.head)
    return LaunchWeights(embedding, layers, weights.final_norm, head)


Sizes = tuple[int, list[int]]  # of inputs, and of the outputs of the matrices side by side


def _lora(
    places: Mapping[Place, Sizes],
    adapters: Sequence[Adapter],
    layer: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[Place, LoraWeights]:
    """What adapters add in a layer, by place; a place that all leave alone is not there."""
    found: dict[Place, LoraWeights] = {}
    for place, (columns, sizes) in places.items():
        starts = [sum(sizes[:part]) for part in range(len(sizes))]
        given: list[list[tuple[Tensor, Tensor, float] | None]] = []
        for adapter in adapters:
            added = {each.start: each for each in adapter.parts.get((layer, place), ())}
            given.append([_low_rank(adapter, added.get(start)) for start in starts])
        if any(part is not None for parts in given for part in parts):
            found[place] = LoraWeights.of(given, sizes, columns, dtype, device)
    return found


def _low_rank(adapter: Adapter, part: LowRank | None) -> tuple[Tensor, Tensor, float] | None:
    if part is None:
        return None
    if len(part.a) > MAX_RANK:
        raise ModelError(
            f"adapter {adapter.name!r} has rank {len(part.a)}; a GPU takes up to {MAX_RANK}: merge "
            "it into its model, or run with device='cpu'"
        )
    return part.a, part.b[as_slices(Cut(rows=part.cut.rows))], part.scale


def _places(config: DecoderConfig, split: Split | None) -> dict[Place, Sizes]:
    """The sizes of each projection."""
    shapes = expected_shapes(config if split is None else split.config)

    def size(matrix: str) -> tuple[int, int]:
        cut = WHOLE if split is None else split.cut(matrix)
        rows, columns = shapes[matrix]
        return len(cut.rows or range(rows)), len(cut.columns or range(columns))

    found: dict[Place, Sizes] = {}
    for place, names in MATRICES.items():
        sizes = [size(f"layers.0.{name}") for name in names]
        found[place] = sizes[0][1], [rows for rows, _ in sizes]
    return found


def _same(one: Weight, other: Weight) -> bool:
    """Whether they are the same numbers in the same place."""
    ours = one.data if isinstance(one, PackedWeight) else one
    theirs = other.data if isinstance(other, PackedWeight) else other
    return ours.data_ptr() == theirs.data_ptr() and ours.shape == theirs.shape
