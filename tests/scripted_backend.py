"""A backend for tests of the language: no model, every answer a function of the conversation.

Tokens are bytes. `answer(text)` gives what the model would say; `calls` records what was asked.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from radixgen.lang.backends.protocol import Generation, Push, Scored
from radixgen.lang.backends.remote import running_thread
from radixgen.lang.chat import ChatFormat
from radixgen.lang.choices import needs_unconditional
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen, GenOptions, Node, Scores, Select
from radixgen.types import CacheHint


def wait_until(condition: Callable[[], object], seconds: float = 200.0) -> None:
    """Poll until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def chatml(messages: list[dict[str, str]], generation: bool) -> str:
    """A template that adds a system message where there is none, as many do."""
    if not messages or messages[0]["role"] != "system":
        messages = [{"role": "system", "content": "Be kind."}, *messages]
    text = "".join(f"<|{m['role']}|>{m['content']}<|end|>\n" for m in messages)
    return text + ("<|assistant|>" if generation else "")


class ScriptedBackend:
    """`answer`: text so far -> what comes next. `logprob`: (text, option) -> one a byte."""

    def __init__(
        self,
        answer: Callable[[str], str] = lambda text: f"({len(text)})",
        logprob: Callable[[str, str], Sequence[float]] | None = None,
        delay: float = 0.0,
    ) -> None:
        self.answer = answer
        self.logprob = logprob or (lambda _, option: [-1.0] * len(option.encode()))
        self.delay = delay
        self.calls: list[tuple[str, Any]] = []
        self.hints: list[CacheHint] = []
        self.num_cancelled = 0
        self.chat = ChatFormat(chatml)
        self._thread = running_thread("scripted backend")
        self.loop: asyncio.AbstractEventLoop = self._thread.loop

    def close(self) -> None:
        self._thread.stop()

    def encode(self, text: str, at_start: bool) -> Sequence[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(list(token_ids)).decode(errors="replace")

    def check(self, node: Node) -> None: ...

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        text = bytes(list(conversation.prompt())).decode()
        self.calls.append(("generate", text))
        self.hints.append(hint)
        said = self.answer(text)
        thought, ids = "", b""
        if gen.thoughts is not None:  # a scripted model writes its thoughts between the tags
            assert gen.thoughts.tags is not None
            begin, end = gen.thoughts.tags.begin, gen.thoughts.tags.end
            assert said.startswith(begin)
            thought, _, said = said.removeprefix(begin).partition(end)
            ids = gen.thoughts.around(thought).encode()
        try:
            for piece in thought:
                await asyncio.sleep(self.delay)
                push.thought(piece)
            for piece in said:
                await asyncio.sleep(self.delay)
                push(piece)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        meta = {"completion_tokens": len(said), "options": gen.options}
        if gen.thoughts is not None:
            meta |= {"reasoning_content": thought.strip(), "reasoning_tokens": len(ids)}
        spelled = list(ids + said.encode())
        return [
            Generation(said, spelled, dict(meta), "", thought) for _ in range(gen.options.n or 1)
        ]

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        text = conversation.text
        prefix, rest = conversation.branches(select.choices)
        self.calls.append(("score", text))
        given = tuple(tuple(self.logprob(text, option)) for option in select.choices)
        alone: tuple[tuple[float, ...], ...] = ()
        if needs_unconditional(select.method):
            alone = tuple(tuple(self.logprob("", option)) for option in select.choices)
        scores = Scores(select.choices, given, alone)
        return Scored(scores, [prefix + option for option in rest])

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        self.calls.append(("warm", conversation.text))
        self.hints.append(hint)

    async def flush_cache(self) -> None:
        self.calls.append(("flush", None))

    async def server_info(self) -> dict[str, Any]:
        return {"model": "scripted"}


def generating(backend: ScriptedBackend) -> list[str]:
    """The conversations that the model was asked to continue, in order."""
    return [text for kind, text in list(backend.calls) if kind == "generate"]
