"""Reports from the field about regexes and grammars, of many engines, as small cases."""

from typing import Any

import pytest
from reports import check_answers, reports

from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import build
from radixgen.grammars.expr import RuleSet
from radixgen.types import GrammarKind, GrammarSpec

KINDS: dict[tuple[str, str], GrammarKind] = {
    ("regex", ""): "regex",
    ("grammar", "ebnf"): "gbnf",
    ("grammar", "lark"): "lark",
}


@pytest.mark.parametrize("case", reports("regex", "grammar"))
def test_report(case: Any) -> None:
    kind = KINDS[case["kind"], case.get("syntax", "")]
    spec = GrammarSpec(kind, case["spec"])
    try:
        node = build(spec, RuleSet())
    except InvalidGrammar:
        assert case.get("must_error") or case.get("or_error")
        return
    assert not case.get("must_error")
    check_answers(node, case)
