"""Turns a step's rows into the index tensors that the kernels read. Knows no weights or logits.

rows      |   row 0: 3 tokens  | row 1: 1 |  row 2: 2  |
tokens    | t t t              | t        | t t        |     flat, no padding
qo_indptr   0                    3          4            6
kv_indices  pages of row 0 ... pages of row 1 ... pages of row 2,  bounded by kv_indptr
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from radixgen.batch import PageCopy, ScheduledRow
from radixgen.errors import InvalidRequest
from radixgen.model.kv_cache import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """Which queries look at which pages, as `paged_attention` takes it; all int32."""

    qo_indptr: Tensor  # [rows + 1]
    kv_indptr: Tensor  # [rows + 1]
    kv_indices: Tensor  # [pages in use]
    kv_last_page_len: Tensor  # [rows]


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """The tokens of a step, row after row, and those whose hidden states are asked for: outputs.

    The outputs of a row are its last tokens, so the last layer runs for them alone.
    """

    token_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    slots: Tensor  # int64 [tokens]: page * page_size + offset, where the token's KV goes
    attention: AttentionMetadata
    outputs: Tensor | None  # int64 [outputs]: tokens, in order; None: all of them
    output_attention: AttentionMetadata  # with the outputs as its queries
    output_ends: Sequence[int]  # of each row, the end of its outputs among all


def build_inputs(
    rows: Sequence[ScheduledRow], cache: KVCache, vocab_size: int, max_context: int
) -> StepInputs:
    """The tensors of a step, where the cache is.

    Raises InvalidRequest, naming the row, for anything that would read or write out of bounds.
    """
    page_size = cache.layout.page_size
    for row in rows:
        _check_row(row, page_size, vocab_size, max_context)
    lengths = np.fromiter((len(row.token_ids) for row in rows), np.int64, len(rows))
    starts = np.fromiter((row.start for row in rows), np.int64, len(rows))
    num_outputs = np.fromiter(map(count_outputs, rows), np.int64, len(rows))
    num_pages = -(-(starts + lengths) // page_size)
    qo_indptr, kv_indptr, output_indptr = map(_indptr, (lengths, num_pages, num_outputs))
    token_ids = _flat([row.token_ids for row in rows])
    # Cut the page list to what the row covers: the scheduler may have reserved further pages.
    page_ids = _flat([row.page_ids[:n] for row, n in zip(rows, num_pages.tolist(), strict=True)])
    _check_ids("token id", token_ids, vocab_size, rows, qo_indptr)
    _check_ids("page", page_ids, cache.num_pages, rows, kv_indptr)

    row_of_token, offsets = _ragged(qo_indptr)
    positions = starts[row_of_token] + offsets
    pages = page_ids[kv_indptr[row_of_token] + positions // page_size]
    slots = pages * page_size + positions % page_size
    row_of_output, output_offsets = _ragged(output_indptr)
    outputs = (qo_indptr[1:] - num_outputs)[row_of_output] + output_offsets

    def put(values: np.ndarray, dtype: type[np.generic] = np.int64) -> Tensor:
        return torch.from_numpy(values.astype(dtype, copy=False)).to(cache.device)

    kv = [put(v, np.int32) for v in (kv_indptr, page_ids, (starts + lengths - 1) % page_size + 1)]
    return StepInputs(
        token_ids=put(token_ids),
        positions=put(positions),
        slots=put(slots),
        attention=AttentionMetadata(put(qo_indptr, np.int32), *kv),
        outputs=None if len(outputs) == len(positions) else put(outputs),
        output_attention=AttentionMetadata(put(output_indptr, np.int32), *kv),
        output_ends=output_indptr[1:].tolist(),
    )


def count_outputs(row: ScheduledRow) -> int:
    """How many of a row's last tokens are followed by something drawn or scored."""
    drawn = row.num_drafts + 1 if row.sample else 0
    scored = count_given(row)
    # Without next_id nothing is known to follow the last token; it is an output all the same.
    return max(drawn, scored + (row.next_id is None) if scored else 0)


def count_given(row: ScheduledRow) -> int:
    """How many given tokens' log-probabilities a row asks for: see RowResult.given_logprobs."""
    if row.logprobs_from is None:
        return 0
    end = row.start + len(row.token_ids) + (row.next_id is not None)
    return max(0, end - max(row.logprobs_from, row.start + 1))


def _flat(lists: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), np.int64, sum(map(len, lists)))


def _indptr(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])


def _ragged(indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each item its row and its offset in the row."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return rows, np.arange(indptr[-1]) - indptr[rows]


def _check_row(row: ScheduledRow, page_size: int, vocab_size: int, max_context: int) -> None:
    end = row.start + len(row.token_ids)
    if not row.token_ids or row.start < 0:
        problem = f"{len(row.token_ids)} tokens from position {row.start}"
    elif not 0 <= row.num_drafts < len(row.token_ids) or (row.num_drafts and not row.sample):
        problem = f"{row.num_drafts} drafts that cannot be verified"
    elif end > max_context:
        problem = f"a last token at {end - 1}, but the context is {max_context} tokens"
    elif len(row.page_ids) * page_size < end:
        problem = f"{len(row.page_ids)} pages, which do not cover {end} tokens"
    elif row.next_id is not None and not 0 <= row.next_id < vocab_size:
        problem = f"token id {row.next_id}, not between 0 and {vocab_size - 1}"
    else:
        return
    raise InvalidRequest(f"row {row.rid}#{row.index} has {problem}")


def _check_ids(
    what: str, ids: np.ndarray, limit: int, rows: Sequence[ScheduledRow], indptr: np.ndarray
) -> None:
    if ids.min() < 0 or ids.max() >= limit:
        at = int(np.flatnonzero((ids < 0) | (ids >= limit))[0])
        row = rows[int(np.searchsorted(indptr, at, side="right")) - 1]
        raise InvalidRequest(
            f"row {row.rid}#{row.index} has {what} {ids[at]}, not between 0 and {limit - 1}"
        )


def copy_pages(copies: Sequence[PageCopy], cache: KVCache) -> None:
    """Do a step's page copies, before its forward pass."""
    if copies:
        columns = np.array([(c.source, c.target, c.num_tokens) for c in copies], dtype=np.int64)
        cache.copy(*(torch.from_numpy(column.copy()) for column in columns.T))
