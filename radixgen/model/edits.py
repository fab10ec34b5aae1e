"""What settings do to single logits before a choice: min_tokens, bias and penalties, as `Edits`.

Repetition is of prompt and output, frequency and presence of the output, as OpenAI and vLLM have
them. An end that min_tokens holds back has a bias of -inf, unless the mask leaves nothing else: the
mask wins. Knows settings and ids, no logits.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from radixgen.kernels.sampling import Edits
from radixgen.types import SamplingParams

if TYPE_CHECKING:
    from radixgen.model.sampler import Draw

Ids = NDArray[np.int64]
_NO_IDS = np.zeros(0, np.int64)


def is_edited(draw: "Draw") -> bool:
    """Whether settings may change single logits of the draw."""
    params = draw.sampling
    return bool(params.logit_bias) or is_short(draw) or has_penalty(params)


def is_short(draw: "Draw") -> bool:
    """Whether min_tokens holds the ends back."""
    return len(draw.output_ids) < draw.sampling.min_tokens


def edits_of(
    draws: Sequence["Draw"],
    rows: Sequence[int],
    vocab_size: int,
    end_token_ids: Sequence[int],
    bitmask: Tensor | None,
) -> Edits | None:
    """What happens to the logits of those rows, of draws[row] each; None: nothing.

    `bitmask`: int32 [any, words] on the host, by Draw.mask_row; None: the rows have none.
    """
    columns = [
        _cells(row, draws[row], _held_back(draws[row], vocab_size, end_token_ids, bitmask))
        for row in rows
        if is_edited(draws[row])
    ]
    return _joined(columns)


def weights_of(draws: Sequence["Draw"]) -> Edits | None:
    """Weights multiply probabilities, so their logarithms are added to tempered logits."""
    columns = []
    for row, draw in enumerate(draws):
        if draw.weights:
            ids, logs = zip(*draw.weights, strict=True)
            tempered = np.float32(draw.sampling.temperature) * np.array(logs, np.float32)
            columns.append(_columns(row, np.array(ids, np.int64), bias=tempered))
    return _joined(columns)


def _held_back(
    draw: "Draw", vocab_size: int, end_token_ids: Sequence[int], bitmask: Tensor | None
) -> Ids:
    """The ends that min_tokens takes from the draw."""
    if not is_short(draw):
        return _NO_IDS
    params = draw.sampling
    ends = () if params.ignore_eos else end_token_ids
    named = np.array([*ends, *params.stop_token_ids], np.int64)
    ids = np.unique(named[(named >= 0) & (named < vocab_size)])
    mask = None if bitmask is None or draw.mask_row is None else bitmask[draw.mask_row].numpy()
    return ids if _allows_others(mask, ids, vocab_size) else _NO_IDS


def _allows_others(mask: NDArray[np.int32] | None, ids: Ids, vocab_size: int) -> bool:
    """Whether a mask (None: of all tokens) allows one that is none of `ids`."""
    if mask is None:
        return len(ids) < vocab_size
    words = mask[: -(-vocab_size // 32)].view(np.uint32).copy()
    if len(words) * 32 > vocab_size:
        words[-1] &= np.uint32((1 << vocab_size % 32) - 1)
    named = ids[ids < 32 * len(words)]
    np.bitwise_and.at(words, named // 32, ~(np.uint32(1) << (named % 32).astype(np.uint32)))
    return bool(words.any())


def _cells(row: int, draw: "Draw", held_back: Ids) -> "_Columns":
    """Everything that happens to a row."""
    params = draw.sampling
    drawn, counts, seen = _NO_IDS, _NO_IDS, _NO_IDS
    if has_penalty(params):
        drawn, counts = np.unique(np.asarray(draw.output_ids, np.int64), return_counts=True)
        repeats = params.repetition_penalty != 1.0
        seen = np.union1d(drawn, np.asarray(draw.prompt_ids, np.int64)) if repeats else drawn
    named = np.array([token_id for token_id, _ in params.logit_bias], np.int64)
    ids = np.unique(np.concatenate([seen, named, held_back]))
    cells = _columns(row, ids)
    bias, repetition, frequency, presence = cells[2]
    np.add.at(
        bias,
        np.searchsorted(ids, named),
        np.array([number for _, number in params.logit_bias], np.float32),
    )
    bias[np.searchsorted(ids, held_back)] = -np.inf
    repetition[np.searchsorted(ids, seen)] = params.repetition_penalty
    at = np.searchsorted(ids, drawn)
    frequency[at] = np.float32(params.frequency_penalty) * counts.astype(np.float32)
    presence[at] = params.presence_penalty
    return cells


_Columns = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


def _columns(row: int, ids: Ids, bias: NDArray[np.float32] | float = 0.0) -> _Columns:
    """Cells of a row to which nothing but a bias happens."""
    numbers = np.zeros((4, len(ids)), np.float32)
    numbers[0] = bias
    numbers[1] = 1.0
    return np.full(len(ids), row, np.int32), ids.astype(np.int32), numbers


def _joined(columns: Sequence[_Columns]) -> Edits | None:
    if not columns:
        return None
    rows, ids, numbers = zip(*columns, strict=True)
    return Edits(np.concatenate(rows), np.concatenate(ids), np.concatenate(numbers, axis=1))


def has_penalty(params: SamplingParams) -> bool:
    """Whether tokens that were there already are less likely."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )
