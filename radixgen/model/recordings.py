"""Records a step's launches and repeats them: of a step of hundreds of launches, one is left.

    shape of a step    first time    launched one by one, which compiles and warms what it needs
                       second        recorded
                       from then on  its numbers sent to the recording's own place, and repeated

Recordings are those of CUDA graphs on a GPU; `Recorder` is all that is asked of the device. Knows
shapes and launches, no layers.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from radixgen.model.staging import Staging

MAX_RECORDINGS = 128  # kept, the least recently used leaving first

logger = logging.getLogger(__name__)

Outputs = tuple[Tensor, Tensor | None]
Launch = Callable[[Sequence[Tensor]], Outputs]
Fill = Callable[[Sequence[Tensor]], None]


class Recorder(Protocol):
    """A device that can repeat launches."""

    device: torch.device

    def record(self, launch: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """What repeats the launches, and where their results are once it was called.

        The launches themselves need not have run.
        """
        ...


class CudaGraphs:
    """CUDA graphs (HIP's on AMD), which share one pool of memory for what lies between launches."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def record(self, launch: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self._pool):
            made = launch()
        self._pool = self._pool or graph.pool()
        return graph.replay, made


@dataclass(frozen=True, slots=True)
class _Recording:
    staging: Staging
    repeat: Callable[[], None]
    outputs: Outputs


class Recordings:
    """The recordings of one forward pass, by the shape of a step."""

    def __init__(self, recorder: Recorder, most: int = MAX_RECORDINGS) -> None:
        self._recorder = recorder
        self._most = most
        self._staging = Staging(recorder.device)
        self._seen: set[Hashable] = set()
        self._kept: OrderedDict[Hashable, _Recording] = OrderedDict()
        self.broken = False  # recording has failed: every step is launched from then on
        self.num_repeated = 0

    def __len__(self) -> int:
        return len(self._kept)

    def run(
        self,
        shape: Hashable,
        arrays: Sequence[NDArray[Any]],
        launch: Launch,
        fill: Fill = lambda sent: None,
    ) -> Outputs:
        """What `launch` gives for these arrays, sent. Steps of one shape must launch alike.

        `fill` writes, each time, what the host does not know of the arrays. The next run may write
        the results anew.
        """
        kept = self._kept.get(shape)
        if kept is None and shape in self._seen and not self.broken:
            kept = self._record(shape, arrays, launch)
        if kept is None:
            self._seen.add(shape)
            sent = self._staging.send(arrays)
            fill(sent)
            return launch(sent)
        self._kept.move_to_end(shape)
        fill(kept.staging.send(arrays))
        kept.repeat()
        self.num_repeated += 1
        return kept.outputs

    def _record(
        self, shape: Hashable, arrays: Sequence[NDArray[Any]], launch: Launch
    ) -> _Recording | None:
        staging = Staging(self._recorder.device, sum(array.nbytes + 16 for array in arrays))
        sent = staging.send(arrays)
        try:
            repeat, outputs = self._recorder.record(lambda: launch(sent))
        except RuntimeError as error:  # torch's for all that a device refuses, memory included
            self.broken = True
            logger.warning("steps are launched one by one, slower: recording failed: %s", error)
            return None
        while len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        recording = self._kept[shape] = _Recording(staging, repeat, outputs)
        return recording
