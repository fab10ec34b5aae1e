"""`radixgen chat`: a conversation in the terminal, its history reused from the cache."""

import sys
import time
from collections.abc import Callable, Generator
from typing import Annotated, Any

import typer

from radixgen.cli import common, complete, generate, remote
from radixgen.cli.common import err
from radixgen.errors import InvalidRequest
from radixgen.launch import Runtime
from radixgen.types import SamplingParams

# The answer to messages: text as it comes, beside the last of it a line on what it cost.
Answer = Callable[[list[dict[str, Any]]], Generator[tuple[str, str]]]

HELP = """\
/help    this text
/reset   forget the conversation
/exit    leave, as does Ctrl-D
Ctrl-C   stop the answer that is being written"""


def chat(
    model: common.Model = "",
    system: Annotated[
        str,
        typer.Option(help="What the model is told before you speak.", callback=common.check_utf8),
    ] = "",
    url: Annotated[
        str,
        typer.Option(
            "--url",
            "-u",
            help="Talk with a running server, or unix:PATH, instead of a model here.",
            show_default=False,
            rich_help_panel="Server",
        ),
    ] = "",
    api_key: remote.ApiKey = "",
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
      radixgen chat --url localhost:8000
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
    if url and settings:
        raise InvalidRequest("--url names a server that runs already: leave out --set")
    if url:
        address = remote.base_url(url)
        with remote.connect(address, api_key) as client:
            listed = remote.get_json(client, "/v1/models", address)
            name = model or remote.first_model(listed, address)
            fields = {"model": name, "max_tokens": max_tokens, "temperature": temperature}
            fields |= {"top_p": top_p} | ({} if seed is None else {"seed": seed})
            fields |= {"top_k": top_k} if top_k else {}  # not every server knows these two
            fields |= {"min_p": min_p} if min_p else {}
            asker = complete.Asker(client, address, fields, chat=True, system="")
            Conversation(f"{name} at {address}", from_server(asker), system).run()
        return
    with common.started(model, settings) as runtime:
        Conversation(runtime.ready.model, from_runtime(runtime, sampling), system).run()


def from_runtime(runtime: Runtime, sampling: SamplingParams) -> Answer:
    """Answers of a runtime."""

    def answer(messages: list[dict[str, Any]]) -> Generator[tuple[str, str]]:
        for piece in runtime.chat(messages, sampling, stream=True):
            cost = generate.describe(piece.result.usage) if piece.result is not None else ""
            yield piece.text, cost

    return answer


def from_server(asker: complete.Asker) -> Answer:
    """Answers of a server."""

    def answer(messages: list[dict[str, Any]]) -> Generator[tuple[str, str]]:
        begun, first, usage = time.perf_counter(), 0.0, {}
        for piece in asker.pieces(list(messages)):
            if isinstance(piece, dict):
                usage = piece
                continue
            first = first or time.perf_counter() - begun
            yield piece, ""
        yield "", complete.describe(usage, first, time.perf_counter() - begun)

    return answer


class Conversation:
    """What was said so far, and the loop that adds to it. `name`: whom one speaks with."""

    def __init__(self, name: str, answer: Answer, system: str) -> None:
        self._name = name
        self._answer = answer
        self._opening: list[dict[str, Any]] = (
            [{"role": "system", "content": system}] if system else []
        )
        self._messages = list(self._opening)

    def run(self) -> None:
        """Read lines until the input ends or the user leaves."""
        if sys.stdin.isatty():
            err.print(f"[dim]{self._name}\n{HELP}[/]")
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
            return common.read_line("> ")
        except EOFError:
            return None
        except InvalidRequest as error:
            if not sys.stdin.isatty():
                raise
            err.print(f"{error}", markup=False)
            return ""
        except KeyboardInterrupt:
            err.print("[dim]/exit or Ctrl-D leaves[/]")
            return ""

    def _say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        try:
            answer, cost = self._write_answer()
        except InvalidRequest as error:  # too long, or a text that the template refuses
            self._messages.pop()
            err.print(f"{error}. /reset begins a new conversation", markup=False)
            return
        self._messages.append({"role": "assistant", "content": answer})
        err.print(f"[dim]{cost or 'stopped'}[/]")

    def _write_answer(self) -> tuple[str, str]:
        """The answer, written as it comes, and its cost. Ctrl-C ends it and keeps what there is."""
        parts: list[str] = []
        costs = [""]
        pieces = self._answer(self._messages)
        try:
            for text, cost in pieces:
                parts.append(text)
                costs.append(cost)
                common.write(text)
        except KeyboardInterrupt:
            pieces.close()
        common.write("\n")
        return "".join(parts), costs[-1]
