"""The expressions and rules of a native engine: built when first met, known by their numbers.

Owns what the engine asks Python for: the bodies of rules, the parts of chains. Knows no state, no
token and no lock; the engine that has one calls here while it holds it.
"""

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import fields
from typing import cast

from radixgen.errors import InvalidGrammar
from radixgen.grammars.chain import (
    START,
    Braid,
    BraidRule,
    Chain,
    ChainRule,
    Listing,
    ListRule,
    Marks,
)
from radixgen.grammars.expr import Expr, Node, Rule
from radixgen.grammars.hook import Hook
from radixgen.grammars.interval import IntervalRule
from radixgen.grammars.node_program import NodeProgram
from radixgen.grammars.normal_form import normal_body, remove_left_recursion
from radixgen.grammars.productive import is_productive

NEVER = 0x7FFFFFFF
# What the engine asks of a rule: its body; to check it for left recursion; the part of it that has
# its shortest text. Of a chain, with the index of a word above these bits: see native/chains.c.
_BODY, _CHECK, _WAY, _VALUE, _OPEN, _PART, _END, _OTHER = range(8)
_ASK_BITS = 3
NONE = 0xFFFFFFFF  # no bound
_HALF_MADE = "there was no memory left to make a part of it; simplify it"
_STRIDE = 8  # words of a chain whose state is asked for at once


class NativeNodes:
    """`checked` gives the result of a native call, or raises what it means."""

    def __init__(self, library: ctypes.CDLL, at: int, checked: Callable[[int], int]) -> None:
        self._library, self._at, self._checked = library, at, checked
        self._rx_add_rule = library.rx_add_rule
        self.rules: list[Rule | None] = []  # None: the engine's own, of a chain
        self._indices: dict[Rule, int] = {}
        self._rule_nodes: list[int] = []  # of each rule
        self._nodes: dict[Expr, int] = {}
        self._chains: dict[int, Chain | Braid | Listing] = {}  # by their first rule
        self._first_rules: dict[Chain | Braid, int] = {}
        self._num_rules = ctypes.c_uint32.from_address(library.rx_num_rules(at))
        self._num_lost = ctypes.c_uint32.from_address(library.rx_num_lost(at))
        self._marks: dict[Marks, array[int]] = {}
        # What a program needs while it is built: its stack, then the nodes it keeps.
        self._work = array("I", bytes(4096))

    def checked(self, result: int) -> int:
        """The result of a call that may add rules."""
        if result < 0:
            self.note_own_rules()  # those that it added before its fault
        return self._checked(result)

    def met(self) -> int:
        """How many rules there are."""
        self.note_own_rules()
        return len(self.rules)

    def build(self, node: Node) -> int:
        """The id of a node in the engine; 0 for the empty language."""
        if isinstance(node, Rule):
            return self._rule_node(node)
        program = NodeProgram(self._nodes, self.rule_index, self._own_node, self.is_empty)
        program.add(node)
        code, length = array("i", program.code), len(program.code)
        lost = self._num_lost.value
        if 2 * length >= len(self._work):
            self._work = array("I", bytes(16 * length))
        work_at = self._work.buffer_info()[0]
        built: int = self._library.rx_build(
            self._at,
            code.buffer_info()[0],
            length,
            bytes(program.data),
            work_at,
            work_at + 4 * length,
        )
        if built < 0:
            self.checked(built)
        if program.saved and lost == self._num_lost.value:
            kept = self._work[length : length + len(program.saved)]
            self._nodes.update(zip(program.saved, kept, strict=True))
        return built

    def is_empty(self, node: Expr) -> bool:
        """Whether a regular expression has no string."""
        return not self.kept(node)

    def answer(self, index: int, what: int) -> int:
        """What the engine asks about a rule, or about the chain whose first rule it is."""
        if what > _WAY:
            asked, word = what & (1 << _ASK_BITS) - 1, what >> _ASK_BITS
            chain = self._chains.get(index)
            if chain is None:
                raise InvalidGrammar(_HALF_MADE)
            return self._tell(chain, asked, word)
        rule = self.rules[index]
        if rule is None:
            raise InvalidGrammar(_HALF_MADE)
        if what == _CHECK:
            return self._rewrite(rule)
        if what == _WAY and rule.way is not None:
            return self.build(rule.way())
        return self.build(rule.normal or rule.body())

    def kept(self, node: Node) -> int:
        """`build`, once."""
        if isinstance(node, Rule):
            return self._rule_node(node)
        known = self._nodes.get(node)
        if known is None:
            lost, known = self._num_lost.value, self.build(node)
            if lost == self._num_lost.value:  # else only a text does without what it left out
                self._nodes[node] = known
        return known

    def within_text(self, node: Node) -> int:
        """`build`, where a text waits for it: without what nobody knows a string of, which is an
        error everywhere else but within a call back."""
        self._library.rx_lenient(self._at, 1)
        try:
            return self.build(node)
        finally:
            self._library.rx_lenient(self._at, 0)

    def index_of(self, node: Node) -> int | None:
        """Have a node `kept`; the number of a rule that has a body of its own."""
        return self._indices.get(node) if self.kept(node) and isinstance(node, Rule) else None

    # ---- rules

    def rule_index(self, rule: Rule) -> int:
        """The number of a rule, which the engine gets to know."""
        found = self._indices.get(rule)
        if found is None:
            return self._add_list(rule) if isinstance(rule, ListRule) else self._add_rule(rule)
        return found

    def _add_rule(self, rule: Rule) -> int:
        node = self._rx_add_rule(self._at)
        if node < 0:
            self.checked(node)
        index = self._indices[rule] = self._num_rules.value - 1
        if index > len(self.rules):
            self.note_own_rules(count=index)
        self.rules.append(rule)
        self._rule_nodes.append(node)
        if isinstance(rule, Hook):
            self._library.rx_rule_hook(self._at, index)
        if rule.most is not None:
            self._library.rx_rule_cost(self._at, index, min(rule.most, NEVER))
        elif rule.way is not None:
            self._library.rx_rule_way(self._at, index)
        return index

    def note_own_rules(self, node: int = 0, count: int | None = None) -> None:
        """Count the rules that the engine has added for itself, with the node that mentions one; up
        to a `count`, or all. While a text is read it adds those of braids."""
        count = (self._num_rules.value if count is None else count) - len(self.rules)
        self.rules.extend([None] * count)
        self._rule_nodes.extend([node] * count)

    def _rule_node(self, rule: Rule) -> int:
        own = self._own_node(rule)
        if own is not None:
            return own
        if not (rule.productive or is_productive(rule, self.is_empty)):
            return 0
        return self._rule_nodes[self.rule_index(rule)]

    def _rewrite(self, rule: Rule) -> int:
        """Rid a rule of left recursion: 1 if any body was rewritten for it."""
        rewritten = remove_left_recursion(rule)
        for other in rewritten:
            known = self._indices.get(other)
            if known is not None:
                self._library.rx_set_body(self._at, known, self.build(normal_body(other)))
        return int(bool(rewritten))

    def _own_node(self, rule: Rule) -> int | None:
        """The id of the node of a rule that the engine puts together; 0 for the empty language."""
        if isinstance(rule, ChainRule):
            return self._chain_node(rule)
        if isinstance(rule, BraidRule):
            return self._braid_node(rule)
        return self._interval_node(rule) if isinstance(rule, IntervalRule) else None

    def _interval_node(self, rule: IntervalRule) -> int:
        ends = rule.ends
        low, high = ends.low, ends.high
        return self.checked(
            self._library.rx_interval(self._at, low, len(low), high, len(high), ends.flags)
        )

    # ---- chains

    def _chain_node(self, rule: ChainRule) -> int:
        """The id of the node of a place in a chain; 0 for the empty language."""
        first = self._first_rules.get(rule.chain)
        if first is None:
            first = self._add_chain(rule.chain)
        return self.checked(self._library.rx_chain_place(self._at, first, rule.place))

    def _add_chain(self, chain: Chain) -> int:
        words = chain.words
        lengths = array("I", map(len, words))
        first = self.checked(
            self._library.rx_add_chain(
                self._at,
                b"".join(words),
                lengths.buffer_info()[0],
                bytes(chain.needed),
                len(words),
                chain.has_others,
                self.mark_nodes(chain.marks).buffer_info()[0],
            )
        )
        self.note_own_rules()
        self._chains[first] = chain
        self._first_rules[chain] = first
        return first

    def _braid_node(self, rule: BraidRule) -> int:
        """The id of the node of a whole braid."""
        braid = rule.braid
        first = self._first_rules.get(braid)
        if first is None:
            words = braid.words
            lengths, ends = array("I", map(len, words)), array("I", braid.ends)
            first = self.checked(
                self._library.rx_add_braid(
                    self._at,
                    b"".join(words),
                    lengths.buffer_info()[0],
                    bytes(braid.needed),
                    ends.buffer_info()[0],
                    len(ends),
                    braid.has_others,
                    self.mark_nodes(braid.marks).buffer_info()[0],
                )
            )
            self.note_own_rules()
            self._chains[first] = braid
            self._first_rules[braid] = first
        return self.checked(self._library.rx_chain_place(self._at, first, START))

    def _add_list(self, rule: ListRule) -> int:
        listing = rule.listing
        marks, high = self.mark_nodes(listing.marks), listing.high
        index = self.checked(
            self._library.rx_add_list(
                self._at, listing.low, NONE if high is None else high, marks.buffer_info()[0]
            )
        )
        self.note_own_rules(self.checked(self._library.rx_chain_place(self._at, index, -1)))
        self._chains[index], self._indices[rule] = listing, index
        return index

    def mark_nodes(self, marks: Marks) -> "array[int]":
        """The ids of what stands between the parts of chains, in the order of native/engine.h."""
        found = self._marks.get(marks)
        if found is None:
            found = array("I", (self.kept(getattr(marks, f.name)) for f in fields(marks)))
            self._marks[marks] = found
        return found

    def _tell(self, chain: Chain | Braid | Listing, asked: int, word: int) -> int:
        """The id of a node; or of the words of a stride two bits each: 1 where one surely has a
        value, 2 where the engine has to ask for its part."""
        if asked == _VALUE:
            return self.kept(chain.value(word))
        assert not isinstance(chain, Listing)
        if asked == _PART:
            return self.build(cast(Chain, chain).part(word))  # asked of no braid
        if asked == _END:
            return self.build(chain.end())
        if asked == _OTHER:
            return self.kept(chain.other_value())
        bits = 0
        for place, index in enumerate(range(word, min(word + _STRIDE, len(chain.words)))):
            is_open = chain.is_open(index)
            bits |= (2 if is_open is None else int(is_open)) << 2 * place
        return bits
