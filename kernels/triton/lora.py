"""Low-rank adapters (LoRA) of several requests at once on a GPU, in two launches.

    shrink   one program a run of rows, part and slice of columns:   x A^T of the slice
    expand   one program a run of rows, part and tile of outputs:    y += (sum of slices * s) B^T

Rows are given by adapter, in runs of at most BLOCK_ROWS of one adapter (`make_segments`; L. Chen et
al., Punica, 2024). Slices are of a fixed number of columns and added from left to right, so a row's
result does not depend on who else is in the step. A part is one of the matrices whose outputs lie
side by side in a projection: q, k and v are three.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from radixgen.kernels.checks import require, shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import (
    AMD_OPTIONS,
    check_device,
    check_floats,
    launch,
    on_amd,
    power_of_two,
    product,
    to_kind,
)

BLOCK_ROWS = 16
SLICE = 1024  # columns
MIN_RANK, MAX_RANK = 16, 256  # of a tile; smaller ranks are padded with zeros


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeights:
    """What every adapter adds at one place of a layer; zeros where it adds nothing.

    a [adapters, parts, rank, in] and b [adapters, outputs, rank] in the dtype of hidden states, the
    rank a power of two; scales float32 [adapters, parts]; `starts`: the first output of each part,
    and the end.
    """

    a: Tensor
    b: Tensor
    scales: Tensor
    starts: Tensor  # int32 [parts + 1]
    max_outputs: int  # of a part

    @classmethod
    def of(
        cls,
        adapters: Sequence[Sequence[tuple[Tensor, Tensor, float] | None]],
        sizes: Sequence[int],
        columns: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> "LoraWeights":
        """Of adapters[i][part]: A [r, in], B [sizes[part], r] and their scale, or None.

        Raises KernelError for shapes that do not agree or a rank above MAX_RANK.
        """
        given = [part for parts in adapters for part in parts if part is not None]
        rank = power_of_two(max((len(a) for a, _, _ in given), default=1))
        rank = max(rank, MIN_RANK)
        require(rank <= MAX_RANK, f"an adapter of rank {rank}: the GPU kernel takes {MAX_RANK}")
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        whole_a = torch.zeros(len(adapters), len(sizes), rank, columns)
        whole_b = torch.zeros(len(adapters), int(starts[-1]), rank)
        scales = torch.zeros(len(adapters), len(sizes))
        for i, parts in enumerate(adapters):
            require(len(parts) == len(sizes), f"{len(parts)} parts of an adapter for {len(sizes)}")
            for j, part in enumerate(parts):
                if part is not None:
                    a, b, scales[i, j] = part
                    shaped("A", a, None, columns)
                    shaped("B", b, sizes[j], len(a))
                    whole_a[i, j, : len(a)] = a
                    whole_b[i, starts[j] : starts[j + 1], : len(a)] = b
        return cls(
            whole_a.to(device, dtype),
            whole_b.to(device, dtype),
            scales.to(device),
            torch.from_numpy(starts).to(device),
            max(sizes),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of rows of one adapter. segments int32 [n, 3]: the adapter, the first of `rows` and how
    many, at most BLOCK_ROWS (0: a run that only pads); rows int32: rows of x and y."""

    segments: Tensor
    rows: Tensor


def make_segments(
    adapters: Sequence[int], num_segments: int | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The arrays of `Segments`, padded to `num_segments` runs. adapters[i]: row i's, -1: none."""
    chosen = np.asarray(adapters, np.int32)
    rows = np.argsort(chosen, kind="stable").astype(np.int32)
    rows = rows[chosen[rows] >= 0]
    found: list[tuple[int, int, int]] = []
    for adapter in np.unique(chosen[rows]):
        places = np.flatnonzero(chosen[rows] == adapter)
        first, end = int(places[0]), int(places[-1]) + 1
        runs = range(first, end, BLOCK_ROWS)
        found += [(int(adapter), at, min(BLOCK_ROWS, end - at)) for at in runs]
    if num_segments is not None:
        require(len(found) <= num_segments, f"{len(found)} runs of rows, room for {num_segments}")
        found += [(0, 0, 0)] * (num_segments - len(found))
    return np.array(found, np.int32).reshape(-1, 3), rows


@triton.jit
def shrink_kernel(
    x,
    a,
    shrunk,
    segments,
    rows,
    num_rows,
    columns,
    x_stride,
    num_parts,
    RANK: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """shrunk [slices, rows, parts, RANK] float32 of one run, part and slice."""
    segment = segments + tl.program_id(0) * 3
    part = tl.program_id(1)
    low = tl.program_id(2) * SLICE
    adapter = tl.load(segment).to(tl.int64)
    first, count = tl.load(segment + 1), tl.load(segment + 2)
    place = tl.arange(0, BLOCK_ROWS)
    rank = tl.arange(0, RANK)
    is_row = place < count
    row = tl.load(rows + first + place, mask=is_row, other=0)
    column = low + tl.arange(0, BLOCK_COLUMNS)
    x_at = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    a_at = a + ((adapter * num_parts + part) * RANK + rank[:, None]) * columns + column[None, :]
    total = tl.zeros([BLOCK_ROWS, RANK], tl.float32)
    for start in range(0, SLICE, BLOCK_COLUMNS):
        inside = (column + start < columns)[None, :]
        values = tl.load(x_at + start, mask=is_row[:, None] & inside, other=0.0)
        weights = tl.load(a_at + start, mask=inside, other=0.0)
        total = product(values, tl.trans(weights), total)
    at = tl.program_id(2).to(tl.int64) * num_rows + first + place
    at = (at * num_parts + part)[:, None] * RANK + rank[None, :]
    tl.store(shrunk + at, total, mask=is_row[:, None])


@triton.jit
def expand_kernel(
    y,
    b,
    shrunk,
    scales,
    starts,
    segments,
    rows,
    num_rows,
    num_slices,
    outputs,
    y_stride,
    num_parts,
    RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
):
    """y [rows, outputs] of one run, part and tile of its outputs."""
    segment = segments + tl.program_id(0) * 3
    part = tl.program_id(1)
    adapter = tl.load(segment).to(tl.int64)
    first, count = tl.load(segment + 1), tl.load(segment + 2)
    output = tl.load(starts + part) + tl.program_id(2) * BLOCK_OUTPUTS
    output += tl.arange(0, BLOCK_OUTPUTS)
    is_output = output < tl.load(starts + part + 1)
    place = tl.arange(0, BLOCK_ROWS)
    rank = tl.arange(0, RANK)
    is_row = place < count
    hidden = tl.zeros([BLOCK_ROWS, RANK], tl.float32)
    shrunk_at = shrunk + ((first + place) * num_parts + part)[:, None] * RANK + rank[None, :]
    for _ in range(num_slices):
        hidden += tl.load(shrunk_at, mask=is_row[:, None], other=0.0)
        shrunk_at += num_rows * num_parts * RANK
    kind: tl.constexpr = y.dtype.element_ty
    hidden = to_kind(hidden * tl.load(scales + adapter * num_parts + part), kind)
    b_at = b + (adapter * outputs + output[:, None]) * RANK + rank[None, :]
    weights = tl.load(b_at, mask=is_output[:, None], other=0.0)
    added = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    added = product(hidden, tl.trans(weights), added)
    row = tl.load(rows + first + place, mask=is_row, other=0)
    y_at = y + row.to(tl.int64)[:, None] * y_stride + output[None, :]
    inside = is_row[:, None] & is_output[None, :]
    before = tl.load(y_at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_at, to_kind(before + added, kind), mask=inside)


def lora_(y: Tensor, x: Tensor, weights: LoraWeights, work: Segments) -> Tensor:
    """Add to the rows of y [rows, outputs], in place, what their adapters make of x [rows, in].

    y, x and the weights are of one dtype; sums are float32. A row has one adapter at most. Returns
    y. Raises KernelError for shapes or types that do not agree.
    """
    num_adapters, num_parts, rank, columns = weights.a.shape
    shaped("x", x, None, columns)
    shaped("y", y, len(x), weights.b.shape[1])
    shaped("b", weights.b, num_adapters, None, rank)
    shaped("segments", work.segments, None, 3)
    check_floats(y=y, x=x, a=weights.a, b=weights.b)
    check_device(y=y, segments=work.segments, rows=work.rows)
    require(y.stride(1) == x.stride(1) == 1, "the columns of x and y must lie one after the other")
    num_segments, num_rows = len(work.segments), len(work.rows)
    if not num_segments or not num_rows:
        return y
    slices = triton.cdiv(columns, SLICE)
    shape = (slices, num_rows, num_parts, rank)
    shrunk = torch.empty(shape, dtype=torch.float32, device=x.device)
    block_columns, block_outputs, num_warps = blocks(rank, x.dtype)
    options = {"num_warps": num_warps} | (AMD_OPTIONS if on_amd() else {})
    launch(
        shrink_kernel,
        (num_segments, num_parts, slices),
        x,
        weights.a,
        shrunk,
        work.segments,
        work.rows,
        num_rows,
        columns,
        x.stride(0),
        num_parts,
        RANK=rank,
        SLICE=SLICE,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_COLUMNS=block_columns,
        **options,
    )
    tiles = triton.cdiv(weights.max_outputs, block_outputs)
    launch(
        expand_kernel,
        (num_segments, num_parts, tiles),
        y,
        weights.b,
        shrunk,
        weights.scales,
        weights.starts,
        work.segments,
        work.rows,
        num_rows,
        slices,
        weights.b.shape[1],
        y.stride(0),
        num_parts,
        RANK=rank,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_OUTPUTS=block_outputs,
        **options,
    )
    return y


def blocks(rank: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Columns and outputs at a time, and warps: what fits AMD's 64 KB of shared memory with the
    largest rank. Of float32, whose products take registers, less."""
    if dtype == torch.float32:
        return (64, 64, 4) if rank <= 64 else (32, 32, 8)
    return 128 if rank <= 128 else 64, 128, 4


def cost(rows: int, adapters: int, weights: LoraWeights) -> Cost:
    """Each adapter in the step is read once; x is read, y is read and written, and what lies
    between is written and read for each slice."""
    _, parts, rank, columns = weights.a.shape
    outputs = weights.b.shape[1]
    size = weights.a.itemsize
    moved = adapters * rank * (parts * columns + outputs) * size
    moved += rows * ((columns + 2 * outputs) * size + 8 * parts * rank * -(-columns // SLICE))
    flops = 2 * rows * rank * (parts * columns + outputs)
    return Cost(moved, flops, on_tensor_cores=size == 2, launches=2)
