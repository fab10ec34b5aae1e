"""Rules that are expanded before a text gets to them: it finds the same, and asks for nothing."""

import json
from functools import partial

import numpy as np
import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars import compiler
from radixgen.grammars.compiler import GrammarCompiler, build
from radixgen.grammars.expr import EMPTY, Node, RuleSet, concat, literal, union
from radixgen.grammars.json_ahead import dear
from radixgen.grammars.json_document import Document
from radixgen.grammars.native_engine import NativeEngine, load_library
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

VOCABULARY = Vocabulary.from_tokens(
    [bytes((b,)) for b in range(256)] + [b'":', b'", "', b"end"], [258]
)
SCHEMA = {
    "type": "object",
    "properties": {
        **{f"n{i}": {"type": "integer", "multipleOf": i + 2} for i in range(12)},
        "list": {"type": "array", "items": {"oneOf": [{"required": ["a"]}, {"type": "string"}]}},
        "never": False,
        "deep": {"patternProperties": {"^x": {"$ref": "#"}}, "minProperties": 1},
    },
    "required": ["list"],
}
TEXT = (
    b'{"n1": 12, "n11": 13, "list": [{"a": 1}, {"a": 2, "b": []}], '
    b'"deep": {"xy": {"list": []}}, "z": 1}'
)


def native_engine() -> NativeEngine:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler: the native engine does not run here")
    return NativeEngine(VOCABULARY, library, 1 << 28)


def masks(engine: NativeEngine, state: int) -> list[bytes]:
    row, found = np.zeros((1, VOCABULARY.num_words), np.int32), []
    for byte in TEXT:
        engine.fill_row(state, row, 0)
        found.append(row.tobytes())
        state = engine.after_bytes(state, bytes((byte,)))
    assert engine.is_accepting(state)
    return found


def schema_node(schema: object) -> Node:
    return build(GrammarSpec("json_schema", json.dumps(schema)), RuleSet())


@pytest.mark.parametrize("schema", [SCHEMA, {**SCHEMA, "additionalProperties": {"type": "number"}}])
def test_masks_are_the_same_after_a_look_ahead(schema: object) -> None:
    plain, ahead = native_engine(), native_engine()
    state, met = ahead.start_with_rules(schema_node(schema))
    ahead.look_ahead(met, 0.5)
    assert masks(ahead, state) == masks(plain, plain.start(schema_node(schema)))


def test_what_was_looked_ahead_at_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = native_engine()
    members = {f"n{i}": {"type": ["integer", "null"]} for i in range(20)}
    closed = {"properties": members, "additionalProperties": False, "type": "object"}
    state, met = engine.start_with_rules(schema_node({"items": closed, "type": "array"}))
    engine.look_ahead(met, 60)  # ends sooner: the rules are finitely many
    asked: list[int] = []
    answer = engine.nodes.answer

    def noted(index: int, what: int) -> int:
        asked.append(index)
        return answer(index, what)

    monkeypatch.setattr(engine.nodes, "answer", noted)
    for byte in b'[{"n0": 1, "n19": null}, {"n7": 2}]':
        engine.fill_row(state, np.zeros((1, VOCABULARY.num_words), np.int32), 0)
        state = engine.after_bytes(state, bytes((byte,)))
    assert engine.is_accepting(state)
    assert not asked


CHOICES = [{"properties": {f"p{i}": {"type": "integer"}}, "required": [f"p{i}"]} for i in range(9)]
MEMBERS = {
    "n1": {"type": "integer", "multipleOf": 3},
    "n11": {"type": "integer"},
    "list": {"type": "array", "items": {"$ref": "#/$defs/one"}},
    "deep": {"patternProperties": {"^x": {"$ref": "#"}}, "minProperties": 1},
    "plain": {"type": "object", "properties": {"a": {}}},
    "same": {"$ref": "#/$defs/one"},
}
ONE = {"anyOf": [{"type": "object", "anyOf": CHOICES}, {"required": ["a"]}]}
DEAR = {"type": "object", "properties": MEMBERS, "$defs": {"one": ONE}}


def test_what_takes_long_comes_first_each_once() -> None:
    rules = RuleSet()
    build(GrammarSpec("json_schema", json.dumps(DEAR)), rules)
    costs = [cost for cost, _, _ in rules.dear]
    assert len(costs) == 3
    assert costs == sorted(costs, reverse=True)
    asked = [make() for _, _, make in rules.dear]
    assert [make() for _, _, make in rules.dear] == asked


def test_masks_are_the_same_after_what_takes_long_was_made() -> None:
    rules, source = RuleSet(), GrammarSpec("json_schema", json.dumps(DEAR))
    plain, ahead = native_engine(), native_engine()
    state = ahead.start(build(source, rules))
    before = ahead.sizes()
    ahead.make_ahead(rules.dear, -1.0, -1.0)
    assert ahead.sizes() == before
    ahead.make_ahead(rules.dear, 60.0, 60.0)
    assert ahead.sizes()["nodes"] > before["nodes"]
    assert masks(ahead, state) == masks(plain, plain.start(build(source, RuleSet())))


def test_what_takes_longest_has_more_time() -> None:
    asked: list[float] = []

    def noted(cost: float) -> Node:
        asked.append(cost)
        return EMPTY

    costs = (0.001, 0.0002, 0.0001)
    dear = [(0.002, 0.0001, partial(noted, 0.0001)), *((c, c, partial(noted, c)) for c in costs)]
    native_engine().make_ahead(dear, 0.0, 60.0)
    assert asked == [0.0001, 0.001]


def test_the_first_are_made_by_count_whatever_the_time() -> None:
    asked: list[int] = []

    def noted(index: int) -> Node:
        asked.append(index)
        return EMPTY

    dear = [(0.002, 0.001, partial(noted, index)) for index in range(5)]
    native_engine().make_ahead(dear, -1.0, -1.0, least=0.0035)
    assert asked == [0, 1, 2]


def test_what_takes_long_and_cannot_be_made_is_left_out() -> None:
    def refuse() -> Node:
        raise InvalidGrammar("not this one")

    engine, rule = native_engine(), RuleSet().rule("good", lambda: literal(b"y"), True)
    engine.make_ahead(
        [(0.0, 0.0, make) for make in (refuse, lambda: EMPTY, lambda: rule)], 60.0, 0.0
    )
    assert rule._body is not None


def test_no_time_is_no_look() -> None:
    engine = native_engine()
    _, met = engine.start_with_rules(schema_node(SCHEMA))
    before = engine.sizes()
    engine.look_ahead(met, -1.0)
    assert engine.sizes() == before


def test_a_rule_that_cannot_be_expanded_is_left_to_the_text_that_gets_there() -> None:
    def refuse() -> Node:
        raise InvalidGrammar("not this one")

    rules = RuleSet()
    bad, good = rules.rule("bad", refuse, True), rules.rule("good", lambda: literal(b"y"), True)
    engine = native_engine()
    ways = union(concat(literal(b"a"), bad), concat(literal(b"b"), good), EMPTY)
    state, met = engine.start_with_rules(ways)
    engine.look_ahead(met, 60)
    assert engine.forced_bytes(engine.after_bytes(state, b"b")) == b"y"
    with pytest.raises(InvalidGrammar, match="not this one"):
        engine.forced_bytes(engine.after_bytes(state, b"a"))


def test_first_masks_are_made_with_a_large_grammar() -> None:
    members = {f"n{i}": {"type": "integer", "description": "x" * 40} for i in range(200)}
    source = json.dumps({"type": "object", "properties": members, "additionalProperties": False})
    assert len(source) >= compiler.VERY_MUCH_SOURCE
    found = GrammarCompiler(VOCABULARY).compile(GrammarSpec("json_schema", source))
    if not isinstance(found.engine, NativeEngine):
        pytest.skip("no C compiler: the native engine does not run here")
    before = found.engine.sizes()
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    for text in (b"", b"{", b'{"'):
        found.engine.fill_row(found.engine.after_bytes(found.start, text), row, 0)
    assert found.engine.sizes() == before


def test_what_is_prepared_is_the_same_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ahead = native_engine(), native_engine()
    state, met = ahead.start_with_rules(schema_node(SCHEMA))
    found = ahead.prepare(state, (b"", b"{", b"[", b'{"', b'{"n1": '))
    assert found.start == met.stop < found.stop
    assert masks(ahead, state) == masks(plain, plain.start(schema_node(SCHEMA)))
    monkeypatch.setattr(ahead, "fill_row", refuse)
    assert not ahead.prepare(state, (b"{",))  # what cannot be made is left to the text


def refuse(*_: object) -> None:
    raise InvalidGrammar("too large")


def test_a_small_schema_that_the_front_end_reads_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "LEAST_AHEAD", 60.0)
    monkeypatch.setattr(compiler, "ENOUGH_SECONDS", 60.0)
    named = {
        "type": "object",
        "patternProperties": {"^x": {"type": "integer"}},
        "additionalProperties": False,
    }
    closed = {"type": "object", "properties": {"a": named}, "additionalProperties": False}
    spec = GrammarSpec("json_schema", json.dumps(closed))
    found = GrammarCompiler(VOCABULARY).compile(spec)
    if not isinstance(found.engine, NativeEngine):
        pytest.skip("no C compiler: the native engine does not run here")
    monkeypatch.setattr(found.engine.nodes, "answer", refuse)
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    for text in (b"", b"{", b'{"a', b'{"a":', b'{"a": {"', b'{"a": {"x": 1, "y"'):
        found.engine.fill_row(found.engine.after_bytes(found.start, text), row, 0)


def test_first_masks_of_objects_with_many_names_are_made_with_a_large_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "MOST_AHEAD", 60.0)
    monkeypatch.setattr(compiler, "ENOUGH_SECONDS", 60.0)
    many = {f"name{i}": {"type": "integer", "description": "x" * 40} for i in range(100)}
    source = json.dumps({"type": "object", "properties": {"a": {"properties": many}, "b": {}}})
    assert len(source) >= compiler.VERY_MUCH_SOURCE
    found = GrammarCompiler(VOCABULARY).compile(GrammarSpec("json_schema", source))
    if not isinstance(found.engine, NativeEngine):
        pytest.skip("no C compiler: the native engine does not run here")
    state = found.engine.after_bytes(found.start, b'{"a": {')
    before, row = found.engine.sizes(), np.zeros((1, VOCABULARY.num_words), np.int32)
    found.engine.fill_row(found.engine.after_bytes(state, b'"'), row, 0)
    assert found.engine.sizes()["nodes"] == before["nodes"]


def test_schemas_combined_in_very_many_ways_are_not_all_looked_at() -> None:
    defs: dict[str, object] = {"d0": {"type": "object", "properties": {"a": {"pattern": "x"}}}}
    for level in range(1, 5):
        defs[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 300}
    document = Document(json.dumps({"properties": {"a": {"$ref": "#/$defs/d4"}}, "$defs": defs}))
    member = document.root.named("properties")["a"]
    ((together, alone, _),) = dear([member], lambda _: EMPTY)
    assert 0 < alone <= together < 60 * 300**3 / 1e6
