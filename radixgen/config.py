"""Settings of a runtime: frozen, validated once, passed by part to those who need them."""

from dataclasses import dataclass, field
from typing import Literal

from radixgen.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Policy = Literal["fair", "fcfs", "lpm", "dfs", "sjf", "priority"]
Eviction = Literal["lru", "lfu", "slru", "cost"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and in which form it runs.

    `model`: a directory, a .gguf file, a hub id, or "" for the embedded default.
    """

    model: str = ""
    revision: str | None = None
    dtype: Dtype = "auto"
    kv_dtype: Dtype = "auto"
    device: str = "cpu"
    max_context: int | None = None  # tokens; None: the model's own
    threads: int | None = None  # compute threads; None: one a physical core
    deterministic: bool = False  # logits bitwise equal whatever the batch

    def __post_init__(self) -> None:
        _require(
            self.max_context is None or self.max_context >= 1, "max_context must be at least 1"
        )
        _require(self.threads is None or self.threads >= 1, "threads must be at least 1")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How many KV pages there are and which leave first."""

    page_size: int = 16  # tokens
    num_pages: int | None = None  # None: from `memory_fraction` of free memory
    memory_fraction: float = 0.3
    eviction: Eviction = "lru"
    enabled: bool = True  # False: nothing is kept after a request ends
    share_tail_pages: bool = True  # copy the tokens of a partly equal page instead of recomputing

    def __post_init__(self) -> None:
        _require(1 <= self.page_size <= 1024, f"page_size={self.page_size}: 1 to 1024 tokens")
        _require(self.num_pages is None or self.num_pages >= 1, "num_pages must be at least 1")
        _require(0 < self.memory_fraction < 1, "memory_fraction must be between 0 and 1")


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """How many tokens a step computes and in which order requests enter."""

    policy: Policy = "fair"
    max_step_tokens: int = 512  # tokens computed in one step
    max_total_tokens: int | None = None  # KV tokens held by running requests; None: all pages
    max_running: int = 256  # sequences in one step
    max_queue: int = 16384  # waiting requests before Overloaded
    ageing: float = 1.0  # priority gained for each second of waiting
    max_preemptions: int = 3  # after which a sequence is immune

    def __post_init__(self) -> None:
        _require(self.max_step_tokens >= 1, "max_step_tokens must be at least 1")
        _require(self.max_running >= 1, "max_running must be at least 1")
        _require(self.max_queue >= 1, "max_queue must be at least 1")
        _require(self.ageing >= 0, "ageing must not be negative")


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Everything a runtime process needs to start. `check`: verify invariants after each step."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    check: bool = False
