"""A scheduler, a model of hashes to drive it with, and what to expect of them."""

import hashlib
import random
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixgen.batch import RowResult, ScheduledBatch, ScheduledRow, StepResult
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.messages import RequestFailed, RequestFinished, ScoreOutput, ScoreRequest
from radixgen.runtime.engine import Engine
from radixgen.runtime.overlap import OverlappedEngine
from radixgen.schedule.request import Event, Request, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import SamplingParams, TokenLogprob

# ---- a model of hashes, for driving the scheduler ----


def _digest(*values: int) -> int:
    data = struct.pack(f"<{len(values)}q", *values)
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")


@dataclass(slots=True)
class HashedStep:
    """A step of `HashModel` on its way."""

    rows: Sequence[ScheduledRow]
    kvs: list[list[int]]  # of each row, when it was computed
    results: list[RowResult] = field(default_factory=list)


class HashModel:
    """Stands where the model runner does: its "KV" of a position depends on every token before it,
    and the next token on every KV it finds in the sequence's pages. One page wrong, stale or
    overwritten, and the output differs from `expect_tokens`."""

    def __init__(self, page_size: int, vocab_size: int) -> None:
        self.page_size = page_size
        self.vocab_size = vocab_size
        self.kv: dict[tuple[int, int], int] = {}
        self.plain: dict[tuple[int, int], int] = {}  # where pages are of few bits
        self.drawn: list[list[int]] = []  # by row, of the last step

    def run(
        self,
        batch: ScheduledBatch,
        bitmask: "NDArray[np.int32] | None" = None,
        fill_mask: Callable[[], None] | None = None,
    ) -> StepResult:
        launched = self.launch(batch)
        if fill_mask is not None:
            fill_mask()
        self.draw(launched, batch.rows, bitmask)
        return self.collect(launched)

    def launch(self, batch: ScheduledBatch) -> "HashedStep":
        sources = {copy.source for copy in batch.copies}
        targets = {copy.target for copy in batch.copies}
        assert sources.isdisjoint(targets), "the order of copies would matter"
        assert len(targets) == len(batch.copies), "two copies into one page"
        for copy in batch.copies:
            assert 0 < copy.num_tokens < self.page_size
            kv = self.plain if any(row.plain_ids for row in batch.rows) else self.kv
            for slot in range(copy.num_tokens):
                kv[copy.target, slot] = kv[copy.source, slot]
        rows = [self._fed(row) for row in batch.rows]
        written: set[int] = set()
        for row in rows:
            mine = self._write_plain(row) if row.plain_ids else self._write(row)
            assert written.isdisjoint(mine), "two rows write one page"
            written |= mine
        ends = [row.start + len(row.token_ids) for row in rows]
        kvs = [
            [self._read(row, position) for position in range(end)]
            for row, end in zip(rows, ends, strict=True)
        ]
        return HashedStep(rows, kvs)

    def _fed(self, row: ScheduledRow) -> ScheduledRow:
        """The row with the token that the step before has drawn, if it follows one."""
        if row.follows is None:
            return row
        assert len(row.token_ids) == 1
        return replace(row, token_ids=self.drawn[row.follows])

    def draw(
        self,
        launched: "HashedStep",
        rows: Sequence[ScheduledRow],
        bitmask: "NDArray[np.int32] | None" = None,
    ) -> None:
        for row, computed in zip(rows, launched.rows, strict=True):
            if row.sample or row.follows is None:
                assert list(row.token_ids) == list(computed.token_ids), "computed for another"
                assert row.follows is None, "still unknown"
        launched.results = [
            self._answer(row, kv, bitmask) for row, kv in zip(rows, launched.kvs, strict=True)
        ]
        self.drawn = [list(result.token_ids[-1:]) or [0] for result in launched.results]

    def collect(self, launched: "HashedStep") -> StepResult:
        return StepResult(launched.results)

    def _slot(self, row: ScheduledRow, position: int) -> tuple[int, int]:
        return row.page_ids[position // self.page_size], position % self.page_size

    def _write(self, row: ScheduledRow) -> set[int]:
        assert row.token_ids, "an empty row"
        end = row.start + len(row.token_ids)
        assert len(row.page_ids) == -(-end // self.page_size)
        before = self.kv[self._slot(row, row.start - 1)] if row.start else 0
        for position, token in enumerate(row.token_ids, start=row.start):
            before = self.kv[self._slot(row, position)] = _digest(before, token)
        return {row.page_ids[p // self.page_size] for p in range(row.start, end)}

    def _write_plain(self, row: ScheduledRow) -> set[int]:
        """Tokens go to plain pages; those that are full then, to the pages of few bits, which hold
        their tokens' KV plus one, so that one read for the other shows."""
        size, first = self.page_size, row.start // self.page_size
        end = row.start + len(row.token_ids)
        assert len(row.page_ids) == first + len(row.plain_ids) == -(-end // size)
        before = 0
        for position in range(end):
            plain = row.plain_ids[max(position // size - first, 0)], position % size
            if position >= row.start:
                before = self.plain[plain] = _digest(before, row.token_ids[position - row.start])
            else:
                before = self._read(row, position)
        for page in range(first, end // size):
            for slot in range(size):
                code = self.plain[row.plain_ids[page - first], slot] + 1
                self.kv[row.page_ids[page], slot] = code
        return {*row.page_ids[first:]} | {~page for page in row.plain_ids}

    def _read(self, row: ScheduledRow, position: int) -> int:
        first = row.start // self.page_size
        if not row.plain_ids:
            return self.kv[self._slot(row, position)]
        if position // self.page_size < first:
            return self.kv[self._slot(row, position)] - 1
        plain = row.plain_ids[position // self.page_size - first]
        return self.plain[plain, position % self.page_size]

    def _answer(
        self, row: ScheduledRow, kv: list[int], bitmask: "NDArray[np.int32] | None" = None
    ) -> RowResult:
        end = len(kv)
        tokens: list[int] = []
        if row.sample:
            first = end - row.num_drafts
            for known in range(first, end + 1):
                drawn = _digest(*kv[:known], row.seed) % self.vocab_size
                if row.mask_row is not None and bitmask is not None:
                    drawn = _next_allowed(bitmask[row.mask_row + known - first], drawn)
                tokens.append(drawn)
                if known < end and tokens[-1] != row.token_ids[known - row.start]:
                    break
        return RowResult(tokens, given_logprobs=self._given(row, kv, end))

    def _given(self, row: ScheduledRow, kv: list[int], end: int) -> list[TokenLogprob]:
        if row.logprobs_from is None:
            return []
        positions = range(max(row.logprobs_from, row.start + 1), end)
        pairs = [(p, row.token_ids[p - row.start]) for p in positions]
        if row.next_id is not None:
            pairs.append((end, row.next_id))
        return [TokenLogprob(token, hash_logprob(kv[:p], token)) for p, token in pairs]


def _next_allowed(words: "NDArray[np.int32]", token_id: int) -> int:
    """The first allowed token from `token_id` on, around the end."""
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert len(allowed), "the mask allows nothing"
    return int(allowed[np.searchsorted(allowed, token_id) % len(allowed)])


def hash_kv(token_ids: Iterable[int]) -> list[int]:
    """What `HashModel` keeps for each position of a sequence."""
    kv = [0]
    for token in token_ids:
        kv.append(_digest(kv[-1], token))
    return kv[1:]


def hash_logprob(kv: Sequence[int], token_id: int) -> float:
    return -(_digest(*kv, token_id) % 1000) / 100


def expect_tokens(prompt: Sequence[int], seed: int, count: int, vocab_size: int) -> list[int]:
    """What `HashModel` draws after a prompt, without any cache."""
    kv = hash_kv(prompt)
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(_digest(*kv, seed) % vocab_size)
        kv.append(_digest(kv[-1], tokens[-1]))
    return tokens


def drive(scheduler: Scheduler, model: HashModel, max_steps: int = 10_000) -> list[Event]:
    """Step until there is no work; returns every event in order."""
    events: list[Event] = []
    for _ in range(max_steps):
        if not scheduler.has_work:
            return events
        batch = scheduler.schedule()
        if batch is None:
            events += scheduler.take_events()
        else:
            assert batch.num_tokens <= scheduler.config.max_step_tokens
            events += scheduler.update(batch, model.run(batch))
    raise AssertionError(f"still busy after {max_steps} steps")


def tokens_of(events: Iterable[Event]) -> dict[tuple[str, int], list[int]]:
    """Output tokens of each choice, in order."""
    found: dict[tuple[str, int], list[int]] = {}
    for event in events:
        if isinstance(event, SequenceOutput):
            found.setdefault((event.rid, event.index), []).extend(event.token_ids)
    return found


def terminals_of(
    events: Iterable[Event],
) -> dict[str, RequestFinished | RequestFailed | ScoreOutput]:
    """The terminal event of each request; a second one fails."""
    found: dict[str, RequestFinished | RequestFailed | ScoreOutput] = {}
    for event in events:
        if not isinstance(event, SequenceOutput):
            assert event.rid not in found, f"{event.rid} ended twice"
            found[event.rid] = event
        else:
            assert event.rid not in found, f"{event.rid} goes on after its end"
    return found


def ids(*token_ids: int) -> "array[int]":
    return array("i", token_ids)


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


VOCAB = 5000
PAGE = 4


def make(
    num_pages: int = 64,
    *,
    config: ScheduleConfig | None = None,
    clock: FakeClock | None = None,
    max_context: int = 200,
    cache: RadixCache | None = None,
    **options: Any,
) -> tuple[Scheduler, HashModel]:
    scheduler = Scheduler(
        config or ScheduleConfig(policy="fcfs", max_step_tokens=32, max_running=8),
        cache or RadixCache(PagePool(num_pages), PAGE),
        max_context=max_context,
        vocab_size=VOCAB,
        clock=clock or FakeClock(),
        rng=random.Random(0),
        check=True,
        **options,
    )
    return scheduler, HashModel(PAGE, VOCAB)


def prompt_of(length: int, seed: int = 0) -> "array[int]":
    rng = random.Random(seed)
    return array("i", [rng.randrange(VOCAB) for _ in range(length)])


def ask(
    rid: str, prompt: Sequence[int], max_tokens: int | None = 8, seed: int = 7, **options: Any
) -> Request:
    priority = options.pop("priority", 0)
    return Request(
        rid,
        array("i", prompt),
        SamplingParams(max_tokens=max_tokens, seed=seed, **options),
        priority=priority,
    )


def expect_empty(scheduler: Scheduler) -> None:
    """Nothing is left behind: no request, no held page, no lock, no mark."""
    scheduler.check()
    assert not scheduler.requests
    assert not scheduler.planner.running
    assert not scheduler.planner.started
    assert len(scheduler.planner.marks) == 0
    assert len(scheduler.planner.queue) == 0
    assert scheduler.cache.pool.num_held == 0
    assert scheduler.cache.num_protected == 0
    scheduler.flush_cache()
    assert scheduler.cache.pool.num_free == scheduler.cache.pool.num_pages


def take_step(scheduler: Scheduler, model: HashModel) -> tuple[ScheduledBatch, StepResult]:
    """Plan and compute one step, to be taken in by `update`."""
    batch = scheduler.schedule()
    assert batch is not None
    return batch, model.run(batch)


def score(prefix: Sequence[int], continuations: list[list[int]]) -> Request:
    message = ScoreRequest("s", len(prefix), tuple(len(c) for c in continuations))
    return Request.from_score(message, [*prefix, *(t for c in continuations for t in c)])


def drive_engine(engine: Engine) -> list[Event]:
    """Step until every request has ended, waiting where grammars compile; returns every event."""
    events: list[Event] = []
    deadline = time.monotonic() + 60
    while engine.scheduler.requests:
        assert time.monotonic() < deadline, "still busy"
        if engine.has_work:
            events += engine.step()
        else:
            time.sleep(0.001)
    return events


class Queued:
    """Does what a runner does in a thread of its own, one thing after the other, as a GPU does:
    launching and drawing return at once, and collecting waits for the draws alone."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.num_launched = 0
        self.when_launched: dict[int, Callable[[], object]] = {}  # by number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")

    def launch(self, batch: ScheduledBatch) -> "QueuedStep":
        self.num_launched += 1
        self.when_launched.get(self.num_launched, bool)()
        return QueuedStep(self._thread.submit(self.runner.launch, batch))

    def draw(
        self, launched: "QueuedStep", rows: Sequence[ScheduledRow], bitmask: Any = None
    ) -> None:
        def draw() -> None:
            self.runner.draw(launched.forward.result(), rows, bitmask)

        launched.draws = self._thread.submit(draw)

    def collect(self, launched: "QueuedStep") -> StepResult:
        assert launched.draws is not None
        launched.draws.result(60)
        found: StepResult = self.runner.collect(launched.forward.result())
        return found

    def run(self, batch: ScheduledBatch, bitmask: Any = None, fill_mask: Any = None) -> StepResult:
        raise AssertionError("waits for every step")


@dataclass(slots=True)
class QueuedStep:
    forward: "Future[Any]"
    draws: "Future[None] | None" = None


def overlapped(engine: Engine) -> OverlappedEngine:
    """The same engine over a device with a queue of its own. The old one is not to be used."""
    return OverlappedEngine(
        engine.scheduler,
        Queued(engine.runner),
        engine.grammars,
        engine._drafter,
        engine._special,
        adapters=engine._adapters,
    )
