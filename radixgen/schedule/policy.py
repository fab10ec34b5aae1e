"""In which order waiting sequences enter. Knows requests and what is believed cached, no pages.

A queue answers `peek` in O(log n) at any length; what changes with time is kept out of its keys, or
confined to the comparison of a few dozen heads.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Protocol

from radixgen.config import ScheduleConfig
from radixgen.schedule.marks import Mark, Marks
from radixgen.schedule.request import SequenceState

Key = tuple[float, ...]  # the smallest enters first
AGEING_TOKENS: Final = 256  # work that one second of waiting outweighs in lpm and sjf, at ageing 1
_tickets = count(1)


class WaitQueue(Protocol):
    """Waiting sequences in the order of a policy."""

    uses_matches: bool  # the order depends on `matched`
    holds_twins: bool  # a sequence waits while another computes the prefix it needs

    def push(self, sequence: SequenceState) -> None:
        """Add a sequence, or give one that is here its new place (`matched` has changed)."""

    def discard(self, sequence: SequenceState) -> None:
        """Remove a sequence, if it is here."""

    def peek(self, now: float) -> SequenceState | None:
        """The next to enter; it stays."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[SequenceState]: ...


class LazyHeap:
    """A heap whose removed entries are skipped when they surface.

    A sequence's `ticket` names its one true entry, in whichever heap that is.
    """

    __slots__ = ("_entries", "_num_true")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, int, SequenceState]] = []
        self._num_true = 0

    def __len__(self) -> int:
        return self._num_true

    def __iter__(self) -> Iterator[SequenceState]:
        return (seq for _, ticket, seq in self._entries if seq.ticket == ticket)

    def push(self, key: Key, sequence: SequenceState) -> None:
        sequence.ticket = next(_tickets)
        heapq.heappush(self._entries, (key, sequence.ticket, sequence))
        self._num_true += 1

    def forget(self, sequence: SequenceState) -> None:
        """The sequence's entry, known to be here, is no longer true."""
        sequence.ticket = 0
        self._num_true -= 1
        if len(self._entries) > 64 and len(self._entries) > 4 * self._num_true:
            self._entries = [entry for entry in self._entries if entry[2].ticket == entry[1]]
            heapq.heapify(self._entries)

    def first(self) -> SequenceState | None:
        entries = self._entries
        while entries:
            _, ticket, sequence = entries[0]
            if sequence.ticket == ticket:
                return sequence
            heapq.heappop(entries)
        return None


class KeyedQueue:
    """Orders by a key that waiting does not change."""

    def __init__(
        self, key: Callable[[SequenceState], Key], *, uses_matches: bool, holds_twins: bool
    ) -> None:
        self._key = key
        self._heap = LazyHeap()
        self.uses_matches = uses_matches
        self.holds_twins = holds_twins

    def push(self, sequence: SequenceState) -> None:
        self.discard(sequence)
        self._heap.push(self._key(sequence), sequence)

    def discard(self, sequence: SequenceState) -> None:
        if sequence.ticket:
            self._heap.forget(sequence)

    def peek(self, now: float) -> SequenceState | None:
        return self._heap.first()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._heap)


class FairQueue:
    """Highest response ratio next: (1 + wait / service), doubled for each step of priority.

    Service is the uncached part of the known tokens plus a share of what may be generated, so what
    is cached or short goes first, and whatever waits long enough goes first in the end. Sequences
    of about the same service (within 2**(1/4)) share a bucket; inside one the ratio is highest for
    the earliest arrival, so only the buckets' heads are compared. Source: Brinch Hansen 1971.
    """

    uses_matches = True
    holds_twins = True

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], LazyHeap] = {}
        self._bucket_of: dict[SequenceState, tuple[int, int]] = {}

    def push(self, sequence: SequenceState) -> None:
        self.discard(sequence)
        bucket = (sequence.request.priority, int(4 * math.log2(service_tokens(sequence))))
        self._bucket_of[sequence] = bucket
        heap = self._buckets.get(bucket)
        if heap is None:
            heap = self._buckets[bucket] = LazyHeap()
        request = sequence.request
        heap.push((request.arrival, request.order, sequence.index), sequence)

    def discard(self, sequence: SequenceState) -> None:
        bucket = self._bucket_of.pop(sequence, None)
        if bucket is None:
            return
        heap = self._buckets[bucket]
        heap.forget(sequence)
        if not len(heap):
            del self._buckets[bucket]

    def peek(self, now: float) -> SequenceState | None:
        best, best_ratio = None, -1.0
        for heap in self._buckets.values():
            head = heap.first()
            if head is not None and (ratio := response_ratio(head, now)) > best_ratio:
                best, best_ratio = head, ratio
        return best

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._bucket_of)


class DfsQueue:
    """Depth first through the tree of prompts, heavier subtrees first.

    The next to enter shares the longest prefix with the last that did. With a cache as large as the
    longest request this computes each edge of the tree once, which no order beats (Zheng et al.
    2024, theorem 3.1). It knows no fairness: a measure for the other orders.
    """

    uses_matches = False
    holds_twins = True

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._ready: dict[SequenceState, Mark] = {}
        self._last: Mark | None = None

    def push(self, sequence: SequenceState) -> None:
        if sequence not in self._ready:
            self._ready[sequence] = self._marks.enrol(sequence)
            self._count(sequence, 1)

    def discard(self, sequence: SequenceState) -> None:
        if sequence in self._ready:
            self._count(sequence, -1)
            self._last = self._ready.pop(sequence)

    def _count(self, sequence: SequenceState, change: int) -> None:
        mark: Mark | None = self._ready[sequence]
        while mark is not None:
            mark.num_ready += change
            mark = mark.parent

    def peek(self, now: float) -> SequenceState | None:
        mark = self._last
        while mark is not None and not mark.num_ready:
            mark = mark.parent
        if mark is None:
            mark = max(self._marks.roots(), key=_num_ready, default=None)
        while mark is not None and mark.num_ready:
            for sequence in mark.members:
                if sequence in self._ready:
                    return sequence
            mark = max(mark.children.values(), key=_num_ready)
        return None

    def __len__(self) -> int:
        return len(self._ready)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._ready)


def _num_ready(mark: Mark) -> int:
    return mark.num_ready


def service_tokens(sequence: SequenceState) -> int:
    """Work until the sequence is done, in prefilled tokens: a decoded token counts the same, but
    only up to 64 of them, since most stop long before their limit."""
    limit = sequence.request.sampling.max_tokens
    outputs = 64 if limit is None else min(limit - len(sequence.outputs), 64)
    return max(sequence.num_known - sequence.matched, 1) + max(outputs, 0)


def response_ratio(sequence: SequenceState, now: float) -> float:
    """1 + wait / service, service at a thousand tokens a second, weighted by priority."""
    request = sequence.request
    ratio = 1.0 + 1000.0 * max(now - request.arrival, 0.0) / service_tokens(sequence)
    return ratio * 2.0 ** max(min(request.priority, 64), -64)


def make_queue(config: ScheduleConfig, marks: Marks) -> WaitQueue:
    """The queue of a policy; `marks` holds the prompts that `dfs` walks through."""
    ageing = config.ageing

    def fcfs(seq: SequenceState) -> Key:
        return (seq.request.order, seq.index)

    def priority(seq: SequenceState) -> Key:
        """priority + ageing * wait falls behind by the same amount for everyone each second."""
        request = seq.request
        return (ageing * request.arrival - request.priority, request.order, seq.index)

    def sjf(seq: SequenceState) -> Key:
        request, limit = seq.request, seq.request.sampling.max_tokens
        work = seq.num_known - seq.matched + (limit or 0)
        return (work + ageing * AGEING_TOKENS * request.arrival, request.order, seq.index)

    def lpm(seq: SequenceState) -> Key:
        request = seq.request
        return (
            ageing * AGEING_TOKENS * request.arrival - seq.matched,
            request.order,
            seq.index,
        )

    match config.policy:
        case "fcfs":
            return KeyedQueue(fcfs, uses_matches=False, holds_twins=False)
        case "priority":
            return KeyedQueue(priority, uses_matches=False, holds_twins=False)
        case "sjf":
            return KeyedQueue(sjf, uses_matches=True, holds_twins=False)
        case "lpm":
            return KeyedQueue(lpm, uses_matches=True, holds_twins=True)
        case "dfs":
            return DfsQueue(marks)
        case "fair":
            return FairQueue()
