"""The engine in C: see `native/engine.h`. This module owns its memory, its lock and its errors."""

import ctypes
import threading
import weakref
from array import array
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixgen import native
from radixgen.errors import InvalidGrammar
from radixgen.grammars.chain import Chain, ChainRule, Marks
from radixgen.grammars.expr import Expr, Node, Rule
from radixgen.grammars.hook import Hook
from radixgen.grammars.node_program import NodeProgram
from radixgen.grammars.normal_form import normal_body, remove_left_recursion
from radixgen.grammars.productive import is_productive
from radixgen.grammars.python_engine import UNSPELLABLE
from radixgen.grammars.vocabulary import TokenCuts, Vocabulary

Words = NDArray[np.int32]
Filled = tuple[str | None, int]

MAX_FORCED = 4096
MAX_HEADS = 256  # rules before which a state may stand, where hooks are looked for
_SOURCES = (
    "memory.c",
    "nodes.c",
    "derive.c",
    "states.c",
    "trie.c",
    "masks.c",
    "slices.c",
    "chains.c",
    "complete.c",
    "hooks.c",
    "api.c",
)
_EXPAND = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint32, ctypes.c_int32)
_CALLBACK = 6
_WAY = 2  # asked of a rule: not its body, but the part that has its shortest text
# Asked of a chain, with the index of a word above these bits: see native/chains.c.
_VALUE, _OPEN, _PART, _END, _OTHER = 3, 4, 5, 6, 7
_ASK_BITS = 3
STRIDE = 8  # words of a chain whose state is asked for at once
_NEVER = 0x7FFFFFFF
_FAULTS = {
    1: "there is no memory left for it",
    2: "it needs more memory than the engine may use; raise the compiler's max_bytes",
    3: "there are over 20000 ways to read the text at one place; it is too ambiguous",
    4: "it is nested too deeply",
    5: "whether an intersection or complement is empty takes over 20000 states to decide",
    7: "one step takes too long; simplify its patterns or bounds",
}


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
        "rx_chain_place": (i32, (pointer, u32, i32)),
        "rx_set_body": (None, (pointer, u32, u32)),
        "rx_start": (i32, (pointer, u32)),
        "rx_bytes": (i32, (pointer, u32, text, u32)),
        "rx_token": (i32, (pointer, u32, u32)),
        "rx_passing": (i32, (pointer, u32, u32, *[pointer] * 5)),
        "rx_accepting": (i32, (pointer, u32)),
        "rx_next": (i32, (pointer, u32, pointer)),
        "rx_forced": (i32, (pointer, u32, text, u32)),
        "rx_mask": (i32, (pointer, u32, pointer, pointer, u32)),
        "rx_masks": (None, (pointer, u32, *[pointer] * 4, u32, pointer, pointer)),
        "rx_bytes_held": (pointer, (pointer,)),
        "rx_shortest": (i32, (pointer, u32, pointer, u32)),
        "rx_restrict": (i32, (pointer, u32, pointer, u32)),
        "rx_rule_cost": (None, (pointer, u32, u32)),
        "rx_rule_way": (None, (pointer, u32)),
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
        self._rules: list[Rule | None] = []  # None: the engine's own, of a chain
        self._chains: dict[int, Chain] = {}  # by their first rule
        self._first_rules: dict[Chain, int] = {}
        self._marks: dict[Marks, array[int]] = {}
        self._rule_nodes: dict[Rule, int] = {}
        self._hooked = array("B")  # whether a rule is a hook
        self._indices: dict[Rule, int] = {}
        self._nodes: dict[Expr, int] = {}
        self._error: BaseException | None = None
        self._library = library
        self._arrays = _trie_arrays(vocabulary)
        self._ends = np.array(sorted(vocabulary.end_ids), np.uint32)
        self._ends_at, self._num_ends = self._ends.ctypes.data, len(self._ends)
        expand = _expander(weakref.ref(self))
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
        self._rx_build = library.rx_build
        # What a program needs while it is built: its stack, then the nodes it keeps.
        self._work = array("I", bytes(4096))
        self._work_at = self._work.buffer_info()[0]
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

    def start(self, node: Node) -> int:
        with self._lock:
            built = self._build(node)
            return self._checked(self._library.rx_start(self._at, built)) if built else 0

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
        if count == _NEVER:
            raise InvalidGrammar(UNSPELLABLE)
        return count

    def restrict_row(self, state: int, bitmask: Words, row: int, budget: int) -> None:
        with self._lock:
            if bitmask is not self._bitmask:
                self._look_at(bitmask)
            at = self._bitmask_at + row * self._bitmask_stride
            self._checked(self._library.rx_restrict(self._at, state, at, max(budget, 0)))

    def hooks(self, state: int) -> list[Hook]:
        out = (ctypes.c_uint32 * MAX_HEADS)()
        with self._lock:
            count = self._library.rx_heads(self._at, state, out, MAX_HEADS)
            if count > MAX_HEADS:
                raise InvalidGrammar(f"over {MAX_HEADS} rules may begin at one place of the text")
            rules = [self._rules[index] for index in out[:count]]
        return [rule for rule in rules if isinstance(rule, Hook)]

    def passing(self, state: int, cuts: TokenCuts) -> list[tuple[int, int]]:
        out = array("I", bytes(8 * len(cuts.tokens)))
        given = (cuts.tokens, cuts.first, cuts.places)
        with self._lock:
            addresses = (a.buffer_info()[0] for a in (*given, self._hooked, out))
            found = self._checked(
                self._library.rx_passing(self._at, state, len(cuts.tokens), *addresses)
            )
        return list(zip(out[: 2 * found : 2], out[1 : 2 * found : 2], strict=True))

    def resolved(self, state: int, found: dict[Hook, Node]) -> int:
        with self._lock:
            rules = array("I", [self._indices[rule] for rule in found])
            nodes = array("I", [self._build(node) for node in found.values()])
            at, nodes_at = rules.buffer_info()[0], nodes.buffer_info()[0]
            return self._checked(
                self._library.rx_replace(self._at, state, at, nodes_at, len(rules))
            )

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

    def _message(self, fault: int) -> str:
        if fault == -_CALLBACK and self._error is not None:
            error, self._error = self._error, None
            return str(error)
        return f"the grammar cannot be followed here: {_FAULTS.get(-fault, 'unknown fault')}"

    def _checked(self, result: int) -> int:
        """The result of a native call. Raises InvalidGrammar, or what a rule's expansion raised."""
        if result >= 0:
            return result
        error, self._error = self._error, None
        if isinstance(error, RecursionError):
            raise InvalidGrammar("the constraint is nested too deeply; flatten it") from None
        if result == -_CALLBACK and error is not None:
            raise error
        raise InvalidGrammar(self._message(result))

    # ---- expressions

    def _rule_index(self, rule: Rule) -> int:
        found = self._indices.get(rule)
        return self._add_rule(rule) if found is None else found

    def _add_rule(self, rule: Rule) -> int:
        index = len(self._rules)
        self._rule_nodes[rule] = self._checked(self._library.rx_add_rule(self._at))
        self._hooked.append(isinstance(rule, Hook))
        self._indices[rule] = index
        self._rules.append(rule)
        if rule.most is not None:
            self._library.rx_rule_cost(self._at, index, min(rule.most, _NEVER))
        elif rule.way is not None:
            self._library.rx_rule_way(self._at, index)
        return index

    def _build(self, node: Node) -> int:
        """The id of a node in the engine; 0 for the empty language."""
        if isinstance(node, Rule):
            return self._rule_node(node)
        program = NodeProgram(self._nodes, self._rule_index, self._chain_node)
        program.add(node)
        code, length = array("i", program.code), len(program.code)
        if 2 * length >= len(self._work):
            self._work = array("I", bytes(16 * length))
            self._work_at = self._work.buffer_info()[0]
        built: int = self._rx_build(
            self._at,
            code.buffer_info()[0],
            length,
            bytes(program.data),
            self._work_at,
            self._work_at + 4 * length,
        )
        if built < 0:
            self._checked(built)
        if program.saved:
            kept = self._work[length : length + len(program.saved)]
            self._nodes.update(zip(program.saved, kept, strict=True))
        return built

    def _rule_node(self, rule: Rule) -> int:
        """The id of the node of a rule; 0 for the empty language."""
        if isinstance(rule, ChainRule):
            return self._chain_node(rule)
        if not (rule.productive or is_productive(rule)):
            return 0
        known = self._rule_nodes.get(rule)
        if known is None:
            self._add_rule(rule)
            known = self._rule_nodes[rule]
        return known

    def _node_id(self, node: Node) -> int:
        """`_build`, once."""
        if isinstance(node, Rule):
            return self._rule_node(node)
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = self._build(node)
        return known

    def _chain_node(self, rule: ChainRule) -> int:
        """The id of the node of a place in a chain; 0 for the empty language."""
        first = self._first_rules.get(rule.chain)
        if first is None:
            first = self._add_chain(rule.chain)
        return self._checked(self._library.rx_chain_place(self._at, first, rule.place))

    def _add_chain(self, chain: Chain) -> int:
        words = chain.words
        lengths = array("I", map(len, words))
        first = self._checked(
            self._library.rx_add_chain(
                self._at,
                b"".join(words),
                lengths.buffer_info()[0],
                bytes(chain.needed),
                len(words),
                chain.has_others,
                self._mark_nodes(chain.marks).buffer_info()[0],
            )
        )
        num_rules = len(words) + len(words) // STRIDE + 2
        self._rules.extend([None] * num_rules)
        self._hooked.extend(bytes(num_rules))
        self._chains[first] = chain
        self._first_rules[chain] = first
        return first

    def _mark_nodes(self, marks: Marks) -> "array[int]":
        """The ids of what stands between the parts of chains, in the order of native/engine.h."""
        found = self._marks.get(marks)
        if found is None:
            found = array("I", (self._node_id(getattr(marks, f.name)) for f in fields(marks)))
            self._marks[marks] = found
        return found

    def _tell(self, chain: Chain, what: int, index: int) -> int:
        """What the engine asks about a chain: the id of a node, or of which words of a stride it
        may take for granted that they have a value (1) or has to ask for the part (2)."""
        if what == _VALUE:
            return self._node_id(chain.value(index))
        if what == _PART:
            return self._build(chain.part(index))
        if what == _END:
            return self._build(chain.end())
        if what == _OTHER:
            return self._node_id(chain.other_value())
        bits = 0
        for place, i in enumerate(range(index, min(index + STRIDE, len(chain.words)))):
            is_open = chain.is_open(i)
            bits |= (2 if is_open is None else int(is_open)) << 2 * place
        return bits

    def _expand(self, index: int, check: int) -> int:
        """Called by the engine: a rule's body, or whether a check of it rewrote any body."""
        try:
            if check > _WAY:
                what = check & (1 << _ASK_BITS) - 1
                return self._tell(self._chains[index], what, check >> _ASK_BITS)
            rule = self._rules[index]
            assert rule is not None  # the engine knows its own
            if check == _WAY and rule.way is not None:
                return self._build(rule.way())
            if not check:
                return self._build(rule.normal or rule.body())
            rewritten = remove_left_recursion(rule)
            for other in rewritten:
                known = self._indices.get(other)
                if known is not None:
                    self._library.rx_set_body(self._at, known, self._build(normal_body(other)))
            return int(bool(rewritten))
        except BaseException as error:
            self._error = error
            return -1


def _expander(engine: "weakref.ref[NativeEngine]") -> Callable[[int, int], int]:
    """The function that C calls; it does not keep the engine alive."""

    def expand(index: int, check: int) -> int:
        owner = engine()
        return -1 if owner is None else owner._expand(index, check)

    return _EXPAND(expand)


def _trie_arrays(vocabulary: Vocabulary) -> tuple[NDArray[Any], ...]:
    """byte, depth, size, token, same, offset and bytes, as native/engine.h takes them."""
    trie = vocabulary.trie
    lengths = np.array([len(token or b"") for token in vocabulary.tokens], np.int64)
    offset = np.concatenate(([0], np.cumsum(lengths))).astype(np.uint32)
    data = np.frombuffer(b"".join(t for t in vocabulary.tokens if t) or b"\0", np.uint8)
    return trie.byte, trie.depth, trie.size, trie.token, vocabulary.same, offset, data
