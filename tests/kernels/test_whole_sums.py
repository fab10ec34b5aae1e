"""Sums of whole numbers in the C products, where inputs and codes are as large as they get."""

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.kernels import library
from radixgen.kernels.block_types import BLOCK_SIZES, Activations, PackedWeight
from radixgen.kernels.linear import linear

FIRST_CODE = {"q4_0": 2, "q4_1": 4, "q5_1": 4, "q8_0": 2}  # byte of a block; scales before


def filled(kind: str, fill: int, activations: Activations) -> PackedWeight:
    """All codes of 20 rows alike, with scales of 1."""
    weights, num_bytes = BLOCK_SIZES[kind]
    data = np.full((20, 256 // weights, num_bytes), fill, dtype=np.uint8)
    scales = np.ones(FIRST_CODE[kind] // 2, dtype=np.float16).view(np.uint8)
    data[..., : FIRST_CODE[kind]] = np.resize(scales, FIRST_CODE[kind])
    return PackedWeight(kind, (20, 256), torch.from_numpy(data.reshape(20, -1)), activations)


def largest_inputs() -> Tensor:
    """Rows at the bounds of 8 and 16 bits, also with a low byte of -128 beside them."""
    x = torch.full((70, 256), 32512.0)
    x[1::2] *= -1
    x[2:4] = 128.0
    x[2:4, ::16] = -32512.0
    x[4, ::2] *= -1
    return x


@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("kind", FIRST_CODE)
def test_the_largest_sums_are_exact_in_every_form(kind: str, activations: Activations) -> None:
    x, results = largest_inputs(), []
    before = library.library()
    try:
        for flags in ((), ("-DRK_AVX2",), ("-DRK_PORTABLE",)):
            chosen = library.load(*flags)
            if chosen is None:
                pytest.skip("no C compiler")
            library.use(chosen)
            results.append(
                [linear(x, filled(kind, fill, activations)) for fill in (0, 0x7F, 0x80, 255)]
            )
    finally:
        library.use(before)
    for native, avx2, portable in zip(*results, strict=True):
        assert torch.equal(native, portable)
        assert torch.equal(avx2, portable)


def test_a_sum_of_the_largest_codes_is_the_product() -> None:
    weight = filled("q4_0", 255, "int8")  # each weight 15 - 8
    made = linear(largest_inputs()[:2], weight)
    expected = torch.tensor([[7.0], [-7.0]]) * 32512 * 256
    torch.testing.assert_close(made, expected.expand(2, 20), rtol=1e-6, atol=0)
