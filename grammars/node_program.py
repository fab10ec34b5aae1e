"""Expressions as a postfix program of integers, the form in which the native engine takes them."""

from collections.abc import Callable

from radixgen.errors import InvalidGrammar
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

MANY_WORDS = 4
MAX_COUNT = 2**31 - 2

# The operations of native/api.c, in its order.
EMPTY, EPS, SET, LIT, CAT, ALT, REP, AND, NOT, RULE, NODE, WORDS, SAVE = range(13)


class NodeProgram:
    """One program. `known` has the ids of expressions built before, `rule_index` gives a rule's."""

    __slots__ = ("_known", "_rule_index", "code", "data", "saved")

    def __init__(self, known: dict[Expr, int], rule_index: Callable[[Rule], int]) -> None:
        self.code: list[int] = []
        self.data = bytearray()
        self.saved: list[Expr] = []  # the expressions that SAVE marks, in order
        self._known = known
        self._rule_index = rule_index

    def add(self, node: Node) -> None:
        """Append the code that builds a node."""
        if isinstance(node, Rule):
            self.code += (RULE, self._rule_index(node))
        elif isinstance(node, Literal):
            self._literal(node.value)
        elif (known := self._known.get(node)) is not None:
            self.code += (NODE, known)
        else:
            self._compound(node)

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
            case And():
                self._parts(AND, node.args)
            case Not():
                self.add(node.item)
                self.code.append(NOT)
            case _:
                name = type(node).__name__
                raise InvalidGrammar(f"{name} needs an encoding before it can run on bytes")
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
