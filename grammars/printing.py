r"""Expressions as text for people: rules in the manner of EBNF, a reader's aid and no input format.

    root ::= "{" ws "\"x\"" ws ":" r1 "}"
    r1   ::= [0-9]{1,3} | "-" r2

`&` is intersection and `~` complement. Bytes beyond ASCII are written `\xhh`; what is common in
text has a name, such as `<string character>` for what may stand in a JSON string.
"""

from functools import lru_cache

from radixgen.grammars.encode import json_string, utf8
from radixgen.grammars.expr import (
    ALL_BYTES,
    ANY_CHAR,
    EMPTY,
    EPSILON,
    EVERYTHING,
    And,
    Bytes,
    Chars,
    Concat,
    Literal,
    Node,
    Not,
    Repeat,
    Rule,
    Union,
    chars,
)
from radixgen.grammars.hook import Hook

MAX_LENGTH = 400  # characters of one rule's body
_CONTROLS = {9: r"\t", 10: r"\n", 13: r"\r"}
_MAX_DEPTH = 40


def show_rules(node: Node, max_rules: int = 20, max_length: int = MAX_LENGTH) -> list[str]:
    """The start as `root`, then the rules it leads to, nearest first; at most so many lines."""
    names: dict[Rule, str] = {}
    waiting: list[tuple[str, Node]] = [("root", node)]
    lines: list[str] = []
    while waiting and len(lines) < max_rules:
        name, body = waiting.pop(0)
        printer = _Printer(names, waiting)
        text = printer.show(body.body() if isinstance(body, Rule) else body)
        looks = " (but what the text before it excludes)" if isinstance(body, Hook) else ""
        lines.append(f"{name} ::= {shorten(text, max_length)}{looks}")
    if waiting:
        lines.append(f"… and {len(waiting)} rules beside these, and what they lead to")
    return lines


def shorten(text: str, length: int) -> str:
    """At most so many characters, the cut marked."""
    return text if len(text) <= length else text[: length - 1] + "…"


class _Printer:
    """Writes one body; rules that it meets get names and wait for their turn."""

    def __init__(self, names: dict[Rule, str], waiting: list[tuple[str, Node]]) -> None:
        self._names = names
        self._waiting = waiting
        self._depth = 0

    def show(self, node: Node, tight: bool = False) -> str:
        """The text of a node, in parentheses if it must hold together."""
        if self._depth > _MAX_DEPTH:
            return "…"
        self._depth += 1
        text, holds = self._write(node)
        self._depth -= 1
        return f"({text})" if tight and not holds else text

    def _write(self, node: Node) -> tuple[str, bool]:
        """The text, and whether it holds together as one item."""
        if isinstance(node, Rule):
            return self._name(node), True
        if node is EPSILON or node is EMPTY or node is EVERYTHING:
            return {EPSILON: '""', EMPTY: "(nothing)", EVERYTHING: "(everything)"}[node], True
        match node:
            case Literal():
                return '"' + "".join(show_byte(b, '"\\') for b in node.value) + '"', True
            case Bytes():
                return show_bytes(node.mask), True
            case Chars():
                return f"[{len(node.ranges)} ranges of characters]", True
            case Concat():
                return " ".join(self.show(part, True) for part in node.args), False
            case Union():
                return self._choice(node)
            case And():
                return " & ".join(self.show(part, True) for part in node.args), False
            case Not():
                return "~" + self.show(node.item, True), True
        assert isinstance(node, Repeat)
        return self.show(node.item, True) + _bounds(node.low, node.high), True

    def _choice(self, node: Union) -> tuple[str, bool]:
        left = list(node.args)
        shown: list[str] = []
        for name, parts in _named():
            if all(part in left for part in parts):
                left = [part for part in left if part not in parts]
                shown.append(name)
        shown.extend(self.show(part) for part in left)
        return " | ".join(shown), len(shown) == 1

    def _name(self, rule: Rule) -> str:
        if rule not in self._names:
            self._names[rule] = f"r{len(self._names) + 1}"
            self._waiting.append((self._names[rule], rule))
        return self._names[rule]


@lru_cache(1)
def _named() -> list[tuple[str, tuple[Node, ...]]]:
    """Alternatives that have a name, the larger ones first."""
    beyond = utf8(chars([(0x80, 0x10FFFF)])).args
    inside = json_string(ANY_CHAR).args
    escapes = tuple(part for part in inside if part not in beyond and not isinstance(part, Bytes))
    return [
        ("<string character>", inside),
        ("<any character>", utf8(ANY_CHAR).args),
        ("<beyond ASCII>", beyond),
        ("<escape>", escapes),
    ]


def _bounds(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    if short:
        return short
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def show_byte(byte: int, escaped: str = "") -> str:
    """One byte as a character, or an escape."""
    if byte in _CONTROLS:
        return _CONTROLS[byte]
    if not 0x20 <= byte < 0x7F:
        return f"\\x{byte:02x}"
    return "\\" + chr(byte) if chr(byte) in escaped else chr(byte)


def show_bytes(mask: int) -> str:
    """A set of bytes as a class, by the shorter of itself and its complement."""
    if mask == ALL_BYTES:
        return "[any byte]"
    runs, gaps = _runs(mask), _runs(ALL_BYTES & ~mask)
    negated = len(gaps) < len(runs)
    return f"[{'^' if negated else ''}{''.join(map(_span, gaps if negated else runs))}]"


def _runs(mask: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for byte in range(256):
        if not mask >> byte & 1:
            continue
        if runs and runs[-1][1] == byte - 1:
            runs[-1] = (runs[-1][0], byte)
        else:
            runs.append((byte, byte))
    return runs


def _span(run: tuple[int, int]) -> str:
    low, high = (show_byte(byte, "]\\^-") for byte in run)
    if run[0] == run[1]:
        return low
    return low + high if run[1] == run[0] + 1 else f"{low}-{high}"
