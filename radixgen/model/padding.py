"""Makes steps of many sizes into steps of few, so that launches recorded for one serve others.

    tokens    | t t t t t | p |            5 rows and one more, which reads a key and writes nothing
    items     | i i i i i i i | 0 |        an item of no rows does nothing
    rows, pages, slots of the merge        longer than is used

Sizes are 1, 2, 3, 4, 6, 8, 12, 16, ...: less than half more than was asked for, and a decode that
is bound by reading weights and keys takes no longer for it. Knows numbers of a step, no device.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixgen.kernels.kivi import PAGE_SIZE
from radixgen.kernels.triton.attention_items import ITEM_FIELDS, SPLIT_TOKENS, Items
from radixgen.kernels.triton.kivi_items import KiviItems
from radixgen.model.attention import AttentionMetadata, PlainPages, StepInputs

NOWHERE = -1  # a slot that no key is written to


def size_for(count: int) -> int:
    """The least size that holds `count`, which is at least 1."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def sizes_to(most: int) -> list[int]:
    """Every size up to the one that holds `most`."""
    return sorted({size_for(count) for count in range(1, most + 1)})


def pad_rows(inputs: StepInputs, num_tokens: int) -> StepInputs:
    """`inputs`, every token of which is an output, with rows of one token each up to `num_tokens`.

    A row more is token 0 at position 0, reads the first key of page 0 and writes none: what comes
    of it is to be dropped, and no other row's numbers change.
    Of few bits, `num_tokens` pages are stored, which is as many as there can be; none of some.
    """
    count = num_tokens - len(inputs.token_ids)
    if not count and inputs.plain is None:
        return inputs
    meta = inputs.attention
    padded = AttentionMetadata(
        _counting(meta.qo_indptr, count),
        _counting(meta.kv_indptr, count),
        _filled(meta.kv_indices, count, 0),
        _filled(meta.kv_last_page_len, count, 1),
    )
    return StepInputs(
        token_ids=_filled(inputs.token_ids, count, 0),
        positions=_filled(inputs.positions, count, 0),
        slots=_filled(inputs.slots, count, NOWHERE),
        attention=padded,
        outputs=None,
        output_attention=padded,
        output_ends=[*inputs.output_ends, *range(len(inputs.token_ids) + 1, num_tokens + 1)],
        adapters=inputs.adapters,
        plain=None if inputs.plain is None else _pad_plain(inputs.plain, count, num_tokens),
        fed=inputs.fed,
    )


def _pad_plain(plain: PlainPages, count: int, num_stored: int) -> PlainPages:
    """With the plain page 0 for each row more, and stored pages of which some are none."""
    more = num_stored - len(plain.targets)
    return PlainPages(
        _filled(plain.indices, count, 0),
        _filled(plain.sources, more, 0),
        _filled(plain.targets, more, NOWHERE),
    )


def _filled(numbers: Tensor, count: int, value: int) -> Tensor:
    return torch.cat((numbers, numbers.new_full((count,), value)))


def _counting(indptr: Tensor, count: int) -> Tensor:
    """`indptr` with `count` further parts of one each."""
    more = torch.arange(1, count + 1, dtype=indptr.dtype) + indptr[-1]
    return torch.cat((indptr, more))


def pad_items(items: Items, page_size: int) -> Items:
    """`items` in arrays of few sizes; what is added is never read."""
    num_items, num_slots = size_for(len(items.items)), size_for(items.num_slots)
    num_pages = num_items * max(SPLIT_TOKENS // page_size, 1)
    return Items(
        items=np.concatenate([items.items, _zeros(num_items - len(items.items), ITEM_FIELDS)]),
        rows=_longer(items.rows, num_slots),
        pages=_longer(items.pages, num_pages),
        positions=items.positions,
        merge_indptr=items.merge_indptr,
        merge_slots=_longer(items.merge_slots, num_slots),
    )


def pad_kivi_items(made: KiviItems) -> KiviItems:
    """`pad_items`, of those over pages of few bits and those over plain ones apart."""
    items = made.work.items
    coarse, others = items[: made.num_coarse], items[made.num_coarse :]
    num_coarse = size_for(len(coarse)) if len(coarse) else 0
    filled = np.concatenate([coarse, _zeros(num_coarse - len(coarse), ITEM_FIELDS), others])
    return KiviItems(
        pad_items(replace(made.work, items=filled), PAGE_SIZE), num_coarse, made.recent
    )


def _zeros(*shape: int) -> NDArray[np.int32]:
    return np.zeros(shape, np.int32)


def _longer(numbers: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    return np.concatenate([numbers, _zeros(size - len(numbers))])


def idle_inputs(num_tokens: int, few_bits: bool = False) -> StepInputs:
    """A step of nothing but such rows: what is run before the first request."""
    empty, start = torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    none = torch.zeros(0, dtype=torch.int64)
    meta = AttentionMetadata(start, start, empty, empty)
    ends: Sequence[int] = ()
    plain = PlainPages(empty, none, none) if few_bits else None
    step = StepInputs(none, none, none, meta, None, meta, ends, plain=plain)
    return pad_rows(step, num_tokens)
