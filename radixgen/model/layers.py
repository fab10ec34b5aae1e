"""The parts of a decoder that own weights: projections and the embedding. Knows no architecture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from radixgen.kernels.linear import PackedWeight, Weight, dequantize_rows, linear
from radixgen.kernels.storage import take


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """One or more linear maps of one input, their outputs side by side.

    Maps whose weights are of one form are joined into one, so that a step makes one call.
    """

    parts: tuple[tuple[Weight, Tensor | None], ...]

    @classmethod
    def of(cls, weights: Sequence[Weight], biases: Sequence[Tensor | None]) -> "Projection":
        """weights[i] [out_i, in] with biases[i] [out_i] or None: a map to sum(out_i)."""
        joined = _join(weights)
        if joined is None:
            return cls(tuple(zip(weights, biases, strict=True)))
        return cls(((joined, _join_biases(weights, biases)),))

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, sum of out]."""
        outputs = [linear(x, weight, bias) for weight, bias in self.parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _join(weights: Sequence[Weight]) -> Weight | None:
    """All rows in one weight, or None when the forms differ, as in mixed quantisations."""
    if len(weights) == 1:
        return weights[0]
    floats = [w for w in weights if isinstance(w, Tensor)]
    packed = [w for w in weights if isinstance(w, PackedWeight)]
    if len(floats) == len(weights) and len({w.dtype for w in floats}) == 1:
        return torch.cat(floats, out=_room_for(floats))
    if len(packed) == len(weights) and len({(w.kind, w.activations) for w in packed}) == 1:
        shape = (sum(w.shape[0] for w in packed), packed[0].shape[1])
        rest = tuple(part for w in packed for part in w.parts)[1:]  # where they lie: no copies
        return replace(packed[0], shape=shape, rest=rest)
    return None


def _room_for(floats: Sequence[Tensor]) -> Tensor:
    """Where matrices are joined: on the CPU, in memory that is read fast."""
    shape = (sum(len(w) for w in floats), *floats[0].shape[1:])
    first = floats[0]
    return take(shape, first.dtype) if first.device.type == "cpu" else first.new_empty(shape)


def _join_biases(weights: Sequence[Weight], biases: Sequence[Tensor | None]) -> Tensor | None:
    given = [bias for bias in biases if bias is not None]
    if not given:
        return None
    return torch.cat(
        [
            given[0].new_zeros(weight.shape[0]) if bias is None else bias
            for weight, bias in zip(weights, biases, strict=True)
        ]
    )


def embed(weight: Weight, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows token_ids [tokens] of weight [vocab, hidden]: [tokens, hidden] in `dtype`."""
    if isinstance(weight, PackedWeight):
        return dequantize_rows(weight, token_ids).to(dtype)
    return weight[token_ids].to(dtype)
