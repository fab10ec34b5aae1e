"""Lark grammars: what they derive, what they refuse, and the grammars of the package."""

import ast
import itertools
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from helpers import recognised
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen.errors import InvalidGrammar
from radixgen.grammars.automaton import Automaton, State
from radixgen.grammars.expr import Node, RuleSet
from radixgen.grammars.lark_grammar import compile_lark, lark_grammar, shipped, shipped_names
from radixgen.grammars.oracle import accepts

GRAMMARS = [
    ('start: "a" | "b"', ["a", "b"], ["", "ab"]),
    ('start: WORD+\nWORD: /[a-z]+/\n%ignore " "', [" ab c ", "x"], ["", "A", " "]),
    ('start: "a"~2 "b"~1..2 "c"*', ["aab", "aabbcc"], ["ab", "aabbb"]),
    ('start: ["a"] ("b" | "c")? "d"+', ["d", "acdd", "bd"], ["", "ab", "bcd"]),
    ('start: "a".."c" "\\u00e9"', ["b\u00e9"], ["d\u00e9", "b"]),
    ('start: "sel"i /x/i /./s', ["SeLX\n", "selxa"], ["selx", "sel"]),
    ('?start: x -> first\n  | y\n!x.2: "x"\n_y: "y"\ny: _y', ["x", "y"], ["", "xy"]),
    ('start: (A\n| B)\nA: "a" // one\n# two\nB: "b" \\\n  "c"', ["a", "bc"], ["b"]),
    ("start: A A\nA: /a+/", ["aa", "aaaa"], ["a", ""]),
    ('start: "a" |', ["a", ""], ["b"]),
    ('start: sep{item, ","}\nsep{x, s}: x (s x)*\nitem: "a" | "b"', ["a", "a,b,a"], ["", "a,"]),
    ('start: twice{twice{"a"}}\ntwice{x}: x x', ["aaaa"], ["aa", "aaa"]),
    ('start: nest{"x"}\nnest{x}: "(" nest{x} ")" | x', ["x", "((x))"], ["(x", "()"]),
    (
        "%import common.INT\n%import common (WS, CNAME)\nstart: CNAME INT\n%ignore WS",
        ["a1 2", "a\n1"],
        ["1"],
    ),
    ("%import common.SIGNED_NUMBER -> N\nstart: N", ["-1.5e3", "+2", ".5"], ["", "e1", "."]),
    (
        "%import common.ESCAPED_STRING\nstart: ESCAPED_STRING",
        ['"a\\"b"', '""'],
        ['"', '"a"b"', '"\\"'],
    ),
    ("%import common.C_COMMENT\nstart: C_COMMENT", ["/***/", "/* a*b */"], ["/*/", "/**/ */"]),
    ('start: NAME\nNAME: /[a-z]+/ & ~KEYWORD\nKEYWORD: "if" | "in"i', ["i", "iff"], ["if", "in"]),
    ('start: A\nA: /[ab]+/ & /.*b/ & ~"ab" | "c"', ["b", "aab", "c"], ["ab", "a"]),
    ('start: a\na: a "+" t | t\nt: "x" | "(" a ")"', ["x", "x+x", "(x+x)+x"], ["+", "x+", "()"]),
    ('start: a\na: b "1" | "2"\nb: a "3" | ', ["2", "1", "231", "131"], ["3", "21"]),
    ('start: "if" NAME\nNAME: /[a-z]+/\n%ignore / +/', ["if x", "ifx", " if  x "], ["if", "i f x"]),
    ('start: "" "a"', ["a"], [""]),
]


@pytest.mark.parametrize(("source", "inside", "outside"), GRAMMARS)
def test_languages(source: str, inside: list[str], outside: list[str]) -> None:
    node = lark_grammar(source)
    assert recognised(node, inside + outside) == [True] * len(inside) + [False] * len(outside)


def _doubling(names: str) -> str:
    """Terminals of twice the length of the next: 2**25 characters in 26 lines."""
    pairs = itertools.pairwise(names)
    return "".join(f"{one}: {two} {two}\n" for one, two in pairs) + f'{names[-1]}: "ab"'


REFUSED = [
    ("", "start"),
    ("start: a", "rule 'a' is not defined.*line 1, column 8"),
    ("start: WRD\nWORD: /a/", "did you mean 'WORD'"),
    ("start: A\nA: B\nB: A", "mentions itself"),
    ('start: A\nA: b\nb: "b"', "rule 'b' in a terminal"),
    ("start: start", "derives no text"),
    ('start: "a" start', "derives no text"),
    ('start: "a"\nstart: "b"', "twice"),
    ('start: A\nA: "a"\nA: "b"', "twice"),
    ("start: (", "cannot read"),
    ("start:: x", "line 1, column 7"),
    ("start: /(/", "line 1, column 8"),
    ("start: /^a/", "anchor"),
    ("start: /a\\b/", "anchor"),
    ("start: /(?=a)b/", "look-ahead"),
    ("start: /(?<!a)b/", "look-behind"),
    ("start: /a/l", "locale"),
    ('start: "\\q"', "unknown escape"),
    ('start: "b".."a"', "no range"),
    ('start: "ab".."c"', "no range"),
    ('start: "a"~3..2', "backwards"),
    ('start: "a"~99999999999', "too large"),
    ("%import python.STRING\nstart: STRING", "common"),
    ("%import .other.X\nstart: X", "common"),
    ("%import common.NOPE\nstart: NOPE", "'NOPE' is not defined"),
    ("%import common.INT\nINT: /1/\nstart: INT", "twice"),
    ("%declare X\nstart: X", "%declare"),
    ("%extend X: /a/\nstart: X", "%extend"),
    ('start: t{"a"}\nt{x, y}: x y', "takes 2 arguments"),
    ('start: t{"a"}', "template 't' is not defined"),
    ('start: t{"a"}\nt{x}: x other', "rule 'other' is not defined"),
    ('start: t{"a"}\nt{x}: t{u{x}}\nu{x}: x', "derives no text|rules"),
    ('start: "a" & "b"', "in a rule"),
    ("start: " + "(" * 100 + '"a"' + ")" * 100, "deep"),
    ("start: A\n" + _doubling("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "parts"),
]


@pytest.mark.parametrize(("source", "message"), REFUSED)
def test_refused_with_a_reason(source: str, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        lark_grammar(source)


def test_options() -> None:
    node = compile_lark('start: "a"\nother: "b"', {"start": "other"}, RuleSet())
    assert accepts(node, b"b")
    with pytest.raises(InvalidGrammar, match="option"):
        compile_lark('start: "a"', {"root": "start"}, RuleSet())
    with pytest.raises(InvalidGrammar, match="did you mean 'json'"):
        shipped("jsn")
    with pytest.raises(InvalidGrammar, match="did you mean 'json'"):
        lark_grammar("jsn")


# --- the shipped grammars -------------------------------------------------------------------------

EXAMPLES = {
    "json": (
        ['{"a": [1, -2.5e3, null, {}], "": "\\u00e9\u00e9\\n"}', " [ ] ", "0", '"x"'],
        ["", "01", "{a:1}", "[1,]", '{"a":}', "'x'", '"\n"', "1 2", "+1", ".5"],
    ),
    "arithmetic": (
        ["1", "1+2*(3-x)**-2", "f(1, g())", "-x % .5e3", "2**3**4", "(1)"],
        ["", "1+", "a b", "()", "1 2", "f(,)", "**2"],
    ),
    "python_literal": (
        [
            "{'a': [1, 2.5, None], (1,): b'x'}",
            "('a' \"b\")",
            "{1,2}",
            "-1j",
            "0x1_F",
            "r'\\d'",
            "()",
        ],
        ["", "[1", "{[]: 1}", "x", "{}()", "01", "'a", "1_", "(,)", "{{1}}", "'\n'"],
    ),
    "sql_subset": (
        [
            "SELECT a, count(*) AS n FROM t WHERE x = 1 AND y LIKE 'a%' GROUP BY a HAVING n > 2;",
            "select a from t limit 3 offset 1",
            "select * from a left join b on a.x=b.y order by a.x desc",
            'select t.*, "odd name" from (select 1 as x) t where x in (1, 2) or x is not null',
            "select case when a > 1 then 'it''s' else null end from t union all select b from u",
        ],
        ["", "select", "selectx from t", "select a from", "select from from t", "drop table t"],
    ),
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_shipped_examples(name: str) -> None:
    inside, outside = EXAMPLES[name]
    found = recognised(lark_grammar(shipped(name)), inside + outside)
    assert found == [True] * len(inside) + [False] * len(outside)
    assert recognised(lark_grammar(name), inside + outside) == found, "its name stands for it"
    assert sorted(EXAMPLES) == shipped_names()


def _sampled(node: Node, count: int) -> list[str]:
    """Random texts of a grammar: a walk over bytes, then the nearest end."""
    draw = random.Random(2)
    automaton = Automaton()
    start = automaton.start(node)
    found: list[str] = []
    while len(found) < count:
        state, text = start, bytearray()
        for _ in range(draw.randint(0, 24)):
            assert state is not None
            allowed = automaton.next_bytes(state)
            plain = [b for b in range(32, 127) if allowed >> b & 1]
            if not plain:
                break
            byte = draw.choice(plain)
            text.append(byte)
            state = automaton.step(state, byte)
        assert state is not None
        end = _nearest_end(automaton, state)
        if end is not None:
            found.append((bytes(text) + end).decode())
    return found


def _nearest_end(automaton: Automaton, start: State) -> bytes | None:
    """The shortest bytes to an accepting state, sought breadth first within a bound."""
    seen, layer = {start}, [(start, b"")]
    while layer and len(seen) < 400:
        following = []
        for state, text in layer:
            if automaton.is_accepting(state):
                return text
            for mask in automaton.classes(state):
                after = automaton.step(state, (byte := mask.bit_length() - 1))
                if after is not None and after not in seen:
                    seen.add(after)
                    following.append((after, text + bytes((byte,))))
        layer = following
    return None


def _query(text: str) -> None:
    """SQLite compiles the query, or finds names unknown, never a fault of syntax."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("explain " + text)
        except sqlite3.OperationalError as error:
            if "syntax" in str(error) or "incomplete" in str(error):
                raise AssertionError(f"{error}: {text}") from None
            raise


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("json", json.loads),
        ("arithmetic", lambda text: ast.parse(text.strip(), mode="eval")),
        ("python_literal", ast.literal_eval),
        ("sql_subset", _query),
    ],
)
def test_shipped_grammars_derive_what_others_read(name: str, read: Callable[[str], Any]) -> None:
    for text in _sampled(lark_grammar(shipped(name)), 60):
        read(text)


# --- fuzz -----------------------------------------------------------------------------------------

PIECES = ["start", ":", '"a"', "/[a-z]/", "(", ")", "*", "+", "?", "|", "~2", "..", "\n", "//", "A"]
PIECES += [
    "x",
    '"',
    "/",
    "[",
    "]",
    "{",
    "}",
    ",",
    "->",
    "%ignore",
    "%import",
    "common",
    ".",
    "&",
    "!",
]


def _mutated(source: str, draw: random.Random) -> str:
    data = bytearray(source.encode())
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return data.decode("utf-8", "replace")


@given(st.lists(st.sampled_from(PIECES), max_size=16).map(" ".join), st.randoms())
@settings(max_examples=150, deadline=None)
def test_any_source_is_read_or_refused(source: str, draw: random.Random) -> None:
    changed = _mutated(draw.choice(GRAMMARS)[0], draw), _mutated(shipped("arithmetic"), draw)
    for text in (source, 'start: "a" ' + source, *changed):
        try:
            node = lark_grammar(text)
        except InvalidGrammar:
            continue
        accepts(node, b"aab")
