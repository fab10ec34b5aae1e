"""Turns a step's rows into the index tensors that the kernels read. Knows no weights or logits.

rows      |   row 0: 3 tokens  | row 1: 1 |  row 2: 2  |
tokens    | t t t              | t        | t t        |     flat, no padding
qo_indptr   0                    3          4            6
kv_indices  pages of row 0 ... pages of row 1 ... pages of row 2,  bounded by kv_indptr

Where pages are of few bits, tokens go to plain pages, and those that a row fills are stored. Tables
are then of the kernels' pages of 32 tokens, of which one of the scheduler's has `recent_pages`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixgen.batch import PageCopy, ScheduledRow
from radixgen.errors import InvalidRequest
from radixgen.kernels.kivi import PAGE_SIZE, KiviForm, Tables, join_runs
from radixgen.model.adapters import AdapterTokens
from radixgen.model.kv_cache import KVCache, KVLayout


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """Which queries look at which pages, as `paged_attention` takes it; all int32."""

    qo_indptr: Tensor  # [rows + 1]
    kv_indptr: Tensor  # [rows + 1]
    kv_indices: Tensor  # [pages in use]
    kv_last_page_len: Tensor  # [rows]


@dataclass(frozen=True, slots=True, eq=False)
class PlainPages:
    """Of a step over pages of few bits: where they lie in full precision, and which are stored.

    The page of few bits targets[i] is written from the plain page sources[i], once the keys and
    values of the step's tokens are in it.
    """

    indices: Tensor  # int32 [pages in use]: the plain one of each of kv_indices, or -1
    sources: Tensor  # int64 [pages that are full now]
    targets: Tensor  # int64


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """Tokens that the host does not know: token places[i] of a step is drawn[sources[i]]."""

    places: Tensor  # int64 [any]
    sources: Tensor  # int64 [any]
    drawn: Tensor  # int64 [draws of the step before], on the device


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """The tokens of a step, row after row, and those whose hidden states are asked for: outputs.

    The outputs of a row are its last tokens, so the last layer runs for them alone.
    """

    token_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    slots: Tensor  # int64 [tokens]: page * page_size + offset, where the token's KV goes; of few
    # bits: of its plain page
    attention: AttentionMetadata
    outputs: Tensor | None  # int64 [outputs]: tokens, in order; None: all of them
    output_attention: AttentionMetadata  # with the outputs as its queries
    output_ends: Sequence[int]  # of each row, the end of its outputs among all
    adapters: Sequence[AdapterTokens] = ()  # of which tokens; none of the others
    plain: PlainPages | None = None
    fed: Fed | None = None


def build_inputs(
    rows: Sequence[ScheduledRow],
    cache: KVCache,
    vocab_size: int,
    max_context: int,
    fed: Fed | None = None,
) -> StepInputs:
    """The tensors of a step, on the host: whoever launches it takes them to the device.

    Raises InvalidRequest as `list_step`.
    """
    lists = list_step(rows, cache, vocab_size, max_context)
    return inputs_of(rows, lists, cache.layout.form, fed)


def list_step(
    rows: Sequence[ScheduledRow], cache: KVCache, vocab_size: int, max_context: int
) -> "StepLists":
    """The numbers of a step.

    Raises InvalidRequest, naming the row, for anything that would read or write out of bounds.
    """
    form = cache.layout.form
    for row in rows:
        _check_row(row, cache.layout, vocab_size, max_context)
    whole = StepLists()
    for row in rows:
        whole.add(row, cache.layout.page_size, form)
    _check_ids("token id", whole.token_ids, vocab_size, rows, whole.qo_indptr)
    num_pages = cache.num_pages * (form.recent_pages if form else 1)
    _check_ids("page", whole.kv_indices, num_pages, rows, whole.kv_indptr)
    if form is not None:
        _check_ids("slot", whole.slots, _num_slots(cache), rows, whole.qo_indptr)
    return whole


def inputs_of(
    rows: Sequence[ScheduledRow],
    whole: "StepLists",
    form: KiviForm | None,
    fed: Fed | None = None,
) -> StepInputs:
    """The numbers of those rows as tensors."""
    all_drawn = len(whole.outputs) == len(whole.positions)
    lists = (whole.token_ids, whole.positions, whole.slots, whole.outputs)
    wide = _tensors(np.int64, *lists, whole.sources, whole.targets)
    tables = (whole.qo_indptr, whole.kv_indptr, whole.kv_indices, whole.last_page_len)
    narrow = _tensors(np.int32, *tables, whole.output_indptr, whole.plain_indices)
    token_ids, positions, slots, outputs, sources, targets = wide
    qo_indptr, kv_indptr, kv_indices, last, output_indptr, plain_indices = narrow
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        attention=AttentionMetadata(qo_indptr, kv_indptr, kv_indices, last),
        outputs=None if all_drawn else outputs,
        output_attention=AttentionMetadata(output_indptr, kv_indptr, kv_indices, last),
        output_ends=whole.output_indptr[1:],
        adapters=_adapters(rows, whole) if any(row.lora for row in rows) else (),
        plain=None if form is None else PlainPages(plain_indices, sources, targets),
        fed=fed,
    )


def _num_slots(cache: KVCache) -> int:
    """Of all pages that tokens are written to."""
    num_pages, _, page_size, _ = cache.k_pages[0].shape
    return num_pages * page_size


def _adapters(rows: Sequence[ScheduledRow], whole: "StepLists") -> tuple[AdapterTokens, ...]:
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


class StepLists:
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
        self.plain_indices: list[int] = []
        self.sources: list[int] = []
        self.targets: list[int] = []

    def add(self, row: ScheduledRow, page_size: int, form: KiviForm | None) -> None:
        start, length = row.start, len(row.token_ids)
        end = start + length
        first_page, num_pages = start // page_size, -(-end // page_size)
        self.token_ids += row.token_ids
        self.positions += range(start, end)
        written = row.plain_ids if form else row.page_ids[first_page:num_pages]
        for index, page in enumerate(written[: num_pages - first_page], start=first_page):
            first = index * page_size
            shift = page * page_size - first
            self.slots += range(max(start, first) + shift, min(end, first + page_size) + shift)
        if form is None:
            # Cut to what the row covers: the scheduler may have reserved further pages.
            self.kv_indices += row.page_ids[:num_pages]
            self.last_page_len.append((end - 1) % page_size + 1)
        else:
            self._add_few(row, end, form)
        self.kv_indptr.append(len(self.kv_indices))
        self.qo_indptr.append(len(self.positions))
        self.outputs += range(len(self.positions) - count_outputs(row), len(self.positions))
        self.output_indptr.append(len(self.outputs))

    def _add_few(self, row: ScheduledRow, end: int, form: KiviForm) -> None:
        """The pages of a row up to `end`, of 32 tokens each; those of runs that it fills are
        stored."""
        used = -(-end // PAGE_SIZE)
        first = row.start // form.run * form.recent_pages
        full = end // form.run * form.recent_pages
        pages = _parts(row.page_ids, form.recent_pages)[:used]
        plain = _parts(row.plain_ids, form.recent_pages)[: used - first]
        self.kv_indices += pages
        self.plain_indices += [-1] * first + plain
        self.sources += plain[: full - first]
        self.targets += pages[first:full]
        self.last_page_len.append((end - 1) % PAGE_SIZE + 1)


def _parts(page_ids: Sequence[int], run: int) -> list[int]:
    """The pages of 32 tokens that pages have `run` of."""
    if run == 1:
        return list(page_ids)
    return [page * run + part for page in page_ids for part in range(run)]


def _tensors(dtype: type[np.generic], *lists: list[int]) -> tuple[Tensor, ...]:
    """A tensor of each list, all in one piece of memory."""
    joined = torch.from_numpy(np.array(list(chain.from_iterable(lists)), dtype=dtype))
    return torch.split_with_sizes(joined, [len(each) for each in lists])


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


def _check_row(row: ScheduledRow, layout: KVLayout, vocab_size: int, max_context: int) -> None:
    end, page_size = row.start + len(row.token_ids), layout.page_size
    begun = row.start // page_size * page_size
    if not row.token_ids or row.start < 0:
        problem = f"{len(row.token_ids)} tokens from position {row.start}"
    elif not 0 <= row.num_drafts < len(row.token_ids) or (row.num_drafts and not row.sample):
        problem = f"{row.num_drafts} drafts that cannot be verified"
    elif end > max_context:
        problem = f"a last token at {end - 1}, but the context is {max_context} tokens"
    elif len(row.page_ids) * page_size < end:
        problem = f"{len(row.page_ids)} pages, which do not cover {end} tokens"
    elif layout.form and begun + len(row.plain_ids) * page_size < end:
        problem = f"{len(row.plain_ids)} plain pages, which do not cover {begun} to {end}"
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


def tables_over(meta: AttentionMetadata, plain: PlainPages | None, cache: KVCache) -> Tables:
    """As attention over this cache takes them."""
    tables = meta.qo_indptr, meta.kv_indptr, meta.kv_indices, meta.kv_last_page_len
    if plain is None or cache.layout.form is None:
        return tables
    return join_runs(cache.layout.form, tables, plain.indices, cache.k_codes[0].shape[0])


def copy_pages(copies: Sequence[PageCopy], cache: KVCache) -> None:
    """Do a step's page copies, before its forward pass."""
    if copies:
        cache.copy(*(torch.from_numpy(column) for column in copy_columns(copies, cache.layout)))


def copy_columns(copies: Sequence[PageCopy], layout: KVLayout) -> list[NDArray[np.int64]]:
    """Sources, targets and numbers of tokens, of the pages that tokens are written to."""
    numbers = [(c.source, c.target, c.num_tokens) for c in copies]
    if layout.form is not None:
        run = layout.form.recent_pages
        numbers = [
            (source * run + part, target * run + part, min(count - part * PAGE_SIZE, PAGE_SIZE))
            for source, target, count in numbers
            for part in range(-(-count // PAGE_SIZE))
        ]
    return [column.copy() for column in np.array(numbers, dtype=np.int64).T]
