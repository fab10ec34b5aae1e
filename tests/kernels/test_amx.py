"""Products by Intel's matrix unit: bit for bit those of the same machine's vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.kernels import library
from radixgen.kernels.block_types import BLOCK_SIZES, FORMS, Activations, PackedWeight
from radixgen.kernels.linear import linear

BITS: tuple[Activations, ...] = ("int8", "int16")
FLOATS = (torch.float32, torch.bfloat16)
HALVES = {"q4_1": 2, "q5_1": 2, "q4_k": 2, "q5_k": 2}  # of a block; others have one scale


@contextmanager
def using(chosen: CDLL) -> Iterator[None]:
    before = library.library()
    library.use(chosen)
    try:
        yield
    finally:
        library.use(before)


@pytest.fixture(scope="module")
def both() -> tuple[CDLL, CDLL]:
    """The library with AMX and without."""
    with_amx, without = library.load(), library.load("-DRK_VNNI")
    if with_amx is None or without is None:
        pytest.skip("no C compiler")
    assert not without.rk_amx()
    if not with_amx.rk_amx():
        pytest.skip("no AMX: this CPU has no int8 tiles, or the system grants none")
    return with_amx, without


def packed(kind: str, rows: int, columns: int, scales: tuple[float, float]) -> PackedWeight:
    """Random codes, with scales between those given."""
    weights, num_bytes = BLOCK_SIZES[kind]
    rng = np.random.default_rng(rows + columns)
    blocks = rng.integers(0, 256, (rows, columns // weights, num_bytes), dtype=np.uint8)
    halves = rng.uniform(*scales, (*blocks.shape[:2], HALVES.get(kind, 1))).astype(np.float16)
    first = 208 if kind == "q6_k" else 0
    blocks[..., first : first + 2 * halves.shape[-1]] = halves.view(np.uint8)
    return PackedWeight(kind, (rows, columns), torch.from_numpy(blocks.reshape(rows, -1)))


def assert_same(
    both: tuple[CDLL, CDLL], weight: PackedWeight, x: Tensor, bias: Tensor | None
) -> None:
    """The same bits, and NaN in the same places."""
    results = []
    for chosen in both:
        with using(chosen):
            results.append(linear(x, weight, bias))
    kind = torch.int32 if x.dtype == torch.float32 else torch.int16
    first, second = results
    assert torch.equal(first.isnan(), second.isnan()), (len(x), weight.kind)
    assert torch.equal(first.nan_to_num().view(kind), second.nan_to_num().view(kind)), len(x)


@pytest.mark.parametrize("activations", BITS)
@pytest.mark.parametrize("kind", FORMS)
def test_every_number_of_rows_gives_the_bits_of_vectors(
    both: tuple[CDLL, CDLL], kind: str, activations: Activations
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = replace(packed(kind, 50, 512, (-0.01, 0.01)), activations=activations)
    bias = torch.randn(50, generator=generator)
    for rows in range(1, 71):
        x = torch.randn(rows, 512, generator=generator).to(FLOATS[rows % 2])
        x[rows // 2] *= 1000
        assert_same(both, weight, x, bias if rows % 3 else None)


@pytest.mark.parametrize("activations", BITS)
@pytest.mark.parametrize(
    ("kind", "outputs", "columns", "rows"),
    [("q4_0", 3, 32, 16), ("q8_0", 17, 64, 25), ("q4_1", 33, 96, 40), ("q6_k", 16, 256, 33),
     ("q5_1", 20, 8192, 130), ("q6_k", 20, 4096, 280)],
)  # fmt: skip
def test_few_and_many_columns(
    both: tuple[CDLL, CDLL], kind: str, outputs: int, columns: int, rows: int,
    activations: Activations,
) -> None:  # fmt: skip
    """From one group, fewer than are multiplied ahead, to more inputs than are staged at a time."""
    weight = replace(packed(kind, outputs, columns, (-0.01, 0.01)), activations=activations)
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    for dtype in FLOATS:
        assert_same(both, weight, x.to(dtype), None)


@pytest.mark.parametrize("activations", BITS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pieces_of_a_product_share_what_a_thread_has_staged(
    both: tuple[CDLL, CDLL], threads: int, activations: Activations
) -> None:
    """Whichever thread takes which piece, and though the next product's inputs lie elsewhere."""
    before = library.num_threads()
    generator = torch.Generator().manual_seed(0)
    weight = replace(packed("q4_1", 700, 576, (-0.01, 0.01)), activations=activations)
    library.set_num_threads(threads)
    try:
        for rows in (33, 48, 33, 48):
            x = torch.randn(rows, 576, generator=generator)
            assert_same(both, weight, x, None)
    finally:
        library.set_num_threads(before)


@pytest.mark.parametrize("activations", BITS)
@pytest.mark.parametrize("kind", FORMS)
def test_inputs_and_scales_that_are_not_finite(
    both: tuple[CDLL, CDLL], kind: str, activations: Activations
) -> None:
    weight = replace(packed(kind, 100, 512, (0.001, 0.01)), activations=activations)
    first = 208 if kind == "q6_k" else 0
    blocks = weight.data.view(100, -1, BLOCK_SIZES[kind][1]).numpy()
    for row, half in ((3, np.inf), (20, np.nan), (21, -np.inf), (99, 65504.0)):
        blocks[row, 1, first : first + 2] = np.array([half], np.float16).view(np.uint8)
    if kind in HALVES:
        blocks[40, 0, 2:4] = np.array([np.inf], np.float16).view(np.uint8)
    x = torch.randn(45, 512, generator=torch.Generator().manual_seed(0))
    x[1, 5], x[2, 40], x[17] = float("nan"), float("inf"), 0.0
    x[18], x[19, 3], x[30] = -0.0, 3e38, 1e-38
    x[44, 500] = float("-inf")
    for dtype in FLOATS:
        assert_same(both, weight, x.to(dtype), None)
