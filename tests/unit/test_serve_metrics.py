"""Numbers for Prometheus, under our own names and under those of other engines."""

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixgen.errors import ConfigError
from radixgen.serve.metrics import Metrics
from radixgen.serve.settings import ServeConfig
from radixgen.types import Choice, FinishReason, GenerateResult, Usage

STATS = {
    "running_sequences": 3.0,
    "waiting_requests": 2.0,
    "waiting_grammars": 1.0,
    "total_pages": 100.0,
    "held_pages": 20.0,
    "protected_pages": 5.0,
    "evicted_pages": 7.0,
    "page_size": 16.0,
    "preemptions": 4.0,
    "prompt_tokens": 90.0,
    "cached_tokens": 60.0,
    "hit_rate": 2 / 3,
    "verified_drafts": 8.0,
    "accepted_drafts": 6.0,
    "compiled_grammars": 5.0,
    "cached_grammars": 9.0,
    "grammar_compile_seconds": 0.5,
}


def values(compat: str | None) -> dict[str, float]:
    """Every sample by its name, after two prompts of which one was aborted."""
    metrics = Metrics(lambda: STATS, lambda: 0, compat, "m")
    for reason in (FinishReason.STOP, FinishReason.ABORT):
        usage = Usage(30, 20, 4, 0.1, 0.3, 0.9)
        metrics.finished(GenerateResult("r", (Choice(0, "x", (1, 2, 3, 4), reason),), usage))
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
                model = sample.labels.get("model_name")
                assert family.name.startswith("radixgen:") or model == "m"
    return found


def test_times_of_a_request_add_up() -> None:
    found = values(None)
    parts = ("queue_time_seconds", "prefill_time_seconds", "decode_time_seconds")
    total = sum(found[f"radixgen:{name}_sum"] for name in parts)
    assert total == pytest.approx(found["radixgen:e2e_request_latency_seconds_sum"]) == 0.9
    assert found["radixgen:requests_finished_total"] == 2
    assert not any(name.startswith(("vllm", "sglang")) for name in found)


def test_vllms_names_have_our_values() -> None:
    found = values("vllm")
    for name, expected in {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 90,
        "prefix_cache_hits_total": 60,
        "num_preemptions_total": 4,
        "spec_decode_num_accepted_tokens_total": 6,
        "time_to_first_token_seconds_sum": 0.3,
        "e2e_request_latency_seconds_count": 1,
        "request_success_total": 2,
        "generation_tokens_total": 8,
        "cache_config_info": 1,
    }.items():
        assert found[f"vllm:{name}"] == pytest.approx(expected), name


def test_sglangs_names_have_our_values() -> None:
    found = values("sglang")
    for name, expected in {
        "num_running_reqs": 3,
        "num_queue_reqs": 2,
        "token_usage": 0.25,
        "cache_hit_rate": 2 / 3,
        "evicted_tokens_total": 112,
        "num_retracted_reqs_total": 4,
        "spec_accept_rate": 0.75,
        "grammar_compilation_time_seconds_sum": 0.5,
        "grammar_compilation_time_seconds_count": 5,
        "num_grammar_cache_hit_total": 9,
    }.items():
        assert found[f"sglang:{name}"] == pytest.approx(expected), name


def test_a_family_is_told_once() -> None:
    metrics = Metrics(lambda: STATS, lambda: 0, "vllm", "m")
    names = re.findall(r"^# TYPE (\S+) ", metrics.render().decode(), re.M)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("options", [{"metrics_compat": "tgi"}, {"metrics_compat": ""}])
def test_other_names_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="none of vllm, sglang"):
        ServeConfig(**options)
