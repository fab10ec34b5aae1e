"""Matrix products whose rows do not depend on their neighbours, from torch's own matmul.

A BLAS picks its kernel, and with it the order of additions, by the number of rows: one to three
rows give other bits than four. Here every product runs at a fixed number of rows, padded with
zeros, so that a row's result is the same bits alone, in a batch and at any position in it.

    rows   |  bulk tile (128)  |  bulk tile (128)  | 16 | 16 | 16 |pad|

The bulk tile is used only for shapes and thread counts where a probe found it bitwise equal to
tiles of 16; the probe runs once for each.
"""

from functools import lru_cache

import torch
from torch import Tensor

TILE = 16
BULK_TILE = 128


def matmul_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, k] times weight [n, k] transposed: [rows, n], each row bitwise on its own."""
    rows = x.shape[0]
    out = x.new_empty((rows, weight.shape[0]))
    start = 0
    if rows >= BULK_TILE and _bulk_agrees(weight.shape, x.dtype, torch.get_num_threads()):
        start = rows - rows % BULK_TILE
        for first in range(0, start, BULK_TILE):
            chunk = x[first : first + BULK_TILE]
            out[first : first + BULK_TILE] = _product(chunk, weight)
    for first in range(start, rows, TILE):
        last = min(first + TILE, rows)
        out[first:last] = _product(_padded(x[first:last]), weight)[: last - first]
    return out


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(x.contiguous(), weight)


def _padded(x: Tensor) -> Tensor:
    if x.shape[0] == TILE:
        return x
    tile = x.new_zeros((TILE, x.shape[1]))
    tile[: x.shape[0]] = x
    return tile


@lru_cache(maxsize=1024)
def _bulk_agrees(shape: torch.Size, dtype: torch.dtype, num_threads: int) -> bool:
    """Whether a bulk tile gives the bits of small tiles here; `num_threads` is part of the key."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BULK_TILE, shape[1], generator=generator).to(dtype)
    weight = torch.randn(shape, generator=generator).to(dtype)
    small = [_product(x[i : i + TILE], weight) for i in range(0, BULK_TILE, TILE)]
    return torch.equal(_product(x, weight), torch.cat(small))
