"""The C kernels in each form of their vectors against the torch references and plain formulas."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixgen.kernels import kivi, library
from radixgen.kernels.activation import silu_mul, silu_mul_reference
from radixgen.kernels.attention import paged_attention as attention
from radixgen.kernels.attention import paged_attention_reference, plan_attention
from radixgen.kernels.block_types import BLOCK_SIZES, FORMS, Activations, PackedWeight
from radixgen.kernels.kv_types import PAGE_TYPES, pack_rows, row_width, unpack_rows
from radixgen.kernels.kv_write import write_kv, write_kv_reference
from radixgen.kernels.linear import Weight, dequantize_rows, linear, linear_reference
from radixgen.kernels.norm import add_rms_norm, rms_norm, rms_norm_reference
from radixgen.kernels.packed import quantize
from radixgen.kernels.program import Program
from radixgen.kernels.rope import apply_rope, rotate_reference
from radixgen.kernels.sampling import (
    Choice,
    Outcome,
    apply_bitmask_,
    apply_bitmask_reference_,
    choose_,
)

VECTORS = {
    "native": (),
    "vnni": ("-DRK_VNNI",),
    "avx2": ("-DRK_AVX2",),
    "portable": ("-DRK_PORTABLE",),
}
FLOATS = [torch.float32, torch.bfloat16]


def has_matrix_unit() -> bool:
    native = library.load()
    return native is not None and bool(native.rk_amx())


@pytest.fixture(params=VECTORS)
def vectors(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on the library in each form; results must hold in all of them."""
    if request.param == "vnni" and not has_matrix_unit():
        pytest.skip("there is no matrix unit: native is the same")
    chosen = library.load(*VECTORS[request.param])
    if chosen is None:
        pytest.skip("no C compiler")
    before = library.library()
    library.use(chosen)
    yield request.param
    library.use(before)


def near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal as far as `dtype` holds numbers of about 1."""
    limit = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)


def random_packed(kind: str, rows: int, columns: int, seed: int = 0) -> PackedWeight:
    """Random codes with tame scales."""
    weights, num_bytes = BLOCK_SIZES[kind]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, columns // weights, num_bytes), dtype=np.uint8)
    halves = rng.uniform(0.001, 0.01, (rows, columns // weights, 2)).astype(np.float16)
    if kind == "q6_k":
        data[..., 208:] = halves[..., :1].view(np.uint8)
    else:
        count = 2 if kind in ("q4_1", "q5_1", "q4_k", "q5_k") else 1
        data[..., : 2 * count] = np.ascontiguousarray(halves[..., :count]).view(np.uint8)
    return PackedWeight(kind, (rows, columns), torch.from_numpy(data.reshape(rows, -1)))


def rounded(x: Tensor, group: int) -> Tensor:
    """What 8-bit activations stand for, in float64, by the definition."""
    parts = x.double().view(x.shape[0], x.shape[1] // group, group)
    scale = parts.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale > 0, parts / scale, 0.0).round()
    return (codes * scale).view(x.shape)


@pytest.mark.parametrize("kind", FORMS)
def test_packed_linear_is_exact_on_rounded_activations(vectors: str, kind: str) -> None:
    group = FORMS[kind].group
    for rows, outputs, columns in ((1, 16, 256), (5, 37, 512), (22, 3, 768), (0, 16, 256)):
        weight, x = random_packed(kind, outputs, columns), torch.randn(rows, columns)
        codes = quantize(x, group)
        stand_in = codes.codes.view(rows, columns // group, group) * codes.scales[..., None]
        if rows:
            step = codes.scales.max().item()
            torch.testing.assert_close(
                stand_in.view(rows, columns).double(), rounded(x, group), rtol=0, atol=1.01 * step
            )
        bias = torch.randn(outputs)
        matrix = dequantize_rows(weight, None).double()
        expected = stand_in.view(rows, columns).double() @ matrix.T + bias
        torch.testing.assert_close(linear(x, weight, bias), expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", FORMS)
def test_wide_rounded_activations_lose_next_to_nothing(vectors: str, kind: str) -> None:
    """16 bits within their rounding; floats as the dequantised matrix, to that of float32."""
    generator, group = torch.Generator().manual_seed(0), FORMS[kind].group
    for rows, outputs, columns in ((1, 16, 256), (29, 37, 512), (9, 3, 768), (0, 16, 256)):
        x = torch.randn(rows, columns, generator=generator)
        x[:, 5] *= 100  # of which 8 bits would leave little for its neighbours
        bias = torch.randn(outputs, generator=generator)
        packed = random_packed(kind, outputs, columns)
        matrix = dequantize_rows(packed, None).double()
        largest = x.double().abs().view(rows, columns // group, group).amax(-1)
        half_steps = largest.repeat_interleave(group, -1) / 65024
        for dtype in FLOATS:
            given = x.to(dtype)
            expected = given.double() @ matrix.T + bias
            sizes = given.double().abs() @ matrix.abs().T + bias.abs()
            limit = sizes * (2e-6 if dtype == torch.float32 else 4e-3)
            exact = linear(given, replace(packed, activations="float32"), bias)
            assert bool(((exact - expected).abs() <= limit).all()), dtype
            near_it = linear(given, replace(packed, activations="int16"), bias)
            limit += half_steps @ matrix.abs().T * 1.01
            assert bool(((near_it - expected).abs() <= limit).all()), dtype


def test_floats_meet_the_very_numbers_of_the_dequantised_matrix(vectors: str) -> None:
    """A unit vector takes a column out of the matrix, bit by bit."""
    for kind in FORMS:
        weight = replace(random_packed(kind, 37, 512), activations="float32")
        matrix = dequantize_rows(weight, None)
        for column in (0, 17, 300, 511):
            unit = torch.zeros(1, 512)
            unit[0, column] = 1.0
            assert torch.equal(linear(unit, weight)[0], matrix[:, column]), (kind, column)


def test_16_bits_hold_every_code_in_two_bytes(vectors: str) -> None:
    wanted = torch.arange(-32512.0, 32513.0)
    x = torch.nn.functional.pad(wanted, (0, -len(wanted) % 31)).view(-1, 31)
    x = torch.nn.functional.pad(x, (1, 0), value=32512.0)  # so that each scale is 1
    made = quantize(x, 32, "int16")
    assert torch.equal(made.scales, torch.ones_like(made.scales))
    high, low = made.codes.view(-1, 8, 2, 4).float().unbind(2)
    assert torch.equal((256 * high + low).view(x.shape), x)
    assert torch.equal(made.sums, x.sum(1, keepdim=True))


@pytest.mark.parametrize("kind", FORMS)
def test_embedded_rows_are_those_of_the_dequantised_matrix(vectors: str, kind: str) -> None:
    weight, ids = random_packed(kind, 40, 512), torch.tensor([39, 0, 7, 7, 12])
    for dtype in FLOATS:
        program = Program(8)
        out = program.buffer("out", 512, dtype)
        program.embed(weight, ids, out, "rows")
        program.run({"rows": 5})
        assert torch.equal(out[:5], dequantize_rows(weight, ids).to(dtype))
        assert not out[5:].any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_linear_equals_the_reference(vectors: str, dtype: torch.dtype) -> None:
    for rows, outputs, columns in ((1, 8, 64), (6, 37, 33), (13, 9, 100), (4, 64, 576), (0, 3, 5)):
        weight = torch.randn(outputs, columns).to(dtype)
        x, bias = torch.randn(rows, columns).to(dtype), torch.randn(outputs).to(dtype)
        expected = linear_reference(x.double(), weight.double(), bias.double())
        scale = columns**0.5
        near(linear(x, weight, bias).double() / scale, expected / scale, dtype)


@pytest.mark.parametrize("activations", ["int8", "int16", "float32"])
@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "q6_k", "float32", "bfloat16"])
def test_a_row_is_the_same_bits_alone_and_among_others(
    vectors: str, kind: str, activations: Activations
) -> None:
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    if kind in FORMS:
        weight: Weight = replace(random_packed(kind, 50, 512), activations=activations)
    elif activations == "int8":
        weight = torch.randn(50, 512).to(dtype)
    else:
        return  # float weights have but one way
    x = torch.randn(70, 512).to(dtype)
    whole = linear(x, weight)
    for rows in range(1, 71, 3):
        picked = torch.randperm(70)[:rows]
        library.set_num_threads(rows % 3 + 1)
        assert torch.equal(linear(x[picked], weight), whole[picked]), rows
    library.set_num_threads(library.default_threads())


@pytest.mark.parametrize("activations", ["int8", "int16", "float32"])
def test_nan_stays_in_its_row_and_column(vectors: str, activations: Activations) -> None:
    weight = replace(random_packed("q4_1", 20, 64), activations=activations)
    weight.data[3, :2] = torch.from_numpy(np.array([np.nan], np.float16).view(np.uint8).copy())
    x = torch.randn(4, 64)
    x[1, 5], x[2, 40] = float("nan"), float("inf")
    expected = torch.zeros(4, 20, dtype=torch.bool)
    expected[1] = expected[2] = True
    expected[:, 3] = True
    assert torch.equal(linear(x, weight).isfinite(), ~expected)
    plain = torch.randn(20, 64)
    plain[3, 7] = float("nan")
    x[2, 40] = 1.0
    expected[2] = False
    expected[:, 3] = True
    assert torch.equal(linear(x, plain).isnan(), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pointwise_operations_equal_the_references(vectors: str, dtype: torch.dtype) -> None:
    for rows, size in ((1, 16), (3, 40), (7, 576), (0, 8)):
        x, residual = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype)
        weight = torch.randn(size).to(dtype)
        normed, total = add_rms_norm(x, residual, weight, 1e-5)
        assert torch.equal(total, x + residual)
        near(normed, rms_norm_reference(total, weight, 1e-5), dtype)
        gate_up = (4 * torch.randn(rows, 2 * size + 6)).to(dtype)
        near(silu_mul(gate_up), silu_mul_reference(gate_up), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_heads_of_a_joint_projection_are_read_in_place(vectors: str, dtype: torch.dtype) -> None:
    heads = torch.randn(5, 7, 32).to(dtype)  # 3 query, 2 key and 2 value heads
    q, k, v = heads[:, :3], heads[:, 3:5], heads[:, 5:]
    weight = torch.randn(32).to(dtype)
    near(rms_norm(k, weight, 1e-6), rms_norm_reference(k, weight, 1e-6), dtype)
    cos, sin = torch.rand(5, 32), torch.rand(5, 32)
    for turned, before in zip(apply_rope(q, k, cos, sin), (q, k), strict=True):
        near(turned, rotate_reference(before, cos, sin), dtype)
    for pages_dtype in PAGE_TYPES:
        width = row_width(32, pages_dtype)
        stores = [torch.zeros(3, 2, 4, width, dtype=pages_dtype) for _ in range(4)]
        slots = torch.tensor([11, 0, 5, 6, 7])
        write_kv(k, v, stores[0], stores[1], slots)
        write_kv_reference(k, v, stores[2], stores[3], slots)
        assert torch.equal(stores[0], stores[2])
        assert torch.equal(stores[1], stores[3])


@pytest.mark.parametrize("pages_dtype", PAGE_TYPES)
def test_rows_of_pages_hold_odd_heads_as_the_reference_packs_them(
    vectors: str, pages_dtype: torch.dtype
) -> None:
    """Subnormal and huge halves, rows of zeros, tiny rows, ties, and values that are not finite."""
    rows = torch.stack(
        (
            torch.linspace(-70000, 70000, 40),
            torch.zeros(40),
            torch.arange(40) * 2.0**-25,
            torch.full((40,), 1e-36),
            torch.arange(40) - 19.5,
            torch.full((40,), 65519.996),
            torch.full((40,), float("inf")),
            torch.where(torch.arange(40) == 3, torch.nan, 1.0),
        )
    )
    k, slots = rows[:, None], torch.arange(8)
    stores = [torch.zeros(2, 1, 4, row_width(40, pages_dtype), dtype=pages_dtype) for _ in range(4)]
    write_kv(k, -k, stores[0], stores[1], slots)
    write_kv_reference(k, -k, stores[2], stores[3], slots)
    for actual, expected in ((stores[0], stores[2]), (stores[1], stores[3])):
        values = unpack_rows(actual)
        assert torch.equal(values.nan_to_num(7e6), unpack_rows(expected).nan_to_num(7e6))
    if pages_dtype == torch.int8:
        assert bool(unpack_rows(stores[0]).view(8, 40)[6:].isnan().all())
    error = (unpack_rows(stores[0]).view(8, 40)[4] - rows[4]).abs().max()
    assert error <= (19.5 / 254 * 1.01 if pages_dtype == torch.int8 else 0)


@pytest.mark.parametrize("pages_dtype", [torch.float16, torch.int8])
@pytest.mark.parametrize(("dim", "page_size"), [(32, 1), (48, 7), (64, 16), (256, 128)])
def test_narrow_pages_are_read_as_what_they_stand_for(
    vectors: str, pages_dtype: torch.dtype, dim: int, page_size: int
) -> None:
    """Bitwise attention over float32 pages that hold the same numbers; heads of all sizes."""
    generator = torch.Generator().manual_seed(dim)
    kv_indptr, kv_indices, last = shared_pages([300, 70, 5], [[], [], []], page_size)
    size = (int(kv_indices.max()) + 1, 2, page_size, dim)
    k_pages, v_pages = (
        pack_rows(torch.randn(size, generator=generator), pages_dtype) for _ in range(2)
    )
    qo_indptr = torch.tensor([0, 3, 43, 44], dtype=torch.int32)
    for dtype in FLOATS:
        q = torch.randn(44, 6, dim, generator=generator).to(dtype)
        tables = (qo_indptr, kv_indptr, kv_indices, last)
        out = attention(q, k_pages, v_pages, *tables, scale=0.2)
        wide = attention(q, unpack_rows(k_pages), unpack_rows(v_pages), *tables, scale=0.2)
        assert torch.equal(out, wide)
        near(out, paged_attention_reference(q, k_pages, v_pages, *tables, scale=0.2), dtype)


def test_gate_far_from_zero_and_not_a_number(vectors: str) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30, float("nan")])
    out = silu_mul(torch.cat((gate, torch.ones(8)))[None])[0]
    expected = torch.nn.functional.silu(gate)
    torch.testing.assert_close(out[2:], expected[2:], equal_nan=True, rtol=1e-5, atol=1e-6)
    assert out[1].abs() < 1e-30


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
def test_bitmask_equals_the_reference(vectors: str, vocab: int) -> None:
    mask = torch.randint(-(2**31), 2**31 - 1, (3, (vocab + 31) // 32), dtype=torch.int32)
    mask[1] = -1
    logits = torch.randn(3, vocab)
    expected = apply_bitmask_reference_(logits.clone(), mask)
    assert torch.equal(apply_bitmask_(logits, mask), expected)


def shared_pages(
    lengths: list[int], prefixes: list[list[int]], page_size: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(kv_indptr, kv_indices, last): row i has the pages named in prefixes[i], then its own."""
    next_page = 1 + max((page for prefix in prefixes for page in prefix), default=0)
    starts, indices = [0], []
    for length, prefix in zip(lengths, prefixes, strict=True):
        count = -(-length // page_size)
        own = count - len(prefix)
        indices += [*prefix[:count], *range(next_page, next_page + own)]
        next_page += max(own, 0)
        starts.append(starts[-1] + count)
    last = [(length - 1) % page_size + 1 for length in lengths]
    return (
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(indices, dtype=torch.int32),
        torch.tensor(last, dtype=torch.int32),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("page_size", "dim"), [(16, 64), (24, 128), (48, 32), (256, 64)])
def test_shared_prefixes_change_no_bit(
    vectors: str, dtype: torch.dtype, page_size: int, dim: int
) -> None:
    trunk = list(range(-(-1100 // page_size)))
    branch = [*trunk[: 600 // page_size], *range(200, 200 + 900 // page_size)]
    prefixes = [trunk, trunk, branch, branch, branch, [], trunk[:1]]
    lengths = [page_size * len(prefix) + 40 + 17 * i for i, prefix in enumerate(prefixes)]
    counts = [1, 3, 1, 1, 5, 40, 1]
    kv_indptr, kv_indices, last = shared_pages(lengths, prefixes, page_size)
    qo_indptr = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    num_pages = int(kv_indices.max()) + 1
    k_pages, v_pages = (torch.randn(num_pages, 2, page_size, dim).to(dtype) for _ in range(2))
    q = torch.randn(sum(counts), 6, dim).to(dtype)
    arguments = (q, k_pages, v_pages, qo_indptr, kv_indptr, kv_indices, last)
    apart = attention(*arguments, scale=0.2, plan=plan_attention(*arguments, share=False))
    expected = paged_attention_reference(*arguments, scale=0.2)
    near(apart, expected, dtype)
    for threads in (1, 2, 3, 16):
        library.set_num_threads(threads)
        shared = attention(*arguments, scale=0.2, plan=plan_attention(*arguments))
        assert torch.equal(shared, apart), threads
    library.set_num_threads(library.default_threads())


def test_long_sequences_are_spread_over_threads_to_the_same_bits(vectors: str) -> None:
    kv_indptr, kv_indices, last = shared_pages([3000, 700], [[], []], 32)
    k_pages, v_pages = (torch.randn(int(kv_indices.max()) + 1, 1, 32, 64) for _ in range(2))
    arguments = (
        torch.randn(3, 2, 64),
        k_pages,
        v_pages,
        torch.tensor([0, 2, 3], dtype=torch.int32),
        kv_indptr,
        kv_indices,
        last,
    )
    results = []
    for threads in (1, 2, 5):
        library.set_num_threads(threads)
        results.append(attention(*arguments, scale=0.1))
    library.set_num_threads(library.default_threads())
    torch.testing.assert_close(results[0], paged_attention_reference(*arguments, scale=0.1))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_unaligned_memory(vectors: str) -> None:
    def shifted(t: Tensor) -> Tensor:
        flat = torch.empty(t.numel() + 1, dtype=t.dtype)[1:]
        return flat.copy_(t.flatten()).view(t.shape)

    x, weight = torch.randn(5, 96), torch.randn(7, 96)
    assert torch.equal(linear(shifted(x), shifted(weight)), linear(x, weight))
    half, half_weight = x.bfloat16(), weight.bfloat16()
    assert torch.equal(linear(shifted(half), shifted(half_weight)), linear(half, half_weight))
    assert torch.equal(silu_mul(shifted(half)), silu_mul(half))


@pytest.mark.parametrize("vocab", [1, 33, 1000])
def test_choices_fall_where_the_weights_say(vocab: int, vectors: str) -> None:
    """A point in the middle of a token's share picks it; what a filter or mask forbids has none."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(vocab, generator=generator) * 2
    logits[vocab // 2] = -torch.inf if vocab > 1 else 0.0
    allowed = torch.rand(vocab, generator=generator) < 0.7
    allowed[vocab - 1] = True
    bits = np.packbits(np.resize(allowed.numpy(), -(-vocab // 32) * 32), bitorder="little")
    mask = torch.from_numpy(bits.view(np.int32))[None]
    shares = torch.softmax(logits.masked_fill(~allowed, -torch.inf).double() / 0.7, 0)
    kept = torch.where(shares >= shares.sort(descending=True).values[min(20, vocab) - 1], shares, 0)
    ends = kept.cumsum(0) / kept.sum()
    wanted = [int(i) for i in (kept / kept.sum() > 1e-3).nonzero()]
    points = [float(ends[i] - kept[i] / kept.sum() / 2) for i in wanted]
    choices = [Choice(0.7, 20, 1.0, 0.0, point, 0) for point in points]
    rows = logits.expand(len(choices) + 3, vocab).clone()
    rows[-2, vocab - 1], rows[-1] = torch.nan, 3.0
    choices += [Choice(0.0, mask_row=0), Choice(1.0), Choice(0.0)]
    assert choose_(rows, choices, mask) == [
        *((token_id, Outcome.CHOSEN) for token_id in wanted),
        (int(shares.argmax()), Outcome.CHOSEN),
        (0, Outcome.NOT_FINITE),
        (0, Outcome.CHOSEN),
    ]
    nothing = torch.zeros_like(mask)
    assert choose_(logits[None].clone(), [Choice(1.0, mask_row=0)], nothing) == [
        (0, Outcome.NONE_ALLOWED)
    ]


@pytest.mark.parametrize(("bits", "dim", "window"), [(4, 64, None), (2, 96, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_pages_of_few_bits(
    vectors: str, bits: int, dim: int, window: int | None, dtype: torch.dtype
) -> None:
    """Stored, and seen beside plain ones by a prompt's end and by a decode over the same pages."""
    torch.manual_seed(dim)
    k, v = (torch.randn(12, 2, 32, dim).to(dtype) for _ in range(2))
    codes = [
        torch.zeros(11, 2, kivi.KiviForm(bits).page_bytes(dim), dtype=torch.uint8) for _ in "kv"
    ]
    every = torch.arange(11)
    kivi.store_pages(k, v, codes[0], codes[1], every + 1, every, bits)
    for found, wanted in zip(codes, kivi.quantize_pages(k[1:], v[1:], bits), strict=True):
        assert torch.equal(found, wanted)
    pages = codes[0], codes[1]
    tables = [0, 70, 71], [0, 11, 21], [*range(11), *range(9), 9], [7, 32]
    q_len, kv_len, indices, last = (torch.tensor(each, dtype=torch.int32) for each in tables)
    plain_indices = torch.tensor([-1] * 8 + [3, 1, 11] + [-1] * 9 + [2], dtype=torch.int32)
    q, form = torch.randn(71, 6, dim), kivi.KiviForm(bits)
    narrow = q_len, kv_len, indices, last
    joined = kivi.join_runs(form, narrow, plain_indices, 11)
    found = kivi.kivi_attention(q, pages, (k, v), form, joined, scale=0.1, window=window)
    wanted = kivi.kivi_attention_reference(
        q, pages, (k, v), form, narrow, plain_indices, scale=0.1, window=window
    )
    near(found, wanted, torch.float32)
