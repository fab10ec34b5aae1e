"""Random lives of many requests: whatever is added, aborted, refused or broken, pages add up after
each step, every request ends exactly once, and what was drawn is what is drawn without a cache."""

import random
from array import array
from collections.abc import Sequence

import pytest
from scheduling import (
    FakeClock,
    HashedStep,
    HashModel,
    expect_empty,
    expect_tokens,
    hash_kv,
    hash_logprob,
    terminals_of,
    tokens_of,
)

from radixgen.batch import RowResult, ScheduledBatch, StepResult
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import Eviction, Policy, ScheduleConfig
from radixgen.errors import RadixgenError
from radixgen.messages import RequestFailed, RequestFinished, ScoreOutput
from radixgen.schedule.request import Event, Propose, Request, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import CacheHint, FinishReason, SamplingParams

VOCAB = 300
POLICIES: tuple[Policy, ...] = ("fair", "fcfs", "lpm", "dfs", "sjf", "priority")
EVICTIONS: tuple[Eviction, ...] = ("lru", "lfu", "slru", "cost")


class Endless:
    """A matcher that allows everything."""

    error: str | None = None

    def accept_token(self, token_id: int) -> bool:
        return True

    def fill_bitmask(self, bitmask: object, row: int, budget: int | None = None) -> None: ...
    def fork(self) -> "Endless":
        return self

    def is_finished(self) -> bool:
        return False


class World:
    """A scheduler under a random crowd."""

    def __init__(self, seed: int, policy: Policy) -> None:
        self.rng = rng = random.Random(seed)
        self.page_size = rng.choice([1, 2, 4, 8])
        self.num_pages = rng.choice([12, 20, 40])
        self.limit = min(self.page_size * self.num_pages, 60)
        self.clock = FakeClock()
        config = ScheduleConfig(
            policy=policy,
            max_step_tokens=rng.choice([1, 5, 16, 64]),
            max_running=rng.choice([1, 3, 8]),
            max_total_tokens=rng.choice([None, self.page_size * self.num_pages]),
            max_preemptions=rng.choice([0, 1, 3]),
        )
        plain = rng.choice(
            [None, None, 1, 4, 40]
        )  # pages in full precision, the others in few bits
        cache = RadixCache(
            PagePool(self.num_pages),
            self.page_size,
            rng.choice(EVICTIONS),
            enabled=rng.random() < 0.9,
            share_tail_pages=rng.random() < 0.8 and plain is None,
        )
        self.scheduler = Scheduler(
            config,
            cache,
            max_context=self.limit,
            vocab_size=VOCAB,
            clock=self.clock,
            rng=rng,
            check=True,
            num_plain_pages=plain,
        )
        self.scheduler.planner.min_shared_tokens = rng.choice([1, 8, 32])
        self.model = HashModel(self.page_size, VOCAB)
        self.requests: dict[str, Request] = {}
        self.events: list[Event] = []
        self.batch: ScheduledBatch | None = None
        self.launched: HashedStep | None = None
        self.ahead: HashedStep | None = None
        self.prompts = [self._ids(self.limit) for _ in range(2)]

    def _ids(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def add(self) -> None:
        rng = self.rng
        base = rng.choice(self.prompts)
        length = rng.randrange(1, self.limit - 8)
        prompt = base[: rng.randrange(length + 1)]
        prompt += self._ids(length - len(prompt))
        rid = f"r{len(self.requests)}"
        request = Request(rid, array("i", prompt), priority=rng.randrange(-1, 2))
        request.namespace = rng.choice(["", "", "other"])
        request.hint = rng.choice([None, CacheHint(last_use=True), CacheHint(forks=2)])
        if rng.random() < 0.2:
            lengths = [rng.randrange(1, 7) for _ in range(rng.randrange(1, 4))]
            request.continuations = tuple(array("i", self._ids(n)) for n in lengths)
        else:
            request.sampling = SamplingParams(
                max_tokens=rng.choice([None, 0, 1, 5, 12]),
                n=rng.choice([1, 1, 2, 4]),
                seed=rng.randrange(1000),
                prompt_logprobs=rng.choice([None, None, 1]),
                stop_token_ids=rng.choice([(), tuple(range(0, VOCAB, 6))]),
            )
            request.waiting_for_grammar = rng.random() < 0.2
            if rng.random() < 0.3:
                request.propose = self._proposer(request)
        self.requests[rid] = request
        self.scheduler.add(request)

    def _proposer(self, request: Request) -> Propose:
        """Knows what the first choice will draw, and is careless."""

        def propose(known: Sequence[int], limit: int) -> list[int]:
            if self.rng.random() < 0.01:
                raise RuntimeError("no idea")
            prompt = request.prompt_ids
            drawn = expect_tokens(prompt, request.seed, len(known) - len(prompt) + 5, VOCAB)
            drafts = drawn[len(known) - len(prompt) :][: self.rng.randrange(6)]
            return [*drafts, *self._ids(self.rng.randrange(2))][:limit]

        return propose

    def some_rid(self) -> str:
        return f"r{self.rng.randrange(len(self.requests) + 1)}"

    def begin(self) -> None:
        if self.batch is None:
            self.batch = self.scheduler.schedule()
            self.events += self.scheduler.take_events()
            if self.batch is not None:
                self._draw(self.model.launch(self.batch))

    def lead(self) -> None:
        """Launch a step behind the one under way."""
        if self.batch is not None and self.ahead is None:
            batch = self.scheduler.schedule_ahead()
            if batch is not None:
                self.ahead = self.model.launch(batch)

    def _draw(self, launched: HashedStep) -> None:
        assert self.batch is not None
        self.model.draw(launched, self.batch.rows)
        self.launched = launched

    def end(self) -> None:
        batch, self.batch = self.batch, None
        ahead, self.ahead = self.ahead, None
        if batch is None or self.launched is None:
            return
        luck = self.rng.random()
        rows = list(self.model.collect(self.launched).rows)
        if luck < 0.01:
            self.events += self.scheduler.fail_step(RuntimeError("device lost"))
            return
        if luck < 0.03:
            rows[self.rng.randrange(len(rows))] = RowResult(error="not finite")
        self.events += self.scheduler.update(batch, StepResult(rows))
        if ahead is not None:
            self.batch = self.scheduler.resume()
            self._draw(ahead)

    def act(self) -> None:
        self.clock.now += self.rng.random()
        choice = self.rng.random()
        if choice < 0.12 and len(self.scheduler.requests) < 12:
            self.add()
        elif choice < 0.14:
            self.events += self.scheduler.abort(self.some_rid())
        elif choice < 0.145:
            self.events += self.scheduler.fail(self.some_rid(), RadixgenError("bad luck"))
        elif choice < 0.15:
            self.scheduler.flush_cache()
        elif choice < 0.25:
            self.scheduler.grammar_ready(self.some_rid(), Endless)
        elif choice < 0.5:
            self.begin()
        elif choice < 0.7:
            self.lead()
        else:
            self.end()

    def finish(self) -> None:
        self.end()
        self.end()
        for rid in self.requests:
            self.scheduler.grammar_ready(rid, Endless)
        for _ in range(20_000):
            if not self.scheduler.has_work:
                return
            self.begin()
            self.lead()
            self.end()
        raise AssertionError("livelock")

    def verify(self) -> None:
        ends = terminals_of(self.events)
        assert set(ends) == set(self.requests), "a request without its terminal event"
        tokens = tokens_of(self.events)
        for rid, request in self.requests.items():
            match ends[rid]:
                case ScoreOutput(logprobs=logprobs):
                    self._verify_scores(request, logprobs)
                case RequestFinished() | RequestFailed():
                    self._verify_tokens(request, tokens)
        self._verify_reasons(ends)

    def _verify_scores(self, request: Request, logprobs: Sequence[Sequence[float]]) -> None:
        for given, found in zip(request.continuations or (), logprobs, strict=True):
            kv = hash_kv([*request.prompt_ids, *given])
            start = len(request.prompt_ids)
            assert list(found) == [hash_logprob(kv[: start + i], t) for i, t in enumerate(given)]

    def _verify_tokens(self, request: Request, tokens: dict[tuple[str, int], list[int]]) -> None:
        for index in range(request.sampling.n):
            drawn = tokens.get((request.rid, index), [])
            seed = request.seed + index
            assert drawn == expect_tokens(request.prompt_ids, seed, len(drawn), VOCAB)

    def _verify_reasons(
        self, ends: dict[str, RequestFinished | RequestFailed | ScoreOutput]
    ) -> None:
        """A finished request has one reason a choice, and as many tokens as it asked for."""
        reasons: dict[str, dict[int, FinishReason]] = {}
        for event in self.events:
            if isinstance(event, SequenceOutput) and event.finish_reason:
                assert event.index not in reasons.setdefault(event.rid, {})
                reasons[event.rid][event.index] = event.finish_reason
        tokens = tokens_of(self.events)
        for rid, end in ends.items():
            request = self.requests[rid]
            if not isinstance(end, RequestFinished):
                continue
            assert sorted(reasons[rid]) == list(range(request.sampling.n))
            wanted = request.sampling.max_tokens
            room = self.limit - len(request.prompt_ids)
            for index, reason in reasons[rid].items():
                if reason is FinishReason.LENGTH:
                    count = room if wanted is None else min(wanted, room)
                    assert len(tokens[rid, index]) == count


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_random_lives(seed: int, policy: Policy) -> None:
    world = World(seed * 100 + POLICIES.index(policy), policy)
    for _ in range(250):
        world.act()
    world.finish()
    world.verify()
    expect_empty(world.scheduler)


def test_a_fork_keeps_the_page_it_is_about_to_copy() -> None:
    """A life in which a high priority displaces a first choice in the step that copies from it."""
    world = World(7684, "priority")
    for _ in range(400):
        world.act()
    world.finish()
    world.verify()
    expect_empty(world.scheduler)
