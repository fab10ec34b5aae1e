"""Rounding to bfloat16 in each form of the C kernels' vectors: to nearest, ties to even."""

import numpy as np
import pytest
import torch

from radixgen.kernels import library
from radixgen.kernels.kv_write import write_kv

FORMS = {"native": (), "avx2": ("-DRK_AVX2",), "portable": ("-DRK_PORTABLE",)}
LOWER = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)  # of a number's bits: around the middle and the ends


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_number_is_rounded_as_torch_rounds_it(form: str) -> None:
    """Normal and subnormal numbers, zeros, infinities and NaN, of both signs."""
    chosen, before = library.load(*FORMS[form]), library.library()
    if chosen is None:
        pytest.skip("no C compiler")
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.stack([upper | lower for lower in LOWER])
    # 16 at a time go through a vector: neighbours of all kinds meet there, too.
    mixed = np.random.default_rng(0).permutation(bits.reshape(-1))
    for numbers in (bits.reshape(-1), mixed):
        rows = torch.from_numpy(numbers.view(np.float32).reshape(-1, 1, 64))
        pages = torch.zeros(2, len(rows), 1, 1, 64, dtype=torch.bfloat16)
        library.use(chosen)
        try:
            write_kv(rows, rows, pages[0], pages[1], torch.arange(len(rows)))
        finally:
            library.use(before)
        actual, expected = pages[0].view(-1), rows.bfloat16().view(-1)
        number = ~expected.isnan()
        assert torch.equal(actual.isnan(), ~number)
        assert torch.equal(actual[number].view(torch.int16), expected[number].view(torch.int16))
