"""Products of bfloat16 by Intel's matrix unit: bit for bit those of its definition in floats."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import quants
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels import library
from radixgen.kernels.block_types import BLOCK_SIZES, FORMS, PackedWeight
from radixgen.kernels.linear import dequantize, linear
from radixgen.kernels.program import Program

FLOATS = (torch.float32, torch.bfloat16)
HALVES = {"q4_1": 2, "q5_1": 2, "q4_k": 2, "q5_k": 2}  # of a block; others have one scale


@pytest.fixture(autouse=True)
def matrix_unit() -> None:
    if not library.multiplies_by_tiles():
        pytest.skip("no AMX: this CPU has no bfloat16 tiles, or the system grants none")


def weight_of(
    kind: str, outputs: int, columns: int, scales: tuple[float, float] = (-0.01, 0.01)
) -> PackedWeight:
    """Random codes, with scales between those given."""
    weights, num_bytes = BLOCK_SIZES[kind]
    rng = np.random.default_rng(outputs + columns)
    blocks = rng.integers(0, 256, (outputs, columns // weights, num_bytes), dtype=np.uint8)
    halves = rng.uniform(*scales, (*blocks.shape[:2], HALVES.get(kind, 1))).astype(np.float16)
    first = 208 if kind == "q6_k" else 0
    blocks[..., first : first + 2 * halves.shape[-1]] = halves.view(np.uint8)
    data = torch.from_numpy(blocks.reshape(outputs, -1))
    return PackedWeight(kind, (outputs, columns), data, activations="bfloat16")


def parts_of(weight: PackedWeight) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [outputs, groups, columns of one], scales and lows [outputs, groups, 1], float32. By
    gguf's own dequantisation, of blocks whose halves are 1 and 0, or 0 and 1."""
    form, (outputs, columns) = FORMS[weight.kind], weight.shape
    shape = outputs, columns // form.group, form.group
    blocks = weight.joined().numpy().reshape(outputs, -1, form.num_bytes)
    first, count = 208 if weight.kind == "q6_k" else 0, HALVES.get(weight.kind, 1)
    there = slice(first, first + 2 * count)

    def values(*halves: float) -> np.ndarray:
        made = blocks.copy()
        made[..., there] = np.array(halves, np.float16).view(np.uint8)
        data = torch.from_numpy(made.reshape(outputs, -1))
        return dequantize(replace(weight, data=data, rest=())).numpy().reshape(shape)

    given = blocks[..., there].copy().view(np.float16).astype(np.float32)
    each = given.repeat(form.weights // form.group, axis=1)
    codes, steps = values(1, 0) if count == 2 else values(1), np.ones((*shape[:2], 1))
    if weight.kind in ("q4_k", "q5_k"):
        steps = quants.Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))[0]
    elif weight.kind == "q6_k":
        steps = blocks[..., 192:208].view(np.int8)
    steps = steps.reshape(*shape[:2], 1).astype(np.float32)
    codes = np.divide(codes, steps, where=steps != 0, out=np.zeros_like(codes))
    lows = values(0, 1)[..., :1] * each[..., 1:] if count == 2 else np.zeros_like(steps)
    return codes, each[..., :1] * steps, lows


def rounded(weight: PackedWeight) -> Tensor:
    """The matrix that is multiplied: scales and lows, times a power of two by which all of a row is
    within 2^15, are float16 (scales of 8 bits 2^-8 of that), as is each weight, of which 8 bits
    stay, ties away from zero."""
    codes, scales, lows = parts_of(weight)
    most = {"q4_0": 8, "q5_0": 16, "q8_0": 128, "q6_k": 32, "q4_1": 15, "q4_k": 15}
    bound = (abs(scales) * most.get(weight.kind, 31) + abs(lows)).max(axis=1, keepdims=True)
    up = np.ldexp(np.float32(1), 15 - np.frexp(bound)[1])
    less = 256 if FORMS[weight.kind].bits == 8 else 1
    d = (scales * (up / less)).astype(np.float16).astype(np.float64) * less
    low = (lows * up).astype(np.float16).astype(np.float64)
    bits = (codes * d + low).astype(np.float16).view(np.uint16)
    bits = (bits & 0x8000) | ((bits & 0x7FFF) + 4 & 0xFFF8)
    bits[bits & 0x7C00 == 0] = 0  # denormal
    return torch.from_numpy((bits.view(np.float16).astype(np.float32) / up).reshape(weight.shape))


def reference(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Weights and inputs rounded, and added as the instruction adds them: for each 32 columns the
    products of even ones and of odd ones, in order, their sum to what there was. A product of two
    bfloat16 is exact in float32."""
    wide, given = rounded(weight), x.bfloat16().float()
    total = torch.zeros(len(x), len(wide))
    for first in range(0, x.shape[1], 32):
        sums = [torch.zeros_like(total), torch.zeros_like(total)]
        for column in range(first, first + 32):
            sums[column % 2] += given[:, column, None] * wide[None, :, column]
        total += sums[0] + sums[1]
    return (total if bias is None else total + bias).to(x.dtype)


def assert_same(first: Tensor, second: Tensor) -> None:
    kind = torch.int32 if first.dtype == torch.float32 else torch.int16
    assert torch.equal(first.isnan(), second.isnan())
    assert torch.equal(first.nan_to_num().view(kind), second.nan_to_num().view(kind))


@pytest.mark.parametrize("kind", FORMS)
def test_every_number_of_rows_gives_the_bits_of_the_definition(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = weight_of(kind, 50, 512)
    bias = torch.randn(50, generator=generator)
    for rows in range(71):
        x = torch.randn(rows, 512, generator=generator).to(FLOATS[rows % 2])
        x[rows // 2 : rows // 2 + 1] *= 1000
        given = bias if rows % 3 else None
        assert_same(linear(x, weight, given), reference(x, weight, given))


@pytest.mark.parametrize(
    ("kind", "outputs", "columns", "rows"),
    [("q4_0", 3, 32, 16), ("q8_0", 17, 64, 25), ("q4_1", 33, 96, 40), ("q6_k", 16, 256, 33),
     ("q5_1", 20, 8192, 40), ("q6_k", 70, 2048, 1100), ("q4_1", 33, 800, 35)],
)  # fmt: skip
def test_few_and_many_columns_and_rows(kind: str, outputs: int, columns: int, rows: int) -> None:
    """From one group to several sections, and more rows than wait for their sums at a time."""
    weight = weight_of(kind, outputs, columns)
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    for dtype in FLOATS:
        assert_same(linear(x.to(dtype), weight), reference(x.to(dtype), weight))


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("exponent", [-16, 0, 10])
def test_scales_may_be_small_or_great_or_far_apart(kind: str, exponent: int) -> None:
    """Of halves, those that are too small to be normal ones included."""
    weight = weight_of(kind, 40, 512, (-(2.0**exponent), 2.0**exponent))
    blocks = weight.data.view(40, -1, BLOCK_SIZES[kind][1]).numpy()
    first = 208 if kind == "q6_k" else 0
    for row, half in ((1, 0.0), (2, 2.0**-24), (3, 30000.0)):
        blocks[row, 0, first : first + 2] = np.array([half], np.float16).view(np.uint8)
    blocks[4] = 0
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0)) * 2.0 ** torch.tensor(
        [[-20], [-10], [0], [10], [20]]
    )
    got = linear(x, weight)
    assert not got[:, 4].any()
    got[:, 4] = reference(x, weight)[:, 4]  # zeros, of either sign
    assert_same(got, reference(x, weight))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_rows_beside_it_change_no_bit(threads: int) -> None:
    before = library.num_threads()
    weight = weight_of("q4_1", 700, 576)
    x = torch.randn(70, 576, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([linear(x[i : i + 1], weight) for i in range(70)])
    library.set_num_threads(threads)
    try:
        for rows in (1, 5, 16, 17, 33, 70):
            for first in range(0, 70 - rows + 1, 7):
                assert_same(linear(x[first : first + rows], weight), alone[first : first + rows])
    finally:
        library.set_num_threads(before)


@pytest.mark.parametrize("kind", FORMS)
def test_inputs_and_scales_that_are_not_finite_stay_in_their_row_and_output(kind: str) -> None:
    weight = weight_of(kind, 100, 512, (0.001, 0.01))
    first = 208 if kind == "q6_k" else 0
    blocks = weight.data.view(100, -1, BLOCK_SIZES[kind][1]).numpy()
    clean = replace(weight, data=weight.data.clone())
    no_number = np.array([0x7FFF], np.uint16).view(np.uint8)  # NaN, all its bits set
    for row, half in ((3, np.inf), (20, np.nan), (21, -np.inf), (99, 65504.0)):
        blocks[row, 1, first : first + 2] = np.array([half], np.float16).view(np.uint8)
    blocks[50, 0, first : first + 2] = no_number
    if kind in HALVES:
        blocks[40, 0, 2:4] = no_number
    x = torch.randn(45, 512, generator=torch.Generator().manual_seed(0))
    x[7, 100], x[8, 3], x[40, 511] = np.nan, np.inf, -np.inf
    got = linear(x, weight)
    touched = [3, 20, 21, 50, 99] + [40] * (kind in HALVES)
    outputs = torch.ones(100, dtype=torch.bool)
    outputs[touched] = False
    rows = torch.ones(45, dtype=torch.bool)
    rows[[7, 8, 40]] = False
    assert_same(got[rows][:, outputs], linear(x, clean)[rows][:, outputs])
    assert got[rows][:, [20, 50]].isnan().all()
    assert not got[rows][:, [3, 21]].isfinite().any()
    assert not got[~rows][:, outputs].isfinite().any()
    if kind in HALVES:
        assert got[:, 40].isnan().all()


def test_a_program_gives_the_bits_of_the_operation() -> None:
    weights = [(weight_of("q4_1", 50, 64), None), (weight_of("q8_0", 20, 64), torch.ones(20))]
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    program = Program(max_rows=40)
    given, out = program.buffer("x", 64, x.dtype), program.buffer("out", 70, x.dtype)
    program.linear(given, weights, out, "rows")
    for rows in (1, 15, 17, 40):
        given[:rows] = x[:rows]
        program.run({"rows": rows})
        expected = torch.cat([linear(x[:rows], weight, bias) for weight, bias in weights], dim=1)
        assert_same(out[:rows].contiguous(), expected)


def test_it_is_refused_without_a_matrix_unit() -> None:
    before, without = library.library(), library.load("-DRK_VNNI")
    assert without is not None
    library.use(without)
    try:
        with pytest.raises(KernelError, match="AMX"):
            linear(torch.ones(2, 64), weight_of("q4_1", 4, 64))
    finally:
        library.use(before)
