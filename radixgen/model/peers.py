"""What the ranks of a split model tell each other in a forward pass. Knows no scheduler.

    before   heads, FFN     [rows, own part] -> [rows, all]     exact: gathered, fast: kept
    after    hidden         [rows, own part] -> [rows, all]     exact: gathered, fast: terms added
    pick     embedding      [tokens, hidden] of the rank whose token it is
    gather   head           [rows, own part] -> [rows, vocab]

Sums are taken by each rank in the order of ranks: an algorithm that adds on the way would round by
its own order, and that may change with the number of rows.
"""

from pathlib import Path

import torch
from torch import Tensor

from radixgen.config import TensorExchange
from radixgen.model.exchange import Exchange, join
from radixgen.model.forms import Place
from radixgen.model.split import Axis, Split

_GATHERED: dict[Place, Axis] = {"output": "queries", "down": "ffn"}


class Peers:
    """The ranks of a split model, seen from one of them. `join` comes before anything else."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._exchange: Exchange | None = None

    def join(self, kind: TensorExchange, folder: Path) -> None:
        """Meet the others, as `exchange.join` does."""
        self._exchange = join(kind, folder, self.split.rank, self.split.ranks)

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
        assert self._exchange is not None, "join() comes first"
        return self._exchange.all(x.contiguous())
