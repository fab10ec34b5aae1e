"""Drives scheduler and model runner: requests in, events out, one step at a time. No sockets.

Every request that `add` takes in or refuses ends in exactly one terminal event. An exception ends
the requests that it belongs to and no others: refused arguments the one request, a failed forward
pass those that were in it.
"""

import logging
import time
from array import array
from collections.abc import Callable
from typing import Protocol

from radixgen.batch import ScheduledBatch, StepResult
from radixgen.errors import InvalidGrammar, InvalidRequest, RadixgenError
from radixgen.messages import GenerateRequest, RequestFailed, ScoreRequest
from radixgen.runtime.stats import EngineStats
from radixgen.schedule.request import Event, Request
from radixgen.schedule.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """What computes a step: `radixgen.model.runner.ModelRunner`, or a script in a test."""

    def run(self, batch: ScheduledBatch) -> StepResult: ...


class Engine:
    """Owns a scheduler and a runner. `clock`: seconds.

    The scheduler checks its invariants after each step if it was made to (RADIXGEN_CHECK=1).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._clock = clock
        self._stats = EngineStats()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work

    def add(self, message: GenerateRequest | ScoreRequest, ids: "array[int]") -> list[Event]:
        """Take in a request, or refuse it with its terminal event. Raises nothing."""
        try:
            self.scheduler.add(_request(message, ids))
        except Exception as error:
            self._stats.refused_requests += 1
            return [_refusal(message.rid, error)]
        return []

    def abort(self, rid: str) -> list[Event]:
        """Cancel a request; an unknown rid changes nothing."""
        return self.scheduler.abort(rid)

    def flush(self) -> None:
        """Forget every cached prefix that no running request uses."""
        self.scheduler.flush_cache()

    def step(self) -> list[Event]:
        """Compute one step, if one is due; returns the events due. Raises nothing."""
        started = self._clock()
        try:
            batch = self.scheduler.schedule()
            if batch is None:
                return self.scheduler.take_events()
        except Exception as error:
            return self._fail_all(error)
        try:
            result = self.runner.run(batch)
        except Exception as error:
            return self._fail_step(error)
        try:
            events = self.scheduler.update(batch, result)
        except Exception as error:
            return self._fail_all(error)
        self._stats.add_step(self._clock() - started, result)
        self._stats.add_usages(events)
        return events

    def stats(self) -> dict[str, float]:
        """Counters since the start and gauges of now; units are in the names."""
        return self.scheduler.stats() | self._stats.values()

    def _fail_step(self, error: Exception) -> list[Event]:
        """The forward pass failed: its requests end, the others go on."""
        logger.exception("a step failed")
        self._stats.failed_steps += 1
        return self.scheduler.fail_step(_known(error))

    def _fail_all(self, error: Exception) -> list[Event]:
        """The scheduler itself failed: nothing that it holds can be trusted."""
        logger.exception("scheduling failed; every open request is given up")
        self._stats.failed_steps += 1
        return self.scheduler.fail_all(_known(error))


def _request(message: GenerateRequest | ScoreRequest, ids: "array[int]") -> Request:
    if isinstance(message, ScoreRequest):
        return Request.from_score(message, ids)
    if message.grammar is not None:
        raise InvalidGrammar(
            f"this runtime decodes without constraints and the request has one, a "
            f"{message.grammar.kind}; leave the grammar out"
        )
    return Request.from_generate(message, ids)


def _known(error: Exception) -> RadixgenError:
    """What a request is told when the fault is not its own."""
    return RadixgenError(f"the runtime failed inside a step: {error!r}")


def _refusal(rid: str, error: Exception) -> RequestFailed:
    if not isinstance(error, RadixgenError):
        logger.error("a request could not be taken in", exc_info=error)
        return RequestFailed(rid, RadixgenError.code, repr(error))
    param = error.param if isinstance(error, InvalidRequest) else None
    return RequestFailed(rid, error.code, str(error), param)
