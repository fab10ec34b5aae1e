"""Settings of a runtime: frozen, validated once, passed by part to those who need them.

Callers name settings flat (`Runtime(model=..., page_size=16, policy="lpm")`); `from_settings` sorts
them into their parts. A setting nobody declared is an error that names the nearest one.
"""

import re
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from radixgen.errors import ConfigError
from radixgen.types import MAX_ADAPTER_CHARS, WIRE, shown, unknown_name

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4", "int2"]
ActivationForm = Literal["auto", "int8", "int16", "bfloat16", "float32"]
Kernels = Literal["auto", "c", "triton"]
Policy = Literal["fair", "fcfs", "lpm", "dfs", "sjf", "priority"]
Eviction = Literal["lru", "lfu", "slru", "cost"]
TensorSplit = Literal["exact", "fast"]
TensorExchange = Literal["auto", "sockets", "gloo", "nccl"]
JumpForward = Literal["exact", "fast", "off"]
"""What becomes of text that a grammar forces. `exact`: guessed and verified, the outputs are those
without it. `fast`: taken as the tokenizer spells it, unverified; every output still obeys, but the
law of outputs changes, for the model might have spelled it otherwise; where log-probabilities or
masses are asked for, it is verified. `off`: nothing."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


MAX_THREADS = 1024  # more than a machine has cores, and few enough to be started
MAX_RANKS = 64


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and in which form it runs.

    `model`: a directory, a .gguf file, a hub id, or "" for the embedded default.
    `activations`: what inputs of products with quantised weights are rounded to. float32: the
    product with the dequantised matrix; int16: its answers, faster; int8: fastest; bfloat16: near
    its answers, and fastest for prompts and many rows, on a CPU with a matrix unit (AMX); auto:
    bfloat16 there, else of int16 and int8, as model/forms.py chooses for each place. Without C
    kernels it is float32.
    `kv_dtype`: of KV pages; auto: as model/load.py chooses. fp8: e4m3, values beyond 448 are 448;
    on a GPU. int4 and int2 keep whole pages of 32 tokens (or a multiple) in so many bits, and those
    that running sequences have not filled in full precision (kernels/kivi.py).
    `device`: cpu, cuda or cuda:N. `kernels`: auto is C on a CPU and Triton on a GPU. Triton runs on
    a CPU too where TRITON_INTERPRET=1 was set before the start: slowly, for tests.
    `tensor_parallel`: processes (ranks) among which every layer is split, each with its part of the
    weights and KV pages. `tensor_split`: exact: each number is computed whole by one of them, as by
    one alone; fast: ranks add parts of sums, half as many exchanges and other roundings.
    `tensor_exchange`: on a CPU sockets: Unix sockets, or gloo: torch.distributed's, by TCP on
    loopback; between GPUs nccl. auto: sockets on a CPU.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    model: str = ""
    revision: str | None = None
    dtype: Dtype = "auto"
    kv_dtype: KVDtype = "auto"
    activations: ActivationForm = "auto"
    device: str = "cpu"
    kernels: Kernels = "auto"
    max_context: int | None = None  # tokens; None: the model's own
    threads: int | None = None  # compute threads of all ranks; None: one a physical core
    tensor_parallel: int = 1
    tensor_split: TensorSplit = "exact"
    tensor_exchange: TensorExchange = "auto"
    adapters: dict[str, str] = field(default_factory=dict)  # LoRA: name -> PEFT's folder

    def __post_init__(self) -> None:
        _require(
            self.max_context is None or self.max_context >= 1, "max_context must be at least 1"
        )
        _require(
            self.threads is None or 1 <= self.threads <= MAX_THREADS,
            f"threads={self.threads}: 1 to {MAX_THREADS}",
        )
        for name, path in self.adapters.items():
            _check_adapter(name, path)
        _check_device(self.device, self.kernels)
        _check_ranks(self)


FEW_BITS = {"int4": 4, "int2": 2}  # bits of KV pages that are written as a whole
FEW_BITS_PAGE = 32  # tokens


def _check_device(device: str, kernels: Kernels) -> None:
    """Whether they may go together; what the machine has is found when a model is loaded."""
    known = re.fullmatch(r"cpu|cuda(:\d{1,3})?", device)
    _require(known is not None, f"device={shown(device)}: it is 'cpu', 'cuda' or 'cuda:N'")
    _require(
        device == "cpu" or kernels != "c",
        f"kernels='c' run on a CPU, not on device={device!r}; leave one of the two out",
    )


def _check_ranks(model: ModelConfig) -> None:
    ranks = model.tensor_parallel
    _require(1 <= ranks <= MAX_RANKS, f"tensor_parallel={ranks}: 1 to {MAX_RANKS} ranks")
    _require(
        ranks == 1 or model.device in ("cpu", "cuda"),
        f"tensor_parallel={ranks} with device={model.device!r}: every rank takes a GPU of its own, "
        "the first ones; write device='cuda' (CUDA_VISIBLE_DEVICES chooses among them)",
    )
    takes = {"cpu": ("auto", "sockets", "gloo")}.get(model.device, ("auto", "nccl"))
    _require(
        model.tensor_exchange in takes,
        f"tensor_exchange={model.tensor_exchange!r} with device={model.device!r}: it is one of "
        f"{', '.join(takes)} there",
    )


def _check_adapter(name: str, path: str) -> None:
    fits = 0 < len(name) <= MAX_ADAPTER_CHARS and name.isprintable()
    limit = f"1 to {MAX_ADAPTER_CHARS} printable characters"
    _require(fits, f"adapters: the name {shown(name)} does not have {limit}")
    _require(bool(path), f"adapters: {shown(name)} has no path")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How many KV pages there are and which leave first."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    page_size: int = 16  # tokens
    num_pages: int | None = None  # None: from `memory_fraction` of free memory
    memory_fraction: float | None = None  # None: 0.3 on a CPU, 0.9 on a GPU
    eviction: Eviction = "lru"
    enabled: bool = True  # False: nothing is kept after a request ends
    share_tail_pages: bool = True  # copy the tokens of a partly equal page instead of recomputing

    def __post_init__(self) -> None:
        _require(1 <= self.page_size <= 1024, f"page_size={self.page_size}: 1 to 1024 tokens")
        _require(self.num_pages is None or self.num_pages >= 1, "num_pages must be at least 1")
        _require(
            self.memory_fraction is None or 0 < self.memory_fraction < 1,
            "memory_fraction must be between 0 and 1",
        )


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """How many tokens a step computes and in which order requests enter."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    policy: Policy = "fair"
    max_step_tokens: int = 512  # tokens computed in one step
    max_total_tokens: int | None = None  # KV tokens held by running requests; None: all pages
    max_running: int = 256  # sequences in one step
    max_queue: int = 16384  # waiting requests before Overloaded
    ageing: float = 1.0  # priority gained for each second of waiting
    max_preemptions: int = 3  # after which a sequence is immune
    jump_forward: JumpForward = "exact"  # "fast" changes the law of outputs; the others do not
    prompt_lookup: bool = True  # draft what followed the same tokens before; changes no output
    suffix_drafts: bool = True  # draft what other outputs of the kind went on with; likewise

    def __post_init__(self) -> None:
        _require(self.max_step_tokens >= 1, "max_step_tokens must be at least 1")
        _require(
            self.max_total_tokens is None or self.max_total_tokens >= 1,
            "max_total_tokens must be at least 1",
        )
        _require(self.max_running >= 1, "max_running must be at least 1")
        _require(self.max_queue >= 1, "max_queue must be at least 1")
        _require(self.ageing >= 0, "ageing must not be negative")


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Everything a runtime process needs to start. `check`: verify invariants after each step."""

    __pydantic_config__: ClassVar[dict[str, Any]] = WIRE
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    check: bool = False

    def __post_init__(self) -> None:
        if self.model.kv_dtype in FEW_BITS:
            _check_few_bits(self.model.kv_dtype, self.cache)


def _check_few_bits(kv_dtype: str, cache: CacheConfig) -> None:
    named, size = f"kv_dtype={kv_dtype!r}", cache.page_size
    _require(
        size % FEW_BITS_PAGE == 0,
        f"page_size={size}: pages of {named} have {FEW_BITS_PAGE} tokens or a multiple; leave "
        f"page_size out, or set page_size={FEW_BITS_PAGE}",
    )
    _require(
        not cache.share_tail_pages,
        f"share_tail_pages=True: pages of {named} are shared as a whole; leave it out",
    )


# The flat name of a setting is its field's name, but for those that need their part to be clear.
_PARTS: dict[str, type] = {"model": ModelConfig, "cache": CacheConfig, "schedule": ScheduleConfig}
_FLAT = {("cache", "enabled"): "prefix_cache"}
_ADAPTER = TypeAdapter(RuntimeConfig)


def setting_names() -> dict[str, tuple[str, str]]:
    """Flat name -> (part, field). The part of a setting of the runtime itself is ""."""
    names = {
        _FLAT.get((part, f.name), f.name): (part, f.name)
        for part, cls in _PARTS.items()
        for f in fields(cls)
    }
    return names | {"check": ("", "check")}


def from_settings(**settings: Any) -> RuntimeConfig:
    """A RuntimeConfig from flat settings. Raises ConfigError for a wrong name, type or value."""
    names = setting_names()
    nested: dict[str, Any] = {part: {} for part in _PARTS}
    for name, value in settings.items():
        if name not in names:
            raise ConfigError(unknown_name("setting", name, names))
        part, inner = names[name]
        (nested[part] if part else nested)[inner] = value
    if nested["model"].get("kv_dtype") in FEW_BITS:
        nested["cache"] = {"page_size": FEW_BITS_PAGE, "share_tail_pages": False} | nested["cache"]
    try:  # strict types, as for what comes over the wire
        return from_wire(to_json(nested, inf_nan_mode="constants"))
    except PydanticSerializationError as error:
        raise ConfigError(f"a setting is of a type that no setting has: {error}") from None


def to_wire(config: RuntimeConfig) -> bytes:
    """One line of JSON, for the runtime process to read."""
    return to_json(config)


def from_wire(line: bytes) -> RuntimeConfig:
    """Raises ConfigError when the line is no configuration."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    path = [str(part) for part in first["loc"]]
    inner = ".".join(path[1:] or path)
    name = _FLAT.get((path[0], inner), inner) if path else "configuration"
    return f"{name}={shown(first['input'])}: {first['msg'][:1].lower()}{first['msg'][1:]}"
