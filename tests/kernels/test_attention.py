"""Paged attention against plain softmax attention, and bitwise under any batch, chunk and page."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.attention import paged_attention, paged_attention_reference

Attention = Callable[..., Tensor]
ATTENTIONS: dict[str, Attention] = {
    "reference": paged_attention_reference,
    "default": paged_attention,
}


@dataclass
class Sequences:
    """Contiguous keys and values of a few sequences, laid into pages at random places on demand."""

    keys: list[Tensor]  # each [length, num_kv_heads, head_dim]
    values: list[Tensor]
    queries: list[Tensor]  # each [num_queries, num_heads, head_dim], the last ones of the sequence

    def arguments(
        self, page_size: int, seed: int = 0, rows: list[int] | None = None
    ) -> list[Tensor]:
        rows = list(range(len(self.keys))) if rows is None else rows
        lengths = [self.keys[row].shape[0] for row in rows]
        counts = [-(-length // page_size) for length in lengths]
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(sum(counts) + 3, generator=generator)[: sum(counts)].to(torch.int32)
        _, num_kv_heads, head_dim = self.keys[0].shape
        pages = [
            torch.full((sum(counts) + 3, num_kv_heads, page_size, head_dim), math.nan).to(
                self.keys[0].dtype
            )
            for _ in range(2)
        ]
        starts = [0]
        for row, count in zip(rows, counts, strict=True):
            for store, source in zip(pages, (self.keys[row], self.values[row]), strict=True):
                for index in range(count):
                    part = source[index * page_size : (index + 1) * page_size].transpose(0, 1)
                    store[int(ids[starts[-1] + index]), :, : part.shape[1]] = part
            starts.append(starts[-1] + count)
        qo = [0, *torch.tensor([self.queries[row].shape[0] for row in rows]).cumsum(0).tolist()]
        last = [
            length - (count - 1) * page_size for length, count in zip(lengths, counts, strict=True)
        ]
        tables = [torch.tensor(values, dtype=torch.int32) for values in (qo, starts)]
        q = torch.cat([self.queries[row] for row in rows])
        return [q, *pages, *tables, ids, torch.tensor(last, dtype=torch.int32)]


def sequences(
    shapes: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, dim: int = 32,
    dtype: torch.dtype = torch.float32, seed: int = 0,
) -> Sequences:  # fmt: skip
    g = torch.Generator().manual_seed(seed)
    return Sequences(
        [torch.randn(length, kv_heads, dim, generator=g).to(dtype) for length, _ in shapes],
        [torch.randn(length, kv_heads, dim, generator=g).to(dtype) for length, _ in shapes],
        [torch.randn(count, heads, dim, generator=g).to(dtype) for _, count in shapes],
    )


def plain(data: Sequences, scale: float, window: int | None, softcap: float | None) -> Tensor:
    """Softmax attention in float64, one query and head at a time over a whole row of scores."""
    rows = []
    for keys, values, queries in zip(data.keys, data.values, data.queries, strict=True):
        group = queries.shape[1] // keys.shape[1]
        length, count = keys.shape[0], queries.shape[0]
        k = keys.double().repeat_interleave(group, dim=1)
        v = values.double().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries.double(), k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(length - count, length)[:, None]
        hidden = torch.arange(length)[None] > position
        if window is not None:
            hidden |= torch.arange(length)[None] <= position - window
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(rows)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("page_size", [1, 3, 16, 128])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, None), (300, 5.0)])
def test_equals_plain_attention(
    attention: Attention, page_size: int, window: int | None, softcap: float | None
) -> None:
    data = sequences([(1, 1), (17, 17), (300, 5), (530, 1), (600, 40)])
    out = attention(*data.arguments(page_size), scale=0.3, window=window, softcap=softcap)
    expected = plain(data, 0.3, window, softcap).float()
    torch.testing.assert_close(out, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(9, 3, 64), (1, 1, 256), (8, 1, 48), (3, 3, 128)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_shapes_and_types(
    attention: Attention, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> None:
    data = sequences([(40, 3), (257, 2)], heads, kv_heads, dim, dtype)
    out = attention(*data.arguments(16), scale=dim**-0.5)
    assert out.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    expected = plain(data, dim**-0.5, None, None).float()
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_batch_chunks_or_pages(
    attention: Attention, dtype: torch.dtype
) -> None:
    shapes = [(64, 64), (300, 300), (513, 1), (700, 33)]
    data = sequences(shapes, 9, 3, 64, dtype)
    whole = attention(*data.arguments(16), scale=0.125)
    ends = torch.tensor([count for _, count in shapes]).cumsum(0).tolist()
    parts = dict(enumerate(torch.tensor_split(whole, ends[:-1])))
    for rows, page_size in (([1], 16), ([3, 0], 1), ([2, 1], 7), ([0], 128), ([3, 2, 1, 0], 32)):
        out = attention(*data.arguments(page_size, seed=page_size, rows=rows), scale=0.125)
        assert torch.equal(out, torch.cat([parts[row] for row in rows])), (rows, page_size)
    for start, end in ((0, 1), (1, 2), (2, 129), (129, 259), (259, 300)):
        chunk = Sequences(
            [data.keys[1][:end]], [data.values[1][:end]], [data.queries[1][start:end]]
        )
        out = attention(*chunk.arguments(16), scale=0.125)
        assert torch.equal(out, parts[1][start:end]), (start, end)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_rows_without_queries_and_empty_batches(attention: Attention) -> None:
    data = sequences([(5, 0), (9, 2), (3, 0)])
    out = attention(*data.arguments(4), scale=1.0)
    torch.testing.assert_close(out, plain(data, 1.0, None, None).float(), rtol=1e-4, atol=1e-5)
    empty = torch.zeros(0, dtype=torch.int32)
    pages = torch.zeros(2, 2, 4, 32)
    zero = torch.zeros(1, dtype=torch.int32)
    q = torch.zeros(0, 4, 32)
    assert attention(q, pages, pages, zero, zero, empty, empty, scale=1.0).shape == q.shape


def test_refuses_tables_that_do_not_agree() -> None:
    good = sequences([(9, 2)]).arguments(4)
    for index, change, message in (
        (5, torch.tensor([0, 99, 1], dtype=torch.int32), "outside the 6 pages"),
        (5, torch.tensor([0, -1, 1], dtype=torch.int32), "outside the 6 pages"),
        (6, torch.tensor([5], dtype=torch.int32), "must be 1 to 4"),
        (3, torch.tensor([0, 1], dtype=torch.int32), "rise from 0 to the 2"),
        (4, torch.tensor([0, 4], dtype=torch.int32), "at most the 3"),
        (4, torch.tensor([0, 0], dtype=torch.int32), "0 without pages"),
    ):
        arguments = list(good)
        arguments[index] = change
        with pytest.raises(KernelError, match=message):
            paged_attention(*arguments, scale=1.0)
    with pytest.raises(KernelError, match="window=0"):
        paged_attention(*good, scale=1.0, window=0)
