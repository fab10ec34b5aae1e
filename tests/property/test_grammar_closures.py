"""Masks over many tokens, where the native engine passes over branches of the vocabulary, are what
the tokens one by one are."""

import json
import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from radixgen.grammars import compiler
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

ENDING = 40  # characters of a text, at most


def vocabulary() -> Vocabulary:
    """Words with blanks and marks about them, pieces of words, escapes, several bytes a letter."""
    draw = random.Random(11)
    tokens: set[bytes] = {b'":', b'",', b'"}', b'": "', b'{"', b"additionalPropertie", b"llow deny"}
    tokens |= {
        b"additionalProperties",
        b"xadditionalProperties",
        b"\\u00",
        b"\\u0064",
        b"://",
        b"}.",
        b".blf",
    }
    letters = "etaoinsrhldcumfpgwybvkxjqzDENYAB0123456789"
    while len(tokens) < 2500:
        word = "".join(
            draw.choices(letters, weights=range(len(letters), 0, -1), k=draw.randint(1, 9))
        )
        mark = draw.choice('_-.:/<>{}()=@+*?\\"\n,;')
        ways = (word, " " + word, word + mark, mark + word, word.upper(), word + "é", "你" + word)
        tokens.add(draw.choice(ways).encode())
    tokens |= {
        "é".encode(),
        "你好".encode(),
        "\u2028".encode(),
        b"\xe4\xbd",
        "😀".encode(),
        b"\xf0\x9f",
    }
    single = [bytes((byte,)) for byte in range(256)]
    rest = sorted(tokens - set(single))
    return Vocabulary.from_tokens([*single, *rest, b"end"], [len(single) + len(rest)])


VOCABULARY = vocabulary()
# What tokens hold before a quote, or behind one.
QUOTED = [
    part.decode() for t in VOCABULARY.tokens if t for part in t.split(b'"')[:-1] if part.isalnum()
]

PATTERNS = {
    "^allow|deny$": ('"allow it"', '"we denydeny"', '"dedeny"'),
    "[a-zA-Z]{3}": ('"abc"', '"é ab cde"'),
    "^[^:]+://[^:/]+(:[0-9]+)?(/[^?#/]+)*$": ('"http://ab.c:80/d/e"',),
    r"^(?!.*(\{Log\}|[\"<>*?:/\\])).*\.[bB][lL][fF]$": ('"a {Lo} b.blf.BLF"',),
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==)$": ('"abcdEFGH12=="',),
    "^[0-9A-Za-z]{8}-[0-9A-Za-z]{4}$": ('"0123abcd-ABCD"',),
    "^[a-z]{1,30}( [a-z]{2,5}){0,9}$": ('"abc de fghij"',),
    r"^\w+@\w+\.com$": ('"ab_c@de.com"', '"a@b.com"'),
    "^[a-zA-Z0-9]{5}$": ('"ab0D5"',),
    "^[a-z0-9]{4}([A-Z]|[a-z]{3})-$": ('"ab0dA-"', '"ab0dxyz-"'),
    "^([a-z]{4}[0-9])*$": ('"abcd0efgh1"',),
    "^([a-z]{2}[a-z0-9]{2}|[0-9][a-z0-9]*)[_-]$": ('"abc0_"', '"0bcde-"'),
    "^(x[a-z]{3}|[a-wyz][a-z]{5,6})[0-9]$": ('"xabc0"', '"abcdefg9"'),
    "^[a-f0-9]{4,}[g-z]{0,2}$": ('"abc0g"',),
    "ete.*ana": ('"an ete and anana"',),
    "^[a-z0-9]{9}$": ('"etao1nsri"',),  # each place by what is left out of a longer text's row
    "^[A-Z]{2}-([a-z]{1,7}|[0-9]{5})$": ('"EN-etaoins"', '"EN-12345"'),
}


def schemas() -> Iterator[tuple[dict[str, object], str]]:
    for pattern, texts in PATTERNS.items():
        for text in texts:
            yield {"type": "string", "pattern": pattern}, text
    yield {"type": "string", "minLength": 3, "maxLength": 3, "pattern": "[a-zA-Z]{3}"}, '"abc"'
    yield {"type": "string", "maxLength": 12, "pattern": "^allow|deny$"}, '"not deny"'
    yield {"type": "string", "minLength": 1, "maxLength": 9}, '"etao \\u0064é"'
    yield (
        {"enum": ["additionalProperties", "additional deny", "llow denydeny"]},
        '"additional deny"',
    )
    yield {"type": "string", "format": "email"}, '"ab.c@ex-ample.com"'
    yield {"type": "string", "format": "uri"}, '"http://a.b@ex-am:80/a/b?c=d#e"'
    yield {"type": "string", "format": "uuid"}, '"123e4567-e89b-12d3-a456-426614174000"'
    yield (
        {
            "patternProperties": {".*": {"type": "integer"}, "additionalProperties": False},
            "additionalProperties": False,
        },
        '{"additionalProperty": 1}',
    )
    yield {"patternProperties": {"^[a-z]*$": {}}, "additionalProperties": False}, '{"abc": "d"}'
    members = {"additionalProperties": {"const": "://"}, "deny": {"const": 0}}
    yield {"properties": members, "additionalProperties": False}, '{"additionalProperties": "://"}'
    yield {"properties": members, "required": ["deny"]}, '{"deny": 0, "x": {}}'
    names: dict[str, object] = {
        name: {} for name in (*QUOTED, "", "d", "de", "den", "é", "你好", "n\\o")
    }
    longer = f'{{"{QUOTED[0]}x": 1, "y": 4}}'
    yield {"properties": names}, longer
    yield (
        {"properties": names, "propertyNames": {"minLength": 3}},
        '{"nny": 0, "édx": 1}',
    )
    yield {"not": {"enum": list(names)}, "type": "string"}, '"denx"'
    yield {"not": {"const": QUOTED[0]}, "type": "string", "minLength": 2}, f'"{QUOTED[0]}x"'
    yield {"items": {"type": "string"}, "uniqueItems": True}, f'["de", "{QUOTED[0]}", "dé"]'
    yield (
        {"properties": names, "patternProperties": {"^d": {"type": "null"}}},
        '{"da": null, "a": 0}',
    )


def native(found: object) -> NativeEngine:
    assert isinstance(found, NativeEngine)
    return found


def mask_of(engine: NativeEngine, state: int) -> set[int]:
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    engine.fill_row(state, row, 0)
    return set(np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist())


@pytest.mark.parametrize(("schema", "text"), list(schemas()), ids=str)
def test_masks_of_patterns_are_brute_force(schema: dict[str, object], text: str) -> None:
    if load_library() is None:
        pytest.skip("no C compiler: the native engine does not run here")
    grammar = GrammarCompiler(VOCABULARY).compile(GrammarSpec("json_schema", json.dumps(schema)))
    engine, state = native(grammar.engine), grammar.start
    for byte in (*text.encode()[:ENDING], None):
        one_by_one = {
            t for t, data in enumerate(VOCABULARY.tokens) if data and engine.after_token(state, t)
        }
        ends = VOCABULARY.end_ids if engine.is_accepting(state) else set()
        assert mask_of(engine, state) == one_by_one - VOCABULARY.end_ids | ends
        if byte is not None:
            state = engine.after_bytes(state, bytes((byte,)))
            assert state
    assert engine.is_accepting(state)


def test_other_names_make_no_states_within_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if load_library() is None:
        pytest.skip("no C compiler: the native engine does not run here")
    # Which masks a compile makes depends on how long it took.
    monkeypatch.setattr(compiler, "_look_ahead", lambda *_: None)
    made = []
    for others in (False, True):
        schema: dict[str, object] = {
            "properties": {name: {} for name in QUOTED},
            "additionalProperties": others,
        }
        grammar = GrammarCompiler(VOCABULARY).compile(
            GrammarSpec("json_schema", json.dumps(schema))
        )
        engine = native(grammar.engine)
        mask_of(engine, engine.after_bytes(grammar.start, b'{"'))
        made.append(engine.sizes()["states"])
    assert made[1] - made[0] < sum(map(len, QUOTED)) / 2


def test_a_pattern_somewhere_in_a_text_needs_no_walk_through_all_tokens() -> None:
    if load_library() is None:
        pytest.skip("no C compiler: the native engine does not run here")
    compiler = GrammarCompiler(VOCABULARY)
    steps = []
    for pattern in ("^a|z$", "^allow|deny$"):  # the first makes what does not depend on a pattern
        source = json.dumps({"type": "string", "pattern": pattern})
        grammar = compiler.compile(GrammarSpec("json_schema", source))
        engine = native(grammar.engine)
        before = engine.sizes()["steps"]
        mask_of(engine, engine.after_bytes(grammar.start, b'"'))
        steps.append(engine.sizes()["steps"] - before)
    assert steps[1] < len(VOCABULARY.trie) // 3


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"pattern": "^[a-zA-Z0-9]{5}-$"}, b'"'),
        ({"pattern": "^[a-zA-Z0-9]{15}$"}, b'"ab'),
        ({"format": "uri"}, b'"http://a'),
    ],
    ids=str,
)
def test_runs_of_letters_need_no_walk_through_their_tokens(
    schema: dict[str, object], text: bytes
) -> None:
    if load_library() is None:
        pytest.skip("no C compiler: the native engine does not run here")
    letters = "aceghkmoqsuwy"
    words = [bytes(word, "ascii") for word in map("".join, product(letters, repeat=3))]
    single = [bytes((byte,)) for byte in range(256)]
    tokens = [*single, *words, *(word * 2 for word in words), b"end"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    source = json.dumps({"type": "string", **schema})
    grammar = GrammarCompiler(vocabulary).compile(GrammarSpec("json_schema", source))
    engine = native(grammar.engine)
    state, before = engine.after_bytes(grammar.start, text), engine.sizes()["steps"]
    row = np.zeros((1, vocabulary.num_words), np.int32)
    engine.fill_row(state, row, 0)
    assert 0 < engine.sizes()["steps"] - before < len(vocabulary.trie) // 6
    allowed = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist()
    assert allowed == [t for t, d in enumerate(tokens[:-1]) if engine.after_token(state, t)]


def test_runs_of_blanks_make_no_states_at_each_place() -> None:
    if load_library() is None:
        pytest.skip("no C compiler: the native engine does not run here")
    single = [bytes((byte,)) for byte in range(256)]
    blanks = [*(b" " * n for n in range(2, 80)), *(b"\n" + b"\t" * n for n in range(1, 70))]
    tokens = [*single, *blanks, b"end"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    members = {name: {"type": ["integer", "null"]} for name in ("a", "b", "c")}
    source = json.dumps({"type": "object", "properties": members, "additionalProperties": False})
    grammar = GrammarCompiler(vocabulary).compile(GrammarSpec("json_schema", source))
    engine, state = native(grammar.engine), grammar.start
    row = np.zeros((1, vocabulary.num_words), np.int32)
    made = []
    for byte in b'{"a": 1, "b": 2, "c": 3':
        before = engine.sizes()["states"]
        engine.fill_row(state, row, 0)
        made.append(engine.sizes()["states"] - before)
        state = engine.after_bytes(state, bytes((byte,)))
    assert sum(sorted(made)[:-1]) < 64  # but once


@pytest.mark.parametrize("most", [3, 31, 32, 64])
def test_runs_of_blanks_are_counted(most: int) -> None:
    if load_library() is None:
        pytest.skip("no C compiler: the native engine does not run here")
    single = [bytes((byte,)) for byte in range(256)]
    blanks = [*(b" " * n for n in range(2, 80)), *(b"\n" + b"\t" * n + b'"' for n in range(1, 70))]
    tokens = [*single, *blanks, b'  "a"', b"end"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    schema = {"type": "object", "properties": {"a": {"type": ["integer", "string"]}, "b": {}}}
    spec = GrammarSpec("json_schema", json.dumps(schema), (("max_whitespace", most),))
    grammar = GrammarCompiler(vocabulary).compile(spec)
    engine, state = native(grammar.engine), grammar.start
    row = np.zeros((1, vocabulary.num_words), np.int32)
    for byte in b'{  "a": \n "x",  "b":  [ {}]':
        engine.fill_row(state, row, 0)
        allowed = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist()
        assert allowed == [t for t, _ in enumerate(tokens[:-1]) if engine.after_token(state, t)]
        state = engine.after_bytes(state, bytes((byte,)))
        assert state
