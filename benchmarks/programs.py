"""Programs over generated work: how fast, what the cache reuses of what it could, what forks save.

    python -m benchmarks.programs [--quick] [--model PATH] [--only W4 W6]

Each workload (see `workloads.py`) runs three times: as it is, with the cache off, and with forks
off, where branches are sent at once without their prefix being computed before. The hit rate is
compared with its ceiling: what a cache would give that loses nothing, not even parts of pages, and
knows each request as soon as it has begun. `--quick` takes a tiny model with random weights; else
the embedded model runs.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Spread, arguments, table
from benchmarks.workloads import WORKLOADS, Run, Scale, words
from radixgen import CacheHint, Runtime, function, gen
from radixgen.lang.backends.local import LocalBackend
from radixgen.lang.backends.protocol import Generation, Push, Scored
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen, GenOptions, Select
from tests.helpers import write_tiny_model

GOAL_OF_CEILING = 0.96
SEED = 7


@dataclass(slots=True)
class Prefixes:
    """Every prefix of the token sequences seen: a trie of dictionaries."""

    root: dict[int, Any] = field(default_factory=dict)

    def add(self, ids: Sequence[int]) -> int:
        """Take in a sequence; returns how many of its first tokens were known."""
        node, known, new = self.root, 0, False
        for token in ids:
            if token not in node:
                node[token], new = {}, True
            known += not new
            node = node[token]
        return known


class CountingBackend(LocalBackend):
    """A local backend that works out what a perfect cache would have reused."""

    def __init__(self, runtime: Runtime, *, forks: bool = True) -> None:
        super().__init__(runtime.engine_client, runtime.loop)
        self.forks = forks
        self.seen = Prefixes()
        self.best = 0  # prompt tokens that could have been reused

    def _count(self, ids: Sequence[int]) -> None:
        """The last token of a prompt is always computed: its logits are needed."""
        self.best += min(self.seen.add(ids), len(ids) - 1)

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        prompt = list(conversation.prompt()) or self._opening()
        self._count(prompt)
        found = await super().generate(conversation, gen, self._hint(hint), push)
        for generation in found:  # the last token drawn is not computed
            self.seen.add([*prompt, *generation.token_ids][: len(prompt) + _computed(generation)])
        return found

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        prefix, rest = conversation.branches(select.choices)
        self._count(prefix or self._opening())
        for option in rest:  # a score's last token is not computed
            self.seen.add([*prefix, *option[:-1]])
        return await super().score(conversation, select, self._hint(hint))

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        if self.forks:
            ids = self.worth_warming(conversation, hint.forks)
            if ids:
                self._count(ids)
            await super().warm(conversation, options, hint)

    def _hint(self, hint: CacheHint) -> CacheHint:
        return hint if self.forks else replace(hint, forks=0)


def _computed(generation: Generation) -> int:
    return max(int(generation.meta["completion_tokens"]) - 1, 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a workload."""

    programs: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    best_tokens: int  # that could have been cached
    computed_tokens: int
    generated_tokens: int
    steps: int

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def ceiling(self) -> float:
        return self.best_tokens / self.prompt_tokens

    @property
    def of_ceiling(self) -> float:
        return self.cached_tokens / self.best_tokens if self.best_tokens else 1.0

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


_COUNTERS = ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "steps")


def run_once(runtime: Runtime, run: Run, scale: Scale, *, forks: bool = True) -> Outcome:
    """A workload from an empty cache."""
    runtime.flush_cache()
    backend = CountingBackend(runtime, forks=forks)
    before, begin = runtime.stats(), time.perf_counter()
    programs = run(backend, random.Random(SEED), scale)
    seconds, after = time.perf_counter() - begin, runtime.stats()
    grown = {name: int(after[name] - before[name]) for name in _COUNTERS}
    return Outcome(programs, seconds, best_tokens=backend.best, **grown)


@function
def label(s: Any, head: str, item: str) -> None:
    """A few tokens after a long constant beginning."""
    s += head
    s += item + gen("label", max_tokens=4, ignore_eos=True)


def batch_against_generate(
    runtime: Runtime, num: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of a batch of programs and of one `generate` of the same prompts, interleaved."""
    rng = random.Random(SEED)
    head = words(rng, 120) + "\n"
    items = [words(rng, 8, 16) for _ in range(num)]
    program = label.bind(head=head)
    batches: list[float] = []
    generates: list[float] = []
    program.run_batch([(item,) for item in items[:20]], backend=runtime)  # what is only once
    for _ in range(repeats):
        runtime.flush_cache()
        begin = time.perf_counter()
        states = program.run_batch([(item,) for item in items], backend=runtime, temperature=0)
        batches.append(time.perf_counter() - begin)
        runtime.flush_cache()
        begin = time.perf_counter()
        prompts = [head + item for item in items]
        results = runtime.generate(prompts, temperature=0, max_tokens=4, ignore_eos=True)
        generates.append(time.perf_counter() - begin)
        assert [s.text("label") for s in states] == [result.text for result in results]
    return batches, generates


@dataclass(frozen=True, slots=True)
class Trio:
    """The three runs of a workload."""

    normal: Outcome
    no_cache: Outcome
    no_forks: Outcome


def measure(cached: Runtime, uncached: Runtime, run: Run, scale: Scale) -> Trio:
    for runtime in (cached, uncached):  # compile the grammars, in small
        run_once(runtime, run, replace(scale, out=1))
    return Trio(
        run_once(cached, run, scale),
        run_once(uncached, run, scale),
        run_once(cached, run, scale, forks=False),
    )


def show(found: dict[str, Trio]) -> None:
    rows = []
    for name, trio in found.items():
        one = trio.normal
        rows.append(
            [
                f"{name} {WORKLOADS[name][0]}",
                str(one.programs),
                *(f"{o.programs / o.seconds:.1f}" for o in (one, trio.no_cache, trio.no_forks)),
                f"{one.hit_rate:.3f}",
                f"{one.ceiling:.3f}",
                f"{one.of_ceiling:.3f}",
                *(str(o.prefilled_tokens) for o in (one, trio.no_cache, trio.no_forks)),
            ]
        )
    columns = ["workload", "programs", "progs/s", "no cache", "no forks", "hit rate", "ceiling"]
    table([*columns, "share", "prefilled", "no cache", "no forks"], rows)


def summarise(report: Report, found: dict[str, Trio]) -> None:
    for name, trio in found.items():
        one = trio.normal
        report.results[name] = {
            "programs_per_second": one.programs / one.seconds,
            "speedup_over_no_cache": trio.no_cache.seconds / one.seconds,
            "speedup_over_no_forks": trio.no_forks.seconds / one.seconds,
            "hit_rate": one.hit_rate,
            "ceiling": one.ceiling,
            "prompt_tokens": one.prompt_tokens,
            "prefilled_tokens": one.prefilled_tokens,
            "prefilled_without_cache": trio.no_cache.prefilled_tokens,
            "prefilled_without_forks": trio.no_forks.prefilled_tokens,
            "generated_tokens": one.generated_tokens,
            "forward_passes": one.steps,
        }
        report.at_least(f"{name}: hit rate of its ceiling", one.of_ceiling, GOAL_OF_CEILING)
    total = sum(trio.normal.prefilled_tokens for trio in found.values())
    without = sum(trio.no_cache.prefilled_tokens for trio in found.values())
    report.at_least("prompt tokens without the cache, of those with it", without / total, 2.0)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="", help="a directory, .gguf file or hub id")
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--count", type=int, default=0, help="programs, as a factor")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, scale = args.model, Scale(args.count or 4, 24)
        if args.quick:
            tiny = write_tiny_model(Path(folder), max_position_embeddings=8192)
            model, scale = str(tiny), Scale(args.count or 1, 6)
        settings: dict[str, Any] = {"page_size": 16, "num_pages": 4096, "threads": 1}
        with (
            Runtime(model, **settings) as cached,
            Runtime(model, **settings, prefix_cache=False) as uncached,
        ):
            found = {}
            for name in args.only:
                found[name] = measure(cached, uncached, WORKLOADS[name][1], scale)
            batch = batch_against_generate(cached, 200, 5)
    show(found)
    batches, generates = batch
    medians = statistics.median(batches), statistics.median(generates)
    print(f"\n200 prompts: run_batch {medians[0]:.2f} s, generate {medians[1]:.2f} s")
    report = Report("programs", {"model": args.model or ("tiny" if args.quick else "embedded")})
    summarise(report, found)
    report.results["run_batch"] = Spread.of(batches)
    report.results["generate"] = Spread.of(generates)
    ratios = [one / other for one, other in zip(batches, generates, strict=True)]
    report.at_most("run_batch of 200 over one generate", statistics.median(ratios), 1.05)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
