"""Reports from the field about JSON schemas, of many engines, as small cases."""

import json
from typing import Any

import pytest
from helpers import recognised
from reports import check_answers, reports

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema


@pytest.mark.parametrize("order", ["declared", "any"])
@pytest.mark.parametrize("case", reports("json_schema"))
def test_report(case: Any, order: str) -> None:
    try:
        node = compile_schema(json.dumps(case["spec"]), {"property_order": order}, RuleSet())
    except InvalidGrammar:
        assert case.get("must_error"), "every case that has an answer is enforced"
        return
    assert not case.get("must_error")
    check_answers(node, case)
    if case.get("order_free") and order == "any":
        assert recognised(node, ['{"b":null,"a":"x"}']) == [True]
