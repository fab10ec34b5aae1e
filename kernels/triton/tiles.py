"""How the outputs of a linear map are divided among programs. Knows sizes, no weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixgen.kernels.triton.launch import AMD_OPTIONS, on_amd

AMD_TILE_OPTIONS = AMD_OPTIONS | {"num_stages": 2}


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program computes: outputs times rows, over `columns` at a time."""

    outputs: int
    rows: int
    columns: int
    num_warps: int
    num_stages: int

    def options(self) -> dict[str, Any]:
        """As a launch takes them here."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options | (AMD_TILE_OPTIONS if on_amd() else {})


def tile_for(rows: int, tiles: Sequence[Tile]) -> Tile:
    """The least of rising `tiles` that holds all rows, or the largest there is."""
    return next((tile for tile in tiles if rows <= tile.rows), tiles[-1])
