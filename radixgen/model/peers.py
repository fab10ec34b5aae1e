"""What the ranks of a split model exchange in a forward pass. Knows collectives, no scheduler.

    before   heads, FFN     [rows, own part] -> [rows, all]     exact: gathered, fast: kept
    after    hidden         [rows, own part] -> [rows, all]     exact: gathered, fast: terms added
    tokens   embedding      [rows, hidden] of the rank whose token it is
    logits   head           [rows, own part] -> [rows, vocab]

Every exchange gathers bytes, and sums are taken by each rank in the order of ranks: an algorithm
that adds on the way would round by its own order, and that may change with the number of rows.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from radixgen.errors import RuntimeUnavailable
from radixgen.model.forms import Place
from radixgen.model.split import Axis, Split

LOOPBACK = "lo"
JOIN_SECONDS = 120.0
# Nobody waits for as long as this: a rank that dies closes its connections.
_PATIENCE = timedelta(days=30)

_GATHERED: dict[Place, Axis] = {"output": "queries", "down": "ffn"}


class Peers:
    """The ranks of a split model, seen from one of them. `join` comes before anything else."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._group: Any = None

    def join(self, meeting: Path) -> None:
        """Wait for the others at `meeting`, a file that does not exist yet, in a folder that only
        this user can enter.

        Gloo connects by TCP, so it is held to the loopback interface. Raises RuntimeUnavailable.
        """
        c10d: Any = dist  # torch's types leave out what is used here
        store = c10d.FileStore(str(meeting), self.split.ranks)
        store.set_timeout(timedelta(seconds=JOIN_SECONDS))
        gloo = c10d.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=LOOPBACK)]
        options._timeout = _PATIENCE
        try:
            self._group = gloo(store, self.split.rank, self.split.ranks, options)
            self._all(torch.zeros(1))  # now nobody needs the file any more
        except RuntimeError as error:
            raise RuntimeUnavailable(f"the ranks of the model did not meet: {error}") from None

    def before(self, place: Place, x: Tensor) -> Tensor:
        """The input [rows, in] that this rank's part of a projection takes."""
        axis = _GATHERED.get(place)
        return x if axis is None or self.split.kind == "fast" else self.gather(x, axis)

    def after(self, place: Place, y: Tensor) -> Tensor:
        """The output of a projection as the next operation takes it, from this rank's."""
        if place not in _GATHERED:
            return y
        return self._sum(y) if self.split.kind == "fast" else self.gather(y, "hidden")

    def gather(self, x: Tensor, axis: Axis) -> Tensor:
        """[rows, own part of an axis] -> [rows, all of it]."""
        widths = [len(part) for part in self.split.parts(axis)]
        wide = torch.nn.functional.pad(x, (0, max(widths) - x.shape[1]))
        found = self._all(wide)
        return torch.cat([found[n][:, :width] for n, width in enumerate(widths)], dim=1)

    def pick(self, x: Tensor, token_ids: Tensor) -> Tensor:
        """x [tokens, hidden] of each rank -> each token's row of the rank that owns it."""
        found = self._all(x)
        ends = torch.tensor([part.stop for part in self.split.parts("vocab")])
        owners = torch.searchsorted(ends, token_ids, right=True)
        return found[owners, torch.arange(len(x))]

    def _sum(self, x: Tensor) -> Tensor:
        """Terms of each rank added in the order of ranks, in float32."""
        terms = self._all(x.float())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total.to(x.dtype)

    def _all(self, x: Tensor) -> Tensor:
        """x of every rank: [ranks, *x.shape]."""
        assert self._group is not None, "join() comes first"
        out = x.new_empty((self.split.ranks, *x.shape))
        if x.numel():
            received = [each.view(torch.uint8) for each in out.view(self.split.ranks, -1).unbind()]
            self._group.allgather([received], [x.reshape(-1).view(torch.uint8)]).wait()
        return out
