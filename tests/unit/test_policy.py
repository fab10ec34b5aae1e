"""In which order requests enter: each policy against its definition, and no cliff at any length."""

import random
from array import array
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from scheduling import VOCAB, FakeClock, HashModel, expect_empty, make, prompt_of

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import Policy, ScheduleConfig
from radixgen.schedule.marks import Marks
from radixgen.schedule.policy import (
    DfsQueue,
    FairQueue,
    LazyHeap,
    make_queue,
    response_ratio,
    service_tokens,
)
from radixgen.schedule.request import Request, SequenceState
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import SamplingParams

HASH_TREE: list[Policy] = ["fair", "lpm", "dfs"]


def sequence(
    tokens: Sequence[int], order: int = 0, arrival: float = 0.0, priority: int = 0
) -> SequenceState:
    request = Request(str(order), array("i", tokens), SamplingParams(max_tokens=1))
    request.order, request.arrival, request.priority = order, arrival, priority
    state = SequenceState(request, 0, array("i", tokens), len(tokens), 0)
    request.sequences.append(state)
    return state


class Server:
    """A scheduler on a clock: a step takes a millisecond a token."""

    def __init__(self, policy: Policy, num_pages: int = 4000, **options: Any) -> None:
        self.clock = FakeClock()
        config = ScheduleConfig(policy=policy, **{"max_running": 1, **options})
        self.scheduler, self.model = make(
            num_pages, config=config, clock=self.clock, max_context=5000
        )
        self.entered: list[str] = []
        self.ended: dict[str, float] = {}

    def add(self, rid: str, prompt: Sequence[int], max_tokens: int = 1, priority: int = 0) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, seed=1)
        self.scheduler.add(Request(rid, array("i", prompt), sampling, priority))

    def step(self) -> bool:
        batch = self.scheduler.schedule()
        if batch is None:
            return False
        for row in batch.rows:
            if row.rid not in self.entered:
                self.entered.append(row.rid)
        self.clock.now += batch.num_tokens / 1000
        for event in self.scheduler.update(batch, self.model.run(batch)):
            if not hasattr(event, "token_ids"):
                self.ended[event.rid] = self.clock.now
        return True

    def run(self) -> "Server":
        while self.step():
            pass
        expect_empty(self.scheduler)
        return self


# ---- each by its definition ----


def test_fcfs_keeps_the_order_of_arrival() -> None:
    server = Server("fcfs")
    for i in range(6):
        server.add(str(i), prompt_of(50 - i, i), priority=i)
    assert server.run().entered == list("012345")


def test_sjf_has_the_best_mean_latency() -> None:
    rng = random.Random(2)
    work = [rng.randrange(5, 60) for _ in range(6)]

    def mean(order: Sequence[int]) -> float:
        ends, now = [], 0
        for index in order:
            now += work[index]
            ends.append(now)
        return sum(ends) / len(ends) / 1000

    server = Server("sjf")
    for i, length in enumerate(work):
        server.add(str(i), prompt_of(length, i))
    found = sum(server.run().ended.values()) / len(work)
    assert found == pytest.approx(min(mean(order) for order in permutations(range(6))))


def test_sjf_counts_what_is_cached() -> None:
    server = Server("sjf")
    long = prompt_of(400, 1)
    server.add("first", long)
    server.step()
    server.add("short", prompt_of(40, 2))
    server.add("cached", [*long, 1, 2, 3])
    assert server.run().entered == ["first", "cached", "short"]


def test_lpm_takes_the_longest_match_first() -> None:
    server = Server("lpm", ageing=0)
    long = prompt_of(400, 1)
    server.add("seed", long)
    server.step()
    for cut in (40, 200, 120):
        server.add(str(cut), [*long[:cut], *prompt_of(50, cut)])
    assert server.run().entered == ["seed", "200", "120", "40"]


def test_priority_against_its_formula_in_a_thousand_schedules() -> None:
    rng = random.Random(3)
    for _ in range(1000):
        ageing = rng.choice([0.0, 0.5, 2.0])
        queue = make_queue(ScheduleConfig(policy="priority", ageing=ageing), Marks(4))
        waiting = [
            sequence([1], order, rng.random() * 10, rng.randrange(-3, 4)) for order in range(8)
        ]
        for state in waiting:
            queue.push(state)

        def effective(state: SequenceState, ageing: float = ageing) -> float:
            return state.request.priority + ageing * (10 - state.request.arrival)

        while (first := queue.peek(10.0)) is not None:
            assert effective(first) >= max(map(effective, waiting)) - 1e-9, "an inversion"
            queue.discard(first)
            waiting.remove(first)
        assert not waiting


def test_a_low_priority_waits_no_longer_than_ageing_allows() -> None:
    server = Server("priority", ageing=2.0, max_preemptions=0)
    server.add("low", prompt_of(100, 999), priority=0)
    arrived = 0
    while "low" not in server.entered:
        while arrived * 0.1 <= server.clock.now:  # as much as the server can do
            server.add(str(arrived), prompt_of(101, arrived), priority=10)
            arrived += 1
        server.step()
    assert server.clock.now <= 10 / 2.0 + 0.21, "(highest - own priority) / ageing, and a service"
    server.run()


def test_a_high_priority_takes_the_place_of_a_low_one() -> None:
    server = Server("priority", max_step_tokens=64)
    server.add("low", prompt_of(40, 1), max_tokens=200)
    for _ in range(5):
        server.step()
    server.add("high", prompt_of(40, 2), max_tokens=3, priority=1)
    server.run()
    assert server.ended["high"] < server.ended["low"]
    assert server.scheduler.stats()["preemptions"] == 1


def test_fair_is_the_highest_response_ratio_within_a_bucket() -> None:
    rng = random.Random(4)
    for _ in range(200):
        queue = FairQueue()
        waiting = [
            sequence(range(rng.randrange(1, 3000)), order, rng.random() * 20, rng.choice([0, 0, 1]))
            for order in range(12)
        ]
        for state in waiting:
            state.matched = rng.randrange(len(state.tokens))
            queue.push(state)
        while (first := queue.peek(20.0)) is not None:
            ratios = {s: response_ratio(s, service_tokens(s), 20.0) for s in waiting}
            assert ratios[first] >= max(ratios.values()) / 2**0.25 - 1e-9
            queue.discard(first)
            waiting.remove(first)
        assert len(queue) == 0


def test_fair_starves_nobody() -> None:
    server = Server("fair")
    server.add("long", prompt_of(2000, 999))
    arrived = 0
    while "long" not in server.entered:
        while arrived * 0.02 <= server.clock.now:
            server.add(str(arrived), prompt_of(20, arrived))  # short ones, without end
            arrived += 1
        server.step()
        assert server.clock.now < 20, "starved"
    server.run()


@pytest.mark.parametrize("load", [0.7, 1.0, 1.3])
def test_fair_waits_less_on_average_and_no_longer_at_worst_than_fcfs(load: float) -> None:
    rng = random.Random(11)
    lengths = [min(int(10 * rng.paretovariate(1.3)), 1500) for _ in range(400)]
    mean = sum(lengths) / len(lengths) / 1000
    arrivals, now = [], 0.0
    for _ in lengths:
        now += rng.expovariate(load / mean)
        arrivals.append(now)

    def waits(policy: Policy) -> list[float]:
        queue = make_queue(ScheduleConfig(policy=policy), Marks(16))
        clock, coming = 0.0, list(zip(arrivals, lengths, strict=True))[::-1]
        entered: list[float] = []
        while coming or len(queue):
            while coming and (coming[-1][0] <= clock or not len(queue)):
                arrival, length = coming.pop()
                clock = max(clock, arrival)
                queue.push(sequence([0] * length, len(entered) + len(queue), arrival))
            chosen = queue.peek(clock)
            assert chosen is not None
            queue.enter(chosen)
            entered.append(clock - chosen.request.arrival)
            clock += len(chosen.tokens) / 1000
        return sorted(entered)

    fair, fcfs = waits("fair"), waits("fcfs")
    assert sum(fair) < 0.8 * sum(fcfs)
    assert fair[-5] <= 1.1 * fcfs[-5]  # the 99th percentile
    assert fair[-1] <= 1.25 * fcfs[-1]


# ---- sharing ----


def unique_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """The sum of the edge lengths of their radix tree."""
    return len({tuple(prompt[: end + 1]) for prompt in prompts for end in range(len(prompt))})


@pytest.mark.parametrize("policy", HASH_TREE)
def test_twins_wait_one_round_for_the_first(policy: Policy) -> None:
    server = Server(policy, max_running=64, max_step_tokens=512)
    shared = prompt_of(1024, 1)
    prompts = [[*shared, *prompt_of(8, 100 + i)] for i in range(64)]
    for i, prompt in enumerate(prompts):
        server.add(str(i), prompt)
    server.run()
    computed = server.scheduler.stats()["computed_tokens"]
    assert computed == unique_tokens(prompts) == 1024 + 64 * 8
    assert server.scheduler.stats()["held_twins"] == 63


def test_a_twin_goes_on_alone_when_the_first_is_cancelled() -> None:
    server = Server("fair", max_running=4, max_step_tokens=16)
    shared = prompt_of(200, 1)
    for rid in ("first", "twin"):
        server.add(rid, [*shared, ord(rid[0])])
    for _ in range(4):
        server.step()
    assert "twin" not in server.entered
    server.scheduler.abort("first")
    server.step()
    assert "twin" in server.entered
    server.run()
    assert server.scheduler.stats()["computed_tokens"] == 201, "its work was not lost"


def test_a_twin_that_arrives_later_waits_too() -> None:
    server = Server("fair", max_running=4, max_step_tokens=16)
    shared = prompt_of(200, 1)
    server.add("first", [*shared, 1])
    server.step()
    server.add("twin", [*shared, 2])
    server.add("other", prompt_of(20, 2))
    while server.step():
        pass
    assert server.entered == ["first", "other", "twin"]
    assert server.scheduler.stats()["computed_tokens"] == 201 + 1 + 20


def test_who_waits_moves_up_when_its_prefix_is_cached() -> None:
    """Nobody held it, since it never came to the front while its prefix was computed."""
    server = Server("fair", max_step_tokens=64)
    shared = prompt_of(800, 1)
    server.add("first", shared)
    server.step()
    server.add("middle", prompt_of(300, 2))
    server.add("cached", [*shared, 1, 2, 3, 4])
    assert server.run().entered == ["first", "cached", "middle"]


def test_marks_against_brute_force() -> None:
    rng = random.Random(6)
    marks, page = Marks(2), 2
    waiting: list[SequenceState] = []
    leading: list[SequenceState] = []

    def common(a: SequenceState, b: SequenceState) -> int:
        pages = 0
        while True:
            start, end = pages * page, (pages + 1) * page
            if (
                end > min(len(a.tokens), len(b.tokens))
                or a.tokens[start:end] != b.tokens[start:end]
            ):
                return start
            pages += 1

    for order in range(3000):
        choice = rng.random()
        if choice < 0.4:
            state = sequence([rng.randrange(2) for _ in range(rng.randrange(1, 12))], order)
            marks.enrol(state)
            waiting.append(state)
        elif choice < 0.6 and waiting:
            state = waiting.pop(rng.randrange(len(waiting)))
            marks.lead(state)
            leading.append(state)
        elif choice < 0.8 and leading:
            marks.withdraw(leading.pop(rng.randrange(len(leading))))
        elif waiting:
            marks.withdraw(waiting.pop(rng.randrange(len(waiting))))
        for state in waiting[:5]:
            deepest = max((common(state, leader) for leader in leading), default=0)
            assert marks.leader_depth(state) == deepest
    for state in waiting + leading:
        marks.withdraw(state)
    assert list(marks.roots()) == []


# ---- the theorem ----


def computed_in(order: Sequence[Sequence[int]], capacity: int) -> int:
    """Tokens computed when requests are served one by one over a cache of `capacity` tokens."""
    cache, total = RadixCache(PagePool(capacity), 1), 0
    for prompt in order:
        match = cache.match_prefix(prompt)
        node = cache.lock(match)
        rest = prompt[match.num_tokens :]
        cache.evict(len(rest) - cache.pool.num_free)
        added = cache.insert(node, rest, cache.pool.allocate(len(rest)))
        cache.unlock(added.node)
        total += len(rest)
    return total


@pytest.mark.parametrize(("count", "seed"), [(4, 2), (5, 3), (5, 4), (6, 5), (6, 6), (7, 7)])
def test_depth_first_computes_each_edge_once_and_nothing_beats_it(count: int, seed: int) -> None:
    rng = random.Random(seed)
    trunk = [[rng.randrange(3) for _ in range(8)] for _ in range(2)]
    prompts = [
        [*rng.choice(trunk)[: rng.randrange(1, 9)], *(rng.randrange(3) for _ in range(4))]
        for _ in range(count)
    ]
    capacity = max(map(len, prompts))
    queue = DfsQueue(Marks(1))
    for order, prompt in enumerate(prompts):
        queue.push(sequence(prompt, order))
    served: list[list[int]] = []
    while (first := queue.peek(0.0)) is not None:
        queue.discard(first)
        served.append(list(first.tokens))
    assert computed_in(served, capacity) == unique_tokens(prompts)
    costs = [computed_in(order, capacity) for order in permutations(prompts)]
    assert min(costs) == unique_tokens(prompts)
    assert max(costs) > min(costs), "the order does not matter here"


@pytest.mark.parametrize("policy", HASH_TREE)
def test_all_at_once_each_edge_is_computed_once(policy: Policy) -> None:
    rng = random.Random(8)
    trunks = [prompt_of(240, i) for i in range(3)]
    prompts = [
        [*rng.choice(trunks)[: 4 * rng.randrange(10, 60)], *prompt_of(12, 50 + i)]
        for i in range(40)
    ]
    server = Server(policy, max_running=16, max_step_tokens=128)
    server.scheduler.planner.min_shared_tokens = 1
    for i, prompt in enumerate(prompts):
        server.add(str(i), prompt)
    server.run()
    assert server.scheduler.stats()["computed_tokens"] == unique_tokens(prompts)


# ---- no cliff ----


@pytest.mark.parametrize("policy", ["fair", "lpm", "dfs", "fcfs"])
def test_ten_thousand_wait_and_a_step_looks_at_few(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    scheduler = Scheduler(
        ScheduleConfig(policy=policy, max_step_tokens=256, max_running=16),
        RadixCache(PagePool(4096), 16),
        max_context=512,
        vocab_size=VOCAB,
        clock=clock,
    )
    model = HashModel(16, VOCAB)
    shared = [prompt_of(48, i) for i in range(20)]
    for i in range(10_000):
        prompt = [*shared[i % 20], *(i % 97, i % 89, i % 83)]
        scheduler.add(Request(str(i), array("i", prompt), SamplingParams(max_tokens=1, seed=1)))
    looks = 0
    original = scheduler.cache.match_prefix

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return original(*args)

    monkeypatch.setattr(scheduler.cache, "match_prefix", counted)
    for _ in range(30):
        looks = 0
        batch = scheduler.schedule()
        assert batch is not None
        assert looks <= 256 + 16
        scheduler.update(batch, model.run(batch))
        clock.now += 0.1
    scheduler.check()
    for i in range(10_000):
        scheduler.abort(str(i))
    expect_empty(scheduler)


def test_a_heap_forgets_what_was_removed() -> None:
    rng, heap = random.Random(1), LazyHeap()
    inside: dict[SequenceState, float] = {}
    for order in range(3000):
        if rng.random() < 0.6:
            state = sequence([1], order)
            inside[state] = rng.random()
            heap.push((inside[state],), state)
        elif inside:
            state = rng.choice(list(inside))
            del inside[state]
            heap.forget(state)
        if inside:
            assert heap.first() is min(inside, key=inside.__getitem__)
        assert len(heap) == len(inside)
        assert len(heap._entries) <= max(64, 4 * len(heap) + 1)
    assert set(heap) == set(inside)
