"""Draws tokens from rows of logits on a GPU, one program a row, without sorting the vocabulary.

    bitmask -> temperature -> softmax -> min_p, top_k, top_p -> draw

What a filter keeps is a threshold of probability and, among those equal to it, the first by token
id. The threshold is found three bits at a time: a positive float32 has the order of its bits, so
10 looks at the row find the exact value (radix selection). The row stays in the cache meanwhile.
The draw is the inverse transform in token id order, as `radixgen.model.sampler` does it, whose law
this is.

Drafts take no kernel: those of a row are compared with its draws on the host, where both are, the
draws in the one copy that every step waits for (model/runner.py).

Bias and penalties touch few cells of a row and have been added to the logits (edits.py). A row
whose logits, masked or not, are not finite says so instead of drawing.
"""

# What a kernel computes with has Triton's types, whatever Python's operators say.
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false
# mypy: disable-error-code="attr-defined"

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixgen.kernels.checks import shaped
from radixgen.kernels.triton.cost import Cost
from radixgen.kernels.triton.launch import check_device, check_logits, launch

BLOCK = 4096  # logits looked at together
NUM_WARPS = 16
DIGITS = tl.constexpr(8)  # values that a threshold's next three bits may have


@triton.jit
def _weights(row, start, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """exp((logit - peak) / temperature) of a block, 0 for what is forbidden or outside."""
    logits, bits, vocab, peak, temperature = row
    scores = _scores(logits, bits, start + tl.arange(0, BLOCK), vocab, MASKED)
    return tl.exp((scores - peak) / temperature)


@triton.jit
def _count(row, vocab, values, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """How many weights are at least each of `values` [DIGITS]."""
    counts = tl.zeros([DIGITS], tl.int32)
    for start in range(0, vocab, BLOCK):
        weights = _weights(row, start, MASKED, BLOCK)
        counts += tl.sum((weights[:, None] >= values[None, :]).to(tl.int32), 0)
    return counts


@triton.jit
def _mass(row, vocab, values, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of the weights of at least each of `values` [DIGITS]."""
    mass = tl.zeros([DIGITS], tl.float64)
    for start in range(0, vocab, BLOCK):
        weights = _weights(row, start, MASKED, BLOCK)[:, None]
        mass += tl.sum(tl.where(weights >= values[None, :], weights, 0.0).to(tl.float64), 0)
    return mass


@triton.jit
def _digit(numbers, number):
    """One of `numbers` [DIGITS]."""
    return tl.sum(tl.where(tl.arange(0, DIGITS) == number, numbers, tl.zeros_like(numbers)), 0)


@triton.jit
def _value(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _threshold(row, vocab, top_k, top_p, least, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest weight that is kept, and how many of those equal to it are."""
    digit = tl.arange(0, DIGITS)
    value = least
    if top_k < vocab:
        found = tl.zeros([], tl.int32)
        for step in range(10):  # of 3 bits: no weight is above 1, whose bits are below 2^30
            trials = found | (digit << (27 - 3 * step))
            counts = _count(row, vocab, _value(trials), MASKED, BLOCK)
            found = tl.max(tl.where(counts >= top_k, trials, found), 0)
        value = tl.maximum(_value(found), least)
    counts = _count(row, vocab, _value(_bits(value) + digit), MASKED, BLOCK)
    above = _digit(counts, 1)
    ties = tl.minimum(_digit(counts, 0), top_k) - above
    if top_p < 1:
        over = _digit(_mass(row, vocab, _value(_bits(value) + digit), MASKED, BLOCK), 1)
        wanted = top_p.to(tl.float64) * (over + value.to(tl.float64) * ties)
        # The largest value such that all weights of at least that much reach what is wanted.
        found = tl.zeros([], tl.int32)
        for step in range(10):
            trials = found | (digit << (27 - 3 * step))
            masses = _mass(row, vocab, _value(trials), MASKED, BLOCK)
            found = tl.max(tl.where(masses >= wanted, trials, found), 0)
        if _value(found) > value:
            value = _value(found)
            over = _digit(_mass(row, vocab, _value(found + digit), MASKED, BLOCK), 1)
            ties = vocab
        missing = tl.ceil(((wanted - over) / value.to(tl.float64)).to(tl.float32)).to(tl.int32)
        ties = tl.minimum(ties, tl.maximum(missing, 1))
    return value, ties


@triton.jit
def _bits(value):
    return value.to(tl.int32, bitcast=True)


@triton.jit
def _kept(
    row, start, value, ties, seen, FILTERED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """The weights of a block that are kept, and how many ties have been seen after it."""
    weights = _weights(row, start, MASKED, BLOCK)
    if FILTERED:
        is_tie = (weights == value).to(tl.int32)
        place = seen + tl.cumsum(is_tie, 0)
        keeps = (weights > value) | ((is_tie == 1) & (place <= ties))
        weights = tl.where(keeps, weights, 0.0)
        seen += tl.sum(is_tie, 0)
    return weights.to(tl.float64), seen


@triton.jit
def _scores(logits, bits, ids, vocab, MASKED: tl.constexpr):
    scores = tl.load(logits + ids, mask=ids < vocab, other=float("-inf"))
    return _masked(scores, bits, ids, vocab, MASKED)


@triton.jit
def _masked(scores, bits, ids, vocab, MASKED: tl.constexpr):
    if MASKED:
        pointer, all_words = bits
        words = tl.load(pointer + ids // 32, mask=ids < vocab, other=0) | all_words
        scores = tl.where(((words >> (ids % 32)) & 1) == 1, scores, float("-inf"))
    return scores


@triton.jit
def sample_kernel(
    logits,
    bitmask,
    mask_rows,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    points,
    token_ids,
    outcomes,
    logits_stride,
    bitmask_stride,
    vocab,
    MASKED: tl.constexpr,
    FILTERED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """token_ids [rows] int64, 0 where nothing is chosen, and outcomes [rows] int32."""
    row = tl.program_id(0)
    scores_at = logits + row.to(tl.int64) * logits_stride
    mask_row = tl.load(mask_rows + row)
    bits_at = bitmask + tl.maximum(mask_row, 0).to(tl.int64) * bitmask_stride
    bits = (bits_at, tl.where(mask_row < 0, -1, 0))  # all bits, for a row without mask
    temperature = tl.load(temperatures + row)

    # The peak of what is allowed, and the first token that has it.
    peak = float("-inf")
    best = tl.zeros([], tl.int32)
    highest = float("-inf")  # of all logits
    broken = tl.zeros([], tl.int32)  # how many are NaN or +inf
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        raw = tl.load(scores_at + ids, mask=ids < vocab, other=float("-inf"))
        is_broken = (raw != raw) | (raw == float("inf"))
        broken += tl.sum(is_broken.to(tl.int32), 0)
        raw = tl.where(is_broken, float("-inf"), raw)
        highest = tl.maximum(highest, tl.max(raw, 0))
        scores = _masked(raw, bits, ids, vocab, MASKED)
        top = tl.max(scores, 0)
        first = tl.min(tl.where(scores == top, ids, vocab), 0)
        best = tl.where(top > peak, first, best)
        peak = tl.maximum(peak, top)
    is_finite = (broken == 0) & (highest > float("-inf"))
    outcome = tl.where(is_finite, tl.where(peak > float("-inf"), 0, 2), 1)
    tl.store(outcomes + row, outcome)
    tl.store(token_ids + row, tl.where(outcome == 0, best, 0).to(tl.int64))
    if (temperature > 0) & (outcome == 0):
        whole = (scores_at, bits, vocab, peak, temperature)
        value = 0.0
        ties = vocab
        if FILTERED:
            top_k = tl.load(top_ks + row)
            top_p = tl.load(top_ps + row)
            least = tl.load(min_ps + row)  # of the peak's weight, which is 1
            value, ties = _threshold(whole, vocab, top_k, top_p, least, MASKED, BLOCK)
        total = tl.zeros([], tl.float64)
        seen = 0
        for start in range(0, vocab, BLOCK):
            kept, seen = _kept(whole, start, value, ties, seen, FILTERED, MASKED, BLOCK)
            total += tl.sum(kept, 0)
        target = tl.load(points + row) * total
        before = tl.zeros([], tl.float64)
        seen = 0
        drawn = vocab
        for start in range(0, vocab, BLOCK):
            kept, seen = _kept(whole, start, value, ties, seen, FILTERED, MASKED, BLOCK)
            reached = (before + tl.cumsum(kept, 0) > target) & (kept > 0)
            ids = start + tl.arange(0, BLOCK)
            drawn = tl.minimum(drawn, tl.min(tl.where(reached, ids, vocab), 0))
            before += tl.sum(kept, 0)
        tl.store(token_ids + row, tl.where(drawn < vocab, drawn, best).to(tl.int64))


def sample(
    logits: Tensor,
    bitmask: Tensor | None,
    mask_rows: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    min_ps: Tensor,
    points: Tensor,
    *,
    filtered: bool,
) -> tuple[Tensor, Tensor]:
    """Token ids [rows] int64, and outcomes [rows] int32, numbered as kernels.sampling.Outcome.

    logits [rows, vocab] float32; bitmask [any, words] int32, its row mask_rows[i] (int32, -1: no
    mask) for row i; temperatures (0: the largest logit), top_ps and min_ps [rows] float32; top_ks
    [rows] int32 in 1 .. vocab; points [rows] float64 in [0, 1), the draws. `filtered`: whether any
    row has a top_k, top_p or min_p that leaves something out. Where nothing is chosen the token is
    0. Raises KernelError for shapes that do not agree.
    """
    check_logits(logits)
    rows, vocab = logits.shape
    for name, column in (
        ("mask_rows", mask_rows),
        ("temperatures", temperatures),
        ("top_ks", top_ks),
        ("top_ps", top_ps),
        ("min_ps", min_ps),
        ("points", points),
    ):
        shaped(name, column, rows)
    check_device(logits=logits, mask_rows=mask_rows, points=points)
    if bitmask is not None:
        shaped("bitmask", bitmask, None, (vocab + 31) // 32)
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    outcomes = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        launch(
            sample_kernel,
            (rows,),
            logits,
            mask_rows if bitmask is None else bitmask,
            mask_rows,
            temperatures,
            top_ks,
            top_ps,
            min_ps,
            points,
            token_ids,
            outcomes,
            logits.stride(0),
            0 if bitmask is None else bitmask.stride(0),
            vocab,
            MASKED=bitmask is not None,
            FILTERED=filtered,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
    return token_ids, outcomes


def cost(rows: int, vocab: int, *, masked: bool, filtered: bool) -> Cost:
    """A row's logits are read from memory once; further looks at them are of the cache.

    Three looks draw, of about 8 operations a logit; 27 more find the thresholds of filters, and
    compare with and add to 8 values.
    """
    moved = rows * (vocab * 4 + (vocab / 8 if masked else 0))
    return Cost(moved, rows * vocab * (24 + (27 * 24 if filtered else 0)))
