"""Constraints with bytes exchanged, cut and repeated: compiled and followed, or refused by an error
of ours; never anything else. One seed, so that a run is the same everywhere."""

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarKind, GrammarSpec

SCHEMAS: list[object] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"$ref": "#/$defs/s"}},
        "required": ["a"],
        "$defs": {"s": {"type": "string", "pattern": "^x+$", "maxLength": 9}},
        "patternProperties": {"^p_": {"enum": [1, "two", None]}},
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": ["string", "null"]}, "uniqueItems": True, "minItems": 1},
    {"oneOf": [{"const": {"k": 1}}, {"not": {"type": "object"}}], "if": {"minLength": 2}},
    {"contains": {"multipleOf": 0.5}, "maxContains": 2, "prefixItems": [{"format": "date"}]},
    {"allOf": [{"minProperties": 1}, {"propertyNames": {"maxLength": 3}}], "type": "object"},
]
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMAS[1], "end": "</f>"}], "triggers": ["<f"]}
LARK = 'start: A~2..3 ("x" | b{A})*\nb{x}: x "," x\nA: /a+/i & ~"aa"\n%ignore /\\s+/\n'
SEEDS: dict[GrammarKind, list[str]] = {
    "json_schema": list(map(json.dumps, SCHEMAS)),
    "structural_tag": [json.dumps(TAG)],
    "regex": [r"^(\d{3}-)?[a-z]+\b$", r"(?i:a|b)*c{2,5}", r"[^\W_]+@\w+\.(com|org)", r"(a*)*|\x41"],
    "gbnf": ['root ::= "a" [b-d\\x41]{2,3} ("x" | y)* # c\ny ::= [^a\\]]+ | "\\u00e9" root?'],
    "lark": [LARK, "%import common.INT -> N\nstart: [N] | start N"],
    "choice": ['["a", "b\\u00e9"]'],
}
PIECES = ['"', "\\", "{", "}", "[", "]", "(", ")", "*", "|", "~", "-1", "9999999999", "1e400"]
PIECES += [
    "null",
    "not",
    "$ref",
    "::=",
    "%ignore",
    r"\p{L}",
    "é",
    "😀",
    "\n",
    "\x00",
    "{2,3}",
    "(?",
]
TOKENS = [*(bytes((byte,)) for byte in range(256)), b'", "', b'{"', b"12", None]
COMPILER = GrammarCompiler(Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1]))


def mutated(source: str, draw: random.Random) -> str:
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(source) + 1)
        stop = min(len(source), start + draw.randrange(9))
        middle = [draw.choice(PIECES), source[start:stop] * 3, ""][draw.randrange(3)]
        source = source[:start] + middle + source[stop:]
        if source and draw.random() < 0.3:
            data = bytearray(source.encode())
            data[draw.randrange(len(data))] = draw.randrange(256)
            source = data.decode("utf-8", "replace")
    return source


def sources(kind: GrammarKind, number: int) -> Iterator[str]:
    draw = random.Random(kind)
    for _ in range(number):
        yield mutated(draw.choice(SEEDS[kind]), draw)


def follow(spec: GrammarSpec, draw: random.Random) -> None:
    """A few tokens, each out of the mask before it."""
    one, mask = COMPILER.compile(spec).matcher(), allocate_bitmask(1, len(TOKENS))
    for _ in range(6):
        one.fill_bitmask(mask, 0, draw.choice([None, 4, 40]))
        one.forced_bytes()
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        may = sorted(set(bits.nonzero()[0].tolist()) - {len(TOKENS) - 1})
        if one.error is not None or not may:
            return
        assert one.accept_token(draw.choice(may)) or one.error is not None


@pytest.mark.parametrize("kind", SEEDS)
def test_any_source_is_followed_or_refused(kind: GrammarKind) -> None:
    draw, refused = random.Random(1), 0
    for source in sources(kind, 60):
        try:
            follow(GrammarSpec(kind, source), draw)
        except InvalidGrammar:
            refused += 1
    assert 0 < refused < 60
