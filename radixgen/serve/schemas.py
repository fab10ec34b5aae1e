"""What OpenAI's two completion routes take and give. The schemas of `/openapi.json`."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from radixgen.serve.fields import (
    Bookkeeping,
    Closed,
    ConstraintFields,
    RoutingFields,
    SamplingFields,
    StreamOptions,
)
from radixgen.serve.reasoning import ReasoningFields

FinishName = Literal["stop", "length", "tool_calls", "abort"]


class CompletionRequest(SamplingFields, ConstraintFields, RoutingFields, Bookkeeping):
    """`POST /v1/completions`"""

    model: str
    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(16, description="null: until the context is full")
    logprobs: int | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    best_of: int | None = Field(None, description="must equal n: there is no ranking")
    suffix: Literal[""] | None = None


class ChatMessage(BaseModel):
    """One message; what clients copy from answers beside these fields is let pass."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any] | str] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: None = None
    audio: None = None


class FunctionDefinition(Closed):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None
    strict: bool | None = None


class CustomDefinition(Closed):
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class ToolDefinition(Closed):
    type: Literal["function", "custom"] = "function"
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class ChatRequest(SamplingFields, ConstraintFields, RoutingFields, ReasoningFields, Bookkeeping):
    """`POST /v1/chat/completions`"""

    model: str
    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class TemplateRequest(Closed):
    """`POST /apply-template`"""

    messages: list[ChatMessage]
    tools: list[ToolDefinition] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


# ---- answers ----


class TemplateAnswer(BaseModel):
    prompt: str


class RenderAnswer(TemplateAnswer):
    token_ids: list[int]
    count: int
    max_model_len: int


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class UsageAnswer(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetails


class AnthropicErrorDetails(BaseModel):
    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str


class CompletionLogprobsAnswer(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobsAnswer | None
    finish_reason: FinishName | None
    stop_reason: str | int | None = None
    grammar_mass: float | None = None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class FunctionCall(BaseModel):
    name: str
    arguments: str


class CustomCall(BaseModel):
    name: str
    input: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function", "custom"]
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = Field(None, description="what was thought before the answer")
    reasoning: str | None = Field(None, description="the same, as vLLM names it")
    tool_calls: list[ToolCall] | None = None


class TokenLogprobAnswer(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprobAnswer):
    top_logprobs: list[TokenLogprobAnswer]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishName
    stop_reason: str | int | None = None
    grammar_mass: float | None = None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer


class LabelMass(BaseModel):
    label_mass: float


class DecidedAnswer(BaseModel):
    """An answer to one question; which fields there are depends on its type."""

    type: Literal["predicate", "choice", "score"]
    name: str | None
    probability: float | None = None
    choice: str | bool | None = None
    score: float | None = None
    confidence: float | None = None
    probabilities: list[dict[str, Any]] | None = None
    diagnostics: LabelMass


class ResponsesInputDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class ResponsesOutputDetails(BaseModel):
    reasoning_tokens: int


class ResponsesUsage(BaseModel):
    input_tokens: int
    input_tokens_details: ResponsesInputDetails
    output_tokens: int
    output_tokens_details: ResponsesOutputDetails
    total_tokens: int


class InputTokensAnswer(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class DecisionAnswer(BaseModel):
    object: Literal["decision"]
    model: str
    answers: list[DecidedAnswer]
    usage: ResponsesUsage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = Field(None, description="of an adapter: the model it belongs to")
    type: Literal["model"] | None = Field(None, description="this and the next for Anthropic's")
    display_name: str | None = None
    created_at: str | None = None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]
