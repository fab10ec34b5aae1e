"""Norms and the gated activation on a GPU, interpreted: equal to their references, row by row."""

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.activation import silu_mul_reference
from radixgen.kernels.norm import rms_norm_reference
from radixgen.kernels.triton import activation, norm

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 1e-2)]
SHAPES = [(1, 576), (5, 4096), (3, 33), (7, 64), (0, 16), (2, 1)]
EPS = 1e-5


def made(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_equal_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    x, residual = made(*shape, dtype=dtype), made(*shape, dtype=dtype, seed=1)
    weight = made(shape[1], dtype=dtype, seed=2)
    expected = rms_norm_reference(x, weight, EPS)
    torch.testing.assert_close(
        norm.rms_norm(x, weight, EPS), expected, atol=tolerance, rtol=tolerance
    )
    normed, total = norm.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    expected = rms_norm_reference(total, weight, EPS)
    torch.testing.assert_close(normed, expected, atol=tolerance, rtol=tolerance)


def test_heads_are_normed_where_they_lie() -> None:
    joined, weight = made(5, 6 * 64, dtype=torch.float32), made(64, dtype=torch.float32)
    heads = joined.view(5, 6, 64)[:, 1:4]
    expected = rms_norm_reference(heads, weight, EPS)
    torch.testing.assert_close(norm.rms_norm(heads, weight, EPS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(3, 2 * 1536), (1, 2 * 1025), (4, 6), (0, 8), (2, 0)])
def test_the_activation_equals_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    x = made(*shape, dtype=dtype) * 4
    torch.testing.assert_close(
        activation.silu_mul(x), silu_mul_reference(x), atol=tolerance, rtol=tolerance
    )


def test_large_gates_stay_finite() -> None:
    x = torch.tensor([[-1e4, 1e4, -0.0, 1.0, 1.0, 1.0]])
    assert torch.equal(activation.silu_mul(x), torch.tensor([[-0.0, 1e4, -0.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_depends_on_itself_alone(dtype: torch.dtype) -> None:
    x, weight = made(6, 200, dtype=dtype), made(200, dtype=dtype)
    normed, _ = norm.add_rms_norm(x, x, weight, EPS)
    gated = activation.silu_mul(x)
    for i in range(6):
        row = x[i : i + 1]
        assert torch.equal(norm.add_rms_norm(row, row, weight, EPS)[0], normed[i : i + 1])
        assert torch.equal(activation.silu_mul(row), gated[i : i + 1])


def test_what_no_kernel_takes_is_refused() -> None:
    x, weight = torch.zeros(2, 8), torch.ones(8)
    with pytest.raises(KernelError, match="weight has shape"):
        norm.rms_norm(x, torch.ones(7), EPS)
    with pytest.raises(KernelError, match=r"x is torch.float64"):
        norm.rms_norm(x.double(), weight.double(), EPS)
    with pytest.raises(KernelError, match=r"x is torch.bfloat16 but weight is torch.float32"):
        norm.rms_norm(x.bfloat16(), weight, EPS)
    with pytest.raises(KernelError, match="residual has shape"):
        norm.add_rms_norm(x, x[:1], weight, EPS)
    with pytest.raises(KernelError, match="1 to 32768"):
        norm.rms_norm(torch.zeros(1, 40000), torch.zeros(40000), EPS)
    with pytest.raises(KernelError, match="do not halve"):
        activation.silu_mul(torch.zeros(2, 7))
    with pytest.raises(KernelError, match="one after the other"):
        activation.silu_mul(torch.zeros(8, 2).T)
