"""Emptiness of text expressions against enumeration, and against the search over bytes."""

import itertools

import pytest

from radixgen.grammars.derivative import derivative, facts, is_empty
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import ANY_CHAR, EMPTY, Expr, complement, conj, repeat
from radixgen.grammars.json_texts import any_of, few, language, lengths, matches
from radixgen.grammars.regex import parse
from radixgen.grammars.text_emptiness import combinations, is_endless, text_is_empty

PATTERNS = ["a", "^a*$", "^(ab)+$", "^[^b]{2,3}$", "b$", "^(aa|bb)*$", "^.{5}$", "é|^$"]


def whole(pattern: str) -> Expr:
    return parse(pattern, dialect="ecma", mode="search")


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PATTERNS, 2)))
def test_intersections_and_differences(one: str, other: str) -> None:
    words = ["".join(w) for n in range(7) for w in itertools.product("abé", repeat=n)]
    for node in (
        conj(whole(one), whole(other)),
        conj(whole(one), complement(whole(other))),
        conj(whole(one), whole(other), lengths(2, 2).expr),
    ):
        empty = text_is_empty(node)
        assert empty is not None
        assert empty == is_empty(utf8(node))
        if any(matches(node, word) for word in words):
            assert not empty


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_are_matched_as_their_bytes_are(pattern: str) -> None:
    words = ["".join(w) for n in range(5) for w in itertools.product("abé\ud800", repeat=n)]
    for node in (whole(pattern), complement(whole(pattern))):
        for word in words:
            state = utf8(node)
            for byte in word.encode(errors="surrogatepass"):
                state = derivative(state, byte)
            assert matches(node, word) == facts(state).nullable, (node, word)


def test_long_texts_are_found_and_limits_are_admitted() -> None:
    words = parse(r"^(?:\S+\s+){0,49}\S+$", dialect="ecma", mode="search")
    assert text_is_empty(conj(words, lengths(250, 300).expr)) is False
    far = conj(*(_multiple(n) for n in (29, 31, 37)), complement(any_of([""])))
    assert text_is_empty(far) is None  # the first text has 33,263 letters


def _multiple(number: int) -> Expr:
    node = repeat(repeat(ANY_CHAR, number, number), 0, None)
    assert isinstance(node, Expr)
    return node


def test_finite_sets_stay_finite() -> None:
    words = few(["a", "ab", "b", "éé"])
    assert words.meet(language(whole("^a"))).finite == frozenset(["a", "ab"])
    assert words.join(few(["c"])).finite == frozenset(["a", "ab", "b", "c", "éé"])
    assert words.meet(lengths(2, 2)).finite == frozenset(["ab", "éé"])
    rest = words.complement()
    assert not any(rest.holds(word) for word in ("a", "ab", "b", "éé"))
    assert all(rest.holds(word) for word in ("", "aa", "é", "abc"))
    assert words.meet(rest).is_empty()
    assert text_is_empty(EMPTY)


def test_combinations_are_what_each_search_finds() -> None:
    languages = [whole(pattern) for pattern in ("a", "^a*$", "^(ab)+$", "b$", "^.{5}$")]
    found = combinations(frozenset(languages), 1000)
    assert found is not None
    for held in itertools.product((True, False), repeat=len(languages)):
        parts = (e if h else complement(e) for e, h in zip(languages, held, strict=True))
        met = frozenset(e for e, h in zip(languages, held, strict=True) if h)
        assert (met in found) == (text_is_empty(conj(*parts)) is False)
    assert combinations(frozenset(languages), 3) is None


@pytest.mark.parametrize("pattern", [*PATTERNS, "^$", "^(|a{0,3})$", "^(a*){2}$", "^(?!a).*$"])
def test_what_looks_endless_is(pattern: str) -> None:
    expr = whole(pattern)
    longer = conj(expr, lengths(12, None).expr)
    if is_endless(expr):
        assert text_is_empty(longer) is False
    elif "(?" not in pattern:
        assert text_is_empty(longer) is True
