"""The two encodings against Python's own codec and json, code point by code point."""

import json
import random
import time
from collections.abc import Callable

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars import encode
from radixgen.grammars.encode import json_string, utf8
from radixgen.grammars.expr import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    EVERYTHING,
    Chars,
    Node,
    Rule,
    chars,
    complement,
    concat,
    conj,
    literal,
    repeat,
    star,
    text,
    union,
)
from radixgen.grammars.oracle import accepts, allows_prefix
from radixgen.grammars.regex_tree import regular

EDGES = [0, 8, 0x1F, 0x20, 0x22, 0x2F, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD]
EDGES += [0xFFFF, 0x10000, 0x1F600, 0xFFFFF, 0x100000, 0x10FFFF]


def _texts(low: int, high: int) -> tuple[list[str], list[str]]:
    return [chr(c) for c in EDGES if low <= c <= high], [
        chr(c) for c in EDGES if not low <= c <= high
    ]


@pytest.mark.parametrize("low", EDGES[::3])
@pytest.mark.parametrize("high", EDGES[1::3])
def test_a_range_encodes_exactly(low: int, high: int) -> None:
    node = chars([(low, high)])
    inside, outside = _texts(low, high)
    assert recognised(utf8(node), inside + outside) == [True] * len(inside) + [False] * len(outside)
    escaped = [f"{json.dumps(t)[1:-1]}" for t in inside + outside]
    upper = [e[:2] + e[2:].upper().replace("\\U", "\\u") for e in escaped]
    expected = [True] * len(inside) + [False] * len(outside)
    assert recognised(json_string(node), escaped) == expected
    assert recognised(json_string(node), upper) == expected


def test_every_spelling_decodes_to_its_code_point() -> None:
    for point in (0x2F, 0x22, 0x61, 0xE9, 0x1F600):
        node = json_string(chars([(point, point)]))
        spellings = {json.dumps(chr(point))[1:-1], json.dumps(chr(point), ensure_ascii=False)[1:-1]}
        units = chr(point).encode("utf-16-be").hex()
        spellings.add("".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)))
        assert all(recognised(node, sorted(spellings)))
    assert recognised(json_string(text("/")), ["/", "\\/", "\\u002f", "\\u002F", "//"]) == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_nothing_but_valid_utf8_and_json() -> None:
    every = star(ANY_CHAR)
    for data in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe9"):
        assert not accepts(utf8(every), data)
    for inside in (b'"', b"\\", b"\n", b"\\x", b"\\ud800", b"\\ud800x", b"\\udc00", b"\\u12"):
        assert not accepts(json_string(every), inside)
    assert not allows_prefix(json_string(every), b"\\ud800\\n")
    assert accepts(json_string(every), b"\\uD83D\\uDE00 \\u0000\x7f\xf0\x9f\x98\x80")


def test_complement_is_within_texts() -> None:
    for encoding in (utf8, json_string):
        node = encoding(complement(regular(text("a"))))
        assert recognised(node, ["", "b", "aa", "a"]) == [True, True, True, False]
        assert not accepts(node, b"\xff")
        assert accepts(encoding(EVERYTHING), "any\u00e9".encode())
        assert not accepts(encoding(EVERYTHING), b"\xe9")
    node = json_string(conj(regular(repeat(ANY_CHAR, 2, 3)), complement(regular(text("ab")))))
    assert recognised(node, ["a", "ab", "\\u0061b", "ac", "\\u0061c", "abc", "\\n\\n"]) == [
        *(False, False, False, True, True, True, True),
    ]


@pytest.mark.parametrize("encoding", [utf8, json_string])
def test_a_complement_may_leave_out_any_end(encoding: Callable[[Node], Node]) -> None:
    """What follows a text that is left out is any text; an escape is no text of its letters."""
    every = star(ANY_CHAR)
    searched = concat(every, text("nn"), every)
    ended = union(concat(text("q"), every), concat(every, text("z")))
    node = encoding(complement(regular(union(searched, ended))))
    allowed = ["", "n", "nan", "zq", "\u00e9"]
    refused = ["nn", "ann", "nnz", "nn\u00e9", "q", "q\u00e9", "z", "ann\u00e9z"]
    assert recognised(node, allowed + refused) == [True] * len(allowed) + [False] * len(refused)
    assert not accepts(node, b"n\xff")
    assert encoding(conj(regular(text("a")), complement(regular(every)))) is EMPTY
    if encoding is json_string:
        assert recognised(node, ["\\nn", "\\u006en", "\\nn\\u006e"]) == [True, False, False]


def test_algebra_is_kept() -> None:
    item = union(text("a\u00e9"), repeat(text("b"), 2, 3))
    node = utf8(concat(star(item), EPSILON))
    assert recognised(node, ["", "a\u00e9bb", "bbbbb", "b", "a"]) == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert utf8(EMPTY) is EMPTY
    assert utf8(EPSILON) is EPSILON


def test_surrogates_are_no_characters() -> None:
    assert utf8(chars([(0xD800, 0xDFFF)])) is EMPTY
    assert utf8(chars([(0xD000, 0xF000)])) is utf8(chars([(0xD000, 0xD7FF), (0xE000, 0xF000)]))


@pytest.mark.parametrize("node", [literal(b"x"), Rule("r", lambda: EPSILON)])
def test_only_text_expressions(node: Node) -> None:
    with pytest.raises(InvalidGrammar, match="text expression"):
        utf8(node)


def test_classes_are_shared_and_cheap() -> None:
    assert json_string(star(ANY_CHAR)) is json_string(star(ANY_CHAR))
    encode._json_string.cache_clear()
    started = time.perf_counter()
    for point in range(0x4E00, 0x4E00 + 200):
        json_string(chars([(0, point), (point + 2, 0x10FFFF)]))
    assert time.perf_counter() - started < 30  # a hundredth of that, if they are shared


def test_classes_of_most_characters_are_what_any_are() -> None:
    draw = random.Random(6)
    for number in range(2000):
        holes = sorted(draw.sample(range(0x82), draw.choice((0, 1, 2, 5, 60, 127))))
        left = [point for point in range(0x82) if point not in holes]
        beyond = [(0x82, 0xD7FF), (0xE000, 0x10FFFF)] if number % 2 else [(0x82, 0x10FFFF)]
        found = chars([*((point, point) for point in left), *beyond])
        assert isinstance(found, Chars)
        assert encode._json_class(found.ranges) is encode._any_class(found.ranges)


def test_plain_classes_are_what_any_are() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        lows = [draw.choice((draw.randrange(0x90), draw.randrange(0x20, 0x80))) for _ in range(3)]
        found = chars([(low, low + draw.choice((0, 0, 1, 9, 25))) for low in lows])
        assert isinstance(found, Chars)
        assert encode._json_class(found.ranges) is encode._any_class(found.ranges)
