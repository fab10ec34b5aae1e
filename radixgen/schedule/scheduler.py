"""Decides what each step computes. The one writer of requests; knows no tensors and no sockets.

One rule: a sequence has known tokens and computed tokens, and a step hands out a budget of tokens
so that the second catch up with the first. Chunked prefill, prefix hits, drafts, forks and return
after preemption are all this rule. A step is filled in this order:

    1. every decoding sequence: one token, more with drafts       never stalled by a prefill
    2. unfinished prefills, oldest first: what is left of the budget
    3. waiting sequences, in the policy's order, while budget and pages last

`schedule` plans a step, the runner computes it, `update` takes in what came of it. While it is
computed `schedule_ahead` may plan the next (ahead.py), whose draws `resume` completes after that
`update`. Pages go once no step uses them. Every request gets exactly one terminal event, whatever
happens.
"""

import random
import time
from collections.abc import Callable, Sequence

from radixgen.batch import RowResult, ScheduledBatch, StepResult
from radixgen.cache.radix import RadixCache
from radixgen.cache.verify import check_cache
from radixgen.config import ScheduleConfig
from radixgen.errors import InvalidRequest, RadixgenError, RequestAborted
from radixgen.schedule.admission import Admission
from radixgen.schedule.ahead import plan_ahead
from radixgen.schedule.beginnings import begin, guide
from radixgen.schedule.law import LawFactory
from radixgen.schedule.memory import Memory
from radixgen.schedule.outputs import (
    StopRules,
    Taken,
    failed,
    finished,
    obeys_law,
    output,
    scored,
)
from radixgen.schedule.planner import Planner
from radixgen.schedule.request import (
    Event,
    MatcherFactory,
    Request,
    SequenceOutput,
    SequenceState,
    Status,
    StopFactory,
    ThoughtRules,
)
from radixgen.schedule.step import MaskRequest, PlannedRow, Step
from radixgen.schedule.under_way import UnderWay
from radixgen.types import FinishReason

_COUNTERS = (
    "steps",
    "computed_tokens",
    "generated_tokens",
    "accepted_drafts",
    "verified_drafts",
    "copied_pages",
    "jumped_tokens",
    "restarted_choices",
    "finished_requests",
    "failed_requests",
    "aborted_requests",
    "hinted_requests",
)


class Scheduler:
    """Requests in, batches out, results in, events out.

    `cache`: the scheduler's alone from now on. `max_context`: tokens a sequence may have.
    `num_plain_pages`: of those in full precision, where the cache's are of few bits.
    `stop_factory` makes the watcher of a request's stop strings. `clock`: seconds. `check`: verify
    every invariant after each step.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        cache: RadixCache,
        *,
        max_context: int,
        vocab_size: int,
        end_token_ids: Sequence[int] = (),
        stop_factory: StopFactory | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        check: bool = False,
        num_plain_pages: int | None = None,
    ) -> None:
        self.config = config
        self.cache = cache
        self.memory = Memory(cache, config.max_total_tokens, clock, num_plain_pages)
        self.vocab_size = vocab_size
        self.max_known = min(max_context, self.memory.limit_pages * cache.page_size)
        self.rules = StopRules(end_token_ids, self.max_known)
        self.admission = Admission(config, vocab_size, self.max_known, stop_factory)
        self.planner = Planner(config, self.memory, self.rules)
        self.requests: dict[str, Request] = {}
        self.masks: Sequence[MaskRequest] = ()  # of the step that `schedule` returned last
        self._clock = clock
        self._rng = rng or random.Random()
        self._check = check
        self._num_added = 0
        self._under_way = UnderWay()
        self._outbox: list[Event] = []
        self._seconds = 0.0  # that a request takes, smoothed
        self._counts = dict.fromkeys(_COUNTERS, 0.0)

    # ---- requests ----

    @property
    def has_work(self) -> bool:
        """A step or an event is due. Requests that only wait for their grammar are no work."""
        return bool(self._outbox) or self.planner.has_work

    @property
    def num_waiting(self) -> int:
        """Requests of which nothing has been computed."""
        return len(self.requests) - len(self.planner.started)

    def add(self, request: Request) -> None:
        """Take in a request. Raises InvalidRequest, PromptTooLong or Overloaded, and then has kept
        nothing of it."""
        if request.rid in self.requests:
            raise InvalidRequest(f"a request with the id {request.rid!r} is already open", "rid")
        self.admission.check(request, self.num_waiting, self._retry_after())
        sampling = request.sampling
        request.arrival, request.order = self._clock(), self._num_added
        request.seed = self._rng.getrandbits(64) if sampling.seed is None else sampling.seed
        request.open_choices = set(range(request.num_choices))
        sequence = begin(request, 0, self.admission.stop_factory)
        self._num_added += 1
        self._counts["hinted_requests"] += request.is_hinted
        self.requests[request.rid] = request
        if request.waiting_for_grammar:
            sequence.status = Status.WAITING_FOR_GRAMMAR
        else:
            self.planner.wait(sequence)

    def grammar_ready(
        self,
        rid: str,
        make_matcher: MatcherFactory | None,
        make_law: LawFactory | None = None,
        thoughts: ThoughtRules | None = None,
    ) -> None:
        """The constraint of a waiting request is compiled. One that is gone is passed over."""
        request = self.requests.get(rid)
        if request is None or not request.waiting_for_grammar:
            return
        request.waiting_for_grammar = False
        request.make_matcher, request.make_law = make_matcher, make_law
        request.thoughts = thoughts
        first = request.sequences[0]
        try:
            guide(first, self.admission.stop_factory)
        except Exception as error:
            self._fail(request, error)
        else:
            self.planner.wait(first)

    def abort(self, rid: str) -> list[Event]:
        """Cancel a request: its open choices end with ABORT. An unknown id changes nothing."""
        request = self.requests.get(rid)
        if request is None:
            return self.take_events()
        if request.continuations is not None:
            self._fail(request, RequestAborted(f"request {rid!r} was cancelled"))
            return self.take_events()
        for index in sorted(request.open_choices):
            self._outbox.append(SequenceOutput(rid, index, (), (), FinishReason.ABORT))
        self._counts["aborted_requests"] += 1
        self._close(request, finished(request, self._clock()))
        return self.take_events()

    def fail(self, rid: str, error: Exception) -> list[Event]:
        """End a request with an error. An unknown id changes nothing."""
        request = self.requests.get(rid)
        if request is not None:
            self._fail(request, error)
        return self.take_events()

    def fail_all(self, error: Exception) -> list[Event]:
        """End every request; the steps under way are given up."""
        self.drop_ahead()
        self._end_step()
        for request in list(self.requests.values()):
            self._fail(request, error)
        return self.take_events()

    def fail_step(self, error: Exception) -> list[Event]:
        """The step under way raised: end the requests in it, and only those. One behind it is
        given up."""
        self.drop_ahead()
        step = self._end_step()
        for sequence in step.rows if step else ():
            if sequence.request.rid in self.requests:
                self._fail(sequence.request, error)
        return self.take_events()

    def flush_cache(self) -> int:
        """Forget every prefix that no running request uses; returns the pages freed."""
        return self.cache.clear()

    def take_events(self) -> list[Event]:
        """Events that are due and were not returned yet."""
        events, self._outbox = self._outbox, []
        return events

    # ---- steps ----

    def schedule(self) -> ScheduledBatch | None:
        """The next step, or None when there is nothing to compute. `masks` tells which rows of the
        step's bitmask belong to which matcher."""
        if self._under_way.step is not None:
            raise RuntimeError("the last step is not over: call update, fail_step or fail_all")
        step = self.planner.plan(self._clock())
        for sequence, error in self.planner.take_failed():
            for sibling in sequence.request.sequences:
                step.drop(sibling)
            if sequence.request.rid in self.requests:
                self._fail(sequence.request, error)
        if not step.rows:
            self.memory.unpin()
            return None
        self._under_way.step = step
        batch = self.resume()
        self._count_step(batch)
        return batch

    def schedule_ahead(self) -> ScheduledBatch | None:
        """The step behind the one under way, or None when that is to be waited for.

        Rows of it that follow a row under way draw by what `resume` tells.
        """
        step = self._under_way.step
        if step is None or self._under_way.ahead is not None:
            raise RuntimeError("there is not one step under way to plan ahead of")
        ahead = self._under_way.ahead = plan_ahead(self.planner, step)
        if ahead is None:
            return None
        batch, _ = ahead.batch(self.cache.page_size, self.rules)
        self._count_step(batch)
        return batch

    def resume(self) -> ScheduledBatch:
        """The step under way, with what is known by now of the tokens before its draws."""
        step = self._under_way.step
        assert step is not None, "no step is under way"
        batch, self.masks = step.batch(self.cache.page_size, self.rules)
        return batch

    def drop_ahead(self) -> None:
        """The step planned behind the one under way is not computed, or in vain."""
        self._under_way.ahead = None

    def _count_step(self, batch: ScheduledBatch) -> None:
        self._counts["steps"] += 1
        self._counts["computed_tokens"] += batch.num_tokens
        self._counts["copied_pages"] += len(batch.copies)

    def update(self, batch: ScheduledBatch, result: StepResult) -> list[Event]:
        """Take in what a step computed; returns the events due, terminal ones included."""
        step = self._under_way.step
        if step is None:
            raise RuntimeError("no step is under way: call schedule first")
        if len(result.rows) != len(step.rows):
            error = RadixgenError(f"{len(result.rows)} results for {len(step.rows)} rows")
            return self.fail_step(error)
        self._end_step()
        for planned, row in zip(list(step.rows.values()), result.rows, strict=True):
            self._take_row(planned, row)
        if self._check:
            self.check()
        return self.take_events()

    def check(self) -> None:
        """Raises AssertionError unless tree, pool, pages, locks and places all agree."""
        check_cache(self.cache)
        self.planner.check(self._under_way.leaving)
        open_sequences = {
            seq
            for request in self.requests.values()
            for seq in request.sequences
            if seq.status is not Status.FINISHED
        }
        going = set(self.planner.running).difference(self._under_way.leaving)
        assert going <= open_sequences, "a finished sequence still runs"
        for request in self.requests.values():
            assert request.open_choices, f"{request.rid} is open without an open choice"

    def stats(self) -> dict[str, float]:
        """Counters since the start and gauges of now."""
        return {
            **self._counts,
            **self.planner.counters,
            "running_sequences": len(self.planner.running),
            "waiting_requests": self.num_waiting,
            "open_requests": len(self.requests),
            **self.memory.counts(),
        }

    def _end_step(self) -> Step | None:
        """The device is done with the step under way: what it alone used may change again."""
        step = self._under_way.step
        self.masks = ()
        self.memory.unpin()
        for sequence, keep in self._under_way.end():
            if keep:
                self.planner.finish(sequence)
            else:
                self.planner.stop(sequence, keep=False, final=True)
        return step

    def _take_row(self, planned: PlannedRow, row: RowResult) -> None:
        """One row's result; whatever goes wrong with it is its request's own error."""
        sequence = planned.sequence
        if sequence.status is not Status.RUNNING:
            return
        try:
            self._advance(planned, row)
        except Exception as error:
            if sequence.request.rid not in self.requests:
                raise
            self._fail(sequence.request, error)

    def _advance(self, planned: PlannedRow, row: RowResult) -> None:
        sequence = planned.sequence
        planned.check(row)
        prefilled = not sequence.is_decoding
        sequence.given_logprobs += row.given_logprobs
        sequence.num_computed += planned.num_tokens
        taken, refused = Taken(0), False
        if planned.samples:
            sequence.num_computed += len(row.token_ids) - 1
            refused = not obeys_law(sequence, row)
            if not refused:
                taken = self._take_tokens(sequence, row)
                self._learn(planned, row)
                row, taken = self._jump(sequence, row, taken)
        elif sequence.num_left == 0:
            taken = Taken(0, FinishReason.LENGTH)
        self.memory.shed(sequence)
        if prefilled:
            self.memory.commit(sequence)
            self.planner.progressed(sequence)
            self._fork(sequence.request)
        if refused:
            self._restart(sequence)
        if (taken.num_tokens or taken.finish_reason) and not sequence.is_scored:
            event = output(sequence, row, taken)
            self._outbox += [] if event is None else [event]
        if taken.finish_reason:
            self._finish(sequence)

    def _take_tokens(self, sequence: SequenceState, row: RowResult) -> Taken:
        taken = self.rules.take(sequence, row.token_ids)
        sequence.num_computed = min(sequence.num_computed, sequence.num_known)
        self._count(sequence.request, taken)
        self._counts["accepted_drafts"] += len(row.token_ids) - 1
        return taken

    def _count(self, request: Request, taken: Taken) -> None:
        request.completion_tokens += taken.num_tokens
        self._counts["generated_tokens"] += taken.num_tokens
        if request.first_token is None:
            request.first_token = self._clock()

    def _jump(
        self, sequence: SequenceState, row: RowResult, taken: Taken
    ) -> tuple[RowResult, Taken]:
        """Take forced text unverified, if that is asked for; the next step computes it."""
        token_ids = () if taken.finish_reason else self.planner.jump(sequence)
        if not token_ids:
            return row, taken
        more = self.rules.take(sequence, token_ids)
        self._count(sequence.request, more)
        self._counts["jumped_tokens"] += more.num_tokens
        return RowResult([*row.token_ids, *token_ids]), taken.then(more)

    def _learn(self, planned: PlannedRow, row: RowResult) -> None:
        drafter, request = self.planner.drafter, planned.sequence.request
        self._counts["verified_drafts"] += len(planned.drafts)
        if drafter is not None and planned.drafts and request.propose is None:
            drafter.learn(planned.sequence, planned.drafts, len(row.token_ids) - 1)

    # ---- beginnings and ends ----

    def _restart(self, sequence: SequenceState) -> None:
        """Its law takes the output back. What was computed stays in the tree for the next try."""
        assert sequence.law is not None
        self._counts["restarted_choices"] += 1
        sequence.request.completion_tokens -= len(sequence.outputs)
        self.planner.stop(sequence, keep=True, final=False)
        sequence.begin_again(sequence.law.restart())
        guide(sequence, self.admission.stop_factory)
        self.planner.wait(sequence)

    def _fork(self, request: Request) -> None:
        """The first choice has computed the prompt: the others can share its pages."""
        first = request.sequences[0]
        if request.forked or first.num_computed < len(request.prompt_ids) - 1:
            return
        request.forked = True
        others = range(1, request.num_choices)
        self.planner.forks.add([begin(request, i, self.admission.stop_factory) for i in others])

    def _finish(self, sequence: SequenceState) -> None:
        request = sequence.request
        sequence.status = Status.FINISHED
        if sequence.law is not None:
            sequence.law.finish()
        request.open_choices.discard(sequence.index)
        if not self._under_way.defer(sequence, keep=True):
            self.planner.finish(sequence)
        if request.open_choices:
            return
        self._counts["finished_requests"] += 1
        end = finished if request.continuations is None else scored
        self._close(request, end(request, self._clock()))

    def _fail(self, request: Request, error: Exception) -> None:
        self._counts["failed_requests"] += 1
        self._close(request, failed(request, error), keep=False)

    def _close(self, request: Request, event: Event, *, keep: bool = True) -> None:
        """The request's one terminal event; its pages go, once no step uses them."""
        del self.requests[request.rid]
        self.planner.started.discard(request)
        for sequence in request.sequences:
            old, sequence.status = sequence.status, Status.FINISHED
            if sequence.node is None:
                self.planner.remove(sequence, old)
            elif not self._under_way.defer(sequence, keep=keep):
                self.planner.stop(sequence, keep=keep, final=True)
        self._seconds += 0.1 * (self._clock() - request.arrival - self._seconds)
        self._outbox.append(event)

    def _retry_after(self) -> float:
        """Seconds that a request takes of late, from arrival to end."""
        return min(max(self._seconds, 1.0), 60.0)
