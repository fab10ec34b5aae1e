"""In which order waiting sequences enter. Knows requests and what is believed cached, no pages.

A queue answers `peek` in O(log n) at any length; what changes with time is kept out of its keys, or
confined to the comparison of a few dozen heads.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Protocol

from radixgen.config import ScheduleConfig
from radixgen.schedule.marks import Mark, Marks
from radixgen.schedule.request import SequenceState

Key = tuple[float, ...]  # the smallest enters first
AGEING_TOKENS: Final = 256  # work that one second of waiting outweighs in lpm and sjf, at ageing 1
LATE_SHARE: Final = 0.9  # of the work that enters, what may go to those who waited too long
MAX_CREDIT: Final = 4096  # tokens of work that those may save up
PATIENCE: Final = 0.8  # of the longest wait of late in order of arrival
FORGETTING: Final = 8.0  # seconds in which a long wait of the past counts one second less
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

    def enter(self, sequence: SequenceState) -> None:
        """Remove a sequence whose turn it was."""

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

    def enter(self, sequence: SequenceState) -> None:
        self.discard(sequence)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._heap)


class FairQueue:
    """Highest response ratio next: (1 + wait / service), doubled for each step of priority; but
    nearly all of the work may go to those who would have waited less in order of arrival.

    Service is the uncached part of the known tokens plus a share of what may be generated, so what
    is cached or short goes first, and whatever waits grows. Sequences of about the same service
    (within 2**(1/4)) share a bucket; inside one the ratio and the wait are highest for the earliest
    arrival, so only the buckets' heads are compared. Source of the ratio: Brinch Hansen 1971. Alone
    it lets large requests wait far longer than first come first served would; the bound against
    that is our own (see `Backlog`), and leaves a tenth to the ratio so that under overload,
    when everybody waits too long, the cache is still made use of.
    """

    uses_matches = True
    holds_twins = True

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], LazyHeap] = {}
        self._place: dict[SequenceState, tuple[tuple[int, int], int]] = {}  # bucket, service
        self._backlog = Backlog()
        self._credit = 0.0  # tokens of work that may go to those who waited too long
        self._late: SequenceState | None = None  # that `peek` last preferred for its wait

    def push(self, sequence: SequenceState) -> None:
        self.discard(sequence)
        request, service = sequence.request, service_tokens(sequence)
        bucket = (request.priority, int(4 * math.log2(service)))
        self._place[sequence] = bucket, service
        self._backlog.add(request.order, request.arrival, service)
        heap = self._buckets.get(bucket)
        if heap is None:
            heap = self._buckets[bucket] = LazyHeap()
        heap.push((request.arrival, request.order, sequence.index), sequence)

    def discard(self, sequence: SequenceState) -> None:
        place = self._place.pop(sequence, None)
        if place is None:
            return
        bucket, service = place
        self._backlog.remove(service)
        heap = self._buckets[bucket]
        heap.forget(sequence)
        if not len(heap):
            del self._buckets[bucket]

    def peek(self, now: float) -> SequenceState | None:
        best, best_ratio = None, -1.0
        self._late, longest = None, self._backlog.patience(now)
        for heap in self._buckets.values():
            head = heap.first()
            if head is None:
                continue
            if (ratio := response_ratio(head, self._place[head][1], now)) > best_ratio:
                best, best_ratio = head, ratio
            wait = (now - head.request.arrival) * _weight(head)
            if self._credit > 0 and wait > longest:
                self._late, longest = head, wait
        return best if self._late is None else self._late

    def enter(self, sequence: SequenceState) -> None:
        _, service = self._place[sequence]
        if sequence is self._late:
            self._credit -= service
        else:
            earned = service * LATE_SHARE / (1 - LATE_SHARE)
            self._credit = min(self._credit + earned, MAX_CREDIT)
        self.discard(sequence)

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._place)


class Backlog:
    """How long the next to enter would have waited had all entered in order of arrival.

    The order changes who waits, not how much work does. First come first served would have the
    latest arrivals waiting, as many as make up the work that waits now; the first of those tells
    how long its wait is.
    """

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, float]] = deque()  # work that arrived before, when
        self._arrived = 0.0
        self._waiting = 0.0
        self._last_order = -1
        self._longest = 0.0
        self._seen = 0.0

    def add(self, order: int, arrival: float, work: float) -> None:
        if order > self._last_order:
            self._last_order = order
            self._arrivals.append((self._arrived, arrival))
            self._arrived += work
        self._waiting += work

    def remove(self, work: float) -> None:
        self._waiting -= work

    def patience(self, now: float) -> float:
        """Seconds after which somebody has waited too long: what the wait would be now in order of
        arrival, or nearly what it was at the longest of late."""
        done = self._arrived - self._waiting
        while len(self._arrivals) > 1 and self._arrivals[1][0] <= done:
            self._arrivals.popleft()
        wait = now - self._arrivals[0][1] if self._waiting > 0 else 0.0
        self._longest = max(wait, self._longest - (now - self._seen) / FORGETTING)
        self._seen = now
        return max(wait, PATIENCE * self._longest)


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
        self._resumed: deque[Mark] = deque()

    def push(self, sequence: SequenceState) -> None:
        if sequence not in self._ready:
            self._ready[sequence] = mark = self._marks.enrol(sequence)
            self._count(sequence, 1)
            if sequence.matched:  # it was held until its prefix was there: the walk goes on here
                self._resumed.append(mark)

    def discard(self, sequence: SequenceState) -> None:
        if sequence in self._ready:
            self._count(sequence, -1)
            self._last = self._ready.pop(sequence)

    def _count(self, sequence: SequenceState, change: int) -> None:
        mark: Mark | None = self._ready[sequence]
        while mark is not None:
            mark.num_ready += change
            mark = mark.parent

    def enter(self, sequence: SequenceState) -> None:
        self.discard(sequence)

    def peek(self, now: float) -> SequenceState | None:
        while self._resumed and not self._resumed[0].num_ready:
            self._resumed.popleft()
        mark = self._resumed[0] if self._resumed else self._last
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


def response_ratio(sequence: SequenceState, service: int, now: float) -> float:
    """1 + wait / service, service at a thousand tokens a second, weighted by priority."""
    request = sequence.request
    ratio = 1.0 + 1000.0 * max(now - request.arrival, 0.0) / service
    return ratio * _weight(sequence)


def _weight(sequence: SequenceState) -> float:
    return 2.0 ** max(min(sequence.request.priority, 64), -64)


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
