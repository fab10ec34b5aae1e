"""Specs to compiled grammars: cached by content, compiled once however many threads ask.

    GrammarSpec ──front end of its kind──▶ Node ──engine.start──▶ CompiledGrammar ──▶ GrammarMatcher

A compile parses and checks the whole source and makes the first state; everything else happens when
a text first gets there, but for the first masks of a large grammar, what of it takes long, and what
more can be expanded in some milliseconds. All grammars of a compiler share one engine, so equal
parts share states and masks. When its memory passes half of the bound, what is asked for next gets
a fresh engine, and the old one goes with its last matcher; one text may add an eighth, so none can
starve the others.
"""

import importlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.engine import Engine, NativeEngine, make_engine
from radixgen.grammars.expr import Node, RuleSet, concat, literal
from radixgen.grammars.following import Following, with_commas
from radixgen.grammars.matcher import GrammarMatcher
from radixgen.grammars.native_schemas import PlainSchemas
from radixgen.grammars.python_engine import UNSPELLABLE
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.grammars.warm import warm
from radixgen.types import GrammarSpec, OptionValue

DEFAULT_MAX_BYTES = 512 << 20
MAX_SOURCE = 32 << 20  # characters; a larger constraint is refused before it is parsed
MANY_TOKENS = 8192  # of a vocabulary; over fewer, masks are quick from the first on
MUCH = 64 << 20  # bytes, of which what is made with an engine takes a fifth
MUCH_SOURCE = 1500  # characters, from which on rules are looked ahead at, on any machine
VERY_MUCH_SOURCE = 5_000  # and the first masks made,
SOME_SECONDS = 0.0006  # as where a compile took so long, since they are likely to as well
SHARE_SOURCE = 2000  # characters, with which that may take as long as the rest of a compile
MOST_SHARE = 3  # times as long, with as many times the characters
MOST_AHEAD = 0.004  # seconds for rules
LEAST_AHEAD = 0.0012  # of what a front end has read, and the engine did not by itself: seldom plain
ENOUGH_SECONDS = 0.007  # of a compile, with all that
MOST_SECONDS = 0.012  # with what would take longest within a mask, as few schemas have,
HUGE_SOURCE = 50_000  # or with all that takes long, from so many characters on
DEAR_SECONDS = 0.001  # for what takes long each, even where a compile took more than enough
HUGE_DEAR_SECONDS = 0.0032  # by estimate, for what takes long each in so many characters
FIRST_TEXTS = (b"", b"{", b'{"')  # as most texts begin
SOURCE_COST = 40  # bytes that a cached grammar takes per character of its source, about

HEALED = "healed"  # an option of any kind: bytes, as Latin-1, that come before the text

Options = dict[str, OptionValue]
# A spec as plain values: looked up several times in a compile, each time without a call.
_Key = tuple[str, str, tuple[tuple[str, OptionValue], ...]]

# Kind -> module of radixgen.grammars and its function (source, options, rules) -> Node.
FRONT_ENDS: dict[str, tuple[str, str]] = {
    "json_schema": ("json_schema", "compile_schema"),
    "regex": ("regex", "compile_regex"),
    "lark": ("lark_grammar", "compile_lark"),
    "gbnf": ("gbnf", "compile_gbnf"),
    "choice": ("choice", "compile_choice"),
    "structural_tag": ("structural_tag", "compile_structural_tag"),
}


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar ready to run: its engine and the state it begins in."""

    spec: GrammarSpec
    engine: Engine
    start: int
    rules: RuleSet
    max_growth: int  # bytes that one text may add to the engine
    following: Following | None = None  # where what may come depends on the text so far

    def matcher(self) -> GrammarMatcher:
        """A matcher at the beginning of a text."""
        return GrammarMatcher(self)


class _Running:
    """A compile that others may wait for; `done` is held until it has a result or an error."""

    __slots__ = ("compiled", "done", "error")

    def __init__(self) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self.compiled: CompiledGrammar | None = None
        self.error: BaseException | None = None

    def result(self) -> CompiledGrammar:
        with self.done:
            if self.error is not None:
                raise self.error
            assert self.compiled is not None
            return self.compiled


class GrammarCompiler:
    """Compiles constraints for one vocabulary. Thread-safe.

    `max_bytes` bounds the engine's memory (states, masks) and, apart from it, what is kept of
    compiled grammars.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_bytes: int = DEFAULT_MAX_BYTES,
        engine_factory: Callable[[Vocabulary, int], Engine] = make_engine,
    ) -> None:
        self.vocabulary = vocabulary
        self._max_bytes = max_bytes
        self._make_engine = engine_factory
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, CompiledGrammar] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[_Key, _Running] = {}
        self._engine = self._fresh_engine()
        with_commas(vocabulary)  # looked up once, rather than within a text's first mask

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """The compiled grammar of a spec, from the cache if it is there.

        Raises InvalidGrammar for a constraint that cannot be enforced, derives nothing or needs
        more memory or more ways than one grammar may take. Counts bound many of its steps, alike on
        every machine, and nothing bounds its time: a runtime tries what takes long in a process
        that it can stop (runtime/grammar_screen.py).
        """
        key = _key(spec)
        with self._lock:
            found = self._find(key)
            if found is not None:
                return found
            running = self._running.get(key)
            if running is None:
                mine = self._running[key] = _Running()
        if running is not None:
            return running.result()
        return self._run(spec, key, mine)

    def find(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """The compiled grammar of a spec if it is in the cache."""
        with self._lock:
            return self._find(_key(spec))

    def _find(self, key: "_Key") -> CompiledGrammar | None:
        found = self._kept.get(key)
        if found is None or found.engine.num_bytes > self._max_bytes // 2:
            return None
        self._kept.move_to_end(key)
        return found

    def _run(self, spec: GrammarSpec, key: "_Key", running: "_Running") -> CompiledGrammar:
        try:
            compiled = running.compiled = self._compile(spec)
            with self._lock:
                self._keep(key, compiled)
            return compiled
        except BaseException as error:
            running.error = error
            raise
        finally:
            with self._lock:
                del self._running[key]
            running.done.release()

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if len(spec.source) > MAX_SOURCE:
            raise InvalidGrammar(
                f"the constraint has {len(spec.source)} characters, over the limit of {MAX_SOURCE}"
            )
        rules, begin = RuleSet(), time.thread_time()
        engine = self._current_engine()
        rules.decide = engine.is_empty
        try:
            start, met = _start_plain(engine, spec) or _start(engine, build(spec, rules))
            _check_doubtful(engine, rules, start)
        except RecursionError:
            raise InvalidGrammar("the constraint is nested too deeply; flatten it") from None
        except InvalidGrammar as error:
            if rules.doubts.found and not error.path:  # it is of what has one
                raise rules.doubts.found[0][1] from None
            raise
        if not start:
            raise InvalidGrammar("the constraint cannot be satisfied: no text at all meets it")
        following = Following(engine) if rules.close() else None
        if isinstance(engine, NativeEngine):
            _look_ahead(engine, spec.source, start, met, rules, begin)
        return CompiledGrammar(spec, engine, start, rules, self._max_bytes // 8, following)

    def _current_engine(self) -> Engine:
        with self._lock:
            if self._engine.num_bytes > self._max_bytes // 2:
                self._engine = self._fresh_engine()
                self._kept.clear()
                self._kept_bytes = 0
            return self._engine

    def _fresh_engine(self) -> Engine:
        engine = self._make_engine(self.vocabulary, self._max_bytes)
        is_native = isinstance(engine, NativeEngine)
        if is_native and self.vocabulary.size >= MANY_TOKENS and self._max_bytes >= MUCH:
            warm(engine)
        return engine

    def _keep(self, key: "_Key", compiled: CompiledGrammar) -> None:
        if compiled.engine is not self._engine:
            return
        self._kept[key] = compiled
        self._kept_bytes += _cost(key)
        while self._kept_bytes > self._max_bytes // 4 and len(self._kept) > 1:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= _cost(oldest)


def _key(spec: GrammarSpec) -> _Key:
    return spec.kind, spec.source, spec.options


def _cost(key: _Key) -> int:
    return 1000 + SOURCE_COST * len(key[1])


def _start_plain(engine: Engine, spec: GrammarSpec) -> tuple[int, int] | None:
    """The first state of a plain schema, which the native engine reads by itself, and where its
    forms begin; None of any other."""
    if spec.kind != "json_schema" or not isinstance(engine, NativeEngine):
        return None
    plain = _plain_schemas()(spec.options)
    return None if plain is None else engine.start_schema(spec.source, plain)


def _start(engine: Engine, node: Node) -> tuple[int, range]:
    """The first state, and the rules on the way, by their numbers, where the engine has any."""
    if isinstance(engine, NativeEngine):
        return engine.start_with_rules(node)
    return engine.start(node), range(0)


def _check_doubtful(engine: Engine, rules: RuleSet, start: int) -> None:
    """Raise what a front end says of strings that are not known to be any, where neither the engine
    finds one, nor that there is none, nor how one is completed; or where it does not find how a
    whole text with such strings is."""
    doubts = rules.doubts.found
    for node, error in (*doubts, *((None, error) for _, error in doubts[:1])):
        try:
            state = start if node is None else engine.start(node)
            if state:
                engine.fewest_tokens(state)
        except InvalidGrammar as found:
            if str(found) != UNSPELLABLE:
                raise error from None


def _look_ahead(
    engine: NativeEngine,
    source: str,
    start: int,
    met: range | int,
    rules: RuleSet,
    begin: float,
) -> None:
    """Make the first masks of a grammar whose compile began then, and expand what they lead to,
    where that may be worth it: for a small one it takes as long as the rest. Within a compile a few
    milliseconds hold up one request, within a mask all of a batch. `met`: its first rules, or where
    the forms of a plain schema begin, of which only those of scalars take long."""
    taken = time.thread_time() - begin
    if len(source) >= VERY_MUCH_SOURCE or taken > SOME_SECONDS:
        # What cannot be prepared is refused by the length alone: the same on every machine.
        prepared = engine.prepare(start, FIRST_TEXTS, must=len(source) >= VERY_MUCH_SOURCE)
        met = met if isinstance(met, int) else range(met.start, prepared.stop)
    if rules.dear and not isinstance(met, int):
        spent = time.thread_time() - begin
        is_huge = len(source) >= HUGE_SOURCE
        enough = max((MOST_SECONDS if is_huge else ENOUGH_SECONDS) - spent, DEAR_SECONDS)
        least = HUGE_DEAR_SECONDS if is_huge else 0.0
        made = engine.make_ahead(rules.dear, enough, MOST_SECONDS - spent, least)
        met = range(met.start, made.stop)
    seconds = 0.0 if isinstance(met, int) else LEAST_AHEAD
    if len(source) >= MUCH_SOURCE:
        share = min(len(source) / SHARE_SOURCE, MOST_SHARE) * taken
        if isinstance(met, int) and len(source) >= VERY_MUCH_SOURCE:
            share = MOST_AHEAD  # reading it took next to no time, what is left to read may not
        seconds = max(seconds, min(share, MOST_AHEAD))
    seconds = min(seconds, ENOUGH_SECONDS - (time.thread_time() - begin))
    if seconds <= 0.0:
        return
    if isinstance(met, int):
        engine.read_ahead(met, seconds)
    else:
        engine.look_ahead(met, seconds)


def build(spec: GrammarSpec, rules: RuleSet) -> Node:
    """The node of a spec, by the front end of its kind. Raises InvalidGrammar."""
    options = dict(spec.options)
    healed = options.pop(HEALED, "")
    if not isinstance(healed, str) or max(healed, default="") > "\xff":
        raise InvalidGrammar(
            f"the option {HEALED}={healed!r} is not bytes, written as Latin-1 text"
        )
    node: Node = _front_end(spec.kind)(spec.source, options, rules)
    return concat(literal(healed.encode("latin-1")), node) if healed else node


@cache
def _plain_schemas() -> Callable[[tuple[tuple[str, OptionValue], ...]], PlainSchemas | None]:
    """What that engine asks of the front end, imported when it is first asked for."""
    module: Any = importlib.import_module("radixgen.grammars.json_native")
    return module.plain_schemas  # type: ignore[no-any-return]  # by its name only


@cache
def _front_end(kind: str) -> Any:
    """The function of a kind, imported when it is first asked for."""
    module, function = FRONT_ENDS[kind]
    return getattr(importlib.import_module(f"radixgen.grammars.{module}"), function)
