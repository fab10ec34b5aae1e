"""Pages of 2 and 4 bits: how far from what was stored, and the same however they came about."""

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.attention import paged_attention_reference
from radixgen.kernels.kivi import (
    PAGE_SIZE,
    KiviForm,
    code_bytes,
    dequantize_keys,
    dequantize_values,
    join_runs,
    kivi_attention,
    kivi_attention_reference,
    quantize_pages,
    store_pages,
)


def steps_of(pages: Tensor, bits: int) -> Tensor:
    """The scales of pages, float32 [..., head_dim]."""
    head_dim = (pages.shape[-1]) // (PAGE_SIZE * bits // 8 + 4)
    at = code_bytes(bits, head_dim)
    return pages[..., at : at + 2 * head_dim].contiguous().view(torch.float16).float()


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_no_value_is_further_than_half_a_scale(bits: int, head_dim: int) -> None:
    torch.manual_seed(bits * head_dim)
    shape = (6, 2, PAGE_SIZE, head_dim)
    k, v = torch.randn(shape) * 3, torch.randn(shape)
    k[0] = 1000.3  # a constant that float16 does not hold
    v[1, 0] = 0
    k[2], v[2] = k[2] * 1e-7, v[2] * 1e4
    k[3, :, :, 5] += 300  # an outlier's channel
    k_pages, v_pages = quantize_pages(k, v, bits)
    assert k_pages.shape[-1] == v_pages.shape[-1] == KiviForm(bits).page_bytes(head_dim)
    step = steps_of(k_pages, bits)[..., None, :]
    assert ((dequantize_keys(k_pages, bits) - k).abs() <= step * 0.5001 + k.abs() * 1e-6).all()
    by_group = steps_of(v_pages, bits).view(6, 2, PAGE_SIZE, head_dim // 32, 1)
    off = (dequantize_values(v_pages, bits) - v).abs().view(6, 2, PAGE_SIZE, head_dim // 32, 32)
    assert (off <= by_group * 0.5001 + v.abs().view_as(off) * 1e-6).all()
    # Scales are no larger than the spread needs.
    spread = (k.amax(-2) - k.amin(-2)) / (2**bits - 1)
    assert (steps_of(k_pages, bits) <= spread * 1.01 + k.abs().amax(-2) * 0.001 + 1e-6).all()


def test_bytes_are_as_few_as_said() -> None:
    """Of a token and head of 64 channels, keys and values: 256 in float16."""
    assert 2 * KiviForm(2).page_bytes(64) / PAGE_SIZE == 48
    assert 2 * KiviForm(4).page_bytes(64) / PAGE_SIZE == 80


def test_what_is_not_finite_stays_in_its_group() -> None:
    k, v = torch.randn(1, 1, 32, 64), torch.randn(1, 1, 32, 64)
    k[0, 0, 3, 7], v[0, 0, 3, 40] = torch.inf, torch.nan
    k[0, 0, 0, 9] = 1e6  # beyond float16
    k_pages, v_pages = quantize_pages(k, v, 2)
    k_bad, v_bad = dequantize_keys(k_pages, 2).isnan(), dequantize_values(v_pages, 2).isnan()
    assert k_bad[0, 0, :, [7, 9]].all()
    assert k_bad.sum() == 64
    assert v_bad[0, 0, 3, 32:].all()
    assert v_bad.sum() == 32


@dataclass(slots=True)
class Sequence:
    """One sequence of a model that keeps its pages as a KiviForm says, computed in steps.

    Pages are quantised when their run is full, and then leave the plain ones.
    """

    form: KiviForm
    k: Tensor  # [tokens, heads, head_dim], what the model computes
    v: Tensor
    q: Tensor
    pages: tuple[Tensor, Tensor]
    page_ids: list[int]
    by_c: bool = False
    length: int = 0
    plain: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by place in page_ids

    def step(self, count: int) -> Tensor:
        """The attention of the next tokens."""
        first, self.length = self.length, self.length + count
        for at in range(first, self.length):
            k, v = self.plain.setdefault(at // PAGE_SIZE, self._empty())
            k[:, at % PAGE_SIZE], v[:, at % PAGE_SIZE] = self.k[at], self.v[at]
        self._quantize(first)
        out = self._attend(first)
        done = self.form.first_recent(self.length) // PAGE_SIZE
        for place in range(self.form.sink_pages, done):
            self.plain.pop(place, None)
        return out

    def _empty(self) -> tuple[Tensor, Tensor]:
        """Pages hold whatever they held before."""
        heads, head_dim = self.k.shape[1:]
        return torch.full((heads, 32, head_dim), 9.0), torch.full((heads, 32, head_dim), 9.0)

    def _quantize(self, first: int) -> None:
        begin = self.form.first_recent(first) // PAGE_SIZE
        for place in range(begin, self.form.first_recent(self.length) // PAGE_SIZE):
            made = quantize_pages(*self.plain[place], self.form.bits)
            for pages, page in zip(self.pages, made, strict=True):
                pages[self.page_ids[place]] = page

    def _attend(self, first: int) -> Tensor:
        used = self.page_ids[: -(-self.length // PAGE_SIZE)]
        places = {place: i for i, place in enumerate(self.plain)}
        tables = ([0, self.length - first], [0, len(used)], used, [(self.length - 1) % 32 + 1])
        q_len, kv_len, indices, last = (torch.tensor(each, dtype=torch.int32) for each in tables)
        narrow = q_len, kv_len, indices, last
        plain_indices = torch.tensor([places.get(i, -1) for i in range(len(used))])
        plain = (
            torch.stack([k for k, _ in self.plain.values()]),
            torch.stack([v for _, v in self.plain.values()]),
        )
        q, form = self.q[first : self.length], self.form
        if self.by_c:
            joined = join_runs(form, narrow, plain_indices, len(self.pages[0]))
            return kivi_attention(q, self.pages, plain, form, joined, scale=0.125)
        return kivi_attention_reference(
            q, self.pages, plain, form, narrow, plain_indices, scale=0.125
        )


def make_sequence(form: KiviForm, tokens: int = 330, *, by_c: bool = False) -> Sequence:
    generator = torch.Generator().manual_seed(5)
    k, v, q = (torch.randn(tokens, heads, 64, generator=generator) for heads in (2, 2, 4))
    pool = torch.full((16, 2, form.page_bytes(64)), 77, dtype=torch.uint8)
    page_ids = [5, 3, 9, 0, 1, 2, 8, 7, 6, 4, 10]
    return Sequence(form, k, v, q, (pool, pool.clone()), page_ids, by_c)


FORMS = [KiviForm(4), KiviForm(2, recent_pages=4), KiviForm(2, recent_pages=2, sink_pages=3)]


@pytest.mark.parametrize("by_c", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_steps_of_any_size_give_the_same_bits(form: KiviForm, by_c: bool) -> None:
    whole = make_sequence(form, by_c=by_c)
    wanted = whole.step(330)
    rng = random.Random(form.bits)
    chunked = make_sequence(form, by_c=by_c)
    found = []
    while chunked.length < 330:
        found.append(
            chunked.step(min(rng.choice([1, 1, 2, 31, 33, 64, 100]), 330 - chunked.length))
        )
    assert torch.equal(torch.cat(found), wanted)
    kept = whole.page_ids[form.sink_pages : form.first_recent(330) // PAGE_SIZE]
    for a, b in zip(whole.pages, chunked.pages, strict=True):
        assert torch.equal(a[kept], b[kept])


@pytest.mark.parametrize("form", FORMS)
def test_c_gives_the_numbers_of_the_reference(form: KiviForm) -> None:
    found, wanted = make_sequence(form, by_c=True).step(330), make_sequence(form).step(330)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "head_dim"), [(2, 32), (4, 96), (2, 128)])
def test_pages_are_stored_to_the_byte_as_by_the_reference(
    bits: int, head_dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(bits)
    k, v = (torch.randn(5, 2, PAGE_SIZE, head_dim).to(dtype) for _ in range(2))
    k[2], v[1] = 1000.3, v[1] * 1e-7
    k[3, 0, 4, 5], v[3, 1, 4, 5], v[3, 1, 9, 7] = torch.inf, torch.nan, 65_100.0
    pages = [torch.full((6, 2, KiviForm(bits).page_bytes(head_dim)), 7, dtype=torch.uint8)] * 2
    pages = [page.clone() for page in pages]
    sources, targets = torch.tensor([3, 0, 1, 2]), torch.tensor([5, 1, 0, 4])
    store_pages(k, v, pages[0], pages[1], sources, targets, bits)
    for found, wanted in zip(pages, quantize_pages(k, v, bits), strict=True):
        assert torch.equal(found[targets], wanted[sources])
        assert (found[[2, 3]] == 7).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_prefix_of_whole_runs_is_taken_over_from_another(form: KiviForm) -> None:
    """Its quantised pages, copied to other places, and its sinks are all that is needed."""
    cold = make_sequence(form)
    wanted = cold.step(330)
    warm = make_sequence(form)
    warm.length = form.first_recent(300)
    warm.page_ids = warm.page_ids[::-1]
    for old, new in zip(cold.page_ids, warm.page_ids, strict=True):
        if cold.page_ids.index(old) * PAGE_SIZE < warm.length:
            for mine, pages in zip(warm.pages, cold.pages, strict=True):
                mine[new] = pages[old]
    warm.plain = {place: cold.plain[place] for place in range(form.sink_pages)}
    start = warm.length
    assert torch.equal(warm.step(330 - start), wanted[start:])


def test_only_distant_pages_are_rounded() -> None:
    """A query of the first run sees what full precision gives; a later one is near it."""
    sequence = make_sequence(KiviForm(4, recent_pages=2))
    found = sequence.step(330)
    shape = (11, 32, 2, 64)
    padded = [torch.cat((x, x[:22])).view(shape).transpose(1, 2) for x in (sequence.k, sequence.v)]
    tables = [[0, 330], [0, 11], list(range(11)), [10]]
    narrow = [torch.tensor(table, dtype=torch.int32) for table in tables]
    wanted = paged_attention_reference(sequence.q, *padded, *narrow, scale=0.125)
    off = (found - wanted).abs().amax((1, 2))
    assert torch.equal(found[:64], wanted[:64])
    assert 1e-4 < off[64:].mean() < 0.1


def test_forms_that_are_not_made_are_refused() -> None:
    with pytest.raises(KernelError, match="bits=3"):
        KiviForm(3)
    with pytest.raises(KernelError, match="recent_pages=0"):
        KiviForm(4, recent_pages=0)
    with pytest.raises(KernelError, match="head_dim=80"):
        quantize_pages(torch.zeros(1, 32, 80), torch.zeros(1, 32, 80), 4)
    with pytest.raises(KernelError, match="16 tokens"):
        quantize_pages(torch.zeros(1, 16, 64), torch.zeros(1, 16, 64), 4)
    sequence = make_sequence(KiviForm(4))
    sequence.step(40)
    sequence.plain = {0: sequence.plain[1]}
    with pytest.raises(KernelError, match="not at hand"):
        sequence._attend(39)
