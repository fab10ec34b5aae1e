"""Takes a step's numbers to the device: many small arrays in one copy, from memory that is pinned.

    host    | ids | positions | slots | items | ... |    filled, then sent as a whole
    device  | ids | positions | slots | items | ... |    the same places for the same sizes

so that launches recorded once find the numbers of each later step where they found the first's.
Knows bytes and arrays, not what they mean.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED = 16  # bytes: what wide loads ask of a pointer
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class Fence(Protocol):
    """A place in a device's queue of work: a CUDA event."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


class Staging:
    """Room for a step's arrays on the host and on the device; it grows with the largest step.

    A copy from pinned memory waits in the device's queue, so `fence` tells when the memory may be
    written again; None: by torch's own for a GPU, and none for a CPU, whose copies do not wait.
    """

    def __init__(
        self, device: torch.device, num_bytes: int = 1 << 16, fence: Fence | None = None
    ) -> None:
        self._device = device
        event: Any = torch.cuda.Event
        self._fence: Fence | None = event() if fence is None and device.type == "cuda" else fence
        self._allocate(num_bytes)

    def _allocate(self, num_bytes: int) -> None:
        pinned = self._device.type == "cuda"
        with torch.inference_mode(False):
            self._host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
            self._there = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def send(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """The arrays as tensors of the device and one axis, valid until the next call.

        The copy is asynchronous, in the order of the device's queue.
        """
        if self._fence is not None:
            self._fence.synchronize()
        starts, end = _places(arrays)
        if end > len(self._host):
            self._allocate(1 << (end - 1).bit_length())
        host = self._host.numpy()
        for start, array in zip(starts, arrays, strict=True):
            host[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        self._there[:end].copy_(self._host[:end], non_blocking=True)
        if self._fence is not None:
            self._fence.record()
        return [
            self._there[start : start + array.nbytes].view(_TYPES[array.dtype])
            for start, array in zip(starts, arrays, strict=True)
        ]


def _places(arrays: Sequence[NDArray[Any]]) -> tuple[list[int], int]:
    """Where each array begins, and the end of the last."""
    starts: list[int] = []
    end = 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGNED) * _ALIGNED
    return starts, end
