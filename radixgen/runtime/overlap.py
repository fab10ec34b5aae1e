"""An engine whose device is kept busy: the next step is launched before the last tokens are known.

    host     launch N+1 | wait for N | update N, masks and draws of N+1 | launch N+2 | wait for N+1
    device   forward N, draws N      | forward N+1 ..................... draws N+1   | forward N+2

The tokens that N draws go to N + 1 on the device. What else follows from them, ends, masks and
penalties among it, the host works out while the device computes, before N + 1 draws. Whether a step
may be launched ahead is the scheduler's to say (schedule/ahead.py); where not, all is done in turn.

The device does one thing after the other. Knows steps and their order; no requests and no pages.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from radixgen.batch import ScheduledBatch, ScheduledRow, StepResult
from radixgen.runtime.engine import Engine, Runner
from radixgen.runtime.masks import fill_masks
from radixgen.schedule.request import Event
from radixgen.schedule.scheduler import Scheduler

logger = logging.getLogger(__name__)


class QueuedRunner(Runner, Protocol):
    """A runner before a device with a queue of its own: a `ModelRunner` that `overlaps`."""

    def launch(self, batch: ScheduledBatch, /) -> Any:
        """Begin a step. Raises what is wrong with it."""
        ...

    def draw(
        self,
        launched: Any,
        rows: Sequence[ScheduledRow],
        bitmask: "NDArray[np.int32] | None" = None,
        /,
    ) -> None:
        """Let the step launched last draw. The `bitmask` is written anew once this has returned, so
        it is read or copied by then."""
        ...

    def collect(self, launched: Any, /) -> StepResult:
        """Wait for what a step has drawn."""
        ...


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that the device has."""

    batch: ScheduledBatch
    launched: Any
    started: float  # seconds on the engine's clock
    is_ahead: bool = False


class OverlappedEngine(Engine):
    """An `Engine` for such a runner; a step of it may be left in the device's queue."""

    def __init__(
        self, scheduler: Scheduler, runner: QueuedRunner, *more: Any, **options: Any
    ) -> None:
        super().__init__(scheduler, runner, *more, **options)
        self._device = runner
        self._flight: Flight | None = None  # drawn, its results awaited
        self._landed = 0.0  # when the last step was over
        self._idles = False  # from then on, although there was work

    def _step(self) -> list[Event]:
        started = self._clock()
        events: list[Event] = []
        batch = None
        try:
            if self.grammars is not None:
                events += self._take_grammars(self.grammars)
            if self._flight is None:
                batch = self.scheduler.schedule()
                if batch is None:
                    self._idles = False
                    return events + self.scheduler.take_events()
        except Exception as error:
            self._flight = None
            return events + self._fail_all(error)
        try:
            flight = self._flight if batch is None else self._begin(batch, started)
            ahead = self._launch_ahead()
        except Exception as error:
            self._flight = None
            return events + self._fail_step(error)
        assert flight is not None
        events += self._land(flight, ahead)
        if self._flight is not None and not self.scheduler.requests:  # all of it is in vain
            events += self._land(self._flight, None)
        return events

    def _begin(self, batch: ScheduledBatch, started: float) -> Flight:
        flight = Flight(batch, self._device.launch(batch), started)
        if self._idles:
            self._stats.device_idle_seconds += self._clock() - self._landed
        self._draw(flight)
        return flight

    def _launch_ahead(self) -> Flight | None:
        """The next step, where it may be launched now; one that cannot be is planned anew."""
        started = self._clock()
        batch = self.scheduler.schedule_ahead()
        if batch is None:
            return None
        try:
            return Flight(batch, self._device.launch(batch), started, is_ahead=True)
        except Exception:
            logger.exception("a step could not be launched ahead; it is tried again in its turn")
            self.scheduler.drop_ahead()
            return None

    def _land(self, flight: Flight, ahead: Flight | None) -> list[Event]:
        """Wait for a step and take in what came of it; then the one behind it draws."""
        self._flight = None
        try:
            self._pace.release()
            result = self._device.collect(flight.launched)
        except Exception as error:
            return self._fail_step(error)
        finally:
            self._pace.hold()
        before, self._landed = self._landed, self._clock()
        try:
            events = self.scheduler.update(flight.batch, result)
        except Exception as error:
            return self._fail_all(error)
        self._idles = ahead is None and self.scheduler.has_work
        seconds = self._landed - (
            max(flight.started, before) if flight.is_ahead else flight.started
        )
        self._stats.overlapped_steps += flight.is_ahead
        self._stats.add_step(seconds, result)
        self._learn_cost(flight.batch, seconds)
        self._stats.add_usages(events)
        return events if ahead is None else events + self._go_on(ahead)

    def _go_on(self, ahead: Flight) -> list[Event]:
        try:
            self._flight = replace(ahead, batch=self.scheduler.resume())
            self._draw(self._flight)
        except Exception as error:
            self._flight = None
            return self._fail_step(error)
        return []

    def _draw(self, flight: Flight) -> None:
        """Masks are written while the forward pass is computed."""
        masks, bitmask = self.scheduler.masks, None
        if masks:
            bitmask = self._masks.room(masks, self.scheduler.vocab_size)
            fill_masks(masks, bitmask)
        self._device.draw(flight.launched, flight.batch.rows, bitmask)
