"""An engine in this process, driven without sockets: what benchmarks of single steps need."""

import contextlib
import itertools
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixgen.config import from_settings
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.model.hub import resolve
from radixgen.runtime.build import build_engine, settle
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import SequenceOutput
from radixgen.tokenizer import Tokenizer
from radixgen.types import FinishReason, GrammarSpec, SamplingParams

Ask = tuple[Sequence[int], SamplingParams, GrammarSpec | None]


@dataclass(slots=True)
class Output:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True)
class Run:
    """What came of some requests that ran together. `steps`: seconds of each."""

    outputs: list[Output]
    seconds: float = 0.0
    steps: list[float] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)  # by which the counters grew

    @property
    def num_tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.outputs)


class LocalEngine:
    """The embedded model behind an engine, in one thread. `settings` are those of `Runtime`.
    `clock`: seconds; with `time.process_time` nothing else that the machine does counts."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, **settings: Any) -> None:
        config = from_settings(**{"threads": 1, "num_pages": 2048, **settings})
        self.clock = clock
        self.engine: Engine = build_engine(config, clock).engine
        self.tokenizer = Tokenizer.load(resolve(config.model.model).path)
        self._count = 0
        settle()  # as a runtime's process does, or a collection takes as long as ten steps

    def chat(self, text: str) -> list[int]:
        """The prompt of a user's message. Token ids."""
        return self.tokenizer.chat([{"role": "user", "content": text}])

    def run(self, asks: Sequence[Ask]) -> Run:
        """Run requests together until each has ended."""
        run = Run([Output() for _ in asks])
        for _ in self.running(asks, run):
            pass
        return run

    def running(self, asks: Sequence[Ask], run: Run) -> Generator[None]:
        """Run requests together, of which `run` tells after each step, until each has ended. What
        others do between two steps does not count."""
        before = self.engine.stats()
        begin = self.clock()
        names = self._add(asks, run.outputs)
        run.seconds += self.clock() - begin
        while self.engine.scheduler.requests:
            begin = self.clock()
            if self.engine.has_work:
                events = self.engine.step()
                run.steps.append(self.clock() - begin)
                _take(events, names)
            else:
                time.sleep(0.0005)
            run.seconds += self.clock() - begin
            yield
        after = self.engine.stats()
        run.counts = {name: value - before.get(name, 0.0) for name, value in after.items()}

    def send(self, asks: Iterable[Ask]) -> list[str]:
        """Add requests, whose steps the caller takes; returns their names."""
        asks = list(asks)
        return list(self._add(asks, [Output() for _ in asks]))

    def decode_steps(self, asks: Sequence[Ask], count: int) -> list[float]:
        """Seconds of `count` steps in which every request decodes; then all are cancelled."""
        with contextlib.closing(self.decoding(asks)) as steps:
            return list(itertools.islice(steps, count))

    def decoding(self, asks: Sequence[Ask]) -> Generator[float]:
        """Seconds of one step after another in which every request decodes, until it is closed."""
        outputs = [Output() for _ in asks]
        names = self._add(asks, outputs)
        try:
            while True:
                if not self.engine.has_work:
                    time.sleep(0.0005)
                    continue
                warm = all(len(output.token_ids) > 1 for output in outputs)
                begin = self.clock()
                events = self.engine.step()
                seconds = self.clock() - begin
                _take(events, names)
                ended = [o for o in outputs if o.finish_reason or o.error]
                if ended:
                    raise RuntimeError(f"a request ended while steps were measured: {ended[0]}")
                if warm:
                    yield seconds
        finally:
            for name in names:
                self.engine.abort(name)

    def _add(self, asks: Sequence[Ask], outputs: Sequence[Output]) -> dict[str, Output]:
        names: dict[str, Output] = {}
        for (prompt, sampling, spec), output in zip(asks, outputs, strict=True):
            self._count += 1
            names[f"r{self._count}"] = output
            message = GenerateRequest(f"r{self._count}", sampling, spec)
            _take(self.engine.add(message, array("i", prompt)), names)
        return names


def _take(events: Sequence[object], names: dict[str, Output]) -> None:
    for event in events:
        if isinstance(event, SequenceOutput):
            names[event.rid].token_ids += event.token_ids
            names[event.rid].finish_reason = event.finish_reason
        elif isinstance(event, RequestFailed):
            names[event.rid].error = event.message
