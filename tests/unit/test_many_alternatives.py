"""Objects of more alternatives than are combined: refused with their path, or only filtered."""

import json
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.json_sets import MAX_SHAPES

LISTED = [{"k": number} for number in range(MAX_SHAPES + 100)]
NEEDING = [{"required": [f"p{i}"], "properties": {f"p{i}": {"const": i}}} for i in range(40)]


def test_what_stands_beside_a_long_list_only_filters_it() -> None:
    """It makes no alternatives, however many are listed."""
    schema = {"enum": LISTED, "properties": {"k": {"minimum": 3}}}
    node = compile_schema(json.dumps(schema), {}, RuleSet())
    texts = [json.dumps({"k": number}) for number in (2, 3, len(LISTED) - 1, len(LISTED))]
    assert recognised(node, texts) == [False, True, True, False]


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "allOf"])
def test_cases_of_what_is_left_over_are_counted(keyword: str) -> None:
    one: Any = {"oneOf": NEEDING, "unevaluatedProperties": {"type": "integer"}}
    if keyword == "allOf":  # where both are but parts of what has to hold
        schema: Any = {"allOf": [one, {"anyOf": NEEDING[::-1]}, {**one, "minProperties": 1}]}
    else:
        both: Any = {"allOf": [{"oneOf": NEEDING}, {"oneOf": NEEDING[::-1]}]}
        schema = {**both, "unevaluatedProperties": {"type": "integer"}}
    with pytest.raises(InvalidGrammar, match="alternatives") as caught:
        compile_schema(json.dumps({"type": "object", **schema}), {}, RuleSet())
    assert caught.value.path
