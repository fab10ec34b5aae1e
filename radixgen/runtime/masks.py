"""Writes a step's mask: all its rows in one call, beside the forward pass where that pays.

    masks of a step ─▶ one matcher a row, forks for what follows a draft ─▶ one call ─▶ bitmask

Rows without a constraint have no row here and cost nothing. Knows matchers and numpy; no tensors.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np
from numpy.typing import NDArray

from radixgen.grammars.matcher import GrammarMatcher, fill_bitmasks
from radixgen.schedule.step import MaskRequest

Bitmask = NDArray[np.int32]
LONG = 0.0005  # seconds that masks took of late from which a thread of their own is worth waking
_KEPT = 0.8  # of those seconds, with each further step


def fill_masks(masks: Sequence[MaskRequest], bitmask: Bitmask) -> None:
    """Write every row of a step's mask. bitmask: [rows, ceil(vocab / 32)] int32, bit 1 = allowed

    Behind a draft that does not fit anything goes: the draw before it cannot equal a draft that its
    mask forbids, so none is looked at.
    """
    if len(masks) == 1 and not masks[0].drafts:  # one row takes no lists
        (mask,) = masks
        mask.matcher.fill_bitmask(bitmask, mask.row, mask.budget)
        return
    matchers: list[GrammarMatcher] = []
    rows: list[int] = []
    budgets: list[int | None] = []
    for mask in masks:
        matcher = mask.matcher
        if not isinstance(matcher, GrammarMatcher):
            assert not mask.drafts, "only grammars follow drafts"
            matcher.fill_bitmask(bitmask, mask.row, mask.budget)
            continue
        path = _path(matcher, mask.drafts)
        matchers += path
        rows += range(mask.row, mask.row + len(path))
        left = mask.budget
        budgets += [None if left is None else left - place for place in range(len(path))]
        if mask.drafts:
            bitmask[mask.row + len(path) : mask.row + 1 + len(mask.drafts)] = -1
    fill_bitmasks(matchers, bitmask, rows, budgets)


def _path(matcher: GrammarMatcher, drafts: Sequence[int]) -> list[GrammarMatcher]:
    """The matcher and, after each draft that fits, a fork of it: what goes wrong on a way not taken
    is not the sequence's fault."""
    path = [matcher]
    for draft in drafts:
        matcher = matcher.fork()
        if not matcher.accept_token(draft):
            break
        path.append(matcher)
    return path


class MaskWriter:
    """Fills masks when a runner asks for them, or in a thread while the forward pass runs.

    The native calls of both leave the interpreter free, so the two run side by side. A hand-over to
    a thread costs more than a mask whose states were seen before; new grammars cost milliseconds a
    row. So the thread is used while masks have taken `LONG` of late.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds = 0.0  # that a step's masks take, smoothed
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._room: Bitmask = np.empty((0, 0), np.int32)

    def room(self, masks: Sequence[MaskRequest], vocab_size: int) -> Bitmask:
        """Where a step's mask may be written: [rows of `masks`, ceil(vocab_size / 32)] int32.

        The same array as the last time where that fits, since finding the address of another costs
        more than a mask: nobody may read the last step's mask any more.
        """
        num_rows = sum(1 + len(mask.drafts) for mask in masks)
        shape = num_rows, -(-vocab_size // 32)
        if self._room.shape != shape:
            self._room = np.empty(shape, np.int32)
        return self._room

    def begin(self, masks: Sequence[MaskRequest], bitmask: Bitmask) -> Callable[[], None]:
        """What returns once the mask is written. Nothing else may use the matchers until `end`."""
        fill = partial(self._fill, masks, bitmask)
        if self.seconds < LONG:
            return fill
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixgen masks")
        self._pending = self._thread.submit(fill)
        return self._pending.result

    def end(self) -> None:
        """The step is over, however it ended: no thread writes its mask any more."""
        pending, self._pending = self._pending, None
        if pending is not None:
            wait((pending,))

    def _fill(self, masks: Sequence[MaskRequest], bitmask: Bitmask) -> None:
        started = self._clock()
        fill_masks(masks, bitmask)
        self.seconds = _KEPT * self.seconds + (1 - _KEPT) * (self._clock() - started)
