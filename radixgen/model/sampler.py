"""Draws tokens from rows of logits. Knows numbers and SamplingParams, no model, page or grammar.

Every row is computed by itself: its result is bitwise the same whatever other rows are beside it.
That rules out sums that torch splits among threads by shape; softmax, cumsum and topk do not.

    logits -> edits, mask -> greedy: argmax
                          -> temperature -> min_p, top_k, top_p -> draw
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from radixgen.batch import TokenMass
from radixgen.kernels import sampling as native
from radixgen.kernels.sampling import Choice, Edits, Outcome, apply_bitmask_
from radixgen.model.chooser import Chooser, QueuedChooser
from radixgen.model.edits import edits_of, is_short, weights_of
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


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """Draws that a device may not have made yet: `wait` for them."""

    wait: Callable[[], list[Drawn]]
    token_ids: Tensor | None = None  # int64 [draws] on the device; None: the host has them already


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
        self._queue = chooser if isinstance(chooser, QueuedChooser) else None
        self.end_token_ids = tuple(end_token_ids)

    def begin(
        self, logits: Tensor, draws: Sequence[Draw], bitmask: Tensor | None = None
    ) -> Drawing:
        """`sample`, not waited for where the device chooses and no more than tokens is told."""
        queue = self._queue
        if queue is None or any(map(_is_told, draws)) or not queue.can_choose(logits, bitmask):
            drawn = self.sample(logits, draws, bitmask)
            return Drawing(lambda: drawn)
        errors = _check_bias(draws, self.vocab_size)
        edits = self._edits(draws, bitmask, errors)
        choices = _choices(draws, masked=bitmask is not None)
        chosen = queue.launch_(logits, choices, bitmask, edits)
        return Drawing(lambda: as_drawn(chosen.wait(), errors), chosen.token_ids)

    def sample(
        self, logits: Tensor, draws: Sequence[Draw], bitmask: Tensor | None = None
    ) -> list[Drawn]:
        """Draw from logits [rows, vocab] float32, which are overwritten; draws[i] governs row i.

        `bitmask`: int32 [any, ceil(vocab/32)], indexed by Draw.mask_row; bit 1 allows a token.
        A row that is not finite, or of which nothing is allowed, gives a Drawn with an error.
        """
        told = [i for i, draw in enumerate(draws) if _is_told(draw)]
        if len(told) == len(draws) or not self._chooser.can_choose(logits, bitmask):
            return self._sample_told(logits, draws, bitmask)
        kept = _rows(logits, told) if told else None  # the choice overwrites
        errors = _check_bias(draws, self.vocab_size)
        edits = self._edits(draws, bitmask, {*told, *errors})
        choices = _choices(draws, masked=bitmask is not None)
        drawn = as_drawn(self._chooser.choose_(logits, choices, bitmask, edits), errors)
        if kept is not None:
            others = self._sample_told(kept, [draws[i] for i in told], bitmask)
            for i, other in zip(told, others, strict=True):
                drawn[i] = other
        return drawn

    def _edits(
        self, draws: Sequence[Draw], bitmask: Tensor | None, left_out: Collection[int]
    ) -> Edits | None:
        rows = [i for i in range(len(draws)) if i not in left_out]
        return edits_of(draws, rows, self.vocab_size, self.end_token_ids, bitmask)

    def _sample_told(
        self, logits: Tensor, draws: Sequence[Draw], bitmask: Tensor | None
    ) -> list[Drawn]:
        """`sample` where more than the token is told, or no chooser takes the logits."""
        errors = self._check_finite(logits) | _check_bias(draws, self.vocab_size)
        asked = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
        raw = torch.log_softmax(_rows(logits, asked), dim=-1) if asked else None
        weighed = [i for i, draw in enumerate(draws) if draw.wants_mass and i not in errors]
        free = self._without_mask(logits, draws, weighed) if weighed else None
        masked = bitmask is not None and _apply_masks(logits, draws, bitmask)
        self._edit(logits, self._edits(draws, bitmask, errors))
        if masked or any(map(is_short, draws)):
            errors = self._check_allowed(logits) | errors
        left = None if free is None else _tempered(logits, draws, weighed)
        self._edit(logits, weights_of(draws))
        token_ids = self._choose(logits, draws)
        masses: dict[int, TokenMass] = {}
        if free is not None and left is not None:
            chosen = token_masses(free, left, [token_ids[i] for i in weighed])
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

    def _edit(self, logits: Tensor, edits: Edits | None) -> None:
        if edits is not None:
            self._chooser.edit_logits_(logits, edits)

    def _without_mask(self, logits: Tensor, draws: Sequence[Draw], rows: Sequence[int]) -> Tensor:
        """Tempered copies [rows, vocab] of those rows, with every change but the mask's."""
        free = logits[torch.tensor(rows, device=logits.device)]
        self._edit(free, self._edits([draws[i] for i in rows], None, ()))
        return temper(free, [draws[i].sampling.temperature for i in rows])

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


def _is_told(draw: Draw) -> bool:
    """Whether more than the token is told of a draw, or its law is weighed."""
    return draw.sampling.logprobs is not None or bool(draw.weights) or draw.wants_mass


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


def as_drawn(
    chosen: Sequence[tuple[int, Outcome]], errors: Mapping[int, str] = MappingProxyType({})
) -> list[Drawn]:
    """Choices as draws; `errors` of single rows go before those of their choice."""
    return [
        Drawn(token_id, error=errors.get(i, _ERRORS[outcome]))
        for i, (token_id, outcome) in enumerate(chosen)
    ]


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
