"""Do constraints that are made to be slow delay the requests of others?

    python -m benchmarks.hostile_schemas [--quick]

Rounds of 32 ordinary requests, half of them under a schema, with and without one who sends hostile
constraints all the while: as soon as one is answered, the next, each a little different so that no
cache helps. Some are refused, some compile and write beside the ordinary ones, some are stopped
after their seconds. Told are the seconds in which the ordinary requests end, and their slowest
steps, as ratios of neighbouring rounds; and the same of rounds without the hostile ones, which is
what the machine's other work makes of them.
"""

import itertools
import json
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator

from benchmarks.harness import Report, Spread, arguments, percentile, table
from benchmarks.local_engine import Ask, LocalEngine
from radixgen.kernels import library
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.runtime.build import settle
from radixgen.schedule.request import SequenceOutput
from radixgen.types import GrammarSpec, SamplingParams

NUM_ORDINARY = 32
NUM_TOKENS = 12  # of each; three times as many under the schema
NUM_READY = 20  # hostile ones of a round, or more
GOAL = 1.2
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 120},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
}


def hostile(number: int) -> GrammarSpec:
    """One of five kinds, in turn."""
    match number % 5:
        case 0:  # exponentially many ways to read a text
            return GrammarSpec(
                "regex", f"(a|b)*a(a|b){{{40 + number}}}(c|d)*c(c|d){{{30 + number}}}"
            )
        case 1:  # as many alternatives of one object
            shapes = [
                {"anyOf": [{"required": [f"r{i}{j}x{number}"]} for j in range(3)]}
                for i in range(12)
            ]
            return GrammarSpec("json_schema", json.dumps({"type": "object", "allOf": shapes}))
        case 2:  # an intersection of long patterns
            parts = [{"pattern": f"^[a-z]*{letter}[a-z]{{{number}}}" * 2} for letter in "abcdefgh"]
            return GrammarSpec("json_schema", json.dumps({"type": "string", "allOf": parts}))
        case 3:  # many members and many values
            members = {f"key{i}_{number}": {"enum": list(range(200))} for i in range(400)}
            return GrammarSpec("json_schema", json.dumps({"properties": members}))
        case _:  # a grammar that calls itself everywhere
            rules = "\n".join(f"r{i}: r{(i * 7 + 1) % 60} r{(i * 3 + 2) % 60} | /x{i}{number}+/"
                              for i in range(60))  # fmt: skip
            return GrammarSpec("lark", f"start: r0\n{rules}")


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    rounds = 3 if options.quick else 15
    report = Report("hostile_schemas", {"rounds": rounds, "ordinary requests": NUM_ORDINARY})
    local = LocalEngine(num_pages=4096, threads=library.default_threads())
    settle()  # as the runtime's process does
    attack = _Attack(local)
    _round(local, None)  # to warm up
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        first, beside, last = _round(local, None), _round(local, attack), _round(local, None)
        alone = [*first, *last]
        for name, ratio in (
            ("seconds", 2 * sum(beside) / sum(alone)),
            ("p95 step", percentile(beside, 95) / percentile(alone, 95)),
            ("seconds, alone over alone", sum(last) / sum(first)),
        ):
            found.setdefault(name, []).append(ratio)
    spreads = {name: Spread.of(ratios) for name, ratios in found.items()}
    rows = [
        [name, *(f"{value:.3f}" for value in (spread.median, spread.low, spread.high))]
        for name, spread in spreads.items()
    ]
    table(["beside hostile ones, over alone", "median", "p25", "p75"], rows)
    print(f"hostile constraints: {attack.counts}")
    report.results |= spreads | {"hostile": attack.counts}
    report.at_most("seconds of ordinary requests", spreads["seconds"].median, GOAL)
    report.at_least("hostile constraints", attack.counts["sent"], rounds)
    return report.finish()


class _Attack:
    """Sends hostile constraints, one after the other."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self._numbers = itertools.count()
        self._ready: deque[tuple[str, GrammarSpec]] = deque()
        self._prepare()
        self._trying: str | None = None
        self._writing: str | None = None
        self.counts = {"sent": 0, "refused": 0, "writing": 0}

    def go_on(self, events: list[object]) -> None:
        """Send the next one when the last one was refused or has begun to write. One writes on."""
        for event in events:
            if isinstance(event, RequestFailed) and event.rid == self._trying:
                self.counts["refused"] += 1
                self._trying = None
            elif isinstance(event, SequenceOutput) and event.rid == self._trying:
                self.counts["writing"] += 1
                self._end(self._writing)
                self._writing, self._trying = self._trying, None
        if self._trying is None:
            if not self._ready:
                self._prepare()
            self._trying, spec = self._ready.popleft()
            self.counts["sent"] += 1
            message = GenerateRequest(self._trying, SamplingParams(max_tokens=400), spec)
            self._local.engine.add(message, array("i", [1, 2, 3]))

    def stop(self) -> None:
        """Give up those under way, and wait until nothing is left of them."""
        self._end(self._trying)
        self._end(self._writing)
        self._trying = self._writing = None
        while self._local.engine.grammars and not self._local.engine.grammars.is_idle:
            time.sleep(0.01)
        self._prepare()

    def _prepare(self) -> None:
        """Write the next ones while no step waits: those who send them have their own machines."""
        for number in itertools.islice(self._numbers, NUM_READY - len(self._ready)):
            self._ready.append((f"hostile {number}", hostile(number)))

    def _end(self, name: str | None) -> None:
        if name is not None:
            self._local.engine.abort(name)


def _round(local: LocalEngine, attack: _Attack | None) -> list[float]:
    """Seconds from each step to the next until all ordinary requests have ended."""
    seconds: list[float] = []
    left = set(local.send(_ordinary(local)))
    last = time.perf_counter()
    while left:
        if attack is not None:
            attack.go_on([])
        if not local.engine.has_work:
            time.sleep(0.0005)
            continue
        events = local.engine.step()
        if attack is not None:
            attack.go_on([*events])
        left -= {e.rid for e in events if isinstance(e, SequenceOutput) and e.finish_reason}
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    if attack is not None:
        attack.stop()
    return seconds


def _ordinary(local: LocalEngine) -> Iterator[Ask]:
    spec = GrammarSpec("json_schema", json.dumps(SCHEMA))
    for number in range(NUM_ORDINARY):
        prompt = local.chat(f"Describe person {number} of a village as JSON.")
        limit = 3 * NUM_TOKENS if number % 2 else NUM_TOKENS
        sampling = SamplingParams(max_tokens=limit, seed=number)
        yield prompt, sampling, spec if number % 2 else None


if __name__ == "__main__":
    sys.exit(main())
