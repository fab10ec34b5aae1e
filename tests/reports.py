"""Reports from the field, of many engines, as small cases: reading them, and what each asks."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import recognised

from radixgen.grammars.expr import Node
from radixgen.grammars.oracle import allows_prefix

REPORTS = Path(__file__).parents[1].parent / "shared" / "cases" / "grammar_reports.jsonl"


def reports(*kinds: str) -> list[Any]:
    """The cases of some kinds, as parameters of a test that is skipped where there are none."""
    if not REPORTS.is_file():
        reason = "the field reports are not beside the repository"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    cases = map(json.loads, REPORTS.read_text(encoding="utf-8").splitlines())
    return [pytest.param(case, id=case["id"]) for case in cases if case["kind"] in kinds]


def check_answers(node: Node, case: Any) -> None:
    """The language has the texts that it must have, no others, and lets their beginnings be."""
    accept, reject = case["accept"], case["reject"]
    assert dict(zip(accept, recognised(node, accept), strict=True)) == dict.fromkeys(accept, True)
    assert dict(zip(reject, recognised(node, reject), strict=True)) == dict.fromkeys(reject, False)
    mask = case.get("mask_prefix", {"after": "", "must_allow": []})
    for text in mask["must_allow"]:
        assert allows_prefix(node, (mask["after"] + text).encode())
