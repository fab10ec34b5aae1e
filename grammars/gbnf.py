r"""GBNF and EBNF, as llama.cpp and XGrammar write them, to expressions.

    root    ::= greeting (" " name){1,3} "!"?      # comments run to the end of the line
    greeting ::= "hello" | [Hh] "i"
    name    ::= [^ \n!]+

- `"…"` literals and `[…]` classes with the escapes `\n \r \t \b \f \0 \" \' \\ \- \[ \] \^`,
  `\xhh`, `\uhhhh`, `\Uhhhhhhhh`, `\u{…}`; `.` is any character, also a newline;
- `* + ? {n} {n,} {n,m} {,m}` after a literal, class, rule or group; `(…)` groups;
- a rule ends where the next `name ::=` begins, so alternatives may stand on lines of their own;
- the empty alternative is `""` or nothing at all.

Terminals are spelled in characters and run as UTF-8 bytes. There is no lexer: left recursion,
ambiguity and recursion without bound are all read as they stand. Refused: references to tokens
(`<[12]>`, `<name>`, `!<name>`), since special tokens are never text, XGrammar's look-ahead
`(= …)` and its `TagDispatch(…)` (see `structural_tag.py`).
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from radixgen.errors import InvalidGrammar
from radixgen.grammars.context_free import (
    MAX_NESTING,
    MAX_REPEAT,
    Rules,
    bounded_concat,
    bounded_repeat,
    bounded_union,
    check_source,
    depth_guard,
    text_option,
)
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import ANY_CHAR, Node, Ranges, RuleSet, chars, literal
from radixgen.grammars.unicode_classes import invert, join
from radixgen.types import OptionValue


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


_TOKENS = re.compile(
    r"""
    (?P<blank>(?:[\ \t\r\n]|\#[^\n]*)+)
  | (?P<macro>(?:TagDispatch|Token|ExcludeToken)[ \t]*\()
  | (?P<name>[A-Za-z0-9_][A-Za-z0-9_.\-]*)
  | (?P<defines>::=)
  | (?P<literal>"(?:[^"\\\n]|\\.)*")
  | (?P<class>\[(?:[^\]\\]|\\.)*\])
  | (?P<counts>\{[ \t]*(?:[0-9]+[ \t]*(?:,[ \t]*[0-9]*[ \t]*)?|,[ \t]*[0-9]+[ \t]*)\})
  | (?P<sign>[()|*+?.])
  | (?P<token>!?<[^>\n]*>)
    """,
    re.VERBOSE,
)


def compile_gbnf(source: str, options: Mapping[str, OptionValue], rules: RuleSet) -> Node:
    """The front end of kind "gbnf". Option: `root`, the rule to begin with."""
    return gbnf(source, text_option(options, "root", "root"), rules)


def gbnf(source: str, root: str = "root", rules: RuleSet | None = None) -> Node:
    """The language of a grammar from its rule `root`, as a byte expression.

    Raises InvalidGrammar with line and column of what cannot be read, for rules that are
    mentioned and not defined, and for a grammar that derives no text.
    """
    check_source(source)
    parser = _Parser(source, RuleSet() if rules is None else rules)
    with depth_guard():
        parser.read()
        return parser.rules.start(root)


class _Parser:
    def __init__(self, source: str, rules: RuleSet) -> None:
        self.rules = Rules(rules)
        self._tokens = _tokens(source)
        self._lines = [0, *(at + 1 for at, letter in enumerate(source) if letter == "\n")]
        self._at = 0

    def read(self) -> None:
        while self._peek().kind != "end":
            name = self._take("name", "the name of a rule")
            self._take("defines", "'::='")
            self.rules.define(name.text, self._choice(0), self._where(name))

    # --- tokens ---

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, kind: str, what: str) -> _Token:
        token = self._next()
        if token.kind != kind:
            found = repr(token.text) if token.text else "the end"
            raise InvalidGrammar(f"expected {what}, found {found}", self._where(token))
        return token

    def _where(self, token: _Token) -> str:
        line = bisect_right(self._lines, token.start)
        return f"line {line}, column {token.start - self._lines[line - 1] + 1}"

    # --- structure ---

    def _choice(self, depth: int) -> Node:
        where = self._where(self._peek())
        if depth > MAX_NESTING:
            raise InvalidGrammar(f"groups nest more than {MAX_NESTING} deep", where)
        branches = [self._sequence(depth)]
        while self._peek().text == "|":
            self._next()
            branches.append(self._sequence(depth))
        return bounded_union(branches, where)

    def _sequence(self, depth: int) -> Node:
        where = self._where(self._peek())
        items: list[Node] = []
        while not self._ends_sequence():
            items.append(self._repeats(self._item(depth)))
        return bounded_concat(items, where)

    def _ends_sequence(self) -> bool:
        token = self._peek()
        ends_rule = token.kind == "name" and self._peek(1).kind == "defines"
        return ends_rule or token.kind == "end" or token.text in ("|", ")")

    def _item(self, depth: int) -> Node:
        token = self._next()
        where = self._where(token)
        match token.kind:
            case "name":
                return self.rules.mention(token.text, where)
            case "literal":
                return literal(_unescaped(token.text[1:-1], where).encode())
            case "class":
                return utf8(chars(_class(token.text[1:-1], where)))
            case "token":
                raise InvalidGrammar(
                    f"{token.text} refers to a token; special tokens are never text", where
                )
        if token.text == ".":
            return utf8(ANY_CHAR)
        if token.text == "(":
            inner = self._choice(depth + 1)
            if self._next().text != ")":
                raise InvalidGrammar("a group has no ')' at its end", where)
            return inner
        raise InvalidGrammar(f"{token.text!r} has nothing before it to apply to", where)

    def _repeats(self, item: Node) -> Node:
        while self._peek().kind == "counts" or self._peek().text in ("*", "+", "?"):
            token = self._next()
            low, high = _counts(token.text)
            item = bounded_repeat(item, low, high, self._where(token))
        return item


def _tokens(source: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(source):
        match = _TOKENS.match(source, at)
        if match is None:
            shown = source[at : at + 20].splitlines()[0]
            raise InvalidGrammar(f"cannot read {shown!r}", place(source, at))
        if match.lastgroup == "macro":
            raise InvalidGrammar(
                f"{match[0]}…) is not supported; use a structural tag", place(source, at)
            )
        if match.lastgroup != "blank":
            tokens.append(_Token(str(match.lastgroup), match[0], at))
        at = match.end()
    tokens.append(_Token("end", "", len(source)))
    return tokens


def place(source: str, start: int) -> str:
    """Line and column of a position, for messages."""
    line = source.count("\n", 0, start)
    return f"line {line + 1}, column {start - (source.rfind(chr(10), 0, start) + 1) + 1}"


def _counts(text: str) -> tuple[int, int | None]:
    if text in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[text]
    low, comma, high = "".join(text[1:-1].split()).partition(",")
    least = _number(low) or 0
    return least, (_number(high) if comma else least)


def _number(digits: str) -> int | None:
    if len(digits) > 10:
        return MAX_REPEAT + 1  # refused as too large by the caller
    return int(digits) if digits else None


# --- characters ---------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})"
    r"|u\{(?P<brace>[0-9A-Fa-f]{1,8})\}|(?P<letter>.))",
    re.DOTALL,
)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}


def _unescaped(text: str, where: str) -> str:
    return _ESCAPE.sub(lambda match: _character(match, where), text)


def _character(match: re.Match[str], where: str) -> str:
    letter = match["letter"]
    if letter is None:
        value = int(match["x"] or match["u"] or match["U"] or match["brace"], 16)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise InvalidGrammar(f"{match[0]} is no character", where)
        return chr(value)
    if letter in _LETTERS:
        return _LETTERS[letter]
    if letter.isalnum():
        raise InvalidGrammar(f"unknown escape {match[0]}", where)
    return letter


_CLASS_ITEM = re.compile(rf"(?:{_ESCAPE.pattern}|(?P<plain>.))", re.DOTALL)


def _class(text: str, where: str) -> Ranges:
    negated = text.startswith("^")
    items = [
        (m["plain"] or _character(m, where), bool(m["plain"]))
        for m in _CLASS_ITEM.finditer(text, int(negated))
    ]
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(items):
        low = high = items[at][0]
        if at + 2 < len(items) and items[at + 1] == ("-", True):
            high = items[at + 2][0]
            at += 2
        if low > high:
            raise InvalidGrammar(f"the range {low!r} to {high!r} runs backwards", where)
        ranges.append((ord(low), ord(high)))
        at += 1
    joined = join(tuple(ranges))
    return invert(joined) if negated else joined
