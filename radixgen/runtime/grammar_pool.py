"""Constraints of requests: compiled in threads of their own.

    submit ─▶ light lane ── known, or compiles within LIGHT ────────────────▶ take
                  └── TakesLong ─▶ heavy lane: patient trial, paced compile ──▲

Each constraint is tried in a process of its own first (`grammar_screen`). What takes long there
goes to a lane for such, so that it delays no other constraint; and each lane works but a share of
the time while there are steps, so that hostile constraints neither stop these nor slow them for
long. A request that waits for its grammar delays nobody: steps go on and take in what is ready. A
grammar that cannot be compiled fails its own request. Knows matchers, and of a request its name.
"""

import hashlib
import itertools
import logging
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from radixgen.errors import InvalidGrammar, InvalidRequest, RadixgenError
from radixgen.grammars.compiler import DEFAULT_MAX_BYTES, CompiledGrammar, GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher
from radixgen.grammars.shortest import MAX_COUNTED
from radixgen.runtime.grammar_screen import Screen, TakesLong, fill_first, warm_up
from radixgen.runtime.pace import QUIET, Duty, Pace
from radixgen.types import GrammarSpec

logger = logging.getLogger(__name__)

LIGHT = 0.1  # seconds of the processor within which a light constraint is tried
SHARE = 1 / 8  # of the time that a lane works while there are steps
TIGHT_SHARE = 1 / 16  # where steps want every core, so that they wait for what is taken of one
CREDIT = 0.25  # seconds that light constraints take of late before there is a rest
GLANCE = 0.05  # seconds between two looks whether a rest is over
NICE = 15  # of what tries and compiles heavy ones: a thirtieth of a core that others want
MAX_HEAVY = 4  # engines of heavy grammars
REMEMBERED = 600.0  # seconds for which it is known that a constraint takes too long
MAX_REMEMBERED = 1000  # of these


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request's constraints: their grammars, in order, or why there are none."""

    rid: str
    grammars: tuple[CompiledGrammar | None, ...]  # None for a spec of None
    error: RadixgenError | None = None


class _Lane:
    """A thread, what tries constraints for it, and how much it may work."""

    def __init__(
        self, name: str, screen: Screen | None, share: float, credit: float, nice: int = 0
    ) -> None:
        self.screen = screen
        self.duty = Duty(share, credit)
        self.thread = ThreadPoolExecutor(1, f"radixgen {name}", partial(_step_back, nice))


def _step_back(nice: int) -> None:
    """Have this thread give way to others, where threads have a niceness of their own."""
    if nice and sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, now))


class GrammarPool:
    """Compiles for one vocabulary. `make_compiler` is called once, in a thread of the pool.

    `wake` is called, from any thread, whenever an outcome is ready. What is not in the cache is
    compiled by `screen` first, and by `patient` if that takes it too long. `pace` tells the pool
    what the engine is at. `share`: of the time that each lane works while there are steps.
    """

    def __init__(
        self,
        make_compiler: Callable[[], GrammarCompiler],
        screen: Screen | None = None,
        patient: Screen | None = None,
        share: float = SHARE,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.pace = Pace()
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None
        self._light = _Lane("grammars", screen, share, CREDIT)
        self._slow = _Lane("heavy grammars", patient, share, 0.0, NICE)
        self._ready: deque[tuple[int, Outcome]] = deque()  # with its ticket
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._wanted: dict[str, int] = {}  # rid -> ticket of the last who had it
        self._is_needed = threading.Event()  # a constraint has come
        self._num_open = 0  # pieces of work that no lane is done with
        self._endless = _Endless()
        self._heavy: deque[GrammarCompiler] = deque(maxlen=MAX_HEAVY)
        self.num_refused = 0
        self.num_cached = 0  # constraints that had been compiled before
        self.num_compiled = 0  # constraints that had not
        self.compile_seconds = 0.0  # of these, the processes that try them included

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def num_waiting(self) -> int:
        return len(self._wanted)

    @property
    def is_idle(self) -> bool:
        """Whether no thread of the pool works, be it on what nobody waits for any more."""
        return self._num_open == 0

    def stats(self) -> dict[str, float]:
        """Counters since the start, and how many requests wait for their grammar now."""
        return {
            "compiled_grammars": self.num_compiled,
            "cached_grammars": self.num_cached,
            "refused_grammars": self.num_refused,
            "grammar_compile_seconds": self.compile_seconds,
            "waiting_grammars": self.num_waiting,
        }

    def prepare(self) -> None:
        """Have done in a quiet moment what the first constraint would wait for: the process that
        tries constraints is started, and the compiler made. A constraint that comes before waits
        for no such moment."""
        with self._lock:
            self._num_open += 1
        self._light.thread.submit(self._prepare)

    def _prepare(self) -> None:
        while not self._is_needed.wait(QUIET) and not self.pace.is_quiet:
            pass
        try:
            warm_up(self._get_compiler(self._light))
        except Exception as error:  # who needs it will be told
            logger.warning("the compiler of constraints is not ready: %r", error)
        with self._lock:
            self._num_open -= 1

    def submit(self, rid: str, *specs: GrammarSpec | None) -> None:
        """Compile a request's constraints; the outcome comes by `take`. What is known is there at
        once, whatever else is tried."""
        with self._lock:
            ticket = self._wanted[rid] = next(self._tickets)
        known = tuple(None if spec is None else self._find(spec) for spec in specs)
        if known.count(None) == specs.count(None):
            self._count_cached(len(specs) - specs.count(None))
            self._deliver(ticket, Outcome(rid, known))
            return
        with self._lock:
            self._num_open += 1
        self._is_needed.set()
        self._light.thread.submit(self._work, rid, ticket, specs, self._light)

    def forget(self, rid: str) -> None:
        """Nobody waits any more; a compile that has not begun is left out."""
        with self._lock:
            self._wanted.pop(rid, None)

    def take(self) -> list[Outcome]:
        """The outcomes that are ready. What was forgotten has none, also when another request has
        its name by now."""
        outcomes = []
        while self._ready:
            ticket, outcome = self._ready.popleft()
            with self._lock:
                if self._wanted.get(outcome.rid) == ticket:
                    del self._wanted[outcome.rid]
                    outcomes.append(outcome)
        return outcomes

    def _work(
        self, rid: str, ticket: int, specs: Sequence[GrammarSpec | None], lane: _Lane
    ) -> None:
        if self._wanted.get(rid) != ticket or self._finish(rid, ticket, specs, lane):
            with self._lock:
                self._num_open -= 1
        else:
            self._slow.thread.submit(self._work, rid, ticket, specs, self._slow)

    def _finish(
        self, rid: str, ticket: int, specs: Sequence[GrammarSpec | None], lane: _Lane
    ) -> bool:
        """False when it is for the other lane to do."""
        try:
            grammars = tuple(None if spec is None else self._get(spec, lane) for spec in specs)
            outcome = Outcome(rid, grammars)
        except TakesLong:
            return False
        except RadixgenError as error:
            outcome = Outcome(rid, (), error)
            self.num_refused += 1
        except Exception as error:
            outcome = Outcome(rid, (), InvalidGrammar(f"the constraint failed: {error!r}"))
            self.num_refused += 1
        self._deliver(ticket, outcome)
        return True

    def _deliver(self, ticket: int, outcome: Outcome) -> None:
        self._ready.append((ticket, outcome))
        self.wake()

    def _find(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """A grammar that was compiled before, if it is kept."""
        compilers = () if self._compiler is None else (self._compiler, *self._heavy.copy())
        return next((known for each in compilers if (known := each.find(spec))), None)

    def _get(self, spec: GrammarSpec, lane: _Lane) -> CompiledGrammar:
        """A compiled grammar. Raises TakesLong in the light lane."""
        shared = self._get_compiler(lane)
        known = self._find(spec)
        if known is not None:
            self._count_cached(1)
            return known
        self._rest(lane)
        started = time.monotonic()
        try:
            grammar = self._compile_new(spec, shared, lane)
        except TakesLong:
            raise
        except BaseException:
            self._count(started)
            raise
        self._count(started)
        return grammar

    def _get_compiler(self, lane: _Lane) -> GrammarCompiler:
        if self._compiler is None:
            if lane.screen is not None:
                lane.screen.start()  # meanwhile
            self._compiler = self._make_compiler()
        return self._compiler

    def _count_cached(self, count: int) -> None:
        with self._lock:
            self.num_cached += count

    def _count(self, started: float) -> None:
        with self._lock:
            self.num_compiled += 1
            self.compile_seconds += time.monotonic() - started

    def _rest(self, lane: _Lane) -> None:
        """Wait until the lane has worked no more than its share, or nobody is disturbed."""
        while (seconds := lane.duty.rest()) > 0 and not self.pace.is_quiet:
            time.sleep(min(seconds, GLANCE))

    def _compile_new(
        self, spec: GrammarSpec, compiler: GrammarCompiler, lane: _Lane
    ) -> CompiledGrammar:
        """With what its first step needs, so that no step waits for that. While an engine works,
        whoever needs it waits: what is heavy gets its own."""
        is_heavy = lane is self._slow
        if lane.screen is not None:
            try:
                self._try(spec, lane.screen, is_heavy)
            finally:
                if not is_heavy:  # that one is held back by its niceness
                    lane.duty.add(lane.screen.seconds)
        beside: AbstractContextManager[None] = nullcontext()
        if is_heavy:
            compiler = GrammarCompiler(compiler.vocabulary, DEFAULT_MAX_BYTES // MAX_HEAVY)
            beside = self.pace.beside()
        started = time.thread_time()
        try:
            with beside:
                grammar = compiler.compile(spec)
                fill_first(grammar)
        finally:
            lane.duty.add(time.thread_time() - started)
        if is_heavy:
            self._heavy.append(compiler)
        return grammar

    def _try(self, spec: GrammarSpec, screen: Screen, is_heavy: bool) -> None:
        """Raises InvalidGrammar, or TakesLong for what another lane is to try."""
        if is_heavy and spec in self._endless:
            raise self._endless.error(screen.max_seconds)
        try:
            screen.check(spec)
        except TakesLong:
            if not is_heavy:
                raise
            self._endless.add(spec)
            raise self._endless.error(screen.max_seconds) from None


class _Endless:
    """Constraints that took too long of late: who sends one again is answered without a trial."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __contains__(self, spec: GrammarSpec) -> bool:
        return self._until.get(_digest(spec), 0.0) > self._clock()

    def add(self, spec: GrammarSpec) -> None:
        self._until[_digest(spec)] = self._clock() + REMEMBERED
        if len(self._until) > MAX_REMEMBERED:
            self._until.popitem(last=False)

    @staticmethod
    def error(seconds: float) -> InvalidGrammar:
        return InvalidGrammar(
            f"the constraint takes over {seconds:g} s to compile; simplify its patterns or bounds "
            "(of numbers of items and members too, above all beside uniqueItems)"
        )


def _digest(spec: GrammarSpec) -> bytes:
    """In place of a spec, which may be large."""
    text = repr((spec.kind, spec.options)) + spec.source
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def make_matcher(grammar: CompiledGrammar, max_tokens: int | None) -> GrammarMatcher:
    """A matcher for a choice of at most `max_tokens` tokens.

    Raises InvalidRequest when no text of the grammar is as short as that, with the number needed,
    and InvalidGrammar when the vocabulary spells none of them.
    """
    matcher = grammar.matcher()
    needed = matcher.shortest_completion()
    if matcher.error is not None:
        raise InvalidGrammar(matcher.error)
    if max_tokens == 0 and matcher.is_accepting():
        return matcher  # no text is one of its texts
    if max_tokens is not None and needed > max_tokens:
        about = "up to " if needed > MAX_COUNTED else ""
        tokens = "token" if needed == 1 else "tokens"
        raise InvalidRequest(
            f"max_tokens={max_tokens} is too few for this grammar: its shortest text has "
            f"{about}{needed} {tokens}",
            "max_tokens",
        )
    return matcher
