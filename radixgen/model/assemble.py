"""From named tensors to the weights a decoder runs with. Knows names and forms, no computation.

q, k, v -> qkv        gate, up -> gate_up        no head -> the embedding
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from radixgen.errors import ModelError
from radixgen.kernels.linear import PackedWeight, Weight
from radixgen.model.config import DecoderConfig
from radixgen.model.decoder import DecoderWeights, Layer
from radixgen.model.forms import BY_VECTORS, Forms, Place
from radixgen.model.layers import Projection


def assemble(
    config: DecoderConfig,
    tensors: MutableMapping[str, Weight],
    dtype: torch.dtype,
    forms: Forms = BY_VECTORS,
    device: torch.device | str = "cpu",
) -> DecoderWeights:
    """The weights of a model from tensors named as `weights` names them, floats cast to `dtype`.

    Floats go to `device` one by one, so that what is joined there never lay on the host as a whole.
    `forms`: what the inputs of packed weights are rounded to, by place.
    Tensors leave the mapping as they are used, so that joining them holds none twice.
    Raises ModelError for a tensor that is missing.
    """
    take = _Taker(tensors, dtype, forms, torch.device(device))
    embedding = take.matrix("embed")
    layers = tuple(_layer(config, take, i) for i in range(config.num_layers))
    head = embedding if config.tied_head else take.matrix("head")
    return DecoderWeights(embedding, layers, take.vector("norm"), take.meeting(head, "head"))


def _layer(config: DecoderConfig, take: "_Taker", index: int) -> Layer:
    prefix = f"layers.{index}."
    attention, mlp = prefix + "attention.", prefix + "mlp."
    qk_norm = config.qk_norm
    return Layer(
        input_norm=take.vector(prefix + "attention_norm"),
        qkv=take.projection("qkv", [attention + name for name in "qkv"], config.qkv_bias),
        q_norm=take.vector(attention + "q_norm") if qk_norm else None,
        k_norm=take.vector(attention + "k_norm") if qk_norm else None,
        output=take.projection("output", [attention + "o"], config.o_bias),
        ffn_norm=take.vector(prefix + "mlp_norm"),
        gate_up=take.projection("gate_up", [mlp + "gate", mlp + "up"], config.mlp_bias),
        down=take.projection("down", [mlp + "down"], config.mlp_bias),
        window=config.sliding_windows[index],
    )


class _Taker:
    def __init__(
        self,
        tensors: MutableMapping[str, Weight],
        dtype: torch.dtype,
        forms: Forms,
        device: torch.device,
    ) -> None:
        self.tensors, self.dtype, self.forms, self.device = tensors, dtype, forms, device

    def matrix(self, name: str) -> Weight:
        weight = self.tensors.pop(name, None)
        if weight is None:
            raise ModelError(f"the model has no tensor {name!r}")
        return weight if isinstance(weight, PackedWeight) else weight.to(self.device, self.dtype)

    def vector(self, name: str) -> Tensor:
        tensor = self.matrix(name)
        if isinstance(tensor, PackedWeight):
            raise ModelError(f"tensor {name!r} is quantised; norms and biases must be floats")
        return tensor

    def meeting(self, weight: Weight, place: Place) -> Weight:
        """The weight, meeting inputs in the form that its place has."""
        if isinstance(weight, PackedWeight):
            return replace(weight, activations=self.forms[place])
        return weight

    def projection(self, place: Place, names: Sequence[str], with_bias: bool) -> Projection:
        weights = [self.meeting(self.matrix(name), place) for name in names]
        return Projection.of(
            weights, [self.vector(f"{name}.bias") if with_bias else None for name in names]
        )
