"""What the launches of the kernels have in common. Knows tensors and Triton, no operation."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from radixgen.errors import KernelError
from radixgen.kernels.checks import require

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# One shape of AMD's instruction, and with it one order of additions, for tiles of every size.
AMD_OPTIONS = {"matrix_instr_nonkdim": 16}
# A product and the sum that takes it up round once, whatever Triton makes of those not told of it.
FUSED = {"enable_fp_fusion": True}
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def to_kind(x, kind: tl.constexpr):
    """float32 x as values of `kind`, to the nearest, of two the even one."""
    if INTERPRETED and kind == tl.bfloat16:  # interpreted, bits are cut off
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(kind)


@triton.jit
def rounded(x, kind: tl.constexpr):
    """float32 x as float32 that `kind` can hold."""
    return to_kind(x, kind).to(tl.float32)


@triton.jit
def product(a, b, total):
    """total + a @ b in float32. Interpreted, products would be those of bfloat16's bits."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    if a.dtype == tl.float32:
        total = tl.dot(a, b, total, input_precision="ieee")
    else:
        total = tl.dot(a, b, total)
    return total


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run a kernel's programs. `options`: its constants, and Triton's options.

    Raises KernelError for a kernel that needs more of the GPU than there is.
    """
    try:
        kernel[grid](*arguments, **(FUSED | options))
    except triton.OutOfResources as error:
        raise KernelError(
            f"{kernel.__name__} needs {error.required:,} of {error.name}, and this GPU gives a "
            f"program {error.limit:,}: set dtype='bfloat16' if it is float32 now, or take a GPU "
            "with more, or device='cpu'"
        ) from None


def check_floats(**tensors: Tensor) -> None:
    """All are of one dtype that kernels compute with, and where kernels run. Raises KernelError."""
    names = list(tensors)
    first = tensors[names[0]]
    for name, tensor in tensors.items():
        require(
            tensor.dtype in FLOATS,
            f"{name} is {tensor.dtype}: the GPU kernels take "
            f"{', '.join(str(dtype)[6:] for dtype in FLOATS)}",
        )
        require(
            tensor.dtype == first.dtype,
            f"{names[0]} is {first.dtype} but {name} is {tensor.dtype}",
        )
    check_device(**tensors)


def check_device(**tensors: Tensor) -> None:
    """All are on one device that a kernel can read: a GPU, or any when Triton interprets."""
    names = list(tensors)
    first = tensors[names[0]].device
    require(
        first.type == "cuda" or interpreted(),
        f"{names[0]} is on {first}: Triton's kernels run on a GPU, "
        "or anywhere with TRITON_INTERPRET=1",
    )
    for name, tensor in tensors.items():
        require(
            tensor.device == first, f"{names[0]} is on {first} but {name} is on {tensor.device}"
        )


def check_logits(logits: Tensor) -> None:
    """[rows, vocab] float32 as the kernels of sampling take them. Raises KernelError."""
    require(logits.dtype == torch.float32, f"logits are {logits.dtype}, expected float32")
    require(logits.stride(1) == 1, "a row of logits must be contiguous")


def interpreted() -> bool:
    """Whether Triton interprets kernels instead of compiling them."""
    return bool(knobs.runtime.interpret)


def on_amd() -> bool:
    """Whether kernels are compiled for AMD's GPUs."""
    return torch.version.hip is not None


def power_of_two(number: int) -> int:
    """The least that is not below a positive number."""
    return 1 << (number - 1).bit_length()
