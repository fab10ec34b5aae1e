"""How models spell thoughts: the tags around them by family of models, and their bare text.

Owns the names that clients and operators use: reasoning parsers, and efforts as budgets. Knows
tokenizers; no runtime, no HTTP.
"""

from dataclasses import dataclass

from radixgen.errors import InvalidRequest
from radixgen.tokenizer import IncrementalDecoder, Tokenizer
from radixgen.types import Thinking, shown


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around thoughts."""

    begin: str
    end: str


THINK = Tags("<think>", "</think>")
_OTHERS = {
    "kimi": Tags("◁think▷", "◁/think▷"),
    "mistral": Tags("[THINK]", "[/THINK]"),
    "seed-oss": Tags("<seed:think>", "</seed:think>"),
}
PARSERS: dict[str, Tags] = _OTHERS | dict.fromkeys(
    (
        *("think", "deepseek-r1", "deepseek-v3", "ernie45", "glm45", "holo2", "interns1"),
        *("kimi-k2", "minimax-m2", "nemotron-v3", "olmo3", "qwen3", "qwen3-thinking", "step3"),
    ),
    THINK,
)
"""The tags of reasoning parsers, by the names that SGLang and vLLM have for them."""

EFFORTS: dict[str, int] = {"minimal": 128, "low": 1024, "medium": 2048, "high": 4096}
EFFORTS |= {"xhigh": 16384}
"""`reasoning_effort` as a budget: at most so many tokens of thoughts. See `effort_budget`."""

UNLIMITED = 2**31 - 1  # tokens of thoughts: as many as max_tokens and the answer leave


def parser_tags(name: str, param: str) -> Tags:
    """The tags of a parser, `-` and `_` being one. Raises InvalidRequest for an unknown one."""
    found = PARSERS.get(name.replace("_", "-")) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted(PARSERS))
        raise InvalidRequest(f"{param}={shown(name)} is none of {known}", param)
    return found


def template_tags(template: str) -> Tags | None:
    """The tags that a chat template speaks of, if it knows thoughts."""
    return next((tags for tags in (THINK, *_OTHERS.values()) if tags.end in template), None)


def effort_budget(effort: str, max_tokens: int | None) -> int:
    """Tokens of thoughts for an effort: never more than half of the output, which has an answer."""
    budget = EFFORTS[effort]
    return budget if max_tokens is None else min(budget, max(max_tokens // 2, 1))


def thought_decoder(tokenizer: Tokenizer, thinking: Thinking) -> IncrementalDecoder:
    """Decodes the tokens of thoughts, without their tags, wherever tokens cut those.

    Where a special token ends them, they may hold the same characters as text.
    """
    end = thinking.end.encode()
    if any(tokenizer.token_bytes(i, True) == end for i in tokenizer.special_ids):
        return IncrementalDecoder(tokenizer, continuation=True)
    return IncrementalDecoder(
        tokenizer,
        skip_special_tokens=False,
        stop=(thinking.end,),
        continuation=True,
        num_skipped=len(thinking.begin.encode()),
    )


class Trimmed:
    """Text as it comes without the blanks at its beginning and, with `end`, at its end."""

    def __init__(self, *, end: bool) -> None:
        self._end = end
        self._has_begun = False
        self._held = ""

    def push(self, text: str) -> str:
        """What is certain after `text`. Blanks at the end of all are never given out."""
        text = self._held + text
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        kept = text.rstrip() if self._end else text
        self._held = text[len(kept) :]
        return kept
