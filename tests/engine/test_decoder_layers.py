"""Projections and embeddings over float and quantised weights, joined and apart."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from radixgen.errors import ModelError
from radixgen.kernels.linear import PackedWeight, Weight, dequantize, linear
from radixgen.model.assemble import assemble
from radixgen.model.config import DecoderConfig, RopeConfig
from radixgen.model.layers import Projection, embed


def random_weight(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def packed(rows: int, columns: int, seed: int, kind: str = "q8_0") -> PackedWeight:
    values = random_weight(rows, columns, seed).numpy()
    data = quants.quantize(values, GGMLQuantizationType[kind.upper()])
    return PackedWeight(kind, (rows, columns), torch.from_numpy(np.ascontiguousarray(data)))


def weights_of(form: str) -> list[Weight]:
    if form == "floats":
        return [random_weight(n, 64, n) for n in (40, 8, 8)]
    kinds = {"packed": ("q8_0",) * 3, "mixed kinds": ("q4_1", "q4_1", "q8_0")}[form]
    return [packed(n, 64, n, kind) for n, kind in zip((40, 8, 8), kinds, strict=True)]


@pytest.mark.parametrize("biased", [(), (0, 1, 2), (1,)], ids=str)
@pytest.mark.parametrize(("form", "num_parts"), [("floats", 1), ("packed", 1), ("mixed kinds", 3)])
def test_a_projection_is_its_maps_side_by_side(
    form: str, num_parts: int, biased: tuple[int, ...]
) -> None:
    weights = weights_of(form)
    biases = [torch.randn(w.shape[0]) if i in biased else None for i, w in enumerate(weights)]
    projection = Projection.of(weights, biases)
    assert len(projection.parts) == num_parts
    x = random_weight(5, 64, 9)
    wanted = torch.cat([linear(x, w, b) for w, b in zip(weights, biases, strict=True)], dim=1)
    torch.testing.assert_close(projection(x), wanted, atol=1e-4, rtol=1e-5)


def test_joined_packed_weights_stay_where_they_are() -> None:
    weights = [packed(n, 64, n) for n in (40, 8, 7)]
    (joined, _), *others = Projection.of(weights, [None] * 3).parts
    assert isinstance(joined, PackedWeight)
    assert not others
    assert joined.shape == (55, 64)
    lies = [part.data_ptr() for part in joined.parts]
    assert lies == [weight.data.data_ptr() for weight in weights]
    assert torch.equal(dequantize(joined), torch.cat([dequantize(w) for w in weights]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_rows_of_a_packed_weight(dtype: torch.dtype) -> None:
    weight = packed(30, 64, 1, "q4_1")
    ids = torch.tensor([29, 0, 7, 7])
    assert torch.equal(embed(weight, ids, dtype), dequantize(weight)[ids].to(dtype))
    plain = random_weight(30, 64, 2)
    assert torch.equal(embed(plain, ids, dtype), plain[ids].to(dtype))


def test_missing_and_quantised_vectors_are_named() -> None:
    config = DecoderConfig(
        "llama", 64, 1, 2, 2, 32, 64, 30, 128, 1e-5, RopeConfig(), tied_head=True
    )
    with pytest.raises(ModelError, match="no tensor 'embed'"):
        assemble(config, {}, torch.float32)
    tensors: dict[str, Weight] = {
        "embed": random_weight(30, 64, 0),
        "layers.0.attention_norm": packed(1, 64, 0),
    }
    with pytest.raises(ModelError, match=r"layers\.0\.attention_norm' is quantised"):
        assemble(config, tensors, torch.float32)
