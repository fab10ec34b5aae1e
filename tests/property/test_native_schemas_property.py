"""Random schemas, most of them plain: the native engine reads them as the front end does."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixgen.errors import InvalidGrammar
from radixgen.grammars import native_engine
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

if native_engine.load_library() is None:
    pytest.skip("there is no compiler", allow_module_level=True)
TOKENS = [*(bytes((byte,)) for byte in range(256)), b'{"', b'": ', b'"}', b", ", b"[{", None]
VOCABULARY = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
BY_FRONT_END = (("strict", True),)  # an option, though it says what is so without

NAMES = st.sampled_from(["a", "b", "ab", "a b", "é"])
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, "a", "ab", 'q"'])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPE = st.sampled_from(["string", "integer", "number", "null", "array", "object", "boolean"])
SMALL = st.integers(0, 3)
REFERENCE = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/$defs/none"])
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"$ref": REFERENCE}, optional={"title": st.just("x"), "type": TYPE}),
    st.fixed_dictionaries({"enum": st.lists(SCALARS, max_size=3)}, optional={"type": TYPE}),
    st.fixed_dictionaries({"const": SCALARS}, optional={"type": TYPE}),
    st.fixed_dictionaries(
        {"type": TYPE | st.lists(TYPE, min_size=1, max_size=3)},
        optional={"title": st.just("x"), "format": st.sampled_from(["date", "odd"])},
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": SMALL, "maxLength": SMALL, "pattern": st.sampled_from(["^a", "b$"])},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={"minimum": st.integers(-9, 9), "maximum": st.integers(-9, 9)},
    ),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"properties": st.dictionaries(NAMES, inner, max_size=4)},
        optional={
            "type": st.sampled_from(["object", ["object", "null"]]),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner | st.just(False),
        },
    )
    arrays = st.fixed_dictionaries(
        {"items": inner},
        optional={
            "type": st.just("array"),
            "minItems": SMALL,
            "maxItems": SMALL,
            "additionalItems": inner,
            "required": st.lists(NAMES, max_size=1),
        },
    )
    choices = st.lists(inner, min_size=1, max_size=3)
    named = st.sampled_from(["anyOf", "oneOf"])
    return st.one_of(objects, arrays, st.builds(lambda n, c: {n: c}, named, choices))


INNER = st.recursive(LEAVES, composed, max_leaves=8)
DEFINITIONS = st.fixed_dictionaries({}, optional={"a": INNER, "b": INNER})
DRAFT = st.sampled_from(["draft-07", "draft/2020-12"])


def outcome(schema: Any, values: list[Any], *options: tuple[str, bool]) -> list[Any]:
    """Masks along the texts of values, and whether these are allowed; or how it is refused."""
    compiler, mask = GrammarCompiler(VOCABULARY), allocate_bitmask(1, len(TOKENS))
    try:
        grammar = compiler.compile(GrammarSpec("json_schema", json.dumps(schema), options))
    except InvalidGrammar as error:
        return [str(error), error.path]
    found: list[Any] = []
    for value in values:
        matcher = grammar.matcher()
        for byte in json.dumps(value, ensure_ascii=False).replace("b", "\\u0062").encode():
            matcher.fill_bitmask(mask, 0)
            found.append(mask.tobytes())
            if not matcher.accept_bytes(bytes((byte,))):
                break
        found.append(matcher.is_accepting())
    return found


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(composed(INNER), DRAFT, DEFINITIONS, st.lists(VALUES, min_size=2, max_size=4))
def test_random_schemas_are_read_alike(
    schema: Any, draft: str, defined: Any, values: list[Any]
) -> None:
    whole = {**schema, "$schema": draft, "$defs": defined}
    assert outcome(whole, values) == outcome(whole, values, *BY_FRONT_END)
