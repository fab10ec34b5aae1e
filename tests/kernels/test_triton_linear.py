"""Linear maps on a GPU, interpreted: equal to the reference for float and packed weights."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import random_blocks
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.linear import PackedWeight, dequantize, linear_reference
from radixgen.kernels.triton import slices
from radixgen.kernels.triton.blocks import FORMS
from radixgen.kernels.triton.linear import TILES, linear
from radixgen.kernels.triton.packed import SLICE, dequantize_rows, pack_for_gpu
from radixgen.kernels.triton.tiles import tile_for

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 1e-2)]
SIZES = [(1, 64, 64), (5, 37, 33), (17, 100, 96), (70, 130, 160), (0, 8, 8), (3, 5, 0)]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed(kind: str, outputs: int, columns: int) -> PackedWeight:
    blocks = random_blocks(kind.upper(), outputs, columns, seed=outputs)
    return PackedWeight(kind, (outputs, columns), torch.from_numpy(blocks))


def width(kind: str, columns: int) -> int:
    """`columns`, or what a type whose blocks are larger has instead."""
    return -(-columns // 256) * 256 if kind.endswith("_k") else columns


def spread(columns: int) -> float:
    """Of sums over that many columns, each about 1."""
    return math.sqrt(max(columns, 1))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "columns"), SIZES)
def test_float_products_equal_the_reference(
    rows: int, outputs: int, columns: int, dtype: torch.dtype, tolerance: float
) -> None:
    x, weight = randn(rows, columns).to(dtype), randn(outputs, columns, seed=1).to(dtype)
    bias = randn(outputs, seed=2).to(dtype)
    for added in (None, bias):
        expected = linear_reference(
            x.float(), weight.float(), None if added is None else added.float()
        )
        found = linear(x, weight, added)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(("rows", "outputs", "columns"), [(1, 64, 64), (20, 70, 96), (70, 9, 32)])
def test_packed_products_equal_the_reference(
    rows: int, outputs: int, columns: int, kind: str
) -> None:
    columns = width(kind, columns)
    weight, x, bias = packed(kind, outputs, columns), randn(rows, columns, seed=1), randn(outputs)
    tiled = pack_for_gpu(weight)
    expected = linear_reference(x, weight, bias)
    torch.testing.assert_close(
        linear(x, tiled, bias), expected, atol=2e-5 * spread(columns), rtol=1e-5
    )
    half = linear(x.bfloat16(), tiled).float()
    expected = linear_reference(x.bfloat16().float(), weight)
    tolerance = 2e-2 * spread(columns) * float(dequantize(weight).std())
    torch.testing.assert_close(half, expected, atol=tolerance, rtol=2e-2)


@pytest.mark.parametrize("kind", FORMS)
def test_packed_weights_are_the_dequantised_ones(kind: str) -> None:
    columns = width(kind, 96)
    weight = packed(kind, 66, columns)
    tiled, values = pack_for_gpu(weight), dequantize(weight)
    assert torch.equal(linear(torch.eye(columns), tiled), values.T)
    ids = torch.tensor([65, 0, 7, 7, 63, 64])
    assert torch.equal(dequantize_rows(tiled, ids, torch.float32), values[ids])
    assert torch.equal(dequantize_rows(tiled, ids, torch.bfloat16), values[ids].bfloat16())
    assert dequantize_rows(tiled, ids[:0], torch.float16).shape == (0, columns)


def test_four_bits_stay_four_bits() -> None:
    tiled = pack_for_gpu(packed("q4_0", 128, 256))
    assert tiled.num_bytes == 128 * 256 * 18 // 32
    assert pack_for_gpu(packed("q8_0", 64, 64)).num_bytes == 64 * 64 * 34 // 32
    assert pack_for_gpu(packed("q4_k", 64, 256)).num_bytes == 64 * 256 * 6 // 8
    assert pack_for_gpu(packed("q6_k", 64, 256)).num_bytes == 64 * 256 * 10 // 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [None, "q4_1", "q8_0", "q6_k"])
def test_a_row_depends_on_itself_alone(dtype: torch.dtype, kind: str | None) -> None:
    columns = width(kind or "", 96)
    weight = randn(70, columns).to(dtype)
    taken = weight if kind is None else pack_for_gpu(packed(kind, 70, columns))
    x = randn(16, columns, seed=3).to(dtype)
    whole = linear(x, taken)
    for rows in ([4], [15, 0], [9, 9, 1, 2, 3], list(range(15, -1, -1))):
        assert torch.equal(linear(x[rows], taken), whole[rows])


@pytest.mark.parametrize("kind", [None, "q4_0"])
def test_tiles_of_every_size_compute_the_same(kind: str | None) -> None:
    """Whole numbers: what order they are added in makes no difference, what is left out does."""
    numbers = torch.randint(-4, 5, (70, 96), generator=torch.Generator().manual_seed(4)).bfloat16()
    weight: Tensor | PackedWeight = numbers
    if kind is not None:
        weight = PackedWeight(kind, (70, 96), packed(kind, 70, 96).data.clone())
        blocks = weight.data.view(70, 3, 18)
        blocks[..., :2] = torch.tensor([1.0], dtype=torch.float16).view(torch.uint8)
    x = torch.randint(-4, 5, (130, 96), generator=torch.Generator().manual_seed(5)).bfloat16()
    taken = weight if isinstance(weight, Tensor) else pack_for_gpu(weight)
    whole = linear(x, taken)
    for rows in (1, 16, 17, 64, 65, 128):
        assert torch.equal(linear(x[:rows], taken), whole[:rows]), rows
    assert {tile_for(rows, TILES) for rows in (1, 64, 65, 4096)} == set(TILES)


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", None])
def test_slices_are_added_alike_by_programs_of_their_own(
    kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, also those of a row among more rows, for which no product is split."""
    monkeypatch.setattr("radixgen.kernels.triton.linear.SLICE", SLICE)
    columns = 2 * SLICE + 96
    weight: Tensor | PackedWeight = randn(70, columns, seed=4)
    bias, x = randn(70), randn(20, columns, seed=3)
    if kind is not None:
        weight = packed(kind, 70, columns)
    taken = weight if isinstance(weight, Tensor) else pack_for_gpu(weight)
    launched: list[int] = []
    monkeypatch.setattr(slices, "add_slices_kernel", Spy(slices.add_slices_kernel, launched))
    split = linear(x, taken, bias)
    assert launched == [20]
    monkeypatch.setattr(slices, "BUSY", 1)
    assert torch.equal(linear(x, taken, bias), split)
    assert launched == [20]
    expected = linear_reference(x, weight, bias)
    torch.testing.assert_close(split, expected, atol=1e-5 * spread(columns), rtol=1e-5)


@dataclass(frozen=True)
class Spy:
    """A kernel that notes how many rows it is launched for."""

    kernel: Any
    rows: list[int]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.rows.append(grid[0])
        return self.kernel[grid]


def test_what_no_kernel_takes_is_refused() -> None:
    with pytest.raises(KernelError, match="x has shape"):
        linear(randn(2, 8), randn(4, 7))
    with pytest.raises(KernelError, match="bias has shape"):
        linear(randn(2, 8), randn(4, 8), randn(5))
    with pytest.raises(KernelError, match=r"x is torch.bfloat16 but weight is torch.float32"):
        linear(randn(2, 8).bfloat16(), randn(4, 8))
    with pytest.raises(KernelError, match="x has shape"):
        linear(randn(2, 8), pack_for_gpu(packed("q8_0", 4, 32)))
