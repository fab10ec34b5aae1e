"""Regexes against interegular's automata: the same texts, and the same algebra.

A second oracle beside `re`, which knows no intersection and no complement: whether two patterns
have a text in common, and whether one has all texts of the other.
"""

from functools import lru_cache
from itertools import combinations, product
from typing import Any

import interegular
import pytest

from radixgen.grammars.expr import EMPTY, Expr, complement, conj
from radixgen.grammars.json_texts import matches
from radixgen.grammars.regex import parse
from radixgen.grammars.text_emptiness import text_is_empty

LETTERS = "ab1-é"
PATTERNS = [
    "a*",
    "(ab|b)+",
    "[ab]{2,4}",
    "(a|b)*a(a|b)",
    "a?b?1?-?",
    "(a+|b)*1",
    "[^a]*",
    "[^1-]+",
    "(?:a|ab)(?:1|b1)",
    "(a{2}|b{3})*",
    ".*a.b.*",
    r"\w+",
    r"-?\d+",
    "(|a|ab|aab)1?",
    "((a*)*b)*",
    "a{0}b{1,}",
    "(é|a)-(é|a)",
    "[a-b1]+-[a-b1]+",
    "x|y|",
    "(a|b|1|-){5}",
]


@lru_cache
def machine(pattern: str) -> Any:
    return interegular.parse_pattern(pattern).to_fsm()


@lru_cache
def language(pattern: str) -> Expr:
    return parse(pattern)


def is_empty(expr: Expr) -> bool:
    found = text_is_empty(expr) if expr is not EMPTY else True
    assert found is not None
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts(pattern: str) -> None:
    for length in range(5):
        for letters in product(LETTERS, repeat=length):
            text = "".join(letters)
            if "é" in text and "\\w" in pattern:
                continue  # interegular's classes are those of ASCII
            assert matches(language(pattern), text) == machine(pattern).accepts(text), text


def test_the_same_algebra() -> None:
    ascii_only = [p for p in PATTERNS if "\\" not in p and "." not in p and "^" not in p]
    for one, other in combinations(ascii_only, 2):
        a, b = machine(one), machine(other)
        assert is_empty(conj(language(one), language(other))) == (a & b).empty(), (one, other)
        left_over = conj(language(one), complement(language(other)))
        assert is_empty(left_over) == a.difference(b).empty(), (one, other)
