"""Expressions as a postfix program of integers, the form in which the native engine takes them."""

import itertools
from collections.abc import Callable

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import Decide, facts, is_proven
from radixgen.grammars.expr import (
    And,
    Bytes,
    Concat,
    Expr,
    Literal,
    Node,
    Not,
    Repeat,
    Rule,
    Union,
)
from radixgen.grammars.productive import is_productive

MANY_WORDS = 4
LONG_WORD = 256  # bytes
MAX_COUNT = 2**31 - 2

# The operations of native/api.c, in its order.
EMPTY, EPS, SET, LIT, CAT, ALT, REP, AND, NOT, RULE, NODE, WORDS, SWITCH = range(13)
SAVE, CHECK, ALIVE, SAVED = range(13, 17)


class NodeProgram:
    """One program. `known` has the ids of expressions built before, `rule_index` gives a rule's,
    `own_node` the node of a rule that the engine puts together by itself, None for any other;
    `decide` is as of `is_productive`.

    What derives nothing becomes the empty language on the way: rules as `productive.py` finds, and
    intersections and complements, where the engine itself looks (CHECK) unless it is told (ALIVE).
    """

    __slots__ = (
        "_boolean",
        "_decide",
        "_known",
        "_own_node",
        "_places",
        "_rule_index",
        "code",
        "data",
        "saved",
    )

    def __init__(
        self,
        known: dict[Expr, int],
        rule_index: Callable[[Rule], int],
        own_node: Callable[[Rule], int | None],
        decide: Decide,
    ) -> None:
        self.code: list[int] = []
        self.data = bytearray()
        self.saved: list[Expr] = []  # the expressions that SAVE marks, in order
        self._places: dict[Expr, int] = {}  # in that list: what comes again is built once
        self._known = known
        self._rule_index = rule_index
        self._own_node = own_node
        self._decide = decide
        self._boolean = 0  # how deep inside of intersections and complements

    def add(self, node: Node) -> None:
        """Append the code that builds a node."""
        if isinstance(node, Rule):
            self._rule(node)
        elif type(node) is Literal:
            self._literal(node.args[0])
        elif (known := self._known.get(node)) is not None:
            self.code += (NODE, known)
        elif (place := self._places.get(node)) is not None:
            self.code += (SAVED, place)
        else:
            self._compound(node)

    def _rule(self, rule: Rule) -> None:
        if self._boolean:
            raise InvalidGrammar("intersection and complement apply to regular expressions only")
        own = None if type(rule) is Rule else self._own_node(rule)  # as of most
        if own is not None:
            self.code += (NODE, own)
        elif rule.productive or is_productive(rule, self._decide):
            self.code += (RULE, self._rule_index(rule))
        else:
            self.code.append(EMPTY)

    def _literal(self, value: bytes) -> None:
        if value:
            self.code += (LIT, len(self.data), len(value))
            self.data += value
        else:
            self.code.append(EPS)

    def _compound(self, node: Expr) -> None:
        kind = type(node)
        if kind is Concat:
            self._parts(CAT, node.args)
            if type(node.args[-1]) is not Bytes:
                return  # else it may be a character's bytes, as most classes have them
            self.code.append(SAVE)
            self._places[node] = len(self.saved)
            self.saved.append(node)
            return
        if kind is Bytes:
            self.code += (SET, len(self.data))
            self.data += node.args[0].to_bytes(32, "little")
            return
        if kind is Union:
            self._union(node.args)
        elif isinstance(node, Repeat):
            if max(node.low, node.high or 0) > MAX_COUNT:
                raise InvalidGrammar(f"a repeat count is over {MAX_COUNT}; lower it")
            self.add(node.item)
            self.code += (REP, node.low, -1 if node.high is None else node.high)
        elif isinstance(node, And | Not):
            self._boolean += 1
            for part in node.args:
                self.add(part)
            self.code += (AND, len(node.args)) if isinstance(node, And) else (NOT,)
            self._boolean -= 1
            if not self._boolean:
                self.code.append(ALIVE if is_proven(node) else CHECK)
        else:
            name = kind.__name__
            raise InvalidGrammar(f"{name} needs an encoding before it can run on bytes")
        if self._boolean and facts(node).boolean:
            return  # not checked in there, so not to be taken for what it is outside
        self.code.append(SAVE)
        self._places[node] = len(self.saved)
        self.saved.append(node)

    def _parts(self, code: int, parts: tuple[Node, ...]) -> None:
        for part in parts:
            self.add(part)
        self.code += (code, len(parts))

    def _union(self, parts: tuple[Node, ...]) -> None:
        words = [part.args[0] for part in parts if type(part) is Literal and part.args[0]]
        begun = {} if self._boolean else _begun(parts)
        many = _are_many(words)
        if not many and not begun:
            self._parts(ALT, parts)
            return
        others = [part for part in parts if part not in begun]
        if many:
            others = [part for part in others if type(part) is not Literal or not part.args[0]]
        for part in others:
            self.add(part)
        if begun:
            self._switch(begun)
        if many:
            self._words(WORDS, sorted(words))
        self.code += (ALT, len(others) + bool(begun) + many)

    def _switch(self, begun: dict[Node, bytes]) -> None:
        """Words, each before what it alone leads to."""
        ways = sorted(begun, key=begun.__getitem__)
        for way in ways:
            assert isinstance(way, Concat)
            rest = way.args[1:]
            if len(rest) == 1:
                self.add(rest[0])
            else:
                self._parts(CAT, rest)
        self._words(SWITCH, [begun[way] for way in ways])

    def _words(self, code: int, words: list[bytes]) -> None:
        self.code += (code, len(self.data), len(words), *map(len, words))
        self.data += b"".join(words)


def _are_many(words: list[bytes]) -> bool:
    """Whether words are better found in a table than each followed by itself: two are, if long, as
    what they share would take a state for each byte."""
    return len(words) >= MANY_WORDS or (len(words) > 1 and max(map(len, words)) >= LONG_WORD)


def _begun(parts: tuple[Node, ...]) -> dict[Node, bytes]:
    """The parts that begin with words, if these are many and none begins another."""
    found: dict[Node, bytes] = {
        part: part.args[0].args[0]
        for part in parts
        if type(part) is Concat and type(part.args[0]) is Literal
    }
    words = sorted(found.values())
    if not _are_many(words):
        return {}
    coded = not any(b.startswith(a) for a, b in itertools.pairwise(words))
    return found if coded else {}
