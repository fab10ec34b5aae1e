"""Runs a step: the only one that touches the device. Keeps no state but weights and KV pages.

    launch    ScheduledBatch -> page copies -> one forward of all rows
    draw      (masks are filled)            -> log-probabilities of given tokens, draws
    collect                                 -> drafts verified -> StepResult

On a device with a queue of its own, launches and draws wait in it and `collect` is what waits for
them; elsewhere each is done when it returns. Every row's numbers are bitwise those it would have
alone: a step is a matter of speed only.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from radixgen.batch import RowResult, ScheduledBatch, ScheduledRow, StepResult, TokenMass
from radixgen.errors import InvalidRequest
from radixgen.kernels import sampling
from radixgen.model.attention import (
    Fed,
    StepLists,
    count_given,
    inputs_of,
    list_step,
)
from radixgen.model.chooser import Chooser
from radixgen.model.decoder import Decoder
from radixgen.model.device import inference, on_device
from radixgen.model.kv_cache import KVCache
from radixgen.model.plain_draws import draw_plain
from radixgen.model.sampler import (
    NOT_FINITE,
    Draw,
    Drawing,
    Drawn,
    Sampler,
    token_logprobs,
)
from radixgen.types import TokenLogprob

_TILE_ELEMENTS = 1 << 23  # logits held at once: 32 MiB of float32


@dataclass(slots=True, eq=False)
class Launched:
    """A step on its way through the device. `draw` fills in what comes after the first three."""

    output_ends: Sequence[int]  # of each row, the end of its outputs among all
    hidden: Tensor | None  # [outputs, hidden]; None: a step without rows
    logits: Tensor | None  # [outputs, vocab], if they came with the forward pass
    forward_seconds: float = 0.0
    draw_seconds: float = 0.0
    rows: Sequence[ScheduledRow] = ()
    given: Sequence[list[TokenLogprob] | str] = ()
    drawing: Drawing | None = None


class ModelRunner:
    """A decoder, its KV pages and a sampler. `end_token_ids` are what min_tokens holds back."""

    def __init__(self, decoder: Decoder, cache: KVCache, end_token_ids: Sequence[int] = ()) -> None:
        self.decoder = decoder
        self.cache = cache
        self.vocab_size = decoder.config.vocab_size
        self._sampler = Sampler(self.vocab_size, end_token_ids, _chooser(decoder))
        self._tile_rows = max(1, _TILE_ELEMENTS // self.vocab_size)
        self._drawn: tuple[Sequence[int], Drawing] = (), Drawing(list)  # last, and draws by row

    @property
    def overlaps(self) -> bool:
        """Whether a step is computed while the host goes on, so that the next may be launched
        before its tokens are known: on a GPU. The C kernels compute in the host's own threads."""
        return self.decoder.device.type == "cuda"

    @torch.inference_mode()
    def warm_up(self, most: int) -> None:
        """Compile and record what steps of up to `most` decodes need, where steps are launched."""
        if self.decoder.kernels == "triton":
            with on_device(self.decoder.device):
                self.decoder.launched_over(self.cache).warm_up(most)

    def run(
        self,
        batch: ScheduledBatch,
        bitmask: Tensor | np.ndarray | None = None,
        fill_mask: Callable[[], None] | None = None,
    ) -> StepResult:
        """Compute the step and draw its tokens.

        `bitmask`: int32 [mask rows, ceil(vocab / 32)], indexed by ScheduledRow.mask_row; bit 1
        allows a token. `fill_mask` fills it: it is called once the forward pass is launched, so on
        a device with a queue of its own the CPU fills masks meanwhile.

        Raises InvalidRequest for a batch that would reach outside pages, context or vocabulary;
        nothing has been computed then. What goes wrong in one row is that row's `error`.
        """
        with inference():
            launched = self._launch(batch)
            if fill_mask is not None and batch.rows:
                fill_mask()
            self._draw_rows(launched, batch.rows, bitmask)
            return self.collect(launched)

    def launch(self, batch: ScheduledBatch) -> Launched:
        """Begin a step: its copies and its forward pass. Raises as `run`.

        Rows that follow one of the step drawn last compute the token drawn there, on the device;
        where that is a GPU, nothing here waits for it.
        """
        with inference():
            return self._launch(batch)

    def _launch(self, batch: ScheduledBatch) -> Launched:
        started = time.perf_counter()
        with on_device(self.decoder.device):
            if not batch.rows:
                self.decoder.copy(batch.copies, self.cache)
                return Launched((), None, None)
            self._check_adapters(batch.rows)
            context = self.decoder.max_context
            lists = list_step(batch.rows, self.cache, self.vocab_size, context)
            self.decoder.copy(batch.copies, self.cache)
            hidden, logits = self._forward(batch.rows, lists, _only_draws(batch.rows))
        seconds = time.perf_counter() - started
        return Launched(lists.output_indptr[1:], hidden, logits, seconds)

    def _forward(
        self, rows: Sequence[ScheduledRow], lists: StepLists, want_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The hidden states [outputs, hidden] of a step, and its logits where they came with it."""
        fed = self._fed(rows)
        if fed is None and not any(row.lora for row in rows):
            done = self.decoder.step_of_lists(lists, self.cache, want_logits)
            if done is not None:
                return done
        inputs = inputs_of(rows, lists, self.cache.layout.form, fed)
        if fed is not None and self.decoder.kernels == "c":
            inputs.token_ids.index_copy_(0, fed.places, fed.drawn[fed.sources])
        return self.decoder.step(inputs, self.cache, want_logits=want_logits)

    def draw(
        self,
        launched: Launched,
        rows: Sequence[ScheduledRow],
        bitmask: Tensor | np.ndarray | None = None,
    ) -> None:
        """Draw the tokens of the step launched last, by `rows`: the batch's own, or what they have
        become since it was launched. Those that do not sample any more are passed over."""
        with inference():
            self._draw_rows(launched, rows, bitmask)

    def _draw_rows(
        self,
        launched: Launched,
        rows: Sequence[ScheduledRow],
        bitmask: Tensor | np.ndarray | None,
    ) -> None:
        ends, hidden = launched.output_ends, launched.hidden
        if hidden is None:
            return
        started = time.perf_counter()
        mask = torch.from_numpy(bitmask) if isinstance(bitmask, np.ndarray) else bitmask
        plain = self._draw_plain(rows, launched.logits, mask)
        if plain is not None:
            launched.rows, launched.given = rows, [[] for _ in rows]
            launched.drawing = Drawing(lambda: plain)
        else:
            with on_device(self.decoder.device):
                launched.rows, launched.given = rows, self._score(rows, ends, hidden)
                launched.drawing = self._draw(rows, ends, hidden, launched.logits, mask)
        counts = [row.num_drafts + 1 if row.sample else 0 for row in rows]
        self._drawn = counts, launched.drawing
        launched.draw_seconds = time.perf_counter() - started

    def collect(self, launched: Launched) -> StepResult:
        """What a launched and drawn step has come to."""
        if launched.drawing is None:
            return StepResult(())
        started = time.perf_counter()
        drawn = iter(launched.drawing.wait())
        results = []
        for row, scores in zip(launched.rows, launched.given, strict=True):
            draws = [next(drawn) for _ in range(row.num_drafts + 1)] if row.sample else []
            results.append(_verify(row, draws, scores))
        seconds = launched.draw_seconds + time.perf_counter() - started
        return StepResult(results, launched.forward_seconds, seconds)

    def _fed(self, rows: Sequence[ScheduledRow]) -> Fed | None:
        """Where tokens go that the step before has drawn, and where they are."""
        places, sources = list[int](), list[int]()
        position = 0
        for row in rows:
            if row.follows is not None:
                places.append(position)
                sources.append(row.follows)
            position += len(row.token_ids)
        if not places:
            return None
        counts, drawing = self._drawn
        ends = list(accumulate(counts))
        drawn = drawing.token_ids
        if drawn is None:
            known = [each.token_id for each in drawing.wait()]
            drawn = torch.tensor(known, device=self.decoder.device)
        at = torch.tensor([ends[source] - 1 for source in sources])
        return Fed(torch.tensor(places), at, drawn)

    def _check_adapters(self, rows: Sequence[ScheduledRow]) -> None:
        for row in rows:
            if row.lora and row.lora not in self.decoder.adapters:
                raise InvalidRequest(f"row {row.rid}#{row.index} names no adapter: {row.lora!r}")

    # ---- tokens to be drawn ----

    def _draw_plain(
        self, rows: Sequence[ScheduledRow], logits: Tensor | None, bitmask: Tensor | None
    ) -> list[Drawn] | None:
        """`_draw` where one C program has made the logits and rows ask for a token each."""
        if logits is None or self.decoder.kernels != "c" or self.decoder.peers is not None:
            return None
        return draw_plain(logits, rows, bitmask)

    def _draw(
        self,
        rows: Sequence[ScheduledRow],
        ends: Sequence[int],
        hidden: Tensor,
        logits: Tensor | None,
        bitmask: Tensor | None,
    ) -> Drawing:
        """For each sampling row, the draw after its last known token and after each draft.

        `logits`: those of all outputs; None: not computed yet.
        """
        draws: list[Draw] = []
        wanted: list[int] = []  # rows of `hidden`
        for row, end in zip(rows, ends, strict=True):
            if row.sample:
                draws += _draws_of(row)
                wanted += range(end - row.num_drafts - 1, end)
        if not draws:
            return Drawing(list)
        if logits is not None:
            if len(wanted) < logits.shape[0]:
                logits = _select(logits, wanted)
            return self._sampler.begin(logits, draws, bitmask)
        drawn: list[Drawn] = []
        for low in range(0, len(wanted), self._tile_rows):
            tile = slice(low, low + self._tile_rows)
            logits = self.decoder.logits(_select(hidden, wanted[tile]))
            drawn += self._sampler.sample(logits, draws[tile], bitmask)
        return Drawing(lambda: drawn)

    # ---- log-probabilities of given tokens ----

    def _score(
        self, rows: Sequence[ScheduledRow], ends: Sequence[int], hidden: Tensor
    ) -> list[list[TokenLogprob] | str]:
        """For each row the log-probabilities of its given tokens, or why there are none."""
        if all(row.logprobs_from is None for row in rows):
            return [[] for _ in rows]
        wanted: list[int] = []  # rows of `hidden`: predecessors
        token_ids: list[int] = []
        num_top: list[int] = []
        counts: list[int] = []
        for row, end in zip(rows, ends, strict=True):
            given = _given_tokens(row)
            # Scored by the predecessors: the last token's own successor is next_id, or unknown.
            last = end if row.next_id is not None else end - 1
            wanted += range(last - len(given), last)
            token_ids += given
            num_top += [row.num_top_logprobs] * len(given)
            counts.append(len(given))
        found: list[TokenLogprob] = []
        broken: set[int] = set()
        for low in range(0, len(wanted), self._tile_rows):
            tile = slice(low, low + self._tile_rows)
            logits = self.decoder.logits(_select(hidden, wanted[tile]))
            finite = torch.isfinite(logits.amax(dim=-1))
            broken.update((~finite).nonzero().flatten().add(low).tolist())
            logprobs = torch.log_softmax(logits, dim=-1)
            found += token_logprobs(logprobs, token_ids[tile], num_top[tile])
        return _split(found, counts, broken)


def _chooser(decoder: Decoder) -> Chooser:
    if decoder.kernels == "c":
        return sampling
    from radixgen.model.triton_sampler import TritonChooser

    return TritonChooser(decoder.device)


def _only_draws(rows: Sequence[ScheduledRow]) -> bool:
    """Whether every output of these rows is drawn from, and none is scored."""
    return all(row.logprobs_from is None for row in rows) and any(row.sample for row in rows)


def _given_tokens(row: ScheduledRow) -> list[int]:
    """The tokens at the last positions of a row, next_id included, that are to be scored."""
    count = count_given(row)
    if count == 0:
        return []
    if row.next_id is None:
        return list(row.token_ids[-count:])
    return [*row.token_ids[len(row.token_ids) - count + 1 :], row.next_id]


def _draws_of(row: ScheduledRow) -> list[Draw]:
    known = len(row.token_ids) - row.num_drafts
    drafts = list(row.token_ids[known:])
    return [
        Draw(
            row.sampling,
            row.seed,
            row.start + known + i,
            row.prompt_ids,
            [*row.output_ids, *drafts[:i]] if i else row.output_ids,
            None if row.mask_row is None else row.mask_row + i,
            row.weights,
        )
        for i in range(row.num_drafts + 1)
    ]


def _verify(
    row: ScheduledRow, draws: Sequence[Drawn], given: list[TokenLogprob] | str
) -> RowResult:
    """Accept drafts while the draw at their position equals them; then the draw itself.

    The draw at a position is a function of logits, seed and position, so what is accepted is what
    would have been drawn one by one, at any temperature.
    """
    if isinstance(given, str):
        return RowResult(error=given)
    drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    masses: list[TokenMass] = []
    for i, draw in enumerate(draws):
        if draw.error is not None:
            return RowResult(error=draw.error)
        token_ids.append(draw.token_id)
        if draw.logprob is not None:
            logprobs.append(draw.logprob)
        if draw.mass is not None:
            masses.append(draw.mass)
        if i < row.num_drafts and draw.token_id != drafts[i]:
            break
    return RowResult(token_ids, logprobs, given, tuple(masses))


def _select(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    return hidden[torch.tensor(rows, device=hidden.device)]


def _split(
    found: Sequence[TokenLogprob], counts: Sequence[int], broken: set[int]
) -> list[list[TokenLogprob] | str]:
    parts: list[list[TokenLogprob] | str] = []
    low = 0
    for count in counts:
        cells = range(low, low + count)
        parts.append(NOT_FINITE if broken.intersection(cells) else list(found[low : low + count]))
        low += count
    return parts
