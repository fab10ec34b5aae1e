"""GBNF and choices: what they derive, what they refuse, and that no source makes them crash."""

import json
import random
import time

import pytest
from helpers import recognised
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen.errors import InvalidGrammar
from radixgen.grammars.choice import choice, compile_choice
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.gbnf import compile_gbnf, gbnf
from radixgen.grammars.oracle import accepts, allows_prefix

GRAMMARS = [
    ('root ::= "a" | "b"', ["a", "b"], ["", "ab"]),
    ('root ::= "a" ( "" | "b" )*', ["a", "ab", "abb"], ["", "b"]),
    ("root ::= [a-c]+ [^a-c\\n]?", ["abc", "a\u00e9", "cx"], ["", "x", "a\n", "ab\u00e9\u00e9"]),
    ("root ::= . .", ["ab", "\n\u00e9"], ["a", "abc"]),
    ('root ::= "a"{2} "b"{,1} "c"{1,} "d"{0,2}', ["aac", "aabccdd"], ["ac", "aabbc", "aacddd"]),
    ('root ::= ("a" | "b" "c")+ # comment "x"\n  "!"', ["a!", "bca!"], ["b!", "a", 'a"x"!']),
    ('root ::=\n  first\n  | "z"\nfirst ::= "a"\n', ["a", "z"], ["", "az"]),
    (
        'root ::= "\\n\\t\\"\\\\\\x41\\u00e9\\U0001F600\\u{e9}"',
        ['\n\t"\\A\u00e9\U0001f600\u00e9'],
        ["n"],
    ),
    ("root ::= [\\]\\-\\\\^]+", ["]-\\^"], ["a", ""]),
    ("root ::= [a-]+ [-b]", ["a-b", "--"], ["b", "ab-c"]),
    ('root ::= my-rule_2.x\nmy-rule_2.x ::= "a"', ["a"], ["b"]),
    ("root ::= ", [""], ["a"]),
    ('root ::= "a" |', ["", "a"], ["b"]),
    # recursion: right, left, hidden, indirect, nested, ambiguous
    ('root ::= "a" root | "b"', ["b", "aaab"], ["a", ""]),
    ('root ::= root "a" | "b"', ["b", "baaa"], ["a", "ab"]),
    ('root ::= e root "a" | "b"\ne ::= "" | "c"', ["b", "ba", "cbaa"], ["a", "cb"]),
    ('root ::= x "a" | "b"\nx ::= root "c" | "d"', ["b", "da", "bca", "dacaca"], ["ca", "a"]),
    ('root ::= "(" root ")" | "x"', ["x", "(((x)))"], ["(x", "x)", "()"]),
    ('root ::= root root | "a" | ""', ["", "a", "aaaa"], ["b"]),
    ('root ::= root "+" root | [0-9]', ["1", "1+2+3"], ["1+", "+"]),
    ("root ::= root", [], None),
    ('root ::= "a" root', [], None),
    ('root ::= x | "a"\nx ::= x "b"', ["a"], ["ab", "b"]),
]


@pytest.mark.parametrize(("source", "inside", "outside"), GRAMMARS)
def test_languages(source: str, inside: list[str], outside: list[str] | None) -> None:
    if outside is None:
        with pytest.raises(InvalidGrammar, match="derives no text"):
            gbnf(source)
        return
    node = gbnf(source)
    assert recognised(node, inside + outside) == [True] * len(inside) + [False] * len(outside)
    assert all(allows_prefix(node, t.encode()[:i]) for t in inside for i in range(len(t) + 1))


REFUSED = [
    ("", "root"),
    ('start ::= "a"', "root"),
    ("root ::= other", "'other' is not defined"),
    ("root ::= digits\ndigit ::= [0-9]", "did you mean 'digit'"),
    ('root ::= "a"\nroot ::= "b"', "twice.*line 2, column 1"),
    ('root ::= "a', "cannot read"),
    ('root ::= ("a"', r"'\)'"),
    ('root ::= "a")', "expected the name"),
    ("root ::= *", "nothing before"),
    ("root = x", "line 1, column 6"),
    ('root ::= "\\q"', "unknown escape"),
    ("root ::= [z-a]", "backwards"),
    ('root ::= "a"{3,2}', "backwards"),
    ('root ::= "a"{9999999999999}', "at most"),
    ("root ::= <think>", "special tokens"),
    ("root ::= !<[12]>", "special tokens"),
    ('root ::= TagDispatch(("a", b))', "structural tag"),
    ('root ::= "\\ud800"', "no character"),
    ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "deep"),
]


@pytest.mark.parametrize(("source", "message"), REFUSED)
def test_refused_with_a_reason(source: str, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        gbnf(source)


def test_options() -> None:
    rules = RuleSet()
    node = compile_gbnf('a ::= "x"\nroot ::= "y"', {"root": "a"}, rules)
    assert accepts(node, b"x")
    assert not accepts(node, b"y")
    for options in ({"start": "a"}, {"root": 3}):
        with pytest.raises(InvalidGrammar, match="option"):
            compile_gbnf('root ::= "y"', options, rules)


def test_two_grammars_in_one_rule_set_stay_apart() -> None:
    rules = RuleSet()
    one, other = (compile_gbnf(f'root ::= x\nx ::= "{t}"', {}, rules) for t in "ab")
    assert accepts(one, b"a")
    assert accepts(other, b"b")


def test_long_chains_of_rules_do_not_recur() -> None:
    source = "root ::= r0\n" + "".join(f'r{i} ::= "a"? r{i + 1}\n' for i in range(5000))
    node = gbnf(source + 'r5000 ::= "b"')
    assert accepts(node, b"aab")
    with pytest.raises(InvalidGrammar, match="derives no text"):
        gbnf(source + "r5000 ::= r0")


def _left_chain(count: int) -> str:
    """Rules that begin with each other in one circle."""
    chain = "".join(f'r{i} ::= r{i + 1} "a" | "c"\n' for i in range(count - 1))
    return f'root ::= r0\n{chain}r{count - 1} ::= r0 | "b"'


def test_long_left_recursion_is_bounded() -> None:
    assert recognised(gbnf(_left_chain(30)), ["c", "caa", "ba", "a"]) == [True, True, False, False]
    with pytest.raises(InvalidGrammar, match="begin with each other"):
        gbnf(_left_chain(300))
    with pytest.raises(
        InvalidGrammar, match="begin with each other"
    ):  # where no text gets at first
        gbnf(_left_chain(300).replace("root ::= r0", 'root ::= "x" e r0\ne ::= "y"?'))
    chains = "".join(
        _left_chain(90).replace("r", f"r{name}").replace(f"r{name}oot", f"root{name}")
        for name in "pq"
    )
    gbnf(f"root ::= rootp | rootq\n{chains}")


PIECES = ["root", "::=", '"a"', "[a-z]", "(", ")", "*", "+", "?", "|", "{2}", "{1,", "\n", "#", "x"]
PIECES += ['"', "[", "\\", "^", "-", "]", ".", "<", "\x00", "\u00e9", "{,}", "!"]


@given(st.lists(st.sampled_from(PIECES), max_size=16).map(" ".join), st.randoms())
@settings(max_examples=400, deadline=None)
def test_any_source_is_read_or_refused(source: str, draw: random.Random) -> None:
    for text in (source, 'root ::= "a" ' + source, _mutated(GRAMMARS[draw.randrange(20)][0], draw)):
        try:
            node = gbnf(text)
        except InvalidGrammar:
            continue
        allows_prefix(node, b"aab")


def _mutated(source: str, draw: random.Random) -> str:
    data = bytearray(source.encode())
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return data.decode("utf-8", "replace")


def test_choice_equals_membership() -> None:
    draw = random.Random(11)
    for size in (1, 2, 40, 3000):
        words = ["".join(draw.choices("ab\u00e9", k=draw.randint(0, 9))) for _ in range(size)]
        node = choice(words)
        tried = words[:50] + [
            "".join(draw.choices("ab\u00e9", k=draw.randint(0, 9))) for _ in range(99)
        ]
        assert recognised(node, tried) == [t in set(words) for t in tried]


def test_one_long_choice_is_quick() -> None:
    started = time.perf_counter()
    node = choice(["x" * 2_000_000, "x" * 1_999_999 + "y"])
    assert time.perf_counter() - started < 60
    assert allows_prefix(node, b"xx")
    assert not allows_prefix(node, b"xy")


def test_a_hundred_thousand_choices_are_quick() -> None:
    draw = random.Random(12)
    words = ["".join(draw.choices("abcdefgh_", k=draw.randint(3, 30))) for _ in range(100_000)]
    source = json.dumps(words)
    started = time.perf_counter()
    node = compile_choice(source, {}, RuleSet())
    assert time.perf_counter() - started < 60  # 0.1 s on an idle machine
    assert recognised(node, [words[0], words[1] + "!", words[-1]]) == [True, False, True]


@pytest.mark.parametrize(
    "source", ["", "{}", "[]", "[1]", '["a", null]', '["\\ud800"]', "[" * 99999]
)
def test_malformed_choices(source: str) -> None:
    with pytest.raises(InvalidGrammar):
        compile_choice(source, {}, RuleSet())
