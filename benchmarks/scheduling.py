"""Which order of entry reuses most and makes nobody wait too long?

    python -m benchmarks.scheduling [--quick]

Replays public traces (Mooncake, FAST'25; lengths and blocks scaled by 1/32) through the real
scheduler and cache on a simulated clock: a step takes 10 ms and 1 ms for each token in it. Three
situations:

    burst   every request waits at once: the setting of the depth-first theorem, whose optimum is to
            compute each edge of the tree of all prompts once
    live    requests arrive as in the trace, as fast as keeps the server busy
    queue   what a step of the scheduler itself costs with 100 to 10,000 requests waiting

`lpm` and `sjf` run without ageing, as rivals do.
"""

import random
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.harness import Report, Spread, arguments, percentile, table
from benchmarks.trace_replay import PAGE, TRACES, BlockTokens, load_rows
from radixgen.batch import RowResult, ScheduledBatch, StepResult
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import Policy, ScheduleConfig
from radixgen.messages import RequestFinished
from radixgen.schedule.request import Request
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import SamplingParams

SCALE = 512 // PAGE  # tokens of the trace that a token here stands for
VOCAB = 2**30
STEP_SECONDS = 0.010
TOKEN_SECONDS = 0.001
MAX_RUNNING = 32
POLICIES: tuple[Policy, ...] = ("fcfs", "lpm", "sjf", "dfs", "fair")


@dataclass(frozen=True, slots=True)
class Arrival:
    seconds: float
    prompt: "array[int]"
    num_outputs: int


@dataclass(frozen=True, slots=True)
class Situation:
    """`load`: work that arrives for work that can be done, were every prefix cached; 0: a burst."""

    name: str
    trace: str
    num_pages: int
    load: float


SITUATIONS = (
    Situation("burst", "conversation", 10_000, 0),
    Situation("burst", "synthetic", 10_000, 0),
    Situation("live", "conversation", 20_000, 0.95),
    Situation("live", "synthetic", 10_000, 0.9),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    hit_rate: float  # prompt tokens found in the tree
    waits: list[float]  # seconds from arrival to first scheduled
    makespan: float  # seconds
    step_us: float  # the scheduler's own time


class Clock:
    """Simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def read(trace: str, count: int | None) -> list[Arrival]:
    tokens, arrivals = BlockTokens(), []
    for row in load_rows(TRACES[trace])[:count]:
        prompt = tokens.of(row["hash_ids"])[: max(row["input_length"] // SCALE, 1)]
        outputs = max(row["output_length"] // SCALE, 1)
        arrivals.append(Arrival(row["timestamp"] / 1000, prompt, outputs))
    return arrivals


def optimum(arrivals: Sequence[Arrival]) -> float:
    """The hit rate when each edge of the tree of all prompts is computed once."""
    total = sum(len(arrival.prompt) for arrival in arrivals)
    cache, found = RadixCache(PagePool(total // PAGE + 1), PAGE), 0
    for arrival in arrivals:
        prompt = arrival.prompt
        match = cache.match_prefix(prompt, "", len(prompt) - 1)
        found += match.num_tokens
        whole = len(prompt) // PAGE
        pages = cache.pool.allocate(whole - len(match.page_ids))
        node = cache.lock(match)
        added = cache.insert(node, prompt[match.num_tokens : whole * PAGE], pages)
        cache.pool.release(added.duplicates)
        cache.unlock(added.node)
    return found / total


def paced(arrivals: list[Arrival], load: float, best: float) -> list[Arrival]:
    """Arrival times stretched so that the least possible work arrives at `load`."""
    prompts = sum(len(arrival.prompt) for arrival in arrivals) * (1 - best)
    work = TOKEN_SECONDS * (prompts + sum(arrival.num_outputs for arrival in arrivals))
    stretch = work / load / arrivals[-1].seconds if load else 0.0
    return [replace(arrival, seconds=arrival.seconds * stretch) for arrival in arrivals]


def answer(batch: ScheduledBatch, rng: random.Random) -> StepResult:
    """Tokens that occur in no prompt."""
    return StepResult(
        [RowResult([rng.getrandbits(20)] if row.sample else []) for row in batch.rows]
    )


def make(policy: Policy, num_pages: int, clock: Clock) -> Scheduler:
    config = ScheduleConfig(policy=policy, max_step_tokens=512, max_running=MAX_RUNNING, ageing=0)
    cache = RadixCache(PagePool(num_pages), PAGE)
    return Scheduler(
        config, cache, max_context=2**20, vocab_size=VOCAB, clock=clock, rng=random.Random(0)
    )


def simulate(arrivals: list[Arrival], policy: Policy, num_pages: int) -> Outcome:
    clock, rng = Clock(), random.Random(0)
    scheduler = make(policy, num_pages, clock)
    coming = [*enumerate(arrivals)][::-1]
    waits: list[float] = []
    prompt_tokens = cached = 0
    own = 0.0
    while coming or scheduler.has_work:
        begin = time.perf_counter()
        while coming and (coming[-1][1].seconds <= clock.now or not scheduler.has_work):
            index, arrival = coming.pop()
            late, clock.now = max(clock.now, arrival.seconds), arrival.seconds
            sampling = SamplingParams(max_tokens=arrival.num_outputs)
            scheduler.add(Request(str(index), arrival.prompt, sampling))
            clock.now = late  # it arrived in the middle of the step before
        batch = scheduler.schedule()
        assert batch is not None
        own += time.perf_counter() - begin
        clock.now += STEP_SECONDS + TOKEN_SECONDS * batch.num_tokens
        result = answer(batch, rng)
        begin = time.perf_counter()
        events = scheduler.update(batch, result)
        own += time.perf_counter() - begin
        for event in events:
            if isinstance(event, RequestFinished):
                waits.append(event.usage.queue_seconds)
                prompt_tokens += event.usage.prompt_tokens
                cached += event.usage.cached_tokens
    assert len(waits) == len(arrivals)
    steps = scheduler.stats()["steps"]
    return Outcome(cached / prompt_tokens, waits, clock.now, 1e6 * own / steps)


def compare(situation: Situation, count: int | None, report: Report) -> None:
    arrivals = read(situation.trace, count)
    best = optimum(arrivals)
    arrivals = paced(arrivals, situation.load, best)
    outcomes = {policy: simulate(arrivals, policy, situation.num_pages) for policy in POLICIES}
    title = f"{situation.name}, {situation.trace}"
    print(f"{title}: {len(arrivals)} requests, {situation.num_pages} pages, optimum {best:.4f}")
    rows: list[list[str]] = []
    for policy, outcome in outcomes.items():
        mean, high, top = fmean(outcome.waits), percentile(outcome.waits, 99), max(outcome.waits)
        share = outcome.hit_rate / best
        times = [f"{value:.1f}" for value in (mean, high, top, outcome.makespan)]
        rows.append(
            [policy, f"{outcome.hit_rate:.4f}", f"{share:.3f}", *times, f"{outcome.step_us:.0f}"]
        )
        report.results[f"{title}, {policy}"] = {
            "hit_rate": outcome.hit_rate,
            "of_optimum": share,
            "wait_mean_s": mean,
            "wait_p99_s": high,
            "wait_max_s": top,
            "makespan_s": outcome.makespan,
            "scheduler_us_per_step": outcome.step_us,
        }
    table(["", "hit rate", "/optimum", "wait mean", "p99", "max", "makespan", "us/step"], rows)
    print()
    fair, fcfs = outcomes["fair"], outcomes["fcfs"]
    if situation.name == "burst":
        report.at_least(f"{title}: hit rate / optimum", fair.hit_rate / best, 0.95)
    else:
        dfs = outcomes["dfs"]
        report.at_least(f"{title}: hit rate / dfs", fair.hit_rate / dfs.hit_rate, 0.95)
    ratio = percentile(fair.waits, 99) / percentile(fcfs.waits, 99)
    report.at_most(f"{title}: p99 wait / fcfs", ratio, 1.0)
    report.at_most(f"{title}: mean wait / fcfs", fmean(fair.waits) / fmean(fcfs.waits), 1.0)


def queued(num_waiting: int, steps: int) -> tuple[Spread, Spread]:
    """Microseconds of an arrival and of a step (plan and update) with so many waiting."""
    clock, rng = Clock(), random.Random(1)
    scheduler = make("fair", 8192, clock)
    shared = [array("i", (rng.getrandbits(20) for _ in range(256))) for _ in range(50)]
    adds: list[float] = []
    plans: list[float] = []

    def arrive(name: str) -> None:
        own = array("i", (rng.getrandbits(20) for _ in range(rng.randrange(16, 256))))
        request = Request(name, rng.choice(shared) + own, SamplingParams(max_tokens=8))
        begin = time.perf_counter()
        scheduler.add(request)
        adds.append(1e6 * (time.perf_counter() - begin))

    for index in range(num_waiting):
        arrive(str(index))
    for step in range(steps):
        begin = time.perf_counter()
        batch = scheduler.schedule()
        own = time.perf_counter() - begin
        assert batch is not None
        clock.now += STEP_SECONDS + TOKEN_SECONDS * batch.num_tokens
        result = answer(batch, rng)
        begin = time.perf_counter()
        events = scheduler.update(batch, result)
        plans.append(1e6 * (own + time.perf_counter() - begin))
        for _ in range(sum(isinstance(event, RequestFinished) for event in events)):
            arrive(f"{step}/{len(adds)}")  # as many as left: the queue keeps its length
    return Spread.of(adds), Spread.of(plans)


def measure_queue(report: Report, steps: int) -> None:
    rows: list[list[str]] = []
    medians: dict[int, float] = {}
    for num_waiting in (100, 1_000, 10_000):
        add, plan = queued(num_waiting, steps)
        medians[num_waiting] = plan.median
        report.results[f"queue of {num_waiting}"] = {"add_us": add, "step_us": plan}
        rows.append([str(num_waiting), f"{add.median:.0f}", f"{plan.median:.0f}"])
    print("the scheduler's own time, medians")
    table(["waiting", "us/arrival", "us/step"], rows)
    report.at_most("step with 10,000 waiting / 100", medians[10_000] / medians[100], 3.0)


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    count = 1500 if options.quick else None
    parameters = {
        "page_size": PAGE,
        "requests_of_a_burst": count,
        "max_running": MAX_RUNNING,
        "max_step_tokens": 512,
        "step_seconds": STEP_SECONDS,
        "token_seconds": TOKEN_SECONDS,
    }
    report = Report("scheduling", parameters)
    for situation in SITUATIONS:
        compare(situation, count if situation.name == "burst" else None, report)
    measure_queue(report, 150 if options.quick else 600)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
