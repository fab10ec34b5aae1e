"""The torch references against plain formulas, and bitwise independence of a row from others."""

import math
from collections.abc import Iterator

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from radixgen.errors import KernelError
from radixgen.kernels.activation import silu_mul
from radixgen.kernels.kv_write import copy_pages, write_kv
from radixgen.kernels.linear import PackedWeight, dequantize_rows, linear_reference
from radixgen.kernels.norm import add_rms_norm, rms_norm
from radixgen.kernels.rope import apply_rope
from radixgen.kernels.sampling import apply_bitmask_


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(576, 576), (192, 576), (37, 33), (576, 1536), (64, 64)])
def test_a_row_of_linear_depends_on_itself_alone(
    threads: int, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(dtype)
    x = torch.randn(300, shape[1], generator=generator).to(dtype)
    whole = linear_reference(x, weight)
    for rows in (1, 2, 3, 5, 16, 17, 31, 64, 70, 128, 129):
        picked = torch.randperm(300, generator=generator)[:rows]
        assert torch.equal(linear_reference(x[picked], weight), whole[picked]), rows


def test_linear_equals_the_product_and_takes_no_rows() -> None:
    weight, x, bias = torch.randn(20, 12), torch.randn(7, 12), torch.randn(20)
    expected = x.double() @ weight.double().T + bias
    torch.testing.assert_close(linear_reference(x, weight, bias), expected.float())
    assert linear_reference(x[:0], weight, bias).shape == (0, 20)


def packed(kind: str, rows: int, columns: int, seed: int = 0) -> PackedWeight:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator).numpy()
    data = quants.quantize(values, GGMLQuantizationType[kind.upper()])
    return PackedWeight(kind, (rows, columns), torch.from_numpy(data))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_packed_linear_is_the_product_with_the_dequantised_matrix(kind: str) -> None:
    weight, x = packed(kind, 24, 64), torch.randn(5, 64)
    expected = x @ dequantize_rows(weight, None).T
    torch.testing.assert_close(linear_reference(x, weight), expected)
    picked = torch.tensor([3, 0, 3])
    assert torch.equal(dequantize_rows(weight, picked), dequantize_rows(weight, None)[picked])


def test_packed_weights_refuse_what_does_not_fit() -> None:
    with pytest.raises(KernelError, match="unknown block type 'q3_k'"):
        PackedWeight("q3_k", (1, 32), torch.zeros(1, 18, dtype=torch.uint8))
    with pytest.raises(KernelError, match="rows of 33"):
        PackedWeight("q4_0", (1, 33), torch.zeros(1, 18, dtype=torch.uint8))
    with pytest.raises(KernelError, match=r"\[1, 19\], expected \[1, 18\]"):
        PackedWeight("q4_0", (1, 32), torch.zeros(1, 19, dtype=torch.uint8))
    row = torch.zeros(1, 18, dtype=torch.uint8)
    with pytest.raises(KernelError, match="2 rows, expected 3"):
        PackedWeight("q4_0", (3, 32), row, rest=(row,))


def test_kv_pages_hold_what_was_written_where() -> None:
    k_pages, v_pages = torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8)
    k, v = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    write_kv(k, v, k_pages, v_pages, torch.tensor([4, 11, 0]))
    assert torch.equal(k_pages[1, :, 1], k[0])
    assert torch.equal(v_pages[3, :, 2], v[1])
    assert torch.equal(k_pages[0, :, 0], k[2])
    assert int((k_pages != 0).any(-1).sum()) == 6
    with pytest.raises(KernelError, match="outside the 12 slots"):
        write_kv(k, v, k_pages, v_pages, torch.tensor([4, 12, 0]))


def test_copied_pages_equal_their_source_up_to_the_count() -> None:
    k_pages, v_pages = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 3, 8)
    k_before, v_before = k_pages.clone(), v_pages.clone()
    copy_pages(k_pages, v_pages, torch.tensor([1]), torch.tensor([3]), torch.tensor([2]))
    assert torch.equal(k_pages[3, :, :2], k_before[1, :, :2])
    assert torch.equal(v_pages[3, :, :2], v_before[1, :, :2])
    assert torch.equal(k_pages[3, :, 2:], k_before[3, :, 2:])
    with pytest.raises(KernelError, match="cannot copy 4 tokens"):
        copy_pages(k_pages, v_pages, torch.tensor([1]), torch.tensor([3]), torch.tensor([4]))


def test_rms_norm_and_its_fused_form() -> None:
    x, residual, weight = torch.randn(5, 48), torch.randn(5, 48), torch.randn(48)
    mean = x.double().square().mean(-1, keepdim=True)
    expected = (x / torch.sqrt(mean + 1e-5) * weight).float()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


def test_rope_turns_pairs_by_their_angle() -> None:
    q, k = torch.randn(3, 2, 8), torch.randn(3, 1, 8)
    angles = torch.rand(3, 4).repeat(1, 2)
    turned_q, turned_k = apply_rope(q, k, angles.cos(), angles.sin())
    for before, after in ((q, turned_q), (k, turned_k)):
        pairs = torch.complex(before[..., :4], before[..., 4:])
        turned = pairs * torch.polar(torch.ones(3, 1, 4), angles[:, None, :4])
        torch.testing.assert_close(after, torch.cat((turned.real, turned.imag), -1))


def test_silu_mul() -> None:
    gate_up = torch.randn(4, 22)
    gate, up = gate_up.chunk(2, dim=1)
    torch.testing.assert_close(silu_mul(gate_up), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100])
def test_bitmask_leaves_exactly_the_allowed(vocab: int) -> None:
    allowed = torch.rand(3, vocab) < 0.5
    words = torch.zeros(3, (vocab + 31) // 32, dtype=torch.int64)
    for row, token in allowed.nonzero().tolist():
        words[row, token // 32] |= 1 << (token % 32)
    bitmask = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    logits = torch.randn(3, vocab)
    expected = torch.where(allowed, logits, torch.tensor(-math.inf))
    assert torch.equal(apply_bitmask_(logits, bitmask), expected)


def test_elementwise_operations_are_bitwise_independent_of_the_batch(threads: int) -> None:
    x = torch.randn(40, 576)
    weight, gate_up = torch.randn(576), torch.randn(40, 154)
    normed, gated = rms_norm(x, weight, 1e-5), silu_mul(gate_up)
    for rows in (1, 2, 3, 7, 33):
        assert torch.equal(rms_norm(x[-rows:], weight, 1e-5), normed[-rows:])
        assert torch.equal(silu_mul(gate_up[-rows:]), gated[-rows:])
