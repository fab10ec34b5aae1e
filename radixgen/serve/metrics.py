"""What Prometheus is told, under `radixgen:`. Knows numbers; no requests.

Histograms and counters are the server's own; the gauges and counters of the runtime are those of
the last heartbeat, under the names that the runtime gives them.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixgen.serve.metrics_compat import NAMES, Mirror
from radixgen.types import FinishReason, GenerateResult, Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "radixgen:"

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_TOKENS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)

# What goes up and down; every other number of the runtime only goes up.
_GAUGES = frozenset(
    {
        "running_sequences",
        "up",
        "waiting_requests",
        "open_requests",
        "total_pages",
        "free_pages",
        "held_pages",
        "tree_pages",
        "protected_pages",
        "recent_step_seconds",
        "hit_rate",
        "waiting_grammars",
        "clients",
        "draining",
        "page_size",
        "draft_row_cost_ratio",
    }
)


class Metrics:
    """One server's. `stats` gives the runtime's numbers, `restarts` how often it was restarted;
    `compat`: all of it a second time, under the names of another engine."""

    def __init__(
        self,
        stats: Callable[[], Mapping[str, float]],
        restarts: Callable[[], int],
        compat: str | None = None,
        model: str = "",
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._mirror = CollectorRegistry()  # the same under other names, so that none is counted
        if compat is not None:
            self._mirror.register(Mirror(NAMES[compat], registry, stats, model))

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            bounds = tuple(buckets)
            return Histogram(PREFIX + name, text, registry=registry, buckets=bounds)

        self._ttft = histogram("time_to_first_token_seconds", "arrival to first token", _SECONDS)
        self._itl = histogram(
            "inter_token_latency_seconds", "between pieces of a stream", _SHORT_SECONDS
        )
        self._tpot = histogram(
            "time_per_output_token_seconds", "of a request, after its first", _SHORT_SECONDS
        )
        self._e2e = histogram("e2e_request_latency_seconds", "arrival to last token", _SECONDS)
        self._queue = histogram("queue_time_seconds", "arrival to first scheduled", _SECONDS)
        self._prefill = histogram("prefill_time_seconds", "scheduled to first token", _SECONDS)
        self._decode = histogram("decode_time_seconds", "first token to last token", _SECONDS)
        self._prompt = histogram("request_prompt_tokens", "of a prompt", _TOKENS)
        self._output = histogram("request_generation_tokens", "of all choices", _TOKENS)

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(PREFIX + name, text, tuple(labels), registry=registry)

        self._prompt_total = counter("prompt_tokens", "of finished requests")
        self._cached_total = counter("cached_tokens", "prompt tokens found in the radix tree")
        self._output_total = counter("generation_tokens", "of finished requests")
        self._ends = counter("requests_finished", "choices by reason", ["finish_reason"])
        self._http = counter("http_requests", "answers by route and status", ["path", "status"])
        self._failed = counter("requests_failed", "generations that raised, by kind", ["code"])
        self._open = Gauge(PREFIX + "streams_open", "event streams", registry=registry)
        registry.register(_RuntimeNumbers(stats, restarts))

    def finished(self, result: GenerateResult) -> None:
        """A prompt has been continued."""
        usage = result.usage
        self._prompt.observe(usage.prompt_tokens)
        self._output.observe(usage.completion_tokens)
        self._prompt_total.inc(usage.prompt_tokens)
        self._cached_total.inc(usage.cached_tokens)
        self._output_total.inc(usage.completion_tokens)
        for choice in result.choices:
            self._ends.labels(str(choice.finish_reason)).inc()
        if any(choice.finish_reason is FinishReason.ABORT for choice in result.choices):
            return
        self._e2e.observe(usage.total_seconds)
        self._queue.observe(usage.queue_seconds)
        if usage.completion_tokens:
            self._ttft.observe(usage.first_token_seconds)
            self._prefill.observe(max(0.0, usage.first_token_seconds - usage.queue_seconds))
            self._decode.observe(max(0.0, usage.total_seconds - usage.first_token_seconds))
            after = usage.completion_tokens / len(result.choices) - 1
            if after > 0:
                self._tpot.observe((usage.total_seconds - usage.first_token_seconds) / after)

    def scored(self, usage: Usage) -> None:
        """Continuations of a prompt have been scored."""
        self._prompt.observe(usage.prompt_tokens)
        self._prompt_total.inc(usage.prompt_tokens)
        self._cached_total.inc(usage.cached_tokens)
        self._e2e.observe(usage.total_seconds)
        self._queue.observe(usage.queue_seconds)

    def failed(self, code: str) -> None:
        self._failed.labels(code).inc()

    def piece(self, seconds: float) -> None:
        """A piece of a stream came so long after the one before."""
        self._itl.observe(seconds)

    def stream(self, change: int) -> None:
        self._open.inc(change)

    def answered(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry) + generate_latest(self._mirror)


class _RuntimeNumbers(Collector):
    def __init__(
        self, stats: Callable[[], Mapping[str, float]], restarts: Callable[[], int]
    ) -> None:
        self._stats = stats
        self._restarts = restarts

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            PREFIX + "runtime_restarts", "after its death", value=self._restarts()
        )
        for name, value in sorted(self._stats().items()):
            text = "of the runtime"
            if name in _GAUGES:
                yield GaugeMetricFamily(f"{PREFIX}runtime_{name}", text, value=value)
            else:
                yield CounterMetricFamily(f"{PREFIX}runtime_{name}", text, value=value)
