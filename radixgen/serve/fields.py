"""The fields that several APIs' requests share, and how they become ours. Knows no routes.

Every schema here is closed and strict: what is not declared is refused, and what is declared acts,
but for the fields of `Bookkeeping`, which say nothing about the output.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from radixgen.serve.errors import bad_request
from radixgen.serve.settings import MAX_SALT_CHARS, ServeConfig
from radixgen.types import CacheHint, Choice, SamplingParams

Rid = Annotated[str, Field(min_length=1, max_length=200)]
Salt = Annotated[str, Field(max_length=MAX_SALT_CHARS)]


class Closed(BaseModel):
    """A schema of exactly these fields, whose types are taken at their word."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class Bookkeeping(Closed):
    """What clients send along and no answer depends on; taken and not used."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class SamplingFields(Closed):
    """How tokens are drawn, as OpenAI, vLLM and SGLang name it."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, description="0 and -1: from all tokens")
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    token_healing: bool | None = None
    constrained_law: Literal["masked", "faithful"] | None = Field(
        None,
        description="faithful: as the model would write, given that the text obeys; a stream tells "
        "it when it is complete",
    )
    grammar_mass: bool | None = Field(
        None, description="tell how much of the model's law the constraint left, 0 to 1"
    )
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None

    @property
    def keeps_stop(self) -> bool:
        """Whether a stop string that ended the text belongs to it."""
        return bool(self.include_stop_str_in_output or self.no_stop_trim)


class HintFields(Closed):
    """What the caller knows of the future of a request's cached tokens."""

    program: str = Field("", max_length=MAX_SALT_CHARS, description="groups a program's requests")
    last_use: bool = Field(False, description="nothing will continue this text")
    forks: int = Field(0, description="how many requests will soon share it")
    tool_seconds: float = Field(0.0, description="expected pause before it goes on")

    def as_hint(self) -> CacheHint:
        """Raises InvalidRequest for values out of range."""
        return CacheHint(self.program, self.last_use, self.forks, self.tool_seconds)


class RoutingFields(Closed):
    """How a request is treated; none of it changes what comes out."""

    priority: int | None = Field(None, description="higher goes first")
    cache_salt: Salt | None = Field(None, description="prefixes are shared within one salt only")
    rid: Rid | None = Field(None, description="the request's name for /abort_request")
    request_id: Rid | None = None
    hint: HintFields | None = Field(None, description="of what will become of the cached tokens")


class ConstraintFields(Closed):
    """Every spelling of a constraint; at most one may be given."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: None = None
    guided_decoding_backend: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    structural_tag: dict[str, Any] | str | None = None
    grammar: str | dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None


class StreamOptions(Closed):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


_PLAIN = ("temperature", "top_p", "min_p", "min_tokens", "ignore_eos", "presence_penalty",
          "frequency_penalty", "repetition_penalty", "n", "skip_special_tokens",
          "constrained_law", "grammar_mass", "token_healing")  # fmt: skip


def to_sampling(fields: SamplingFields, config: ServeConfig, **more: Any) -> SamplingParams:
    """Our parameters; `more` are those that each API names in its own way.

    Raises ApiError and InvalidRequest, naming the field.
    """
    params = {name: getattr(fields, name) for name in _PLAIN}
    params |= {"stop": fields.stop, "stop_token_ids": fields.stop_token_ids}
    params["top_k"] = 0 if fields.top_k == -1 else fields.top_k
    params["seed"] = None if fields.seed is None else fields.seed % 2**64
    params["logit_bias"] = _bias(fields.logit_bias)
    if fields.n is not None and fields.n > config.max_choices:
        raise bad_request(f"n={fields.n} is above this server's limit of {config.max_choices}", "n")
    return SamplingParams(**{k: v for k, v in (params | more).items() if v is not None})


def _bias(given: dict[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for token in given:
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            message = f"logit_bias names {token[:32]!r}, which is not a token id"
            raise bad_request(message, "logit_bias")
    return {int(token): bias for token, bias in given.items()}


def check_prompts(num_prompts: int, config: ServeConfig, param: str = "prompt") -> None:
    """Raises ApiError for more prompts than a request may hold."""
    if num_prompts > config.max_prompts:
        message = f"{param} holds {num_prompts} prompts, at most {config.max_prompts} go at once"
        raise bad_request(message, param)


def check_mass(grammar_mass: bool | None, stream: bool | None) -> None:
    """Raises ApiError where nothing would tell the mass."""
    if grammar_mass and stream:
        raise bad_request("grammar_mass is told of whole answers; leave stream out", "grammar_mass")


def told_mass(grammar_mass: bool | None, choice: Choice) -> dict[str, float]:
    """What a choice says of its mass, when that was asked for."""
    return {"grammar_mass": choice.grammar_mass} if grammar_mass else {}


def check_stream_options(
    options: StreamOptions | None, stream: bool | None
) -> Literal["none", "end", "always"]:
    """When a stream tells its usage. Raises ApiError for options of no stream."""
    if options is None:
        return "none"
    if not stream:
        raise bad_request("stream_options goes with stream=true only", "stream_options")
    if options.continuous_usage_stats:
        return "always"
    return "end" if options.include_usage else "none"
