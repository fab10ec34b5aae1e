"""Turns a step's rows into the index tensors that the kernels read. Knows no weights or logits.

rows      |   row 0: 3 tokens  | row 1: 1 |  row 2: 2  |
tokens    | t t t              | t        | t t        |     flat, no padding
qo_indptr   0                    3          4            6
kv_indices  pages of row 0 ... pages of row 1 ... pages of row 2,  bounded by kv_indptr
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from radixgen.batch import PageCopy, ScheduledRow
from radixgen.errors import InvalidRequest
from radixgen.model.adapters import AdapterTokens
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
    adapters: Sequence[AdapterTokens] = ()  # of which tokens; none of the others


def build_inputs(
    rows: Sequence[ScheduledRow], cache: KVCache, vocab_size: int, max_context: int
) -> StepInputs:
    """The tensors of a step, on the host: whoever launches it takes them to the device.

    Raises InvalidRequest, naming the row, for anything that would read or write out of bounds.
    """
    page_size = cache.layout.page_size
    for row in rows:
        _check_row(row, page_size, vocab_size, max_context)
    whole = _Lists()
    for row in rows:
        whole.add(row, page_size)
    _check_ids("token id", whole.token_ids, vocab_size, rows, whole.qo_indptr)
    _check_ids("page", whole.kv_indices, cache.num_pages, rows, whole.kv_indptr)
    all_drawn = len(whole.outputs) == len(whole.positions)
    wide = _tensors(np.int64, whole.token_ids, whole.positions, whole.slots, whole.outputs)
    tables = (whole.qo_indptr, whole.kv_indptr, whole.kv_indices, whole.last_page_len)
    narrow = _tensors(np.int32, *tables, whole.output_indptr)
    token_ids, positions, slots, outputs = wide
    qo_indptr, kv_indptr, kv_indices, last, output_indptr = narrow
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        attention=AttentionMetadata(qo_indptr, kv_indptr, kv_indices, last),
        outputs=None if all_drawn else outputs,
        output_attention=AttentionMetadata(output_indptr, kv_indptr, kv_indices, last),
        output_ends=whole.output_indptr[1:],
        adapters=_adapters(rows, whole) if any(row.lora for row in rows) else (),
    )


def _adapters(rows: Sequence[ScheduledRow], whole: "_Lists") -> tuple[AdapterTokens, ...]:
    """The tokens and outputs of each adapter's rows."""
    tokens: dict[str, list[int]] = {}
    outputs: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row.lora:
            for found, indptr in ((tokens, whole.qo_indptr), (outputs, whole.output_indptr)):
                found.setdefault(row.lora, []).extend(range(indptr[i], indptr[i + 1]))
    return tuple(
        AdapterTokens(name, *_tensors(np.int64, each, outputs[name]))
        for name, each in tokens.items()
    )


class _Lists:
    """The numbers of StepInputs, row by row. Lists: a step of few rows is too small for arrays."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.outputs: list[int] = []
        self.kv_indices: list[int] = []
        self.last_page_len: list[int] = []
        self.qo_indptr = [0]
        self.kv_indptr = [0]
        self.output_indptr = [0]

    def add(self, row: ScheduledRow, page_size: int) -> None:
        start, length = row.start, len(row.token_ids)
        end = start + length
        num_pages = -(-end // page_size)
        self.token_ids += row.token_ids
        self.positions += range(start, end)
        for index in range(start // page_size, num_pages):
            first = index * page_size
            shift = row.page_ids[index] * page_size - first
            self.slots += range(max(start, first) + shift, min(end, first + page_size) + shift)
        # Cut to what the row covers: the scheduler may have reserved further pages.
        self.kv_indices += row.page_ids[:num_pages]
        self.last_page_len.append((end - 1) % page_size + 1)
        self.kv_indptr.append(len(self.kv_indices))
        self.qo_indptr.append(len(self.positions))
        self.outputs += range(len(self.positions) - count_outputs(row), len(self.positions))
        self.output_indptr.append(len(self.outputs))


def _tensors(dtype: type[np.generic], *lists: list[int]) -> tuple[Tensor, ...]:
    """A tensor of each list, all in one piece of memory."""
    joined = torch.from_numpy(np.array(list(chain.from_iterable(lists)), dtype=dtype))
    return torch.split(joined, [len(each) for each in lists])


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
    what: str, ids: Sequence[int], limit: int, rows: Sequence[ScheduledRow], indptr: Sequence[int]
) -> None:
    if min(ids) < 0 or max(ids) >= limit:
        at = next(i for i, number in enumerate(ids) if not 0 <= number < limit)
        row = rows[bisect_right(indptr, at) - 1]
        raise InvalidRequest(
            f"row {row.rid}#{row.index} has {what} {ids[at]}, not between 0 and {limit - 1}"
        )


def copy_pages(copies: Sequence[PageCopy], cache: KVCache) -> None:
    """Do a step's page copies, before its forward pass."""
    if copies:
        columns = np.array([(c.source, c.target, c.num_tokens) for c in copies], dtype=np.int64)
        cache.copy(*(torch.from_numpy(column.copy()) for column in columns.T))
