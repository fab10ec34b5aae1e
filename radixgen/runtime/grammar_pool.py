"""Constraints of requests: compiled in a thread of their own.

Each is compiled in a process of its own first (`grammar_screen`), and the thread rests after work,
so that hostile constraints neither stop the steps nor slow them for long. A request that waits for
its grammar delays nobody: steps go on and take in what is ready. A grammar that cannot be compiled
fails its own request. Knows matchers, and of a request only its name.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from radixgen.errors import InvalidGrammar, InvalidRequest, RadixgenError
from radixgen.grammars.compiler import DEFAULT_MAX_BYTES, CompiledGrammar, GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher
from radixgen.runtime.grammar_screen import Screen, fill_first
from radixgen.types import GrammarSpec

REST = 3.0  # seconds of rest a second of work: compiling in this process slows the steps
MAX_REST = 2.0  # seconds
HEAVY = 0.1  # seconds of a compile and a first mask from which a grammar gets an engine of its own
MAX_HEAVY = 4  # such engines


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request's constraints: their grammars, in order, or why there are none."""

    rid: str
    grammars: tuple[CompiledGrammar | None, ...]  # None for a spec of None
    error: RadixgenError | None = None


class GrammarPool:
    """Compiles for one vocabulary. `make_compiler` is called once, in the pool's thread.

    `wake` is called from that thread whenever an outcome is ready. `screen` compiles first what is
    not in the cache.
    """

    def __init__(
        self, make_compiler: Callable[[], GrammarCompiler], screen: Screen | None = None
    ) -> None:
        self._screen = screen
        self.wake: Callable[[], None] = lambda: None
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixgen grammars")
        self._ready: deque[Outcome] = deque()
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._heavy: deque[GrammarCompiler] = deque(maxlen=MAX_HEAVY)
        self._rest = 0.0
        self.num_refused = 0
        self.num_cached = 0  # constraints that had been compiled before
        self.num_compiled = 0  # constraints that had not
        self.compile_seconds = 0.0  # of these, the process that tries them included

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def num_waiting(self) -> int:
        return len(self._wanted)

    def stats(self) -> dict[str, float]:
        """Counters since the start, and how many requests wait for their grammar now."""
        return {
            "compiled_grammars": self.num_compiled,
            "cached_grammars": self.num_cached,
            "refused_grammars": self.num_refused,
            "grammar_compile_seconds": self.compile_seconds,
            "waiting_grammars": self.num_waiting,
        }

    def submit(self, rid: str, *specs: GrammarSpec | None) -> None:
        """Compile a request's constraints; the outcome comes by `take`."""
        with self._lock:
            self._wanted.add(rid)
        self._thread.submit(self._work, rid, specs)

    def forget(self, rid: str) -> None:
        """Nobody waits any more; a compile that has not begun is left out."""
        with self._lock:
            self._wanted.discard(rid)

    def take(self) -> list[Outcome]:
        """The outcomes that are ready."""
        outcomes = []
        while self._ready:
            outcome = self._ready.popleft()
            with self._lock:
                self._wanted.discard(outcome.rid)
            outcomes.append(outcome)
        return outcomes

    def _work(self, rid: str, specs: Sequence[GrammarSpec | None]) -> None:
        if rid not in self._wanted:
            return
        try:
            self._rest = 0.0
            grammars = tuple(None if spec is None else self._compile(spec) for spec in specs)
            outcome = Outcome(rid, grammars)
        except RadixgenError as error:
            outcome = Outcome(rid, (), error)
            self.num_refused += 1
        except Exception as error:
            outcome = Outcome(rid, (), InvalidGrammar(f"the constraint failed: {error!r}"))
            self.num_refused += 1
        self._ready.append(outcome)
        self.wake()
        time.sleep(min(self._rest, MAX_REST))

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if self._compiler is None:
            if self._screen is not None:
                self._screen.start()  # meanwhile
            self._compiler = self._make_compiler()
        for compiler in (self._compiler, *self._heavy):
            if compiler.has(spec):
                self.num_cached += 1
                return compiler.compile(spec)
        begun = time.monotonic()
        try:
            seconds = 0.0 if self._screen is None else self._screen.check(spec)
            return self._compile_new(spec, self._compiler, is_heavy=seconds > HEAVY)
        finally:
            self.num_compiled += 1
            self.compile_seconds += time.monotonic() - begun

    def _compile_new(
        self, spec: GrammarSpec, compiler: GrammarCompiler, *, is_heavy: bool
    ) -> CompiledGrammar:
        """With what its first step needs, so that no step waits for that. While an engine works,
        whoever needs it waits: what is heavy gets its own."""
        started = time.monotonic()
        try:
            if is_heavy:
                compiler = GrammarCompiler(compiler.vocabulary, DEFAULT_MAX_BYTES // MAX_HEAVY)
            grammar = compiler.compile(spec)
            fill_first(grammar)
        finally:
            self._rest += REST * (time.monotonic() - started)
        if is_heavy:
            self._heavy.append(compiler)
        return grammar


def make_matcher(grammar: CompiledGrammar, max_tokens: int | None) -> GrammarMatcher:
    """A matcher for a choice of at most `max_tokens` tokens.

    Raises InvalidRequest when no text of the grammar is as short as that, with the number needed,
    and InvalidGrammar when the vocabulary spells none of them.
    """
    matcher = grammar.matcher()
    if max_tokens == 0:
        return matcher
    needed = matcher.shortest_completion()
    if matcher.error is not None:
        raise InvalidGrammar(matcher.error)
    if max_tokens is not None and needed > max_tokens:
        raise InvalidRequest(
            f"max_tokens={max_tokens} is too few for this grammar: its shortest text has "
            f"{needed} tokens",
            "max_tokens",
        )
    return matcher
