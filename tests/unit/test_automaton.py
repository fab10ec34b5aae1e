"""The Python automaton against languages that are enumerated or known."""

import itertools
import re

import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import (
    ANY_BYTE,
    EMPTY,
    EPSILON,
    Bytes,
    Expr,
    Node,
    Repeat,
    RuleSet,
    byte_set,
    complement,
    concat,
    conj,
    literal,
    optional,
    repeat,
    star,
    union,
)
from radixgen.grammars.interval import IntervalRule, NumberRange
from radixgen.grammars.normal_form import remove_left_recursion
from radixgen.grammars.oracle import accepts, allows_prefix

A, B, C = literal(b"a"), literal(b"b"), literal(b"c")
DIGIT = byte_set(range(48, 58))


def as_expr(node: Node) -> Expr:
    assert isinstance(node, Expr)
    return node


def words(length: int, letters: bytes = b"abc") -> list[bytes]:
    return [bytes(w) for n in range(length + 1) for w in itertools.product(letters, repeat=n)]


REGULAR = [
    (A, "a"),
    (concat(A, star(union(B, C))), "a[bc]*"),
    (repeat(union(A, literal(b"aa")), 2, 3), "(a|aa){2,3}"),
    (repeat(optional(A), 2, 3), "(a?){2,3}"),
    (concat(star(A), star(A), B), "a*b"),
    (repeat(repeat(A, 1, 2), 2, 2), "a{2,4}"),
    (star(star(concat(A, optional(B)))), "(ab?)*"),
    (concat(repeat(byte_set(b"ab"), 1, 3), byte_set(b"bc")), "[ab]{1,3}[bc]"),
]


@pytest.mark.parametrize(("node", "pattern"), REGULAR)
def test_a_regular_expression_accepts_what_re_accepts(node: Node, pattern: str) -> None:
    for word in words(5):
        assert accepts(node, word) == bool(re.fullmatch(pattern.encode(), word)), word


@pytest.mark.parametrize(("node", "pattern"), REGULAR)
def test_complement_and_intersection(node: Node, pattern: str) -> None:
    even = star(concat(byte_set(b"abc"), byte_set(b"abc")))
    both = conj(complement(as_expr(node)), as_expr(even))
    for word in words(4):
        wanted = not re.fullmatch(pattern.encode(), word) and len(word) % 2 == 0
        assert accepts(both, word) == wanted, word


def test_a_prefix_is_allowed_only_if_it_can_be_completed() -> None:
    no_b_at_all = complement(as_expr(concat(star(ANY_BYTE), B, star(ANY_BYTE))))
    node = conj(as_expr(concat(star(byte_set(b"ab")), C)), no_b_at_all)
    assert allows_prefix(node, b"aaa")
    assert not allows_prefix(node, b"aab")  # a complete string could only come without the b
    assert not allows_prefix(node, b"aacc")


def test_counts_are_kept_not_unrolled() -> None:
    node = repeat(repeat(A, 1000, 1000), 1000, 1000)
    assert allows_prefix(node, b"a" * 2500)
    assert not accepts(node, b"a" * 2500)
    many = repeat(union(A, literal(b"aa")), 0, 5000)
    assert accepts(many, b"a" * 300)


def test_recursion_keeps_a_stack() -> None:
    rules = RuleSet()
    nest = rules.rule("nest", lambda: union(EPSILON, concat(literal(b"("), nest, literal(b")"))))
    assert accepts(nest, b"(" * 400 + b")" * 400)
    assert not accepts(nest, b"(" * 400 + b")" * 399)
    assert not allows_prefix(nest, b"())")


def test_direct_left_recursion() -> None:
    rules = RuleSet()
    total = rules.rule("sum", lambda: union(concat(total, literal(b"+"), DIGIT), DIGIT))
    assert accepts(total, b"1+2+3")
    assert not accepts(total, b"1+")
    assert allows_prefix(total, b"1+")
    assert not allows_prefix(total, b"+")


def test_rules_that_begin_with_a_byte_are_not_looked_into_for_left_recursion() -> None:
    def never() -> Node:
        raise AssertionError("expanded")

    ends = NumberRange(b"0", b"1", low_open=False, high_open=False, whole=False, plain_only=False)
    interval = IntervalRule(ends, never, productive=True)
    node = RuleSet().rule("begun", lambda: union(A, concat(interval, B)), productive=True)
    assert remove_left_recursion(node) == []


def test_left_recursion_through_others_and_through_empty_rules() -> None:
    rules = RuleSet()
    empty = rules.rule("empty", lambda: union(EPSILON, C))
    first = rules.rule("first", lambda: union(concat(second, A), B))
    second = rules.rule("second", lambda: union(concat(empty, first, B), concat(empty, second), C))
    # enumerate the language by derivation, up to length 4
    language: set[bytes] = set()
    two: set[bytes] = set()
    while True:
        before = (len(language), len(two))
        language |= {w + b"a" for w in two if len(w) < 5} | {b"b"}
        two |= {p + w + b"b" for w in language for p in (b"", b"c") if len(w) < 5}
        two |= {b"c" + w for w in two if len(w) < 5} | {b"c"}
        if before == (len(language), len(two)):
            break
    for word in words(4):
        assert accepts(first, word) == (word in language), word
        wanted = any(w.startswith(word) for w in language)
        assert allows_prefix(first, word) or not wanted, word


def test_ambiguous_recursion_on_both_sides() -> None:
    rules = RuleSet()
    both = rules.rule("s", lambda: union(concat(both, both), A, EPSILON))
    for word in words(5, b"ab"):
        assert accepts(both, word) == (b"b" not in word)


def test_unproductive_alternatives_are_never_entered() -> None:
    rules = RuleSet()
    endless = rules.rule("endless", lambda: concat(A, endless))
    top = rules.rule("top", lambda: union(concat(B, endless), concat(C, A)))
    assert not allows_prefix(top, b"b")
    assert accepts(top, b"ca")
    assert not allows_prefix(endless, b"")


def test_mutual_recursion_that_needs_the_fixpoint() -> None:
    rules = RuleSet()
    left = rules.rule("left", lambda: union(concat(A, right), concat(B, left)))
    right = rules.rule("right", lambda: union(concat(B, left), C))
    assert accepts(left, b"ac")
    assert accepts(left, b"babac")


def test_text_needs_an_encoding() -> None:
    from radixgen.grammars.expr import text

    with pytest.raises(InvalidGrammar, match="encoding"):
        accepts(text("a"), b"a")


def test_repeats_of_one_symbol_meet() -> None:
    one, other = repeat(byte_set(b"ab"), 2, 5), repeat(byte_set(b"bc"), 3, None)
    assert conj(as_expr(one), as_expr(other)) is Repeat(Bytes(1 << ord("b")), 3, 5)
    assert conj(as_expr(one), as_expr(repeat(A, 9, 9))) is not EMPTY  # a literal is not a symbol
    assert conj(as_expr(one), as_expr(repeat(byte_set(b"c"), 6, 9))) is EMPTY
