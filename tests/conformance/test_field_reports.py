"""Reports from the field about regexes and grammars, of many engines, as small cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import recognised

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import build
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.oracle import allows_prefix
from radixgen.types import GrammarKind, GrammarSpec

REPORTS = Path(__file__).parents[2].parent / "shared" / "cases" / "grammar_reports.jsonl"
KINDS: dict[tuple[str, str], GrammarKind] = {
    ("regex", ""): "regex",
    ("grammar", "ebnf"): "gbnf",
    ("grammar", "lark"): "lark",
}


def _reports() -> list[Any]:
    if not REPORTS.is_file():
        reason = "the field reports are not beside the repository"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    cases = map(json.loads, REPORTS.read_text(encoding="utf-8").splitlines())
    return [pytest.param(c, id=c["id"]) for c in cases if c["kind"] in ("regex", "grammar")]


@pytest.mark.parametrize("case", _reports())
def test_report(case: Any) -> None:
    kind = KINDS[case["kind"], case.get("syntax", "")]
    spec = GrammarSpec(kind, case["spec"])
    try:
        node = build(spec, RuleSet())
    except InvalidGrammar:
        assert case.get("must_error") or case.get("or_error")
        return
    assert not case.get("must_error")
    accept, reject = case["accept"], case["reject"]
    assert dict(zip(accept, recognised(node, accept), strict=True)) == dict.fromkeys(accept, True)
    assert dict(zip(reject, recognised(node, reject), strict=True)) == dict.fromkeys(reject, False)
    mask = case.get("mask_prefix", {"after": "", "must_allow": []})
    for text in mask["must_allow"]:
        assert allows_prefix(node, (mask["after"] + text).encode())
