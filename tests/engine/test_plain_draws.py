"""The shortest way from logits to tokens gives what the sampler gives, or leaves it to that."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from radixgen.batch import ScheduledRow
from radixgen.errors import KernelError
from radixgen.kernels import library
from radixgen.model.plain_draws import draw_plain
from radixgen.model.sampler import Draw, Drawn, Sampler
from radixgen.types import SamplingParams

VOCAB = 203
SETTINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=9, top_p=0.8),
    SamplingParams(temperature=2.0, min_p=0.01),
    SamplingParams(temperature=1.0, min_tokens=2),
)


@pytest.fixture(autouse=True)
def compiled() -> None:
    if library.library() is None:
        pytest.skip("no C compiler")


def row_of(sampling: SamplingParams, index: int = 0, **fields: Any) -> ScheduledRow:
    given = {"start": 10 + index, "seed": index, "sample": True, "output_ids": (1, 2), **fields}
    return ScheduledRow("r", index, (4, 5), page_ids=(0,), sampling=sampling, **given)


def rows_of(masked: bool) -> list[ScheduledRow]:
    """Each of SETTINGS often enough; every other row has a mask, which two of them share."""
    masks = [i // 4 if masked and i % 2 else None for i in range(40)]
    return [row_of(SETTINGS[i % 5], i, mask_row=mask) for i, mask in enumerate(masks)]


def by_sampler(
    logits: torch.Tensor, rows: Sequence[ScheduledRow], bitmask: torch.Tensor | None
) -> list[Drawn]:
    draws = [
        Draw(row.sampling, row.seed, row.start + 2, (), row.output_ids, row.mask_row)
        for row in rows
    ]
    return Sampler(VOCAB).sample(logits.clone(), draws, bitmask)


@pytest.mark.parametrize("masked", [False, True])
def test_draws_are_those_of_the_sampler(masked: bool) -> None:
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    logits[7, 5] = torch.nan
    bits = np.random.default_rng(4).integers(-(2**31), 2**31, (10, 7), dtype=np.int32)
    bits[2] = 0  # rows 9 and 11 may draw nothing
    bitmask = torch.from_numpy(bits) if masked else None
    rows = rows_of(masked)
    found = draw_plain(logits.clone(), rows, bitmask)
    assert found == by_sampler(logits, rows, bitmask)
    broken = [i for i, each in enumerate(found or ()) if each.error is not None]
    assert broken == ([7, 9, 11] if masked else [7])


@pytest.mark.parametrize(
    "other",
    [
        row_of(replace(SETTINGS[0], logprobs=0)),
        row_of(replace(SETTINGS[1], grammar_mass=True)),
        row_of(replace(SETTINGS[1], constrained_law="faithful")),
        row_of(replace(SETTINGS[0], logit_bias=((3, 1.0),))),
        row_of(replace(SETTINGS[0], min_tokens=3)),
        row_of(replace(SETTINGS[0], repetition_penalty=1.1)),
        row_of(replace(SETTINGS[0], frequency_penalty=0.1)),
        row_of(replace(SETTINGS[0], presence_penalty=0.1)),
        row_of(SETTINGS[0], weights=((3, 1.0),)),
        row_of(SETTINGS[0], num_drafts=1),
        row_of(SETTINGS[0], logprobs_from=0),
        row_of(SETTINGS[0], sample=False),
    ],
)
def test_a_row_that_asks_for_more_leaves_all_to_the_sampler(other: ScheduledRow) -> None:
    logits = torch.zeros(2, VOCAB)
    assert draw_plain(logits, [row_of(SETTINGS[0]), other], None) is None
    assert draw_plain(logits, [other], None) is None  # a row of logits too many
    assert not logits.any()


def test_a_mask_row_that_is_not_there_is_refused() -> None:
    bitmask = torch.full((1, 7), -1, dtype=torch.int32)
    with pytest.raises(KernelError, match="mask row 1 of 1"):
        draw_plain(torch.zeros(1, VOCAB), [row_of(SETTINGS[0], mask_row=1)], bitmask)


def test_a_mask_of_other_numbers_is_left_to_the_sampler() -> None:
    bitmask = torch.full((1, 7), -1, dtype=torch.int64)
    assert draw_plain(torch.zeros(1, VOCAB), [row_of(SETTINGS[0], mask_row=0)], bitmask) is None
