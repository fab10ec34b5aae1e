"""Memory for weights and KV pages, cut from few large mappings, so that huge pages lie under it.

Reading them is most of a step, and with pages of 4 KiB looking up their addresses is a good part of
reading. A huge page has 2 MiB, more than most matrices of a small model: each in memory of its
own would have none. Knows nothing of what is stored.
"""

import math
from threading import Lock

import torch
from torch import Tensor

from radixgen.kernels.library import ask_for_huge_pages

CHUNK_BYTES = 64 << 20  # of addresses; memory is taken as it is written
_HUGE_PAGE = 2 << 20
_ALIGNMENT = 256  # of each piece


class _State:
    """What is left of the last chunk; those before it live as long as their pieces."""

    lock = Lock()
    rest = torch.empty(0, dtype=torch.uint8)


def take(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new tensor on the CPU with arbitrary contents, beside those taken before it.

    Its memory goes back to the system when no piece of the same chunk is in use any more, so it is
    for what lives as long as a model.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    with _State.lock, torch.inference_mode(False):  # so that any mode may write into it
        if size > CHUNK_BYTES // 4:  # alone: what is left for others stays
            piece = _chunk(size)
        else:
            if len(_State.rest) < size:
                _State.rest = _chunk(CHUNK_BYTES)
            piece, _State.rest = _State.rest[:size], _State.rest[size:]
        return piece[:num_bytes].view(dtype).view(shape)


def _chunk(num_bytes: int) -> Tensor:
    """Bytes that begin with a huge page."""
    whole = torch.empty(num_bytes + _HUGE_PAGE, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HUGE_PAGE
    chunk = whole[begin : begin + num_bytes]
    ask_for_huge_pages(chunk)
    return chunk
