"""What all launches have in common: what is told to Triton, and what of its errors users read."""

from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import radixgen.kernels.triton.launch as launch_module
from radixgen.errors import KernelError
from radixgen.kernels.triton.activation import silu_mul
from radixgen.kernels.triton.launch import launch


class Kernel:
    """Keeps what it is launched with, or fails as one that a GPU has no room for."""

    __name__ = "some_kernel"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **options: Any) -> None:
            if self.error is not None:
                raise self.error
            self.launched.append((grid, arguments, options))

        return run


def test_whether_sums_are_fused_is_said_with_every_launch() -> None:
    kernel = Kernel()
    launch(kernel, (2, 3), 5, BLOCK=16)
    launch(kernel, (1,), enable_fp_fusion=False)
    fused = {"BLOCK": 16, "enable_fp_fusion": True}
    assert kernel.launched == [((2, 3), (5,), fused), ((1,), (), {"enable_fp_fusion": False})]
    folder = Path(launch_module.__file__).parent
    others = [path.name for path in folder.glob("*.py") if "_kernel[" in path.read_text("utf-8")]
    assert not others, "these launch kernels by themselves"


def test_a_kernel_that_a_gpu_has_no_room_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(triton.OutOfResources(166912, 101376, "shared memory"))
    said = (
        "some_kernel needs 166,912 of shared memory, and this GPU gives a program 101,376: "
        "set dtype='bfloat16'"
    )
    with pytest.raises(KernelError, match=said):
        launch(kernel, (1,))
    module = "radixgen.kernels.triton.activation.silu_mul_kernel"
    monkeypatch.setattr(module, kernel)
    with pytest.raises(KernelError, match=said):
        silu_mul(torch.zeros(1, 64))
    kernel.error = ValueError("a fault of ours")
    with pytest.raises(ValueError, match="a fault of ours"):
        launch(kernel, (1,))
