"""Parameters are checked where they are made: the message names the parameter and its limit."""

import math
from typing import Any

import pytest

from radixgen.errors import InvalidRequest
from radixgen.types import (
    LEAST_TOP_P,
    MAX_STOPS,
    CacheHint,
    GrammarSpec,
    SamplingParams,
    ScoreResult,
    sampling_params,
    unknown_name,
)

BAD: list[tuple[str, Any]] = [
    ("temperature", math.nan),
    ("temperature", -0.1),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", None),
    ("temperature", True),
    ("top_p", -0.1),
    ("top_p", 1.5),
    ("top_p", math.nan),
    ("top_k", -1),
    ("top_k", 1.5),
    ("min_p", 2),
    ("max_tokens", -1),
    ("max_tokens", 3.0),
    ("max_tokens", 2**31),
    ("n", 0),
    ("n", None),
    ("seed", -1),
    ("seed", 2**64),
    ("logprobs", 101),
    ("prompt_logprobs", -1),
    ("repetition_penalty", 0),
    ("frequency_penalty", 3),
    ("presence_penalty", math.nan),
    ("stop", [""]),
    ("stop", [3]),
    ("stop", 3),
    ("stop", ["\ud800"]),
    ("stop", ["x" * 1001]),
    ("stop", [str(i) for i in range(MAX_STOPS + 1)]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [True]),
    ("logit_bias", {3: math.nan}),
    ("logit_bias", {3: 101}),
    ("logit_bias", {-3: 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", 7),
    ("logit_bias", [7]),
    ("ignore_eos", 1),
    ("skip_special_tokens", "no"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_parameter_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        sampling_params(**{name: value})
    assert caught.value.param == name


def test_no_top_p_is_the_least() -> None:
    assert SamplingParams(top_p=0).top_p == SamplingParams(top_p=1e-12).top_p == LEAST_TOP_P > 0


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match="above max_tokens=3"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_friendly_forms_become_the_declared_tuples() -> None:
    assert sampling_params(stop=None) == SamplingParams()
    params = sampling_params(stop="\n", stop_token_ids=[3], logit_bias={5: -1.0})
    assert params.stop == ("\n",)
    assert params.stop_token_ids == (3,)
    assert params.logit_bias == ((5, -1.0),)
    assert hash(params) == hash(sampling_params(params))


def test_overrides_replace_and_keep_the_rest() -> None:
    base = SamplingParams(temperature=0.5, top_k=7)
    changed = sampling_params(base, temperature=0)
    assert (changed.temperature, changed.top_k) == (0, 7)
    assert base.temperature == 0.5


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'"):
        sampling_params(temprature=1)
    with pytest.raises(InvalidRequest, match="not a SamplingParams"):
        sampling_params({"temperature": 1})  # type: ignore[arg-type]


def test_unknown_name_lists_all_when_nothing_is_near() -> None:
    assert unknown_name("thing", "zzz", ["b", "a"]) == (
        "there is no thing 'zzz'; it is one of a, b"
    )


def test_a_grammar_source_is_text() -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate \(U\+D800 at character 1\)"):
        GrammarSpec("regex", "a\ud800")


def test_score_totals_add_each_row() -> None:
    assert ScoreResult("x", ((-1.0, -2.0), ())).totals == (-3.0, 0.0)


HUGE = 10**5000  # has no repr: Python refuses to write so many digits


def _name_or_index(value: Any) -> str:
    return value if isinstance(value, str) and len(value) < 40 else ""  # pytest would write it out


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, HUGE) for name in ("temperature", "seed", "max_tokens", "ignore_eos", "stop")]
    + [("logit_bias", {1: HUGE}), ("logit_bias", {-HUGE: 1}), ("stop", [HUGE]), ("stop", HUGE)]
    + [("stop_token_ids", [-HUGE]), ("temperature", "x" * 10**6), ("logit_bias", b"x" * 10**6)],
    ids=_name_or_index,
)
def test_messages_stay_short_whatever_was_given(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "jsonschema", "source": "{}"},
        {"kind": ["regex"], "source": "a"},
        {"kind": "json_schema", "source": {"type": "object"}},
        {"kind": "regex", "source": None},
        {"kind": "regex", "source": "a", "options": {"x": 1}},
        {"kind": "regex", "source": "a", "options": (("x", [1]),)},
        {"kind": "regex", "source": "a", "options": 5},
        {"kind": "regex", "source": "a", "options": (("x", 1), ("x", 2))},
    ],
)
def test_a_constraint_of_wrong_types_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        GrammarSpec(**fields)
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    "fields",
    [
        {"forks": -1},
        {"forks": "x"},
        {"forks": 2**40},
        {"tool_seconds": math.nan},
        {"tool_seconds": -1.0},
        {"program": "\ud800"},
        {"program": 5},
        {"last_use": 1},
    ],
)
def test_a_hint_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        CacheHint(**fields)
    assert caught.value.param == "hint"


@pytest.mark.parametrize("temperature", [1e-50, 1e-46, 1e-6, 0])
def test_a_temperature_next_to_nothing_is_greedy(temperature: float) -> None:
    assert SamplingParams(temperature=temperature).temperature == 0
    assert SamplingParams(temperature=1e-5).temperature == 1e-5
