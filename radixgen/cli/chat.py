"""`radixgen chat`: a conversation in the terminal, its history reused from the cache."""

import sys
from typing import Annotated, Any

import typer

from radixgen.cli import common
from radixgen.cli.common import err
from radixgen.cli.generate import describe
from radixgen.errors import PromptTooLong
from radixgen.launch import Runtime
from radixgen.types import GenerateResult, SamplingParams

HELP = """\
/help    this text
/reset   forget the conversation
/exit    leave, as does Ctrl-D
Ctrl-C   stop the answer that is being written"""


def chat(
    model: common.Model = "",
    system: Annotated[str, typer.Option(help="What the model is told before you speak.")] = "",
    max_tokens: common.MaxTokens = 512,
    temperature: common.Temperature = 0.7,
    top_p: common.TopP = 0.95,
    top_k: common.TopK = 0,
    min_p: common.MinP = 0.0,
    seed: common.Seed = None,
    settings: common.Settings = None,
) -> None:
    """Talk with a chat model. Each turn reuses the conversation so far from the prefix cache.

    \b
    Examples:
      radixgen chat
      radixgen chat --system "Answer in one short sentence." --temperature 0
      echo "What is a radix tree?" | radixgen chat
    """
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
    )
    with common.started(model, settings) as runtime:
        Conversation(runtime, sampling, system).run()


class Conversation:
    """What was said so far, and the loop that adds to it."""

    def __init__(self, runtime: Runtime, sampling: SamplingParams, system: str) -> None:
        self._runtime = runtime
        self._sampling = sampling
        self._opening: list[dict[str, Any]] = (
            [{"role": "system", "content": system}] if system else []
        )
        self._messages = list(self._opening)

    def run(self) -> None:
        """Read lines until the input ends or the user leaves."""
        if sys.stdin.isatty():
            err.print(f"[dim]{self._runtime.ready.model}\n{HELP}[/]")
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/help":
                    err.print(HELP)
                case "/reset":
                    self._messages = list(self._opening)
                    err.print("[dim]the conversation is forgotten[/]")
                case text if text.startswith("/"):
                    err.print(f"there is no command {text.split()[0]}; /help lists them")
                case text:
                    self._say(text)

    def _read(self) -> str | None:
        try:
            if sys.stdin.isatty():
                return input("> ")
            line = sys.stdin.readline()
            return line if line else None
        except EOFError:
            return None
        except KeyboardInterrupt:
            err.print("[dim]/exit or Ctrl-D leaves[/]")
            return ""

    def _say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        try:
            answer, result = self._answer()
        except PromptTooLong as error:
            self._messages.pop()
            err.print(f"{error}. /reset begins a new conversation")
            return
        self._messages.append({"role": "assistant", "content": answer})
        err.print(f"[dim]{describe(result.usage) if result else 'stopped'}[/]")

    def _answer(self) -> tuple[str, GenerateResult | None]:
        """Write the answer as it comes. Ctrl-C ends the answer and keeps what was written."""
        parts: list[str] = []
        result = None
        pieces = self._runtime.chat(self._messages, self._sampling, stream=True)
        try:
            for piece in pieces:
                parts.append(piece.text)
                common.write(piece.text)
                result = piece.result
        except KeyboardInterrupt:
            pieces.close()
        common.write("\n")
        return "".join(parts), result
