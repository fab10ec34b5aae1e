"""Reports from the field about JSON schemas, of many engines, as small cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.oracle import allows_prefix

REPORTS = Path(__file__).parents[2].parent / "shared" / "cases" / "grammar_reports.jsonl"


def _reports() -> list[Any]:
    if not REPORTS.is_file():
        reason = "the field reports are not beside the repository"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    cases = map(json.loads, REPORTS.read_text(encoding="utf-8").splitlines())
    return [pytest.param(case, id=case["id"]) for case in cases if case["kind"] == "json_schema"]


@pytest.mark.parametrize("order", ["declared", "any"])
@pytest.mark.parametrize("case", _reports())
def test_report(case: Any, order: str) -> None:
    try:
        node = compile_schema(json.dumps(case["spec"]), {"property_order": order}, RuleSet())
    except InvalidGrammar:
        assert case.get("must_error"), "every case that has an answer is enforced"
        return
    assert not case.get("must_error")
    accept, reject = case["accept"], case["reject"]
    assert dict(zip(accept, recognised(node, accept), strict=True)) == dict.fromkeys(accept, True)
    assert dict(zip(reject, recognised(node, reject), strict=True)) == dict.fromkeys(reject, False)
    mask = case.get("mask_prefix", {"after": "", "must_allow": []})
    for text in mask["must_allow"]:
        assert allows_prefix(node, (mask["after"] + text).encode())
    if case.get("order_free") and order == "any":
        assert recognised(node, ['{"b":null,"a":"x"}']) == [True]
