"""The JSON Schema front end on public data, against a baseline that may only improve.

`json_baseline.json` lists what is not right: schema, verdict, why. To write it again after an
improvement: `python -m tests.conformance.test_json_conformance`.
"""

import json
from pathlib import Path

import pytest

from benchmarks.grammar_conformance import PUBLIC, SUITE, VERDICTS, Judgement, judge_all, rows_of

BASELINE = Path(__file__).with_name("json_baseline.json")
needs_data = pytest.mark.skipif(not SUITE.exists(), reason="the data are not beside the checkout")


def exceptions(found: dict[str, Judgement]) -> dict[str, str]:
    return {key: one.verdict for key, one in found.items() if one.verdict != "right"}


def compare(name: str, found: dict[str, Judgement]) -> None:
    """Nothing wrong, and no verdict worse than the baseline's."""
    known = json.loads(BASELINE.read_text())[name]
    assert {key: one.accepted_wrongly for key, one in found.items() if one.accepted_wrongly} == {}
    assert {key: one.refused_wrongly for key, one in found.items() if one.refused_wrongly} == {}
    worse = {
        key: verdict
        for key, verdict in exceptions(found).items()
        if VERDICTS.index(verdict) > VERDICTS.index(known.get(key, "right"))
    }
    assert worse == {}
    better = [key for key in found if key in known and key not in exceptions(found)]
    assert better == [], "better than the baseline: write it again"


@needs_data
@pytest.mark.parametrize("order", ["any", "declared"])
def test_the_official_suite(order: str) -> None:
    compare(f"suite {order}", judge_all(rows_of(SUITE), order))


@needs_data
@pytest.mark.parametrize("order", ["any", "declared"])
def test_a_part_of_the_public_schemas(order: str) -> None:
    compare(f"public {order}", judge_all(rows_of(PUBLIC)[::4], order))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("order", ["any", "declared"])
def test_all_public_schemas(order: str) -> None:
    compare(f"public {order}", judge_all(rows_of(PUBLIC), order))


def write_baseline() -> None:
    """Judge everything and keep what is not right."""
    found = {
        f"{name} {order}": exceptions(judge_all(rows_of(path), order))
        for name, path in (("suite", SUITE), ("public", PUBLIC))
        for order in ("any", "declared")
    }
    BASELINE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_baseline()
