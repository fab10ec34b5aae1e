"""What a server is told once: who may come in, how much they may ask for. Knows no HTTP."""

from dataclasses import dataclass

from radixgen.errors import ConfigError
from radixgen.thoughts import PARSERS

MAX_SALT_CHARS = 256
METRICS_COMPAT = ("vllm", "sglang")
NO_PARSERS = ("auto", "none")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of the HTTP front. Times are seconds, sizes bytes; None or 0 means no limit."""

    model_names: tuple[str, ...] = ()  # names of the model in requests; the first is reported
    api_keys: tuple[str, ...] = ()  # none: everybody may come in
    admin_key: str | None = None  # for flush, abort and cache routes; None: the API keys do
    open_metrics: bool = False  # /metrics without a key
    metrics_compat: str | None = None  # /metrics under the names of "vllm" or "sglang" as well
    traces_endpoint: str | None = None  # an OTLP collector's URL for traces
    reasoning_parser: str = "auto"  # whose tags are around thoughts; auto: by the chat template
    key_namespaces: bool = False  # prefixes are shared within one API key only
    max_open: int = 4096  # prompts that run or wait at once; more are answered 429
    max_body_bytes: int = 16 << 20
    max_choices: int = 128  # `n` of one request
    max_prompts: int = 1024  # in one request
    max_top_logprobs: int = 20
    request_seconds: float | None = None  # from arrival to the last token
    ping_seconds: float = 10.0  # of silence, after which a stream gets a comment
    drain_seconds: float = 30.0  # that running requests get at the end

    def __post_init__(self) -> None:
        for name in ("max_open", "max_body_bytes", "max_choices", "max_prompts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.metrics_compat not in (None, *METRICS_COMPAT):
            known = ", ".join(METRICS_COMPAT)
            raise ConfigError(f"metrics_compat={self.metrics_compat!r} is none of {known}")
        if self.reasoning_parser.replace("_", "-") not in (*NO_PARSERS, *PARSERS):
            known = ", ".join((*NO_PARSERS, *sorted(PARSERS)))
            message = f"reasoning_parser={self.reasoning_parser!r} is none of {known}"
            raise ConfigError(message)
        for name in ("ping_seconds", "request_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value} must be above 0")
        if self.drain_seconds < 0:
            raise ConfigError(f"drain_seconds={self.drain_seconds} must not be negative")
        if not all(self.api_keys) or self.admin_key == "":
            raise ConfigError("an API key must not be empty")
        for key in (*self.api_keys, self.admin_key or ""):
            if not key.isascii() or any(c.isspace() for c in key):
                raise ConfigError("an API key is ASCII text without spaces")
