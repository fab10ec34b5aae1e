"""Regular expressions against Python's own `re`: equal languages, and what is refused."""

import itertools
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars import regex_symbols, unicode_classes
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import EMPTY, Repeat, literal, text
from radixgen.grammars.oracle import accepts
from radixgen.grammars.regex import _parse, parse

SHORT_TEXTS = ["".join(t) for n in range(1, 5) for t in itertools.product("ab \n", repeat=n)]
MODES = (("full", re.fullmatch), ("search", re.search))

ANCHORED = [
    r"^a",
    r"a$",
    r"^$",
    r"$^",
    r"a^b",
    r"\ba",
    r"a\b",
    r"\Ba",
    r"\b",
    r"\B",
    r"(^a|b)*",
    r"(a$|b)*",
    r"(^|a)b($|a)",
    r"(?m)^a$",
    r"(?m)(^a|$)+",
    r"(?m)$\n^",
    r"(?m)(?:$\n^)*",
    r"(?m:^a)b|a$",
    r"\b(a|b)+\b",
    r"(\ba| )*",
    r"(?:a|\b)*",
    r"(?:\ba\b ?){2,3}",
    r"((a$)|(^b)|\Bab)*",
    r"a\Z|b$",
    r"$\n",
    r"(a$\n?)*",
    r"a(\n$)?",
    r"(a|$|\n)+",
    r"(?:^a){2}",
    r"(^)*a",
    r"\A(?:a|b\Z)*",
]
PLAIN = [
    r"",
    r"a*b",
    r"(?s).a.",
    r"[^a]",
    r"[\s\S]",
    r"(?x) a  b # c",
    r"(a{1,2}){2}",
    r"(a{2}){0,2}",
    r"(aa?){2,3}b",
    r"(a{2}){,2}",
    r"a{,2}b{1,}",
    r"a{b",
    r"a{}",
    r"(|a)b",
    r"((a|b)?){3}",
    r"a*?b+?",
    r"(?P<x>a)(?:b)(?#nothing)",
]


@pytest.mark.parametrize("pattern", ANCHORED + PLAIN)
@pytest.mark.parametrize(("mode", "find"), MODES)
def test_equals_re(pattern: str, mode: Any, find: Callable[..., Any]) -> None:
    found = recognised(utf8(parse(pattern, mode=mode)), SHORT_TEXTS)
    assert found == [find(pattern, t) is not None for t in SHORT_TEXTS]


CASE_TEXTS = [
    *"aAkK\u212asS\u017fiI\u0130\u0131\u00e9\u00c9\u03c3\u03c2\u03a3\u00df\u1e9e0_ ",
    "Ab",
]


CASED = ["(?i)k", "(?i)s", "(?i)i", "(?i)[a-k]", "(?i)[^s]", "(?i)\u03c3", "(?i)\u00df", "(?i:a)b"]
CASED += ["(?ai)k", "(?a)\\w", r"\w", r"\W", "(?i)[\u00e0-\u00ff]", "(?i-s:a).", r"(?i)\u212a"]


@pytest.mark.parametrize("pattern", CASED)
def test_case_equals_re(pattern: str) -> None:
    found = recognised(utf8(parse(pattern)), CASE_TEXTS)
    assert found == [re.fullmatch(pattern, t) is not None for t in CASE_TEXTS]


@pytest.mark.parametrize("letter", "dwsDWS")
@pytest.mark.parametrize("flag", ["", "(?a)"])
def test_class_equals_re_everywhere(letter: str, flag: str) -> None:
    pattern = f"{flag}\\{letter}"
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    (ranges,) = parse(pattern).args
    assert sum(high - low + 1 for low, high in ranges) == len(re.findall(pattern, every))
    for match in re.finditer(f"{flag}(?:\\{letter})+", every):
        assert any(
            low <= ord(match[0][0]) and ord(match[0][-1]) <= high
            for low, high in (*ranges, (0xD7FF, 0xE000))
        ) or (match[0][0] <= "\ud7ff" <= match[0][-1])


def test_case_pairs_equal_re_everywhere() -> None:
    cased = [c for c in map(chr, range(0x110000)) if c.lower() != c or c.upper() != c]
    listed = "".join(cased)
    for character in cased:
        twins = re.findall(f"(?i){character}", listed)
        ranges = unicode_classes.join(tuple((ord(t), ord(t)) for t in twins))
        assert unicode_classes.fold(((ord(character), ord(character)),)) == ranges, character


ESCAPES = [
    (r"\x41\u00e9\U0001F600", "A\u00e9\U0001f600"),
    (r"\N{EM DASH}", "\u2014"),
    (r"\101\0\07", "A\0\7"),
    (r"\a\f\n\r\t\v", "\a\f\n\r\t\v"),
    (r"[\b]\.\-\[", "\b.-["),
    (r"[]a]", "]"),
    (r"[^]a]", "b"),
    (r"[a-]", "-"),
    (r"[\101-\103]", "B"),
]


@pytest.mark.parametrize(("pattern", "example"), ESCAPES)
def test_escapes(pattern: str, example: str) -> None:
    assert re.fullmatch(pattern, example)
    assert accepts(utf8(parse(pattern)), example.encode())


REFUSED = [
    (r"(a)\1", "back-reference", 3),
    (r"(?P<n>a)(?P=n)", "back-reference", 8),
    (r"ab(?=c)", "look-ahead", 2),
    (r"(?!c)d", "look-ahead", 0),
    (r"x(?<=c)", "look-behind", 1),
    (r"(?<!c)", "look-behind", 0),
    (r"(a)?(?(1)b)", "conditional", 4),
    (r"(?>a)", "atomic", 0),
    (r"a*+", "possessive", 2),
    (r"a{2}+", "possessive", 4),
]


@pytest.mark.parametrize(("pattern", "name", "position"), REFUSED)
def test_refused_by_name_and_position(pattern: str, name: str, position: int) -> None:
    with pytest.raises(InvalidGrammar, match=name) as caught:
        parse(pattern)
    assert f"character {position} " in str(caught.value)


MALFORMED = ["foo**", "*a", "(", ")", "(?P<1>a)", "[z-a]", "[a", "a{2,1}", "\\", "(?P<a>.)(?P<a>.)"]
MALFORMED += [r"\q", r"\x4", r"[\w-z]", "(?y)", "a(?i)", "(?", "(?P", r"\777", r"\N{NO SUCH}", "^*"]
MALFORMED += ["(?i-i:a)", "(?-a:a)", "(?L)a", "[]", "(?#", r"\u12", r"\U00110000"]


@pytest.mark.parametrize("pattern", MALFORMED)
def test_malformed_is_an_error(pattern: str) -> None:
    with pytest.raises(re.error):
        re.compile(pattern)
    with pytest.raises(InvalidGrammar):
        parse(pattern)


ECMA = [
    (r"^\d+$", ["12"], ["\u0661", "a", "12\n"]),
    (r"\w", ["a", "-a-"], ["\u00e9", "-"]),
    (r"^\s$", ["\ufeff", "\u2028", " "], ["\x1c", "a"]),
    (r"^.$", ["a", "\x85"], ["\n", "\r", "\u2028"]),
    (r"^\S{2}$", ["[]", "\u00e9e"], ["a "]),
    (r"^\uD83D\uDE00$", ["\U0001f600"], ["\ufffd"]),
    (r"^\u{1F600}\/\cJ$", ["\U0001f600/\n"], ["x"]),
    (r"^[^]$", ["a", "\n"], ["", "ab"]),
    (r"[]", [], ["", "a"]),
    (r"^[\w-.]+$", ["a-.b"], ["a,b"]),
    (r"^a{,2}$", ["a{,2}"], ["aa", "a"]),
    (r"^(?<year>\d{4})$", ["1999"], ["199"]),
    (r"^\p{Letter}+$", ["\u00e9a"], ["1"]),
    (r"^\P{L}\p{Nd}\p{gc=Lu}$", ["-\u0661A"], ["aaa"]),
    (r"^$|(^(?:\S+\s+){0,2}\S+$)", ["", "a b c"], ["a b c d", " a"]),
    (r"(^[^5]*$)|7", ["123", "57"], ["5"]),
    (r"^(?!.*bad).*\.txt$", ["a.txt", "ba.txt"], ["bad.txt", "a bad.txt", "a.tx"]),
    (r"^(?=.*\d)(?=.*[a-z]).{3,}$", ["a1b", "1ab"], ["abc", "123", "a1"]),
    (r"a(?!b)", ["a", "ac", "aba"], ["ab", "b"]),
    (r"a(?!b|$)", ["ac"], ["a", "ab"]),
    (r"^(?:(?!x)[a-z]|x(?=y))y$", ["ay", "xy"], ["xx", "y"]),
    (r"^(?!$)(?!\b).$", ["-"], ["a", ""]),
]


@pytest.mark.parametrize(("pattern", "inside", "outside"), ECMA)
def test_ecma_dialect_in_search_mode(pattern: str, inside: list[str], outside: list[str]) -> None:
    node = utf8(parse(pattern, dialect="ecma", mode="search"))
    texts = inside + outside
    assert dict(zip(texts, recognised(node, texts), strict=True)) == {
        **dict.fromkeys(inside, True),
        **dict.fromkeys(outside, False),
    }


LOOK_AHEAD = [
    r"(?=a)",
    r"(?!ab)a",
    r"^(?=ab|ba)..$",
    r"(?!^a)b",
    r"a(?=$|b)",
    r"(?!\b)b",
    r"^(?!(?=a))",
]


@pytest.mark.parametrize("pattern", LOOK_AHEAD)
def test_look_ahead_equals_re(pattern: str) -> None:
    texts = [t for t in SHORT_TEXTS if "\n" not in t]  # where $ differs between the dialects
    found = recognised(utf8(parse(pattern, dialect="ecma", mode="search")), texts)
    assert found == [re.search(pattern, t) is not None for t in texts]


def test_look_ahead_in_a_repeat_is_refused() -> None:
    with pytest.raises(InvalidGrammar, match="look-ahead"):
        parse(r"^(?:(?!ab).)*$", dialect="ecma")


def test_unicode_is_a_choice() -> None:
    assert accepts(utf8(parse(r"\w\d")), "\u00e9\u0661".encode())
    assert not accepts(utf8(parse(r"\w\d", unicode=False)), "\u00e9\u0661".encode())
    assert accepts(utf8(parse(r"\w", dialect="ecma", unicode=True)), "\u00e9".encode())


def test_scripts_are_refused_with_what_is_known() -> None:
    with pytest.raises(InvalidGrammar, match="general categories"):
        parse(r"\p{Script=Greek}")


def test_repeats_stay_repeats() -> None:
    started = time.perf_counter()
    assert parse("(a{1000}){1000}") is Repeat(text("a"), 1_000_000, 1_000_000)
    assert isinstance(parse("(a{0,1000}b){1000}"), Repeat)
    assert time.perf_counter() - started < 30  # where it is unrolled, it never ends
    with pytest.raises(InvalidGrammar, match="at most"):
        parse("a{99999999999999999999}")


def test_long_patterns_take_linear_time() -> None:
    started = time.perf_counter()
    node = utf8(parse("ab" * 50_000))
    assert time.perf_counter() - started < 60  # 0.2 s on an idle machine
    assert node is literal(b"ab" * 50_000)
    with pytest.raises(InvalidGrammar, match="at most"):
        parse("a" * 200_001)


def test_limits() -> None:
    deep = "(" * 64 + "a" + ")" * 64
    assert accepts(utf8(parse(deep)), b"a")
    with pytest.raises(InvalidGrammar, match="deep"):
        parse("(" + deep + ")")
    with pytest.raises(InvalidGrammar, match=r"too large|repeated"):
        parse(r"(((\ba|\Bb){30}c|^d){30}e$|\bf){30}")
    with pytest.raises(InvalidGrammar, match="repeated 1000 times"):
        parse(r"(?:\ba){1000}")


def test_nested_starred_groups_run() -> None:
    pattern = "a"
    for _ in range(60):
        pattern = f"(?:{pattern}b)*"
    assert accepts(utf8(parse(pattern)), b"b" + b"a" + b"b" * 61)
    assert not accepts(utf8(parse(pattern)), b"ab")


def test_impossible_pattern_is_empty() -> None:
    assert parse("a^b") is EMPTY


@pytest.mark.parametrize(
    "pattern",
    [
        *("[]", "[^]", "[a]]", "[]a]", "[^]a]", r"[\]]", r"[\\]", r"[a\]b]+", "[a-c-e]"),
        *("[-a]", "[a-]", r"[\w.-]", r"[\s\S]", r"[^\d\n]", r"[\b]", r"[\x41-\x43]"),
        *(r"[\u{1F600}]", r"[\ud83d\ude00]", "[a", "[c-a]x", r"[\u{41]", r"[\u{]}", r"[\c]]"),
        *(r"[\cA]", r"[\p{L}]", r"[\p{]}", "(?i:[a-c])", "(?i)[k]", r"[\u017f]", "[à-ÿ]|[à-ÿ]"),
        *("[a]{2}[a]", "x[\\", r"[\w-x]", r"[a-\d]", "[+--]", r"[\--\/]", r"[\é]", r"[\_]"),
        *(r"[z\]-a]", r"[\]-a]", r"[\d-]", r"[-\d]", r"[^\W_]", "[\ud800-\udbff]", r"[.-\.]"),
    ],
)
def test_a_class_read_before_is_read_the_same(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> Any:
        _parse.cache_clear()
        try:
            return parse(pattern, dialect="ecma", mode="search")
        except InvalidGrammar as error:
            return str(error)

    found = [read(), read()]
    monkeypatch.setattr(regex_symbols, "_class_in", lambda *_: None)
    assert found == [read()] * 2
