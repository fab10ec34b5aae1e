"""Draws of rows that ask for their next token and no more: the shortest way to it from logits.

A step of few rows is short enough to feel every object that is made on the way. Knows rows and
numbers; gives what `Sampler.sample` gives.
"""

from array import array
from collections.abc import Sequence

from torch import Tensor

from radixgen.batch import ScheduledRow
from radixgen.kernels.sampling import can_mask, choose_at_
from radixgen.model.edits import has_penalty
from radixgen.model.sampler import Drawn, as_drawn, uniform


def draw_plain(
    logits: Tensor, rows: Sequence[ScheduledRow], bitmask: Tensor | None
) -> list[Drawn] | None:
    """A token of each row; None, and nothing is done, where one asks for more or draws nothing.

    logits [rows, vocab] float32 of the C operations, which are overwritten. `bitmask`: int32
    [any, words], by ScheduledRow.mask_row; bit 1 allows a token.
    """
    if logits.shape[0] != len(rows) or not all(map(_is_plain, rows)):
        return None
    if bitmask is not None and not can_mask(bitmask):
        return None
    settings = array("d")
    for row in rows:
        params, point = row.sampling, 0.0
        if params.temperature > 0:
            point = uniform(row.seed, row.start + len(row.token_ids))
        settings.extend((params.temperature, params.top_k, params.top_p, params.min_p, point))
    mask_rows = () if bitmask is None else [row.mask_row for row in rows]
    return as_drawn(choose_at_(logits, settings, bitmask, mask_rows))


def _is_plain(row: ScheduledRow) -> bool:
    """Whether a row draws one token and asks for nothing beside it or about it."""
    params = row.sampling
    return (
        row.sample
        and row.num_drafts == 0
        and row.logprobs_from is None
        and not row.weights
        and params.logprobs is None
        and not params.grammar_mass
        and not params.is_faithful
        and not params.logit_bias
        and params.min_tokens <= len(row.output_ids)
        and not has_penalty(params)
    )
