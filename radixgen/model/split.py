"""Which part of a model each rank holds. Pure arithmetic: knows names and sizes, no tensors.

    place          exact: a rank computes         fast: a rank computes
    qkv            its KV heads, their queries    the same
    output         its part of the hidden         from its heads, a term of every number
    gate, up       its part of the FFN            the same
    down           its part of the hidden         from its FFN part, a term of every number
    embed, head    its tokens                     the same

In the exact split every number is one dot product of whole vectors on one rank, as it would be on
one alone, so that the bits are the same; and packed matrices are cut between rows, where blocks do
not matter. It costs two exchanges more a layer than the split of Megatron-LM (Shoeybi et al.,
2019), which is the fast one. Parts are contiguous and as even as can be, the first ones larger.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from radixgen.config import TensorSplit
from radixgen.errors import ConfigError
from radixgen.model.config import DecoderConfig

Axis = Literal["kv_heads", "queries", "keys", "hidden", "ffn", "vocab"]
_UNITS = (256, 32, 1)  # blocks of packed weights hold so many columns

# The axis of each matrix's rows, and of its columns where the fast split cuts those instead.
_ROWS: dict[str, Axis] = {
    "attention.q": "queries",
    "attention.k": "keys",
    "attention.v": "keys",
    "attention.o": "hidden",
    "mlp.gate": "ffn",
    "mlp.up": "ffn",
    "mlp.down": "hidden",
    "embed": "vocab",
    "head": "vocab",
}
_COLUMNS: dict[str, Axis] = {"attention.o": "queries", "mlp.down": "ffn"}


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a matrix or vector that a rank holds; None: all of it."""

    rows: range | None = None
    columns: range | None = None


WHOLE = Cut()


def as_slices(cut: Cut) -> tuple[slice, ...]:
    """To index a tensor with; a cut of rows alone indexes vectors too."""
    rows = slice(None) if cut.rows is None else slice(cut.rows.start, cut.rows.stop)
    if cut.columns is None:
        return (rows,)
    return (rows, slice(cut.columns.start, cut.columns.stop))


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of a model that rank `rank` of `ranks` holds. `config`: of the whole model.

    Raises ConfigError when there are more ranks than parts.
    """

    config: DecoderConfig
    ranks: int
    rank: int = 0
    kind: TensorSplit = "exact"

    def __post_init__(self) -> None:
        most = self.config.num_kv_heads
        if self.ranks > most:
            raise ConfigError(
                f"tensor_parallel={self.ranks}: a rank holds at least one of the {most} KV heads "
                f"of this model, so that at most {most} ranks can share it"
            )

    @property
    def own_config(self) -> DecoderConfig:
        """The whole model's, with the heads of this rank alone."""
        kv_heads = len(self.own("kv_heads"))
        group = self.config.num_heads // self.config.num_kv_heads
        return replace(self.config, num_heads=kv_heads * group, num_kv_heads=kv_heads)

    def own(self, axis: Axis) -> range:
        """The part of an axis that is this rank's."""
        return self.parts(axis)[self.rank]

    def parts(self, axis: Axis) -> tuple[range, ...]:
        """Each rank's part of an axis, in elements; of "kv_heads" in heads."""
        c = self.config
        match axis:
            case "kv_heads":
                return even_parts(c.num_kv_heads, self.ranks)
            case "keys":
                return self._of_heads(c.head_dim)
            case "queries":
                return self._of_heads(c.head_dim * (c.num_heads // c.num_kv_heads))
            case "hidden":
                return even_parts(c.hidden_size, self.ranks)
            case "ffn":
                return even_parts(c.ffn_size, self.ranks)
            case "vocab":
                return even_parts(c.vocab_size, self.ranks)

    def cut(self, name: str) -> Cut:
        """What this rank holds of a tensor, named as in `weights`."""
        matrix = _matrix_of(name)
        if matrix not in _ROWS:
            return WHOLE  # norms
        if self._is_term(matrix):
            return WHOLE if name.endswith(".bias") else Cut(columns=self.own(_COLUMNS[matrix]))
        return Cut(rows=self.own(_ROWS[matrix]))

    def is_left_out(self, name: str) -> bool:
        """Whether a bias is added by the first rank and not by this one."""
        return name.endswith(".bias") and self.rank > 0 and self._is_term(_matrix_of(name))

    def _is_term(self, matrix: str) -> bool:
        """Whether each rank computes a term of every output of a matrix."""
        return self.kind == "fast" and matrix in _COLUMNS

    def _of_heads(self, width: int) -> tuple[range, ...]:
        parts = self.parts("kv_heads")
        return tuple(range(part.start * width, part.stop * width) for part in parts)


def _matrix_of(name: str) -> str:
    """`layers.3.mlp.up.bias` -> `mlp.up`."""
    name = name.removesuffix(".bias")
    return name.split(".", 2)[2] if name.startswith("layers.") else name


def even_parts(count: int, ranks: int) -> tuple[range, ...]:
    """range(count) in contiguous parts, in units that no block of packed weights crosses if enough
    of them go into `count`."""
    unit = next((u for u in _UNITS if count % u == 0 and count // u >= ranks), 1)
    each, more = divmod(count // unit, ranks)
    ends = [(each * n + min(n, more)) * unit for n in range(ranks + 1)]
    return tuple(range(low, high) for low, high in pairwise(ends))
