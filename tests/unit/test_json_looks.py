"""What a look at schemas shows, before sets are computed: it agrees with the sets."""

import itertools
import json
from typing import Any

import pytest

from radixgen.grammars import json_algebra, json_counts
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_bounds import apart, are_unlike
from radixgen.grammars.json_counts import Counts
from radixgen.grammars.json_document import Document, Schema
from radixgen.grammars.json_proofs import Proofs
from radixgen.grammars.json_shapes import Goal, goal
from radixgen.grammars.json_texts import Texts

NAMED = {"one": {"enum": ["a", 1]}, "other": {"const": "b"}}
SCHEMAS: list[Any] = [
    {"const": 1},
    {"const": 1.0},
    {"const": True},
    {"enum": [1, "a", None]},
    {"enum": ["b", [1], {"a": 1}]},
    {"enum": []},
    {"$ref": "#/$defs/one"},
    {"$ref": "#/$defs/other"},
    {"$ref": "#/$defs/other", "const": 1},
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"type": "number", "enum": [2.5]},
    {"not": {"const": 1}},
    {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
    {"type": "object", "properties": {"k": {"enum": [2, "a"]}}, "required": ["k"]},
    {"type": "object", "properties": {"k": {"enum": [2, "a"]}}},
    {"properties": {"k": {"$ref": "#/$defs/one"}}, "required": ["k"]},
]


def _parts(document: Document) -> list[Schema]:
    return document.root.children("anyOf")


def _document(schemas: list[Any]) -> Document:
    return Document(json.dumps({"$defs": NAMED, "anyOf": schemas}))


def _ignore(keyword: str, node: Schema, why: str) -> None:
    raise AssertionError(f"{keyword} of {node} is refused: {why}")


def test_what_is_apart_or_unlike_has_no_common_value(monkeypatch: pytest.MonkeyPatch) -> None:
    document = _document(SCHEMAS)
    parts = _parts(document)
    pairs = list(itertools.combinations_with_replacement(parts, 2))
    seen = [(apart(*pair), are_unlike(frozenset((node, True) for node in pair))) for pair in pairs]
    assert all(apart(b, a) == found for (a, b), (found, _) in zip(pairs, seen, strict=True))
    monkeypatch.setattr(json_algebra, "are_unlike", lambda wanted: False)
    algebra = Algebra(_document(SCHEMAS), _ignore, True)
    fresh = _parts(algebra.document)
    for (one, other), answers in zip(
        itertools.combinations_with_replacement(fresh, 2), seen, strict=True
    ):
        both: Goal = goal(one) | goal(other)
        assert not any(answers) or algebra.never(both), (one.value, other.value)
    assert sum(a for a, _ in seen) > 10
    assert sum(u for _, u in seen) > 10


COUNTED: list[Any] = [
    {"type": "string"},
    {"type": "string", "pattern": "^[ab]{1,3}$"},
    {"type": "string", "pattern": "^(a|b+)$"},
    {"type": "string", "pattern": "^é*$"},
    {"type": "string", "maxLength": 1},
    {"type": "string", "pattern": "^a+$", "maxLength": 3},
    {"type": "array", "items": {"type": "string", "pattern": "^(ab)*$"}},
    {"type": "array", "items": {"const": 1}, "maxItems": 2},
    {"type": "array", "items": False},
    {
        "type": "object",
        "properties": {"k": {"type": "string", "pattern": "^x{2}$"}, "m": {"pattern": "^y*$"}},
        "required": ["k"],
        "additionalProperties": False,
    },
]


def test_a_look_never_counts_less_than_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts() -> list[int]:
        algebra = Algebra(_document(COUNTED), _ignore, True)
        counter = Counts(algebra, Proofs(algebra))
        return [counter.at_least(goal(node), 100) for node in _parts(algebra.document)]

    looked = counts()

    def by_lengths(found: Texts, most: int) -> int:
        return len(json_counts.lengths(found, most))

    monkeypatch.setattr(json_counts, "_count_texts", by_lengths)
    counted = counts()
    assert looked == [100, 14, 100, 100, 94, 3, 100, 1, 0, 100]
    assert all(a >= b for a, b in zip(looked, counted, strict=True))
