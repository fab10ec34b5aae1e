"""Expressions as a postfix program of integers, the form in which the native engine takes them."""

from collections.abc import Callable

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import facts
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
MAX_COUNT = 2**31 - 2

# The operations of native/api.c, in its order.
EMPTY, EPS, SET, LIT, CAT, ALT, REP, AND, NOT, RULE, NODE, WORDS, SAVE, CHECK = range(14)


class NodeProgram:
    """One program. `known` has the ids of expressions built before, `rule_index` gives a rule's.

    What derives nothing becomes the empty language on the way: rules as `productive.py` finds, and
    intersections and complements, where the engine itself looks (CHECK).
    """

    __slots__ = ("_boolean", "_known", "_rule_index", "code", "data", "saved")

    def __init__(self, known: dict[Expr, int], rule_index: Callable[[Rule], int]) -> None:
        self.code: list[int] = []
        self.data = bytearray()
        self.saved: list[Expr] = []  # the expressions that SAVE marks, in order
        self._known = known
        self._rule_index = rule_index
        self._boolean = 0  # how deep inside of intersections and complements

    def add(self, node: Node) -> None:
        """Append the code that builds a node."""
        if isinstance(node, Rule):
            self._rule(node)
        elif isinstance(node, Literal):
            self._literal(node.value)
        elif (known := self._known.get(node)) is not None:
            self.code += (NODE, known)
        else:
            self._compound(node)

    def _rule(self, rule: Rule) -> None:
        if self._boolean:
            raise InvalidGrammar("intersection and complement apply to regular expressions only")
        if rule.productive or is_productive(rule):
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
        match node:
            case Concat():
                self._parts(CAT, node.args)
                return
            case Bytes():
                self.code += (SET, len(self.data))
                self.data += node.mask.to_bytes(32, "little")
                return
            case Union():
                self._union(node.args)
            case Repeat():
                if max(node.low, node.high or 0) > MAX_COUNT:
                    raise InvalidGrammar(f"a repeat count is over {MAX_COUNT}; lower it")
                self.add(node.item)
                self.code += (REP, node.low, -1 if node.high is None else node.high)
            case And() | Not():
                self._boolean += 1
                for part in node.args:
                    self.add(part)
                self.code += (AND, len(node.args)) if isinstance(node, And) else (NOT,)
                self._boolean -= 1
                if not self._boolean:
                    self.code.append(CHECK)
            case _:
                name = type(node).__name__
                raise InvalidGrammar(f"{name} needs an encoding before it can run on bytes")
        if self._boolean and facts(node).boolean:
            return  # not checked in there, so not to be taken for what it is outside
        self.code.append(SAVE)
        self.saved.append(node)

    def _parts(self, code: int, parts: tuple[Node, ...]) -> None:
        for part in parts:
            self.add(part)
        self.code += (code, len(parts))

    def _union(self, parts: tuple[Node, ...]) -> None:
        words = [part.value for part in parts if isinstance(part, Literal) and part.value]
        if len(words) < MANY_WORDS:
            self._parts(ALT, parts)
            return
        others = [part for part in parts if not (isinstance(part, Literal) and part.value)]
        for part in others:
            self.add(part)
        words.sort()
        self.code += (WORDS, len(self.data), len(words), *map(len, words), ALT, len(others) + 1)
        self.data += b"".join(words)
