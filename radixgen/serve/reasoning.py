"""Thoughts before an answer, in every spelling that clients send, and how they are told.

    reasoning_effort, reasoning {effort}                      OpenAI, Responses
    thinking {type, budget_tokens}                            Anthropic, DeepSeek; begin, end: ours
    thinking_token_budget, include_reasoning                  vLLM
    chat_template_kwargs {enable_thinking | thinking}         vLLM, SGLang
    enable_thinking, thinking_budget                          Qwen
    separate_reasoning, stream_reasoning                      SGLang

A model that thinks does so unless it is told not to. Of one that does not, thoughts can be had by
giving the tags to put around them. Knows tokenizers and templates; no routes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from radixgen.serve.conversation import Layout
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import Closed
from radixgen.thoughts import (
    EFFORTS,
    UNLIMITED,
    Tags,
    Trimmed,
    effort_budget,
    parser_tags,
    template_tags,
)
from radixgen.tokenizer import Tokenizer
from radixgen.types import Choice, Piece, Thinking

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
_SWITCHES = ("enable_thinking", "thinking")  # variables of chat templates
_TAIL = 32  # tokens at the end of a prompt, where thoughts may have begun
_EFFORT_NOTE = (
    "as a budget of tokens: "
    + ", ".join(f"{k} {v}" for k, v in EFFORTS.items())
    + ", and at most half of max_tokens"
)
Budget = Annotated[
    int, Field(ge=0, le=UNLIMITED, description="tokens of thoughts, at most; 0: none")
]


class ThinkingOptions(Closed):
    """Whether to think, for how long, and between which tags, for models that have none."""

    type: Literal["enabled", "disabled", "adaptive"] = "enabled"
    budget_tokens: Budget | None = None
    display: Literal["summarized", "omitted"] | None = None
    begin: str | None = None
    end: str | None = None


class TaggedThinking(Closed):
    """Thoughts as a runtime takes them: the text begins with `begin`, and `end` ends them."""

    budget: int
    begin: str = ""
    end: str

    def as_thinking(self) -> Thinking:
        """Raises InvalidRequest for values out of range."""
        return Thinking(self.budget, self.begin, self.end)


class ReasoningFields(Closed):
    """What a chat request may say of thoughts."""

    reasoning_effort: Effort | None = Field(None, description=_EFFORT_NOTE)
    thinking: ThinkingOptions | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None
    enable_thinking: bool | None = None
    separate_reasoning: bool | None = Field(None, description="false: thoughts are in the content")
    stream_reasoning: bool | None = Field(None, description="false: thoughts are told at once")
    include_reasoning: bool | None = Field(None, description="false: thoughts are not told")


# ---- the model ----


@dataclass(frozen=True, slots=True)
class Thinker:
    """What is known of a model's thoughts. `tags` None: it does not think apart from its answers.

    `switches`: the template's variables that turn thoughts on and off. `by_default`: they are on.
    """

    tags: Tags | None = None
    switches: tuple[str, ...] = ()
    by_default: bool = False


@lru_cache(16)
def thinker_of(parser: str, template: str) -> Thinker:
    """By the server's `reasoning_parser` and the model's chat template, which "auto" goes by."""
    switches = tuple(s for s in _SWITCHES if re.search(rf"\b{s}\b", template))
    if parser in ("auto", "none"):
        tags = template_tags(template) if parser == "auto" else None
    else:
        tags = parser_tags(parser, "reasoning_parser")
    # Templates that know `thinking` and no `enable_thinking` do not think unless it is given.
    return Thinker(tags, switches, tags is not None and switches[:1] != ("thinking",))


# ---- the request ----


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says: None where it does not. `param`: what said it."""

    on: bool | None = None
    budget: int | None = None
    tags: Tags | None = None
    param: str = "thinking"
    effort: str | None = None  # instead of a budget

    @property
    def is_bounded(self) -> bool:
        return self.budget is not None or self.effort is not None

    def most(self, max_tokens: int | None) -> int:
        """Tokens of thoughts in an output of so many."""
        if self.effort is not None:
            return effort_budget(self.effort, max_tokens)
        return UNLIMITED if self.budget is None else self.budget

    def also(self, other: "Wish") -> "Wish":
        """Both. Raises ApiError where they contradict each other, or there are two budgets."""
        if None not in (self.on, other.on) and self.on != other.on:
            message = f"{self.param} and {other.param} contradict each other; give one"
            raise bad_request(message, other.param)
        if self.is_bounded and other.is_bounded:
            message = f"{self.param} and {other.param} are both budgets of thoughts; give one"
            raise bad_request(message, other.param)
        return Wish(
            other.on if self.on is None else self.on,
            other.budget if self.budget is None else self.budget,
            self.tags or other.tags,
            other.param if self.on is None else self.param,
            self.effort or other.effort,
        )


def effort_wish(effort: str | None, param: str) -> Wish:
    if effort is None:
        return Wish()
    if effort == "none":
        return Wish(False, param=param)
    return Wish(True, param=param, effort=effort)


def budget_wish(budget: int | None, param: str) -> Wish:
    """A budget of nothing is no thoughts."""
    if not budget:
        return Wish() if budget is None else Wish(False, param=param)
    return Wish(True, budget, None, param)


def options_wish(options: ThinkingOptions | None, param: str = "thinking") -> Wish:
    """Raises ApiError for what contradicts itself, and for what is not served."""
    if options is None:
        return Wish()
    if options.type == "disabled":
        if options.budget_tokens or options.end:
            raise bad_request(f"{param} is disabled and says how to think", param)
        return Wish(False, param=param)
    if options.begin is not None and not options.end:
        raise bad_request(f"{param}.begin needs an end", f"{param}.end")
    tags = Tags(options.begin or "", options.end) if options.end else None
    wish = budget_wish(options.budget_tokens, param)
    return replace(wish, tags=tags) if wish.on is False else Wish(True, wish.budget, tags, param)


def chat_wish(body: ReasoningFields, variables: Mapping[str, Any], thinker: Thinker) -> Wish:
    """What a chat request says in all its words. Raises ApiError for a contradiction."""
    has_tags = thinker.tags is not None or (body.thinking is not None and body.thinking.end)
    said = [
        effort_wish(body.reasoning_effort, "reasoning_effort"),
        options_wish(body.thinking),
        budget_wish(body.thinking_token_budget, "thinking_token_budget"),
        budget_wish(body.thinking_budget, "thinking_budget"),
    ]
    if body.enable_thinking is not None:
        said.append(Wish(body.enable_thinking, param="enable_thinking"))
    for name in _SWITCHES:
        of_template_only = name in thinker.switches and not has_tags
        if isinstance(variables.get(name), bool) and not of_template_only:
            said.append(Wish(variables[name], param=f"chat_template_kwargs.{name}"))
    wish = Wish()
    for other in said:
        wish = wish.also(other)
    return wish


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to come before a request's answer. `tags` None: nothing."""

    wish: Wish
    thinker: Thinker
    tags: Tags | None
    layout: Layout

    def thinking(
        self, tokenizer: Tokenizer, prompt: list[int], max_tokens: int | None
    ) -> Thinking | None:
        """As the runtime takes it, for an output of so many tokens.

        A prompt in which the template ended the thoughts has none, and one in which it began them
        has some. Raises ApiError for what cannot be so.
        """
        tail = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
        own = self.thinker.tags
        if self.tags is None:
            if own is None or not tail.endswith(own.begin) or self.layout.continue_last:
                return None
            if self.wish.on is False:
                message = "the model's chat template begins thoughts; they cannot be turned off"
                raise bad_request(message, self.wish.param)
            return Thinking(UNLIMITED, "", own.end)
        if own is not None and tail.endswith(own.end) and self.wish.tags is None:
            if self.wish.on:
                message = "the model's chat template ends the thoughts of this conversation itself"
                raise bad_request(message, self.wish.param)
            return None
        begin = "" if self.tags.begin and tail.endswith(self.tags.begin) else self.tags.begin
        return Thinking(self.wish.most(max_tokens), begin, self.tags.end)


def plan(wish: Wish, thinker: Thinker, layout: Layout) -> Plan:
    """Raises ApiError, naming the field, for thoughts that this model does not have."""
    tags = wish.tags or thinker.tags
    if wish.on and tags is None:
        raise bad_request(
            "this model does not think apart from its answer: give thinking.begin and thinking.end "
            "to have it think between them, or serve it with --reasoning-parser",
            wish.param,
        )
    is_opened = layout.open_answer and not layout.continue_last
    if wish.on and not is_opened:
        message = "the last message is continued, and thoughts come before an answer"
        raise bad_request(message, wish.param)
    on = thinker.by_default and is_opened if wish.on is None else wish.on
    variables = {
        k: v for k, v in layout.variables.items() if k in thinker.switches or not _said(k, v)
    }
    if thinker.switches and thinker.tags is not None and wish.on is not None:
        variables[thinker.switches[0]] = wish.on
    return Plan(wish, thinker, tags if on else None, replace(layout, variables=variables))


def _said(name: str, value: Any) -> bool:
    """Whether a template that does not have the variable need not be told: it is a wish."""
    return name in _SWITCHES and isinstance(value, bool)


# ---- the answer ----


@dataclass(frozen=True, slots=True)
class Show:
    """How thoughts are told: apart, in the content with their tags, or not at all; and, in a
    stream, as they come or in one piece."""

    apart: bool = True
    hidden: bool = False
    at_once: bool = False


def is_omitted(options: ThinkingOptions | None) -> bool:
    return options is not None and options.display == "omitted"


def show_of(body: ReasoningFields) -> Show:
    """Raises ApiError for what contradicts itself."""
    hidden = body.include_reasoning is False or is_omitted(body.thinking)
    if hidden and body.separate_reasoning is False:
        message = "separate_reasoning=false tells thoughts in the content, and they are not to be"
        raise bad_request(message, "separate_reasoning")
    return Show(body.separate_reasoning is not False, hidden, body.stream_reasoning is False)


@dataclass(slots=True)
class Split:
    """Of one choice, as it comes: what is told of its thoughts, and of its answer.

    `is_free`: no constraint holds of the answer, so blanks before it belong to neither.
    """

    thinking: Thinking | None
    show: Show = field(default_factory=Show)
    is_free: bool = True
    num_tokens: int = 0  # of the thoughts
    _answer: Trimmed = field(default_factory=lambda: Trimmed(end=False))
    _thought: Trimmed = field(default_factory=lambda: Trimmed(end=True))
    _held: str = ""
    _stage: Literal["before", "thoughts", "answer"] = "before"

    @property
    def tells_apart(self) -> bool:
        return self.thinking is not None and self.show.apart and not self.show.hidden

    def push(self, piece: Piece | Choice) -> tuple[str, str]:
        """The next text of the thoughts, and of the answer."""
        if self.thinking is None:
            return "", piece.text
        self.num_tokens += piece.num_thought_tokens
        is_over = bool(piece.text) or piece.finish_reason is not None
        if not self.show.apart:
            return "", self._tagged(piece, is_over) + piece.text
        text = self._answer.push(piece.text) if self.is_free else piece.text
        if self.show.hidden:
            return "", text
        self._held += self._thought.push(piece.thoughts)
        if self.show.at_once and not is_over:
            return "", text
        told, self._held = self._held, ""
        return told, text

    def _tagged(self, piece: Piece | Choice, is_over: bool) -> str:
        assert self.thinking is not None
        text = piece.thoughts
        if self._stage == "before" and (text or is_over):
            text, self._stage = self.thinking.begin + text, "thoughts"
        if self._stage == "thoughts" and is_over:
            text, self._stage = text + self.thinking.end, "answer"
        self._held += text
        if self.show.at_once and not is_over:
            return ""
        told, self._held = self._held, ""
        return told
