"""Drives scheduler and model runner: requests in, events out, one step at a time. No sockets.

Every request that `add` takes in or refuses ends in exactly one terminal event. An exception ends
the requests that it belongs to and no others: refused arguments the one request, a failed forward
pass those that were in it.
"""

import logging
import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from radixgen.batch import ScheduledBatch, StepResult
from radixgen.cache.view import view
from radixgen.errors import InvalidGrammar, InvalidRequest, RadixgenError
from radixgen.grammars.compiler import HEALED, CompiledGrammar
from radixgen.messages import CacheNode, GenerateRequest, RequestFailed, ScoreRequest
from radixgen.options import check_adapter
from radixgen.runtime.beginnings import BeginsWith, TokenTexts
from radixgen.runtime.drafts import Drafter
from radixgen.runtime.faithful import LawKey, PrefixStore
from radixgen.runtime.grammar_pool import GrammarPool, make_matcher
from radixgen.runtime.masks import MaskWriter
from radixgen.runtime.pace import Pace
from radixgen.runtime.stats import EngineStats
from radixgen.runtime.thinking import SpecialTokens, ThinkingTokens, Thoughts, thinking_spec
from radixgen.schedule.law import LawFactory
from radixgen.schedule.request import Event, Request, ThoughtRules
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import GrammarSpec, Thinking

MAX_BUDGET = 2**31 - 1  # tokens: no limit of its own

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """What computes a step: `radixgen.model.runner.ModelRunner`, or a script in a test."""

    def run(
        self,
        batch: ScheduledBatch,
        bitmask: "NDArray[np.int32] | None" = None,
        fill_mask: Callable[[], None] | None = None,
    ) -> StepResult:
        """The `bitmask` is written by `fill_mask`, and by the next step once this has returned."""
        ...


class Engine:
    """Owns a scheduler and a runner. `clock`: seconds. `adapters`: names that the runner knows.

    The scheduler checks its invariants after each step if it was made to (RADIXGEN_CHECK=1).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        grammars: GrammarPool | None = None,
        drafter: Drafter | None = None,
        special: SpecialTokens | None = None,
        *,
        adapters: Collection[str] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.grammars = grammars
        self._clock = clock
        self._adapters = adapters
        self._stats = EngineStats()
        self._prefixes = PrefixStore()
        self._special = special
        self._texts: TokenTexts | None = None
        self._masks = MaskWriter()
        self._drafter = scheduler.planner.drafter = drafter
        self._pace = Pace() if grammars is None else grammars.pace

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work or (self.grammars is not None and self.grammars.has_ready)

    def prepare(self) -> None:
        """Have done in a quiet moment what the first constraint would wait for."""
        if self.grammars is not None:
            self.grammars.prepare()

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, when `has_work` has become true by itself."""
        if self.grammars is not None:
            self.grammars.wake = wake

    def add(self, message: GenerateRequest | ScoreRequest, ids: "array[int]") -> list[Event]:
        """Take in a request, or refuse it with its terminal event. Raises nothing."""
        try:
            self._add(message, ids)
        except Exception as error:
            self._stats.refused_requests += 1
            return [_refusal(message.rid, error)]
        return []

    def _add(self, message: GenerateRequest | ScoreRequest, ids: "array[int]") -> None:
        check_adapter(message.lora, self._adapters)
        if isinstance(message, ScoreRequest):
            self.scheduler.add(Request.from_score(message, ids))
            return
        thinking = message.thinking
        is_guided = message.grammar is not None or thinking is not None
        if is_guided and self.grammars is None:
            raise InvalidGrammar("this engine has no grammars; leave the constraint out")
        if message.grammar is None and message.sampling.is_faithful:
            reason = "constrained_law='faithful' is the law of a constraint, and there is none"
            raise InvalidRequest(reason, "constrained_law")
        thoughts = None
        if thinking is not None and self._thinking_tokens(thinking) is None:
            thoughts = thinking_spec(thinking)
        if thinking is not None and message.sampling.is_faithful:
            reason = "thinking has no law of its own; leave it or constrained_law='faithful' out"
            raise InvalidRequest(reason, "thinking")
        request, grammar = Request.from_generate(message, ids), message.grammar
        if message.healed:
            grammar = self._heal(request, grammar, message.healed)
        self.scheduler.add(request)
        if is_guided and self.grammars is not None:
            self.grammars.submit(message.rid, grammar, thoughts)

    def _heal(
        self, request: Request, grammar: GrammarSpec | None, healed: str
    ) -> GrammarSpec | None:
        """Let an output begin with given bytes, within its constraint if it has one."""
        if self._special is None or request.thinking is not None or max(healed) > "\xff":
            raise InvalidRequest("healed is not bytes, or is before thoughts", "healed")
        request.num_healed = len(healed)
        if grammar is not None:
            options = tuple(sorted((*grammar.options, (HEALED, healed))))
            return replace(grammar, options=options)
        if self._texts is None:
            self._texts = TokenTexts(self._special)
        make = partial(BeginsWith, self._texts, healed.encode("latin-1"))
        request.thoughts = ThoughtRules(make, MAX_BUDGET, 0)
        return None

    def _take_grammars(self, pool: GrammarPool) -> list[Event]:
        """Requests whose constraint is compiled may be scheduled; the others are refused."""
        events: list[Event] = []
        for outcome in pool.take():
            request = self.scheduler.requests.get(outcome.rid)
            if outcome.error is not None:
                events += self.scheduler.fail(outcome.rid, outcome.error)
            elif request is not None:
                try:
                    self._constrain(request, *outcome.grammars)
                except RadixgenError as error:
                    events += self.scheduler.fail(outcome.rid, error)
        return events

    def _constrain(
        self, request: Request, answer: CompiledGrammar | None, thoughts: CompiledGrammar | None
    ) -> None:
        """Let a request begin under its compiled constraints. Raises InvalidRequest."""
        limit = request.sampling.max_tokens
        make = None if answer is None else partial(make_matcher, answer, limit)
        law = None if answer is None else self._law(request, answer.spec)
        rules = None
        if request.thinking is not None:
            tokens = self._thinking_tokens(request.thinking)
            made = Thoughts(request.thinking, tokens, thoughts)
            answer_tokens = 0 if make is None else make().shortest_completion()
            made.check(limit, answer_tokens)
            rules = ThoughtRules(made.matcher, request.thinking.budget, answer_tokens)
        self.scheduler.grammar_ready(request.rid, make, law, rules)

    def _thinking_tokens(self, thinking: Thinking) -> ThinkingTokens | None:
        if self._special is None:
            return None
        tokens = ThinkingTokens.find(thinking, self._special)
        if tokens is not None and tokens.end in self.scheduler.rules.end_token_ids:
            message = f"thinking end={thinking.end!r} is the token that ends this model's texts"
            raise InvalidRequest(message, "thinking")
        return tokens

    def _law(self, request: Request, grammar: GrammarSpec) -> LawFactory | None:
        sampling = request.sampling
        if not sampling.is_faithful:
            return None
        key = LawKey.of(request.namespace, request.prompt_ids, grammar, sampling)
        return partial(self._prefixes.law, key)

    def abort(self, rid: str) -> list[Event]:
        """Cancel a request; an unknown rid changes nothing."""
        if self.grammars is not None:
            self.grammars.forget(rid)
        return self.scheduler.abort(rid)

    def flush(self) -> None:
        """Forget every cached prefix that no running request uses."""
        self.scheduler.flush_cache()

    def step(self) -> list[Event]:
        """Compute one step, if one is due; returns the events due. Raises nothing."""
        self._pace.hold()
        try:
            return self._step()
        finally:
            self._pace.release()

    def _step(self) -> list[Event]:
        started = self._clock()
        events: list[Event] = []
        try:
            if self.grammars is not None:
                events += self._take_grammars(self.grammars)
            batch = self.scheduler.schedule()
            if batch is None:
                return events + self.scheduler.take_events()
        except Exception as error:
            return events + self._fail_all(error)
        try:
            result = self._run(batch)
        except Exception as error:
            return events + self._fail_step(error)
        try:
            events += self.scheduler.update(batch, result)
        except Exception as error:
            return events + self._fail_all(error)
        seconds = self._clock() - started
        self._stats.add_step(seconds, result)
        self._learn_cost(batch, seconds)
        self._stats.add_usages(events)
        return events

    def _learn_cost(self, batch: ScheduledBatch, seconds: float) -> None:
        """What a step costs by its rows, guessing and checking of guesses included."""
        num_rows = sum(1 + row.num_drafts for row in batch.rows)
        if self._drafter is not None and num_rows == batch.num_tokens:  # no prefill in it
            self._drafter.costs.add(len(batch.rows), num_rows, seconds)

    def _run(self, batch: ScheduledBatch) -> StepResult:
        """The forward pass; masks are written while it runs."""
        masks = self.scheduler.masks
        if not masks:
            self._pace.release()
            return self.runner.run(batch, None, self._pace.hold)
        bitmask = self._masks.room(masks, self.scheduler.vocab_size)
        write = self._masks.begin(masks, bitmask)

        def computed() -> None:
            self._pace.hold()
            write()

        self._pace.release()
        try:
            return self.runner.run(batch, bitmask, computed)
        finally:
            self._masks.end()

    def stats(self) -> dict[str, float]:
        """Counters since the start and gauges of now; units are in the names."""
        drafts = {} if self._drafter is None else self._drafter.stats()
        grammars = {} if self.grammars is None else self.grammars.stats()
        return self.scheduler.stats() | self._stats.values() | drafts | grammars

    def cache_tree(self, max_nodes: int, max_preview: int) -> tuple[CacheNode, ...]:
        """The largest nodes of the radix tree, and the first tokens of their edges."""
        return view(self.scheduler.cache, max_nodes, max_preview)

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


def _known(error: Exception) -> RadixgenError:
    """What a request is told when the fault is not its own."""
    return RadixgenError(f"the runtime failed inside a step: {error!r}")


def _refusal(rid: str, error: Exception) -> RequestFailed:
    if not isinstance(error, RadixgenError):
        logger.error("a request could not be taken in", exc_info=error)
        return RequestFailed(rid, RadixgenError.code, repr(error))
    param = error.param if isinstance(error, InvalidRequest) else None
    return RequestFailed(rid, error.code, str(error), param)
