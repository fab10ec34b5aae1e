"""What cannot be enforced or followed is refused when it is compiled, before there is any text."""

import json
from typing import Any

import pytest

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])


def matcher(schema: Any) -> GrammarMatcher:
    compiler = GrammarCompiler(BYTES)
    return compiler.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()


def follow(schema: Any, text: str) -> GrammarMatcher:
    """A matcher behind a text, each byte of which its masks allow."""
    found, row = matcher(schema), allocate_bitmask(1, BYTES.size)
    for byte in text.encode():
        found.fill_bitmask(row, 0)
        assert found.error is None
        assert found.accept_bytes(bytes((byte,))), (text, found.error)
    found.fill_bitmask(row, 0)
    assert found.error is None
    return found


X = {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}
LOOPS: list[tuple[Any, str]] = [
    ({"anyOf": [{"$ref": "#"}]}, "#"),
    ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "#"),
    ({"allOf": [{"$ref": "#"}]}, "#"),
    ({"not": {"$ref": "#"}}, "#"),
    ({"if": {"$ref": "#"}, "then": False}, "#"),
    ({"dependentSchemas": {"a": {"$ref": "#"}}}, "#"),
    ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": X}}, "#/$defs/x"),
    (
        {"items": {"items": {"$ref": "#/$defs/y"}}, "$defs": {"x": X, "y": {"$ref": "#/$defs/x"}}},
        "#/$defs/x",
    ),
]


@pytest.mark.parametrize(("schema", "path"), LOOPS)
def test_a_schema_that_leads_back_to_itself_is_refused_wherever_it_stands(
    schema: Any, path: str
) -> None:
    with pytest.raises(InvalidGrammar, match="refers to itself") as caught:
        matcher(schema)
    assert str(caught.value.path).startswith(path)


def test_a_schema_that_comes_back_behind_a_member_or_an_item_is_none() -> None:
    tree = {"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}, "type": "array"}]}
    assert follow(tree, "[[null],null,[]]").is_accepting()
    chain = {
        "properties": {"a": {"$ref": "#"}},
        "allOf": [{"$ref": "#/$defs/b"}],
        "$defs": {"b": {}},
    }
    assert follow(chain, '{"a":{"a":1}}').is_accepting()


@pytest.mark.parametrize("keyword", ["dependentRequired", "dependentSchemas", "dependencies"])
def test_names_that_depend_on_too_many_others_are_refused_by_the_keyword_that_says_so(
    keyword: str,
) -> None:
    then = {f"a{i}": [f"b{i}"] for i in range(40)}
    if keyword == "dependentSchemas":
        then = {name: {"required": names} for name, names in then.items()}  # type: ignore[misc]  # schemas
    draft = "http://json-schema.org/draft-07/schema#" if keyword == "dependencies" else ""
    schema = {**({"$schema": draft} if draft else {}), keyword: then}
    with pytest.raises(
        InvalidGrammar, match=f"{keyword} cannot be enforced.*depend on others"
    ) as e:
        matcher({"properties": {"q": schema}} if not draft else schema)
    assert str(e.value.path).endswith(f"/{keyword}")


def test_items_that_differ_are_known_of_before_a_text_wherever_they_stand() -> None:
    schema = {"contains": {"type": "integer"}, "unevaluatedItems": {"uniqueItems": True}}
    assert follow(schema, '["a",1,["x","y"]]').is_accepting()
    assert not follow(schema, '["a",["x"').accept_bytes(b',"x"')
