"""Adapters on a GPU, interpreted: what each adds to its rows, several in a launch."""

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.triton.lora import (
    BLOCK_ROWS,
    SLICE,
    LoraWeights,
    Segments,
    lora_,
    make_segments,
)

Part = tuple[Tensor, Tensor, float]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_adapters(ranks: list[int], sizes: list[int], columns: int) -> list[list[Part | None]]:
    """One of each rank; every second leaves the last part alone."""
    adapters: list[list[Part | None]] = []
    for i, rank in enumerate(ranks):
        parts: list[Part | None] = [
            (
                randn(rank, columns, seed=7 * i + j) / columns**0.5,
                randn(size, rank, seed=i + j),
                0.5 + i,
            )
            for j, size in enumerate(sizes)
        ]
        if i % 2:
            parts[-1] = None
        adapters.append(parts)
    return adapters


def work_of(chosen: list[int], room: int | None = None) -> Segments:
    segments, rows = make_segments(chosen, room)
    return Segments(torch.from_numpy(segments), torch.from_numpy(rows))


def expected(
    y: Tensor, x: Tensor, adapters: list[list[Part | None]], sizes: list[int], chosen: list[int]
) -> Tensor:
    y = y.double().clone()
    for row, adapter in enumerate(chosen):
        start = 0
        for part, size in zip(adapters[adapter], sizes, strict=True):
            if adapter >= 0 and part is not None:
                a, b, scale = (part[0].double(), part[1].double(), part[2])
                y[row, start : start + size] += scale * (b @ (a @ x[row].double()))
            start += size
    return y.float()


CHOSEN = [0, 1, -1, 2, 1, *[2] * (BLOCK_ROWS + 3), -1, 0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    ("ranks", "sizes", "columns"),
    [
        ([8, 64, 16], [96, 33, 33], 80),
        ([4, 1, 8], [130], SLICE + 40),
        ([33, 8, 8], [64, 64], 64),
        ([130, 8, 4], [40], 200),
    ],
)
def test_each_row_gets_what_its_adapter_adds(
    ranks: list[int], sizes: list[int], columns: int, dtype: torch.dtype, tolerance: float
) -> None:
    adapters = make_adapters(ranks, sizes, columns)
    x = randn(len(CHOSEN), columns, seed=1).to(dtype)
    y = randn(len(CHOSEN), sum(sizes), seed=2).to(dtype)
    wanted = expected(y.float(), x.float(), adapters, sizes, CHOSEN)
    weights = LoraWeights.of(adapters, sizes, columns, dtype)
    found = lora_(y, x, weights, work_of(CHOSEN, 9))
    assert found is y
    spread = float(wanted.abs().max())
    torch.testing.assert_close(y.float(), wanted, atol=tolerance * spread, rtol=tolerance)


def test_a_row_depends_on_itself_alone() -> None:
    sizes = [40, 24]
    weights = LoraWeights.of(make_adapters([8, 16, 8], sizes, 96), sizes, 96, torch.bfloat16)
    x, y = randn(len(CHOSEN), 96, seed=1).bfloat16(), randn(len(CHOSEN), 64, seed=2).bfloat16()
    whole = lora_(y.clone(), x, weights, work_of(CHOSEN))
    for row in (0, 1, 2, 12, len(CHOSEN) - 1):
        one = slice(row, row + 1)
        alone = lora_(y[one].clone(), x[one], weights, work_of(CHOSEN[one]))
        assert torch.equal(alone, whole[one])


def test_runs_hold_each_row_once() -> None:
    segments, rows = make_segments(CHOSEN)
    assert sorted(rows.tolist()) == [i for i, adapter in enumerate(CHOSEN) if adapter >= 0]
    for adapter, first, count in segments.tolist():
        assert 0 < count <= BLOCK_ROWS
        assert {CHOSEN[row] for row in rows[first : first + count]} == {adapter}
    assert sum(count for _, _, count in segments.tolist()) == len(rows)


def test_rows_without_adapters_stay_as_they_are() -> None:
    weights = LoraWeights.of(make_adapters([8], [16], 32), [16], 32, torch.float32)
    x, y = randn(3, 32), randn(3, 16, seed=1)
    assert torch.equal(lora_(y.clone(), x, weights, work_of([-1, -1, -1])), y)
    assert torch.equal(lora_(y.clone(), x, weights, work_of([-1, -1, -1], 2)), y)
    assert lora_(y[:0], x[:0], weights, work_of([])).shape == (0, 16)


def test_what_no_kernel_takes_is_refused() -> None:
    weights = LoraWeights.of(make_adapters([8], [16], 32), [16], 32, torch.float32)
    with pytest.raises(KernelError, match="x has shape"):
        lora_(randn(2, 16), randn(2, 31), weights, work_of([0, 0]))
    with pytest.raises(KernelError, match=r"y is torch.float32 but x is torch.bfloat16"):
        lora_(randn(2, 16), randn(2, 32).bfloat16(), weights, work_of([0, 0]))
    with pytest.raises(KernelError, match="rank 512: the GPU kernel takes 256"):
        LoraWeights.of(make_adapters([257], [16], 32), [16], 32, torch.float32)
    with pytest.raises(KernelError, match="B has shape"):
        LoraWeights.of(make_adapters([8], [15], 32), [16], 32, torch.float32)
    with pytest.raises(KernelError, match="2 runs of rows, room for 1"):
        make_segments([0, 1], 1)
