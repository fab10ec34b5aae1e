"""The engine in C: see `native/engine.h`. This module owns its memory and its lock."""

import contextlib
import ctypes
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixgen import native
from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import Expr, Node
from radixgen.grammars.hook import Hook
from radixgen.grammars.native_faults import Faults
from radixgen.grammars.native_nodes import NEVER, NativeNodes
from radixgen.grammars.native_schemas import MAX_SOURCE, NativeSchemas, PlainSchemas
from radixgen.grammars.python_engine import UNSPELLABLE
from radixgen.grammars.vocabulary import TokenCuts, Vocabulary

Words = NDArray[np.int32]
Filled = tuple[str | None, int]
Dear = tuple[float, float, Callable[[], Node]]

MAX_FORCED = 4096
VERY_DEAR = 0.0005  # seconds that a text asks for at once, from which on there is more time
# Of such a node, if it has them: a pattern often goes another way behind a mark.
FIRST_BYTES = (b'"', b'{"', *(b'"' + bytes((mark,)) for mark in b"a0{.-/:"))
SOME_MASKS = 0.001  # seconds for those of others
SLOWER = 1.5  # than estimated, on most machines or busy ones
MAX_HEADS = 256  # rules before which a state may stand, where hooks are looked for
_SOURCES = (
    "memory.c",
    "nodes.c",
    "derive.c",
    "states.c",
    "trie.c",
    "walks.c",
    "masks.c",
    "records.c",
    "slices.c",
    "heads.c",
    "closures.c",
    "others.c",
    "chains.c",
    "braids.c",
    "json.c",
    "schemas.c",
    "scalars.c",
    "forms.c",
    "intervals.c",
    "complete.c",
    "budgets.c",
    "hooks.c",
    "api.c",
)
_EXPAND = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint32, ctypes.c_int32)


def load_library() -> ctypes.CDLL | None:
    """The compiled engine, built at first use; None where `radixgen.native` cannot or may not."""
    folder = Path(__file__).parent / "native"
    library = native.load("grammars", [folder / name for name in _SOURCES], ["-fvisibility=hidden"])
    if library is not None:
        _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    text = ctypes.c_char_p
    u32, i32, u64, pointer = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "rx_new": (pointer, (u32, u32, *[pointer] * 7, _EXPAND, u64)),
        "rx_free": (None, (pointer,)),
        "rx_build": (i32, (pointer, pointer, u32, text, pointer, pointer)),
        "rx_add_rule": (i32, (pointer,)),
        "rx_add_chain": (i32, (pointer, text, pointer, text, u32, u32, pointer)),
        "rx_add_braid": (i32, (pointer, text, pointer, text, pointer, u32, u32, pointer)),
        "rx_add_list": (i32, (pointer, u32, u32, pointer)),
        "rx_chain_place": (i32, (pointer, u32, i32)),
        "rx_schema": (i32, (pointer, text, u32, pointer)),
        "rx_form": (i32, (pointer, u32)),
        "rx_next_text": (i32, (pointer, u32)),
        "rx_next_wide": (i32, (pointer, u32, u32)),
        "rx_form_text": (text, (pointer, u32)),
        "rx_interval": (i32, (pointer, text, u32, text, u32, u32)),
        "rx_expand": (i32, (pointer, u32)),
        "rx_set_body": (None, (pointer, u32, u32)),
        "rx_start": (i32, (pointer, u32)),
        "rx_bytes": (i32, (pointer, u32, text, u32)),
        "rx_token": (i32, (pointer, u32, u32)),
        "rx_passing": (i32, (pointer, u32, u32, *[pointer] * 4)),
        "rx_accepting": (i32, (pointer, u32)),
        "rx_next": (i32, (pointer, u32, pointer)),
        "rx_forced": (i32, (pointer, u32, text, u32)),
        "rx_mask": (i32, (pointer, u32, pointer, pointer, u32)),
        "rx_masks": (None, (pointer, u32, *[pointer] * 4, u32, pointer, pointer)),
        **dict.fromkeys(("rx_bytes_held", "rx_num_rules", "rx_num_lost"), (pointer, (pointer,))),
        "rx_shortest": (i32, (pointer, u32, pointer, u32)),
        "rx_restrict": (i32, (pointer, u32, pointer, u32)),
        "rx_rule_cost": (None, (pointer, u32, u32)),
        **dict.fromkeys(("rx_rule_way", "rx_rule_hook", "rx_lenient"), (None, (pointer, u32))),
        "rx_heads": (i32, (pointer, u32, pointer, u32)),
        "rx_replace": (i32, (pointer, u32, pointer, pointer, u32)),
        "rx_sizes": (None, (pointer, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


class NativeEngine:
    """See `engine.Engine`."""

    def __init__(self, vocabulary: Vocabulary, library: ctypes.CDLL, max_bytes: int) -> None:
        self.vocabulary = vocabulary
        self._lock = threading.RLock()
        faults = Faults()
        self._checked, self._message = faults.checked, faults.message
        self._library = library
        self._arrays = _trie_arrays(vocabulary)
        self._ends = np.array(sorted(vocabulary.end_ids), np.uint32)
        self._ends_at, self._num_ends = self._ends.ctypes.data, len(self._ends)
        expand = _expander(weakref.ref(self), faults)
        self._keep = expand  # the engine calls it as long as it lives
        self._at = library.rx_new(
            len(vocabulary.trie),
            vocabulary.size,
            *(a.ctypes.data for a in self._arrays),
            expand,
            max_bytes,
        )
        if not self._at:
            raise MemoryError("no memory for a grammar engine")
        self._held = ctypes.c_uint64.from_address(library.rx_bytes_held(self._at))
        self._finalizer = weakref.finalize(self, library.rx_free, self._at)
        self._rx_mask, self._rx_token = library.rx_mask, library.rx_token
        self.nodes = NativeNodes(library, self._at, faults.checked)
        self.schemas: NativeSchemas | None = None  # made when the first is read
        self._bitmask: Words | None = None
        self._bitmask_at = 0
        self._bitmask_stride = self._bitmask_rows = 0
        self._is_wide = False

    @property
    def num_bytes(self) -> int:
        return self._held.value

    def sizes(self) -> dict[str, int]:
        """Bytes held, how many of each thing there are, and trie nodes visited so far."""
        found = (ctypes.c_uint64 * 7)()
        with self._lock:
            self._library.rx_sizes(self._at, found)
        names = ("bytes", "nodes", "stacks", "states", "rows", "records", "steps")
        return dict(zip(names, found, strict=True))

    def is_empty(self, node: Expr) -> bool:
        with self._lock:
            return self.nodes.is_empty(node)

    def start(self, node: Node) -> int:
        return self.start_with_rules(node)[0]

    def start_with_rules(self, node: Node) -> tuple[int, range]:
        """The first state of a grammar, and the numbers of its rules that were met so far."""
        with self._lock:
            before = self.nodes.met()
            built = self.nodes.build(node)
            state = self._checked(self._library.rx_start(self._at, built)) if built else 0
            return state, range(before, self.nodes.met())

    def start_schema(self, source: str, plain: PlainSchemas) -> tuple[int, int] | None:
        """The first state of a schema by its text, and where its forms begin; None for a schema
        that its front end has to read. Raises nothing for one that is wrong: the front end does."""
        if len(source) > MAX_SOURCE:
            return None
        try:
            text = source.encode()
        except UnicodeEncodeError:
            return None
        with self._lock:
            if self.schemas is None:
                self.schemas = NativeSchemas(self._library, self._at, self.nodes, plain.scalars)
            form = self.schemas.read(text, plain)
            if form is None:
                return None
            built = self.schemas.value(form)
            return self._checked(self._library.rx_start(self._at, built)), form

    def read_ahead(self, form: int, seconds: float) -> None:
        """Have the front end read what it has to of a schema whose forms begin there, for so long,
        expand what it finds, and make the first masks of objects with many names; what cannot be
        read is left to the text that gets there."""
        assert self.schemas is not None  # it has read the schema
        before, end, wide = self.nodes.met(), time.thread_time() + seconds, form
        while form >= 0:
            with self._lock, contextlib.suppress(InvalidGrammar):
                form = self.schemas.next_text(form)
                if form < 0:
                    break
                if time.thread_time() > end:
                    return
                self.schemas.value(form)
            form += 1
        while (wide := self.schemas.next_wide(wide)) >= 0 and time.thread_time() < end:
            with self._lock, contextlib.suppress(InvalidGrammar):
                node = self.schemas.value(wide)
                self.prepare(self._checked(self._library.rx_start(self._at, node)), (b'{"',))
            wide += 1
        self.look_ahead(range(before, self.nodes.met()), end - time.thread_time())

    def make_ahead(
        self, dear: Iterable[Dear], seconds: float, most: float, least: float = 0.0
    ) -> range:
        """Make nodes that a text may need, and the bodies of those that are rules: the first, up to
        `least` seconds as it is said of them; more while there is time; and longer those that would
        hold up a mask by far. `dear`: about how many seconds each takes with those that a text asks
        for with it, and alone. Returns the numbers of the rules that were met first there."""
        before, now = self.nodes.met(), time.thread_time()
        end, last, made = now + seconds, now + max(seconds, most), list[tuple[float, int]]()
        for together, cost, make in dear:
            until = end if together < VERY_DEAR else last
            if (least := least - cost) < 0 and time.thread_time() + SLOWER * cost > until:
                continue
            with self._lock, contextlib.suppress(InvalidGrammar):
                index = self.nodes.index_of(node := make())
                if index is not None:
                    self._expand(index)
                made.append((together, self.start(node)))
        soon = min(end, time.thread_time() + SOME_MASKS)
        for together, state in made:
            if time.thread_time() < (soon if together < VERY_DEAR else end):
                self.prepare(state, FIRST_BYTES)
        return range(before, self.nodes.met())

    def look_ahead(self, rules: range, seconds: float) -> None:
        """Expand rules, and what they lead to, before a text gets there, for so long: of this
        thread's own time, so that it is as much on a busy machine.

        In turn that which was met first, and that which was met in what took longest: schemas that
        are hard to put together stand in others. What cannot be expanded is left to the text that
        gets there.
        """
        now = time.thread_time()
        end, hardest, first = now + seconds, [(0.0, index) for index in rules], deque(rules)
        done: set[int] = set()
        while first and now < end:
            index = heappop(hardest)[1] if hardest and len(done) % 2 else first.popleft()
            if index in done:
                continue
            done.add(index)
            with self._lock:  # one at a time: others fill masks in between
                met = self._expand(index)
            before, now = now, time.thread_time()
            for found in met:
                heappush(hardest, (before - now, found))
            first.extend(met)

    def prepare(self, state: int, texts: Iterable[bytes], must: bool = False) -> range:
        """Make the masks of the states behind some texts, where they are allowed.

        Returns the numbers of the rules that were met first there. What cannot be made is left to
        the text that gets there, unless it `must` be: then that raises InvalidGrammar.
        """
        before = self.nodes.met()
        mask = np.zeros((1, self.vocabulary.num_words), np.int32)
        for text in texts:
            with contextlib.suppress(*(() if must else (InvalidGrammar,))):
                if after := self.after_bytes(state, text):
                    self.fill_row(after, mask, 0)
        return range(before, self.nodes.met())

    def _expand(self, index: int) -> range:
        """Expand a rule; the numbers of the rules that were met first there."""
        before = self.nodes.met()
        with contextlib.suppress(InvalidGrammar):
            self._checked(self._library.rx_expand(self._at, index))
        return range(before, self.nodes.met())

    def after_bytes(self, state: int, data: bytes) -> int:
        with self._lock:
            return self._checked(self._library.rx_bytes(self._at, state, data, len(data)))

    def after_token(self, state: int, token_id: int) -> int:
        with self._lock:
            after: int = self._rx_token(self._at, state, token_id)
            return after if after >= 0 else self._checked(after)

    def is_accepting(self, state: int) -> bool:
        with self._lock:
            return bool(self._checked(self._library.rx_accepting(self._at, state)))

    def next_bytes(self, state: int) -> int:
        bits = (ctypes.c_uint64 * 4)()
        with self._lock:
            self._checked(self._library.rx_next(self._at, state, bits))
        return int.from_bytes(bytes(bits), "little")

    def forced_bytes(self, state: int) -> bytes:
        out = ctypes.create_string_buffer(MAX_FORCED)
        with self._lock:
            length = self._checked(self._library.rx_forced(self._at, state, out, MAX_FORCED))
        return out.raw[:length]

    def fill_row(self, state: int, bitmask: Words, row: int) -> None:
        with self._lock:
            if bitmask is not self._bitmask:
                self._look_at(bitmask)
            if not 0 <= row < self._bitmask_rows:
                raise IndexError(f"row {row} of a bitmask with {self._bitmask_rows} rows")
            at = self._bitmask_at + row * self._bitmask_stride
            fault = self._rx_mask(self._at, state, at, self._ends_at, self._num_ends)
            if fault:
                self._checked(fault)
        if self._is_wide:
            bitmask[row, self.vocabulary.num_words :] = 0

    def fill_many(
        self, states: list[int], bitmask: Words, rows: list[int], budgets: list[int]
    ) -> list[Filled]:
        with self._lock:
            if bitmask is not self._bitmask:
                self._look_at(bitmask)
            if min(rows) < 0 or max(rows) >= self._bitmask_rows:
                raise IndexError(f"rows {rows} of a bitmask with {self._bitmask_rows} rows")
            if self._is_wide:
                bitmask[rows, self.vocabulary.num_words :] = 0
            first, stride, n = self._bitmask_at, self._bitmask_stride, len(states)
            # Arrays, since asking numpy for an address costs as much as a mask.
            given = array("I", states), array("Q", [first + stride * row for row in rows])
            least, results = array("q", budgets), array("i", bytes(4 * n))
            grown = array("Q", bytes(8 * n))
            self._library.rx_masks(
                self._at,
                n,
                *(a.buffer_info()[0] for a in (*given, least)),
                self._ends_at,
                self._num_ends,
                results.buffer_info()[0],
                grown.buffer_info()[0],
            )
            return [
                (self._message(fault) if fault else None, size)
                for fault, size in zip(results, grown, strict=True)
            ]

    def shortest_tokens(self, state: int) -> list[int]:
        with self._lock:
            count = self.fewest_tokens(state)
            out = array("I", bytes(4 * count))
            at = out.buffer_info()[0]
            count = self._checked(self._library.rx_shortest(self._at, state, at, count))
        return out.tolist()[:count]

    def fewest_tokens(self, state: int) -> int:
        with self._lock:
            count = self._checked(self._library.rx_shortest(self._at, state, None, 0))
        if count == NEVER:
            raise InvalidGrammar(UNSPELLABLE)
        return count

    def restrict_row(self, state: int, bitmask: Words, row: int, budget: int) -> None:
        with self._lock:
            if bitmask is not self._bitmask:
                self._look_at(bitmask)
            at = self._bitmask_at + row * self._bitmask_stride
            least = min(max(budget, 0), NEVER)
            self._checked(self._library.rx_restrict(self._at, state, at, least))

    def hooks(self, state: int) -> list[Hook]:
        out = (ctypes.c_uint32 * MAX_HEADS)()
        with self._lock:
            count = self._library.rx_heads(self._at, state, out, MAX_HEADS)
            if count > MAX_HEADS:
                raise InvalidGrammar(
                    f"over {MAX_HEADS} rules may begin at one place; let fewer begin alike"
                )
            self.nodes.note_own_rules()
            rules = [self.nodes.rules[index] for index in out[:count]]
        return [rule for rule in rules if isinstance(rule, Hook)]

    def passing(self, state: int, cuts: TokenCuts) -> list[tuple[int, int]]:
        out = array("I", bytes(8 * len(cuts.tokens)))
        given = (cuts.tokens, cuts.first, cuts.places, out)
        with self._lock:
            addresses = (a.buffer_info()[0] for a in given)
            found = self._library.rx_passing(self._at, state, len(cuts.tokens), *addresses)
            found = self._checked(found)
        return list(zip(out[: 2 * found : 2], out[1 : 2 * found : 2], strict=True))

    def resolved(self, state: int, found: dict[Hook, Node]) -> int:
        with self._lock:
            rules = array("I", map(self.nodes.rule_index, found))
            nodes = array("I", map(self.nodes.within_text, found.values()))
            at, nodes_at = rules.buffer_info()[0], nodes.buffer_info()[0]
            after = self._library.rx_replace(self._at, state, at, nodes_at, len(rules))
            return self._checked(after)

    def _look_at(self, bitmask: Words) -> None:
        """Keep the address of the buffer of the last call: asking numpy costs as much as a mask."""
        if bitmask.dtype != np.int32 or bitmask.ndim != 2 or bitmask.strides[1] != 4:
            raise ValueError("a bitmask is [rows, words] of int32 with contiguous rows")
        if bitmask.shape[1] < self.vocabulary.num_words:
            raise ValueError(
                f"a bitmask of {bitmask.shape[1]} words a row is too narrow for "
                f"{self.vocabulary.size} tokens: it takes {self.vocabulary.num_words}"
            )
        self._bitmask = bitmask
        self._bitmask_rows, width = bitmask.shape
        self._is_wide = width > self.vocabulary.num_words
        self._bitmask_at = bitmask.ctypes.data
        self._bitmask_stride = bitmask.strides[0]


def _expander(engine: "weakref.ref[NativeEngine]", faults: Faults) -> Callable[[int, int], int]:
    """The function that C calls: see `NativeNodes.answer` and `NativeSchemas.answer`. It does not
    keep the engine alive."""

    def expand(index: int, what: int) -> int:
        owner = engine()
        try:
            if owner is None:
                return -1
            if what < 0:
                assert owner.schemas is not None  # it asks of their forms
                return owner.schemas.answer(index, what)
            return owner.nodes.answer(index, what)
        except BaseException as error:
            faults.error = error
            return -1

    return _EXPAND(expand)


def _trie_arrays(vocabulary: Vocabulary) -> tuple[NDArray[Any], ...]:
    """byte, depth, size, token, same, offset and bytes, as native/engine.h takes them."""
    trie = vocabulary.trie
    lengths = np.array([len(token or b"") for token in vocabulary.tokens], np.int64)
    offset = np.concatenate(([0], np.cumsum(lengths))).astype(np.uint32)
    data = np.frombuffer(b"".join(t for t in vocabulary.tokens if t) or b"\0", np.uint8)
    return trie.byte, trie.depth, trie.size, trie.token, vocabulary.same, offset, data
