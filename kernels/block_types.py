"""Block types of GGUF files that weights may come in. Knows sizes, not how they are multiplied."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from radixgen.kernels.checks import require, shaped


@dataclass(frozen=True, slots=True)
class Form:
    """A block type, and the groups that the C kernels make of it."""

    number: int  # in cpu/linear_packed.c
    weights: int  # in a block
    num_bytes: int  # of a block
    bits: int  # of a code
    group: int  # columns that share a scale
    scale_bytes: int  # of a group's scale and low
    tile_scale_bytes: int  # the same as cpu/linear_tiles.c reads them


FORMS: dict[str, Form] = {
    "q4_0": Form(0, 32, 18, 4, 32, 2, 2),
    "q4_1": Form(1, 32, 20, 4, 32, 4, 4),
    "q5_0": Form(2, 32, 22, 8, 32, 2, 2),
    "q5_1": Form(3, 32, 24, 8, 32, 4, 4),
    "q8_0": Form(4, 32, 34, 8, 32, 2, 2),
    "q4_k": Form(5, 256, 144, 4, 32, 8, 4),
    "q5_k": Form(6, 256, 176, 8, 32, 8, 4),
    "q6_k": Form(7, 256, 210, 8, 16, 4, 2),
}
# (weights a block, bytes a block)
BLOCK_SIZES = {kind: (form.weights, form.num_bytes) for kind, form in FORMS.items()}

# The form in which a product's input meets packed weights, and its bits. Whole numbers have a scale
# for each group of columns; float32 is the product with the dequantised matrix, bfloat16 with that
# matrix rounded, by a matrix unit.
Activations = Literal["int8", "int16", "bfloat16", "float32"]
ACTIVATION_BITS: dict[Activations, int] = {"int8": 8, "int16": 16, "bfloat16": 16, "float32": 32}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PackedWeight:
    """A quantised matrix as it lies in a GGUF file.

    `kind`: a key of BLOCK_SIZES. `shape`: (out, in). `data`: uint8 [out, in / weights * bytes],
    each row its blocks from left to right; rows that follow may lie elsewhere, as the further
    tensors of `rest`. `activations`: what the C kernels round its input to.
    Compared and hashed by identity.
    Raises KernelError for an unknown kind or sizes that do not agree.
    """

    kind: str
    shape: tuple[int, int]
    data: Tensor
    activations: Activations = "int8"
    rest: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        require(
            self.kind in BLOCK_SIZES,
            f"unknown block type {self.kind!r}: use one of {', '.join(BLOCK_SIZES)}",
        )
        require(
            self.activations in ACTIVATION_BITS,
            f"activations={self.activations!r}: use one of {', '.join(ACTIVATION_BITS)}",
        )
        per_block, num_bytes = BLOCK_SIZES[self.kind]
        rows, width = self.shape
        require(
            width % per_block == 0, f"{self.kind} rows of {width} are not blocks of {per_block}"
        )
        for part in self.parts:
            require(part.dtype == torch.uint8, f"packed data is {part.dtype}, not uint8")
            shaped("packed data", part, None if self.rest else rows, width // per_block * num_bytes)
        found = sum(len(part) for part in self.parts)
        require(found == rows, f"packed data has {found} rows, expected {rows}")

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Rows from the first to the last, place by place."""
        return self.data, *self.rest

    def joined(self) -> Tensor:
        """All rows in one tensor: a copy where they lie in several places."""
        return torch.cat(self.parts) if self.rest else self.data
