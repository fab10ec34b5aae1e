"""What the ranks of a split model tell each other in a forward pass. Knows no scheduler.

    before   heads, FFN     [rows, own part] -> [rows, all]     exact: gathered, fast: kept
    after    hidden         [rows, own part] -> [rows, all]     exact: gathered, fast: terms added
    pick     embedding      [tokens, hidden] of the rank whose token it is
    gather   head           [rows, own part] -> [rows, vocab]
    drawn    token ids      those of the first rank, which alone draws

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
    """The ranks of a split model, seen from one of them. `join` comes before anything else.

    `device`: where this rank's part is.
    """

    def __init__(self, split: Split, device: torch.device | str = "cpu") -> None:
        self.split = split
        self.device = torch.device(device)
        ends = [part.stop for part in split.parts("vocab")]
        self._ends = torch.tensor(ends, device=self.device)
        self._exchange: Exchange | None = None

    def join(self, kind: TensorExchange, folder: Path) -> None:
        """Meet the others, as `exchange.join` does."""
        split = self.split
        self._exchange = join(kind, folder, split.rank, split.ranks, self.device)

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

    def drawn(self, token_ids: Tensor) -> Tensor:
        """Tokens that the first rank has drawn; the others give any, as many."""
        return self._all(token_ids)[0]

    def known(self, token_ids: Tensor) -> Tensor:
        """The rows of this rank's part of the embedding: any, for tokens of other ranks."""
        own = self.split.own("vocab")
        return token_ids.clamp(own.start, own.stop - 1) - own.start

    def pick(self, x: Tensor, token_ids: Tensor) -> Tensor:
        """x [tokens, hidden] of each rank -> each token's row of the rank that owns it."""
        found = self._all(x)
        owners = torch.searchsorted(self._ends, token_ids, right=True)
        return found[owners, torch.arange(len(x), device=x.device)]

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
