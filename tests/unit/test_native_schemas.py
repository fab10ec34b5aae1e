"""Schemas that the native engine reads by itself: as the front end reads them, or left to it."""

import contextlib
import dataclasses
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native_schema_cases import CLOSED, DATE, INTEGER, LIST, MANY, OTHERS, PLAIN_CASES, POINT

from radixgen.errors import InvalidGrammar
from radixgen.grammars import formats, json_check, native_engine
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import NativeEngine
from radixgen.grammars.expr import Node
from radixgen.grammars.json_native import plain_schemas, scalars
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec, OptionValue

if native_engine.load_library() is None:
    pytest.skip("there is no compiler", allow_module_level=True)

TOKENS = [*(bytes((byte,)) for byte in range(256)), b'{"', b'":', b'": ', b'"}', b", ", b"[{", None]
NATIVE = Path(native_engine.__file__).parent / "native"
_plain = plain_schemas(())
assert _plain is not None
PLAIN = _plain


def compiler() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1]))


def spec(source: str, *, by_engine: bool, **options: str) -> GrammarSpec:
    """A schema; options but those of the layout are the front end's to read, also one that says
    what is so without."""
    named: dict[str, OptionValue] = {**options} if by_engine else {**options, "strict": True}
    return GrammarSpec("json_schema", source, tuple(sorted(named.items())))


def is_read(source: str) -> bool:
    """Whether the engine reads a schema."""
    engine = compiler()._engine
    assert isinstance(engine, NativeEngine)
    return engine.start_schema(source, PLAIN) is not None


def states(matcher: GrammarMatcher, text: bytes) -> list[Any]:
    """What each state of a text says: its mask, and what would complete it."""
    mask, found = allocate_bitmask(1, len(TOKENS)), []
    for byte in text:
        matcher.fill_bitmask(mask, 0)
        found.append((mask.tolist(), matcher.shortest_completion()))
        if not matcher.accept_bytes(bytes((byte,))):
            break
    return [*found, matcher.is_accepting()]


def outcome(source: str, texts: list[bytes], *, by_engine: bool, **options: str) -> list[Any]:
    """The states along texts, or how the schema is refused."""
    try:
        grammar = compiler().compile(spec(source, by_engine=by_engine, **options))
    except InvalidGrammar as error:
        return [str(error), error.path]
    return [states(grammar.matcher(), text) for text in texts]


@pytest.mark.parametrize(("schema", "values"), PLAIN_CASES)
@pytest.mark.parametrize("inside", [False, True])
def test_plain_schemas_allow_what_the_front_end_says(
    schema: Any, values: list[Any], inside: bool
) -> None:
    if inside and "$ref" not in json.dumps(schema):
        schema = {"type": "object", "properties": {"a": schema, "b": True}, "required": ["a"]}
        values = [{"a": value} for value in values]
    source = json.dumps(schema)
    texts = [json.dumps(value, ensure_ascii=False).encode() for value in values]
    assert is_read(source)
    found = outcome(source, texts, by_engine=True)
    assert found == outcome(source, texts, by_engine=False)
    assert any(states[-1] for states in found)


@pytest.mark.parametrize(
    "options",
    [{"whitespace": "compact"}, {"item_separator": ", "}, {"whitespace": "wide"}, {"mode": "odd"}],
)
def test_layouts_are_kept(options: dict[str, str]) -> None:
    source = json.dumps({**CLOSED, "properties": {"x": {"type": "array"}, "y": {}}})
    texts = [b'{"x":[1,{"a":2}],"y":1}', b'{"x":[1, 2],"y":{"a": 1}}', b'{ "y":1}']
    found = outcome(source, texts, by_engine=True, **options)
    assert found == outcome(source, texts, by_engine=False, **options)
    is_plain = plain_schemas(tuple(options.items())) is not None
    assert is_plain == (options.keys().isdisjoint(("mode",)) and "wide" not in options.values())


@pytest.mark.parametrize("source", OTHERS)
def test_what_is_not_plain_is_left_to_the_front_end(source: str) -> None:
    assert not is_read(source)
    texts = [b'{"a": "a", "b": [1, null]}', b'["a"]', b'{"\\u0061": {"\\u0062": 1}}']
    assert outcome(source, texts, by_engine=True) == outcome(source, texts, by_engine=False)


def test_a_source_that_is_no_text_is_left_to_the_front_end() -> None:
    assert not is_read('{"title": "\ud800"}')
    assert is_read('{"title": "\\ud800", "description": "é"}')


def test_every_keyword_that_is_checked_is_known() -> None:
    code = (NATIVE / "schemas.c").read_text()
    table = code[code.index("KEYWORDS[] = {") : code.index("TYPES[]")]
    known = set(re.findall(r'{"([^"]+)", ', table))
    assert {word for word, check in json_check._CHECKS.items() if check is not None} <= known


def test_every_format_but_those_that_are_refused_is_left_for_later() -> None:
    code = (NATIVE / "scalars.c").read_text()
    for name in formats.format_names():
        assert PLAIN.scalars(json.dumps({"type": "string", "format": name}).encode()) is not None
    assert re.findall(r'spells\(r, p, "([^"]+-[^"]+)"\)', code) == list(formats._REFUSED)


def test_scalars_are_read_ahead_or_when_a_text_gets_there() -> None:
    source = json.dumps({"properties": {"a": DATE, "b": {"type": "string", "maxLength": 7}}})
    engine, asked = compiler()._engine, list[bytes]()
    assert isinstance(engine, NativeEngine)

    def scalars(text: bytes) -> Callable[[], Node] | None:
        asked.append(text)
        return PLAIN.scalars(text)

    plain = dataclasses.replace(PLAIN, scalars=scalars)
    state, form = engine.start_schema(source, plain) or (0, 0)
    assert asked == []
    engine.read_ahead(form, 0.0)
    engine.after_bytes(state, b'{"a": "')
    assert asked == [b'{"type":"string","format":"date"}']
    engine.read_ahead(form, 10.0)
    assert asked[1:] == [b'{"type":"string","maxLength":7}']
    engine.after_bytes(state, b'{"b": "')
    assert len(asked) == 2


def test_what_says_the_same_of_scalars_is_read_once() -> None:
    scalars.cache_clear()
    for title in "abc":
        assert is_read(json.dumps({"title": title, "type": "string", "pattern": "^a+$"}))
    assert scalars.cache_info().currsize == 1


def test_large_schemas_are_read_or_left() -> None:
    wide = {"properties": {f"a{i}": {"title": "x" * 50} for i in range(500)}}
    assert is_read(json.dumps(wide))
    assert not is_read(json.dumps({"properties": {f"a{i}": {} for i in range(1000)}}))
    deep: Any = {"type": "null"}
    for _ in range(40):
        deep = {"properties": {"a": deep}}
    assert is_read(json.dumps(deep))
    assert not is_read(json.dumps({"title": "x" * (1 << 20)}))
    assert not is_read(json.dumps({"enum": [None, *map(str, range(1000))]}))
    many = {f"a{i}": {"type": "string", "pattern": f"^{i}"} for i in range(40)}
    assert not is_read(json.dumps({"properties": many}))
    names = {f"n{i}": {"type": "array", "items": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(400)}
    assert is_read(json.dumps({"$ref": "#/$defs/n0", "$defs": {**names, "n400": INTEGER}}))


def test_a_full_engine_leaves_the_schema_to_the_front_end() -> None:
    """What it had added by then is known to both sides."""
    vocabulary = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
    source = json.dumps({"properties": {f"a{i}": {"properties": MANY} for i in range(300)}})
    for size in range(100_000, 2_000_000, 150_000):
        full = GrammarCompiler(vocabulary, max_bytes=size)
        engine = full._engine
        assert isinstance(engine, NativeEngine)
        with contextlib.suppress(InvalidGrammar):  # for want of memory
            engine.start_schema(source, PLAIN)
            after = engine.start_schema(json.dumps(POINT), PLAIN)
            if after is not None:
                assert engine.after_bytes(after[0], b'{"x": 1, "y": 2}')
                assert not engine.after_bytes(after[0], b'{"x": "')


def test_what_the_front_end_raises_while_it_is_asked_is_not_kept() -> None:
    def scalars(text: bytes) -> Callable[[], Node] | None:
        raise {b"a": InvalidGrammar, b"b": RecursionError}.get(text[-3:-2], ValueError)("no")

    engine = compiler()._engine
    assert isinstance(engine, NativeEngine)
    plain = dataclasses.replace(PLAIN, scalars=scalars)
    for letter in "ab":
        source = json.dumps({"type": "string", "pattern": letter})
        assert engine.start_schema(source, plain) is None
    with pytest.raises(ValueError, match="no"):
        engine.start_schema(json.dumps({"type": "string", "pattern": "c"}), plain)
    state, _ = engine.start_schema(json.dumps(POINT), plain) or (0, 0)
    assert engine.after_bytes(state, b'{"x": 1, ')


def changed(source: bytes, rng: random.Random) -> bytes:
    """A text with a few bytes replaced, left out, doubled or moved."""
    text = bytearray(source)
    for _ in range(rng.randrange(1, 4)):
        at, what = rng.randrange(len(text)), rng.randrange(4)
        if what == 0:
            text[at] = rng.choice(b'{}[]",:\\0129eE.-tfnu#/$ \x00\x1f\x7f')
        elif what == 1:
            del text[at : at + rng.randrange(1, 6)]
        elif what == 2:
            text[at:at] = text[at : at + rng.randrange(1, 20)]
        else:
            words = [b'"type"', b'"items"', b'"$ref"', b'"enum"', b"true", b"{}", b"1", b'"#"']
            text[at:at] = rng.choice(words)
        if not text:
            break
    return bytes(text) or b" "


@pytest.mark.parametrize("seed", range(8))
def test_changed_texts_are_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    sources = [json.dumps(schema).encode() for schema, _ in PLAIN_CASES]
    sources += [source.encode() for source in OTHERS if len(source) > 3]
    by_engine, by_front_end = compiler(), compiler()
    for _ in range(150):
        source = changed(rng.choice(sources), rng).decode(errors="replace")
        found = []
        for one, is_native in ((by_engine, True), (by_front_end, False)):
            try:
                grammar = one.compile(spec(source, by_engine=is_native))
                found.append(states(grammar.matcher(), b'{"x": 1, "a": ["'))
            except InvalidGrammar as error:
                found.append([str(error), error.path])
        assert found[0] == found[1], source


def test_texts_that_end_early_are_left_to_the_front_end() -> None:
    engine, source = compiler()._engine, json.dumps({**LIST, "x": [1.5e3, "\u00e9", None]})
    assert isinstance(engine, NativeEngine)
    assert engine.start_schema(source, PLAIN) is not None
    for end in range(len(source)):
        assert engine.start_schema(source[:end], PLAIN) is None


@pytest.mark.parametrize(("beside", "is_asked"), [({}, True), ({"not": {"type": "null"}}, False)])
def test_scalars_are_asked_for_only_where_all_else_is_plain(
    beside: dict[str, Any], is_asked: bool
) -> None:
    engine, asked = compiler()._engine, list[bytes]()
    assert isinstance(engine, NativeEngine)

    def tell(text: bytes) -> Callable[[], Node] | None:
        asked.append(text)
        return PLAIN.scalars(text)

    schema = {"properties": {"a": {"type": "string", "pattern": "^a+$"}, "b": beside}}
    plain = dataclasses.replace(PLAIN, scalars=tell)
    found = engine.start_schema(json.dumps({"type": "object", **schema}), plain)
    assert (found is not None, bool(asked)) == (is_asked, is_asked)
