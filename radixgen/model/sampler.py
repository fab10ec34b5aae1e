"""Draws tokens from rows of logits. Knows numbers and SamplingParams, no model, page or grammar.

Every row is computed by itself: its result is bitwise the same whatever other rows are beside it.
That rules out sums that torch splits among threads by shape; softmax, cumsum and topk do not.

    logits -> mask -> min_tokens -> bias -> penalties -> greedy: argmax
                                                      -> temperature -> min_p, top_k, top_p -> draw
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from radixgen.batch import TokenMass
from radixgen.kernels import sampling as native
from radixgen.kernels.sampling import Choice, Outcome, apply_bitmask_
from radixgen.model.filters import keep_most_probable
from radixgen.model.masses import temper, token_masses
from radixgen.types import SamplingParams, TokenLogprob

_TILE_ELEMENTS = 1 << 19  # probabilities drawn from at once: 4 MiB of float64, which malloc keeps
NOT_FINITE = (
    "the model's logits are not finite (NaN or infinity): the weights or the KV type cannot "
    "represent this input; try dtype='float32'"
)
_NONE_ALLOWED = "no token is allowed: the constraint permits none of the vocabulary here"
_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw. `position` is the drawn token's own; `output_ids` are those before it."""

    sampling: SamplingParams
    seed: int
    position: int
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    mask_row: int | None = None
    weights: Sequence[tuple[int, float]] = ()  # (token id, natural log of its weight in the draw)

    @property
    def wants_mass(self) -> bool:
        return self.sampling.grammar_mass or self.sampling.is_faithful


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token drawn, its log-probability and mass if asked for, or why there is none."""

    token_id: int
    logprob: TokenLogprob | None = None
    error: str | None = None
    mass: TokenMass | None = None


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) of a random stream at a position: a function of both, with no state.

    SplitMix64 (Steele, Lea and Flood, 2014) from a scrambled seed, so that streams of consecutive
    seeds do not overlap; the top 53 bits make the float.
    """
    state = _mix(seed ^ 0x6A09E667F3BCC909) + _GOLDEN * (position + 1)
    return (_mix(state & _MASK64) >> 11) * 2.0**-53


def _mix(word: int) -> int:
    word = (word + _GOLDEN) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)


def token_logprobs(
    logprobs: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """What `logprobs` [rows, vocab] says of one token a row and of its num_top[row] best ones.

    Equal log-probabilities are ordered by token id.
    """
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device)[:, None])
    tops = _top_tokens(logprobs, num_top)
    return [
        TokenLogprob(token_id, logprob, top)
        for token_id, logprob, top in zip(token_ids, chosen[:, 0].tolist(), tops, strict=True)
    ]


def _top_tokens(logprobs: Tensor, num_top: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    num_top = [min(count, logprobs.shape[1]) for count in num_top]
    most = max(num_top, default=0)
    if most == 0:
        return [()] * len(num_top)
    counts = torch.tensor(num_top, device=logprobs.device)[:, None]
    best = logprobs.topk(most).values
    least = best.gather(1, (counts - 1).clamp(min=0)).masked_fill(counts == 0, torch.inf)
    rows, ids = (logprobs >= least).nonzero(as_tuple=True)  # all ties of the last one too
    found: list[list[tuple[int, float]]] = [[] for _ in num_top]
    values = logprobs[rows, ids]
    for row, token_id, value in zip(rows.tolist(), ids.tolist(), values.tolist(), strict=True):
        found[row].append((token_id, value))
    return [
        tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count])
        for pairs, count in zip(found, num_top, strict=True)
    ]


class Chooser(Protocol):
    """What draws in one pass: the C operations (`radixgen.kernels.sampling`), or Triton's."""

    def can_choose(self, logits: Tensor, bitmask: Tensor | None) -> bool: ...
    def choose_(
        self, logits: Tensor, choices: Sequence[Choice], bitmask: Tensor | None = None
    ) -> list[tuple[int, Outcome]]: ...


class Sampler:
    """Draws one token a row. `end_token_ids` are masked while a row is short of min_tokens.

    `chooser` draws where it can; where not, torch does.
    """

    def __init__(
        self,
        vocab_size: int,
        end_token_ids: Sequence[int] = (),
        chooser: Chooser = native,
    ) -> None:
        self.vocab_size = vocab_size
        self._chooser = chooser
        self.end_token_ids = tuple(end_token_ids)

    def sample(
        self, logits: Tensor, draws: Sequence[Draw], bitmask: Tensor | None = None
    ) -> list[Drawn]:
        """Draw from logits [rows, vocab] float32, which are overwritten; draws[i] governs row i.

        `bitmask`: int32 [any, ceil(vocab/32)], indexed by Draw.mask_row; bit 1 allows a token.
        A row that is not finite, or of which nothing is allowed, gives a Drawn with an error.
        """
        edited = [i for i, draw in enumerate(draws) if _is_edited(draw)]
        if len(edited) == len(draws) or not self._chooser.can_choose(logits, bitmask):
            return self._sample_edited(logits, draws, bitmask)
        kept = _rows(logits, edited) if edited else None  # the choice overwrites
        choices = _choices(draws, masked=bitmask is not None)
        drawn = [
            Drawn(token_id, error=_ERRORS[outcome])
            for token_id, outcome in self._chooser.choose_(logits, choices, bitmask)
        ]
        if kept is not None:
            others = self._sample_edited(kept, [draws[i] for i in edited], bitmask)
            for i, other in zip(edited, others, strict=True):
                drawn[i] = other
        return drawn

    def _sample_edited(
        self, logits: Tensor, draws: Sequence[Draw], bitmask: Tensor | None
    ) -> list[Drawn]:
        """`sample` where more than masks and a choice happens to rows."""
        errors = self._check_finite(logits) | _check_bias(draws, self.vocab_size)
        asked = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
        raw = torch.log_softmax(_rows(logits, asked), dim=-1) if asked else None
        weighed = [i for i, draw in enumerate(draws) if draw.wants_mass and i not in errors]
        free = self._without_mask(logits, draws, weighed) if weighed else None
        forbade = self._edit(logits, draws, bitmask, errors)
        if forbade:
            errors = self._check_allowed(logits) | errors
        masked = None if free is None else _tempered(logits, draws, weighed)
        _add_weights(logits, draws)
        token_ids = self._choose(logits, draws)
        masses: dict[int, TokenMass] = {}
        if free is not None and masked is not None:
            chosen = token_masses(free, masked, [token_ids[i] for i in weighed])
            masses = dict(zip(weighed, chosen, strict=True))
        logprobs: dict[int, TokenLogprob] = {}
        if raw is not None:
            found = token_logprobs(
                raw,
                [token_ids[i] for i in asked],
                [draws[i].sampling.logprobs or 0 for i in asked],
            )
            logprobs = dict(zip(asked, found, strict=True))
        return [
            Drawn(token_id, logprobs.get(i), errors.get(i), masses.get(i))
            for i, token_id in enumerate(token_ids)
        ]

    def _check_finite(self, logits: Tensor) -> dict[int, str]:
        peaks = logits.amax(dim=-1)  # NaN wins every comparison, so a peak shows it
        broken = (~torch.isfinite(peaks)).nonzero().flatten().tolist()
        return dict.fromkeys(broken, NOT_FINITE)

    def _check_allowed(self, logits: Tensor) -> dict[int, str]:
        barred = (logits.amax(dim=-1) == -torch.inf).nonzero().flatten().tolist()
        return dict.fromkeys(barred, _NONE_ALLOWED)

    # ---- what changes the logits before a choice ----

    def _edit(
        self,
        logits: Tensor,
        draws: Sequence[Draw],
        bitmask: Tensor | None,
        errors: dict[int, str],
    ) -> bool:
        """Apply masks, min_tokens, bias and penalties in place; true if tokens were forbidden."""
        masked = bitmask is not None and _apply_masks(logits, draws, bitmask)
        short = [
            i for i, draw in enumerate(draws) if len(draw.output_ids) < draw.sampling.min_tokens
        ]
        for i in short:
            self._forbid_end(logits[i], draws[i].sampling)
        _add_bias(logits, [(i, d) for i, d in enumerate(draws) if i not in errors])
        _penalise(logits, draws)
        return masked or bool(short)

    def _without_mask(self, logits: Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> Tensor:
        """Tempered copies [rows, vocab] of those rows, with every change but the mask's."""
        free = logits[torch.tensor(rows, device=logits.device)]
        self._edit(free, [replace(draws[i], mask_row=None) for i in rows], None, {})
        return temper(free, [draws[i].sampling.temperature for i in rows])

    def _forbid_end(self, row: Tensor, sampling: SamplingParams) -> None:
        """Take the ends from a row [vocab], unless its mask leaves nothing else: the mask wins."""
        ends = () if sampling.ignore_eos else self.end_token_ids
        ids = [i for i in (*ends, *sampling.stop_token_ids) if 0 <= i < self.vocab_size]
        if not ids:
            return
        saved = row[ids]
        row[ids] = -torch.inf
        if row.amax() == -torch.inf:
            row[ids] = saved

    # ---- the choice ----

    def _choose(self, logits: Tensor, draws: Sequence[Draw]) -> list[int]:
        if self._chooser.can_choose(logits, None):
            return [token_id for token_id, _ in self._chooser.choose_(logits, _choices(draws))]
        drawn = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
        if not drawn:
            return logits.argmax(dim=-1).tolist()
        token_ids = [0] * len(draws)
        greedy = [i for i, draw in enumerate(draws) if draw.sampling.temperature == 0]
        if greedy:
            _place(token_ids, greedy, _rows(logits, greedy).argmax(dim=-1))
        step = max(1, _TILE_ELEMENTS // self.vocab_size)
        for low in range(0, len(drawn), step):
            tile = drawn[low : low + step]
            _place(token_ids, tile, _draw(_rows(logits, tile), [draws[i] for i in tile]))
        return token_ids


def _is_edited(draw: Draw) -> bool:
    """Whether more than a mask and a choice happens to the draw's logits."""
    sampling = draw.sampling
    return (
        sampling.logprobs is not None
        or bool(sampling.logit_bias or draw.weights or draw.wants_mass)
        or len(draw.output_ids) < sampling.min_tokens
        or _has_penalty(sampling)
    )


def _choices(draws: Sequence[Draw], masked: bool = False) -> list[Choice]:
    return [
        Choice(
            draw.sampling.temperature,
            draw.sampling.top_k,
            draw.sampling.top_p,
            draw.sampling.min_p,
            uniform(draw.seed, draw.position) if draw.sampling.temperature > 0 else 0.0,
            draw.mask_row if masked else None,
        )
        for draw in draws
    ]


_ERRORS = {
    Outcome.CHOSEN: None,
    Outcome.NOT_FINITE: NOT_FINITE,
    Outcome.NONE_ALLOWED: _NONE_ALLOWED,
}


def _rows(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Those rows, without a copy when they are all of them."""
    if len(rows) == logits.shape[0]:
        return logits
    return logits[torch.tensor(rows, device=logits.device)]


def _place(token_ids: list[int], rows: Sequence[int], found: Tensor) -> None:
    for row, token_id in zip(rows, found.tolist(), strict=True):
        token_ids[row] = token_id


def _tempered(logits: Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> Tensor:
    return temper(_rows(logits, rows), [draws[i].sampling.temperature for i in rows])


def _add_weights(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Weights multiply probabilities, so their logarithms are added to tempered logits."""
    for i, draw in enumerate(draws):
        if draw.weights:
            ids, logs = zip(*draw.weights, strict=True)
            tempered = draw.sampling.temperature * torch.tensor(logs, device=logits.device)
            logits[i, torch.tensor(ids)] += tempered


def _apply_masks(logits: Tensor, draws: Sequence[Draw], bitmask: Tensor) -> bool:
    rows = [i for i, draw in enumerate(draws) if draw.mask_row is not None]
    if not rows:
        return False
    words = (logits.shape[1] + 31) // 32
    aligned = torch.full((len(draws), words), -1, dtype=torch.int32)
    mask_rows = [draw.mask_row for draw in draws if draw.mask_row is not None]
    index = torch.tensor(rows)
    given = bitmask[torch.tensor(mask_rows), :words]
    aligned[index, : given.shape[1]] = given
    aligned[index, given.shape[1] :] = 0  # a vocabulary shorter than the model's: not tokens
    apply_bitmask_(logits, aligned.to(logits.device))
    return True


def _check_bias(draws: Sequence[Draw], vocab_size: int) -> dict[int, str]:
    return {
        i: f"logit_bias names token {token_id}; the vocabulary has 0 to {vocab_size - 1}"
        for i, draw in enumerate(draws)
        for token_id, _ in draw.sampling.logit_bias
        if not 0 <= token_id < vocab_size
    }


def _add_bias(logits: Tensor, draws: Sequence[tuple[int, Draw]]) -> None:
    cells = [(i, token, bias) for i, draw in draws for token, bias in draw.sampling.logit_bias]
    if cells:
        rows, ids, biases = zip(*cells, strict=True)
        index = (torch.tensor(rows), torch.tensor(ids))
        logits.index_put_(index, torch.tensor(biases, device=logits.device), accumulate=True)


def _penalise(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Repetition (prompt and output), then frequency and presence (output), as OpenAI and vLLM.

    One gather and one scatter for all rows: cells (row, id) with how often the output has the id.
    """
    cells = [_penalty_cells(i, draw) for i, draw in enumerate(draws) if _has_penalty(draw.sampling)]
    if not cells:
        return
    columns = [np.concatenate(column) for column in zip(*cells, strict=True)]
    rows, ids, *floats = (torch.from_numpy(column).to(logits.device) for column in columns)
    counts, repetition, frequency, presence = floats
    values = logits[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - frequency * counts
    logits[rows, ids] = values - presence * (counts > 0)


def _has_penalty(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


def _penalty_cells(row: int, draw: Draw) -> tuple[np.ndarray, ...]:
    """Columns row, id, count in the output, and the three penalties, for every id seen."""
    params = draw.sampling
    ids, counts = np.unique(np.asarray(draw.output_ids, dtype=np.int64), return_counts=True)
    if params.repetition_penalty != 1.0:
        unseen = np.setdiff1d(np.asarray(draw.prompt_ids, dtype=np.int64), ids)
        ids = np.concatenate([ids, unseen])
        counts = np.concatenate([counts, np.zeros_like(unseen)])
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    floats = (np.full(len(ids), penalty, dtype=np.float32) for penalty in penalties)
    return (np.full(len(ids), row), ids, counts.astype(np.float32), *floats)


def _draw(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Inverse transform sampling in token id order from softmax(logits / temperature), filtered.

    logits [rows, vocab] -> token ids [rows].
    """
    device = logits.device
    temperature = torch.tensor([d.sampling.temperature for d in draws], device=device)[:, None]
    # The peak goes first, or a tiny temperature makes infinities.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    probs = torch.softmax(scaled, dim=-1)
    filtered = [i for i, draw in enumerate(draws) if _has_filter(draw.sampling, probs.shape[1])]
    if filtered:
        kept = keep_most_probable(_rows(probs, filtered), [draws[i].sampling for i in filtered])
        probs[torch.tensor(filtered, device=device)] = kept
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    points = torch.tensor(
        [uniform(d.seed, d.position) for d in draws], dtype=torch.float64, device=device
    )
    # The first token whose cumulative probability exceeds the point: never one of probability 0.
    targets = (points * cumulative[:, -1])[:, None]
    found = torch.searchsorted(cumulative, targets, right=True)
    return found[:, 0].clamp(max=probs.shape[1] - 1)


def _has_filter(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0
