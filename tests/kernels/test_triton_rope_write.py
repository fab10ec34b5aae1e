"""Rotation and KV write on a GPU, interpreted: queries and pages equal those of the references."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.kv_types import FP8, row_width, unpack_rows
from radixgen.kernels.kv_write import write_kv_reference
from radixgen.kernels.norm import rms_norm_reference
from radixgen.kernels.rope import rotate_reference
from radixgen.kernels.triton.rope_write import rope_write

EPS, CONTEXT, NUM_PAGES = 1e-5, 40, 9


@dataclass(frozen=True, slots=True)
class Case:
    """Tokens, and pages of arbitrary contents before them."""

    qkv: Tensor
    tables: tuple[Tensor, Tensor]
    positions: Tensor
    slots: Tensor
    pages: tuple[Tensor, Tensor]
    num_heads: int
    norms: tuple[Tensor, Tensor] | None = None

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """q and both pages after the launch."""
        k_pages, v_pages = self.pages[0].clone(), self.pages[1].clone()
        q_norm, k_norm = self.norms or (None, None)
        q = rope_write(
            self.qkv,
            *self.tables,
            self.positions,
            self.slots,
            k_pages,
            v_pages,
            self.num_heads,
            q_norm,
            k_norm,
            EPS,
        )
        return q, k_pages, v_pages

    def expect(self) -> tuple[Tensor, Tensor, Tensor]:
        k_pages, v_pages = self.pages[0].clone(), self.pages[1].clone()
        kv_heads, head_dim = k_pages.shape[1], self.tables[0].shape[1]
        heads = self.qkv.view(-1, self.num_heads + 2 * kv_heads, head_dim)
        end = self.num_heads + kv_heads
        q, k, v = heads[:, : self.num_heads], heads[:, self.num_heads : end], heads[:, end:]
        if self.norms is not None:
            q, k = (rms_norm_reference(x, w, EPS) for x, w in zip((q, k), self.norms, strict=True))
        cos, sin = (table[self.positions] for table in self.tables)
        q, k = rotate_reference(q, cos, sin), rotate_reference(k, cos, sin)
        keeps = self.slots >= 0
        write_kv_reference(k[keeps], v[keeps], k_pages, v_pages, self.slots[keeps])
        return q, k_pages, v_pages


def make_case(
    tokens: int = 5,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
    pages: torch.dtype = torch.float32,
    *,
    norms: bool = False,
) -> Case:
    generator = torch.Generator().manual_seed(tokens * head_dim + page_size)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    angles = randn(CONTEXT, head_dim // 2)
    tables = (torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin())
    shape = (NUM_PAGES, heads[1], page_size, row_width(head_dim, pages))
    before = tuple((randn(*shape) * 50).to(pages) for _ in range(2))
    slots = torch.randperm(NUM_PAGES * page_size, generator=generator)[:tokens]
    slots[1::3] = -1
    return Case(
        qkv=randn(tokens, (heads[0] + 2 * heads[1]) * head_dim).to(dtype),
        tables=tables,
        positions=torch.randint(0, CONTEXT, (tokens,), generator=generator),
        slots=slots,
        pages=(before[0], before[1]),
        num_heads=heads[0],
        norms=(randn(head_dim).to(dtype), randn(head_dim).to(dtype)) if norms else None,
    )


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(
        unpack_rows(found), unpack_rows(expected), atol=tolerance, rtol=tolerance
    )


CASES = [
    (make_case(), 1e-5),
    (make_case(7, (9, 3), 64, 1, norms=True), 1e-5),
    (make_case(3, (7, 1), 80, 8, torch.bfloat16, torch.bfloat16, norms=True), 2e-2),
    (make_case(4, (3, 3), 128, 32, torch.float16, torch.bfloat16), 2e-2),
    (make_case(2, (16, 8), 256, 4, torch.bfloat16, torch.float32), 2e-2),
    (make_case(1, (5, 5), 6, 2, norms=True), 1e-5),
    (make_case(0), 1e-5),
]


@pytest.mark.parametrize(("case", "tolerance"), CASES)
def test_queries_and_pages_equal_the_reference(case: Case, tolerance: float) -> None:
    q, k_pages, v_pages = case.run()
    expected_q, expected_k, expected_v = case.expect()
    torch.testing.assert_close(q, expected_q, atol=tolerance, rtol=tolerance)
    close(k_pages, expected_k, tolerance)
    assert torch.equal(v_pages, expected_v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_pages_are_those_of_the_reference(dtype: torch.dtype) -> None:
    case = make_case(6, (4, 3), 80, 4, dtype, torch.int8)
    case.qkv[2, -80:] = torch.nan  # a row of v
    case.qkv[3, -80:] = 0
    q, k_pages, v_pages = case.run()
    expected_q, expected_k, expected_v = case.expect()
    torch.testing.assert_close(q, expected_q, atol=1e-5, rtol=1e-5)
    assert torch.equal(v_pages, expected_v)
    assert torch.equal(k_pages, expected_k)


def test_pages_of_fp8_are_those_of_the_reference() -> None:
    case = make_case(6, (4, 3), 80, 4, torch.float32, FP8)
    v = case.qkv[:, -240:]
    v *= 2.0 ** torch.arange(-12, 12).repeat(
        10
    )  # from below the least number to beyond the largest
    every = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    ties = (every[:119] + every[1:120]) / 2
    v[0, :119], v[0, 120:239] = ties, -ties
    v[2, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    case.slots[:] = torch.arange(6)
    q, k_pages, v_pages = case.run()
    expected_q, expected_k, expected_v = case.expect()
    torch.testing.assert_close(q, expected_q, atol=1e-5, rtol=1e-5)
    assert torch.equal(v_pages.view(torch.uint8), expected_v.view(torch.uint8))
    torch.testing.assert_close(k_pages.float(), expected_k.float(), atol=0, rtol=0.13)


def test_a_token_depends_on_itself_alone() -> None:
    case = make_case(6, (9, 3), 64, norms=True)
    q, k_pages, _ = case.run()
    for i in range(6):
        one = slice(i, i + 1)
        alone = replace(
            case, qkv=case.qkv[one], positions=case.positions[one], slots=case.slots[one]
        )
        q_alone, k_alone, _ = alone.run()
        assert torch.equal(q_alone, q[one])
        if (slot := int(case.slots[i])) >= 0:
            at = (slot // 16, slice(None), slot % 16)
            assert torch.equal(k_alone[at], k_pages[at])


def test_slots_outside_the_pages_write_nothing() -> None:
    case = make_case(3)
    _, *written = replace(case, slots=torch.tensor([-1, NUM_PAGES * 16, -(2**40)])).run()
    assert all(torch.equal(*pair) for pair in zip(written, case.pages, strict=True))


def test_what_no_kernel_takes_is_refused() -> None:
    case = make_case()
    norm = torch.ones(64)
    with pytest.raises(KernelError, match="qkv has shape"):
        replace(case, num_heads=5).run()
    with pytest.raises(KernelError, match="slots has shape"):
        replace(case, slots=case.slots[1:]).run()
    with pytest.raises(KernelError, match="positions must be contiguous int64"):
        replace(case, positions=case.positions.int()).run()
    with pytest.raises(KernelError, match=r"float64: use float32"):
        replace(case, pages=(case.pages[0].double(), case.pages[1].double())).run()
    with pytest.raises(KernelError, match="give both or none"):
        rope_write(case.qkv, *case.tables, case.positions, case.slots, *case.pages, 4, norm)
    with pytest.raises(KernelError, match=r"head_dim=6 must divide by 4"):
        make_case(1, (1, 1), 6, pages=torch.int8).run()
