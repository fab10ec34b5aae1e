"""The numbers of `metrics` under the names that vLLM's and SGLang's dashboards ask for.

A mirror: families of our own registry, renamed, with the model's name as a label. What we do not
measure in the way that a name promises is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

OWN = "radixgen:"

Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Names:
    """One engine's names. `families`: ours to theirs. `gauges` and `counters` are made of the
    runtime's numbers, counters without their `_total`."""

    prefix: str
    families: Mapping[str, str]
    gauges: Mapping[str, Callable[[Numbers], float]]
    counters: Mapping[str, Callable[[Numbers], float]]


def _of(name: str) -> Callable[[Numbers], float]:
    return lambda numbers: numbers.get(name, 0.0)


def _used(numbers: Numbers) -> float:
    """The share of pages that requests hold or have locked in the tree."""
    total = numbers.get("total_pages", 0.0)
    used = numbers.get("held_pages", 0.0) + numbers.get("protected_pages", 0.0)
    return used / total if total else 0.0


def _accepted(numbers: Numbers) -> float:
    verified = numbers.get("verified_drafts", 0.0)
    return numbers.get("accepted_drafts", 0.0) / verified if verified else 0.0


def _evicted_tokens(numbers: Numbers) -> float:
    return numbers.get("evicted_pages", 0.0) * numbers.get("page_size", 0.0)


_LATENCIES = {
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
}

VLLM = Names(
    "vllm:",
    _LATENCIES
    | {
        "time_per_output_token_seconds": "request_time_per_output_token_seconds",
        "queue_time_seconds": "request_queue_time_seconds",
        "prefill_time_seconds": "request_prefill_time_seconds",
        "decode_time_seconds": "request_decode_time_seconds",
        "request_prompt_tokens": "request_prompt_tokens",
        "request_generation_tokens": "request_generation_tokens",
        "requests_finished": "request_success",
        "cached_tokens": "prompt_tokens_cached",
    },
    {
        "num_requests_running": _of("running_sequences"),
        "num_requests_waiting": _of("waiting_requests"),
        "kv_cache_usage_perc": _used,
    },
    {
        "prefix_cache_queries": _of("prompt_tokens"),
        "prefix_cache_hits": _of("cached_tokens"),
        "num_preemptions": _of("preemptions"),
        "spec_decode_num_draft_tokens": _of("verified_drafts"),
        "spec_decode_num_accepted_tokens": _of("accepted_drafts"),
    },
)

SGLANG = Names(
    "sglang:",
    _LATENCIES | {"cached_tokens": "cached_tokens", "queue_time_seconds": "queue_time_seconds"},
    {
        "num_running_reqs": _of("running_sequences"),
        "num_queue_reqs": _of("waiting_requests"),
        "num_grammar_queue_reqs": _of("waiting_grammars"),
        "token_usage": _used,
        "cache_hit_rate": _of("hit_rate"),
        "spec_accept_rate": _accepted,
    },
    {
        "evicted_tokens": _evicted_tokens,
        "num_retracted_reqs": _of("preemptions"),
        "num_aborted_requests": _of("aborted_requests"),
        "num_grammar_cache_hit": _of("cached_grammars"),
    },
)

NAMES = {"vllm": VLLM, "sglang": SGLANG}


class Mirror(Collector):
    """The families of `registry` and the runtime's `numbers` under another engine's names."""

    def __init__(
        self,
        names: Names,
        registry: CollectorRegistry,
        numbers: Callable[[], Numbers],
        model: str,
    ) -> None:
        self._names = names
        self._registry = registry
        self._numbers = numbers
        self._label = {"model_name": model}

    def collect(self) -> Iterable[Metric]:
        """Every family that has a name over there."""
        for family in self._registry.collect():
            name = self._names.families.get(family.name.removeprefix(OWN))
            if name is not None:
                yield self._renamed(family, self._names.prefix + name)
        yield from self._made()

    def _renamed(self, family: Metric, name: str) -> Metric:
        copy = Metric(name, family.documentation, family.type)
        for sample in family.samples:
            end = sample.name.removeprefix(family.name)
            labels = self._label | {_label(key): value for key, value in sample.labels.items()}
            copy.samples.append(Sample(name + end, labels, sample.value, sample.timestamp))
        return copy

    def _made(self) -> Iterator[Metric]:
        numbers, prefix = self._numbers(), self._names.prefix
        text, keys, values = "mirrored", list(self._label), list(self._label.values())
        for name, read in self._names.gauges.items():
            gauge = GaugeMetricFamily(prefix + name, text, labels=keys)
            gauge.add_metric(values, read(numbers))
            yield gauge
        for name, read in self._names.counters.items():
            counter = CounterMetricFamily(prefix + name, text, labels=keys)
            counter.add_metric(values, read(numbers))
            yield counter
        if self._names is SGLANG:
            summary = SummaryMetricFamily(
                prefix + "grammar_compilation_time_seconds", text, labels=keys
            )
            num_compiled = int(numbers.get("compiled_grammars", 0))
            summary.add_metric(values, num_compiled, numbers.get("grammar_compile_seconds", 0.0))
            yield summary
        yield self._config(numbers)

    def _config(self, numbers: Numbers) -> Metric:
        info = InfoMetricFamily(self._names.prefix + "cache_config", "mirrored")
        size, num = (str(int(numbers.get(name, 0))) for name in ("page_size", "total_pages"))
        own = {"page_size": size, "num_pages": num}
        theirs = {"block_size": size, "num_gpu_blocks": num}
        info.add_metric([], self._label | (own if self._names is SGLANG else theirs))
        return info


def _label(name: str) -> str:
    """vLLM's word for the reason why a request ended."""
    return "finished_reason" if name == "finish_reason" else name
