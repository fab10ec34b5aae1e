"""`radixgen complete`: continue a prompt on a running server, over its OpenAI-compatible API."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from radixgen.cli import common, constraint, remote
from radixgen.cli.common import err, out
from radixgen.errors import InvalidRequest, RadixgenError

if TYPE_CHECKING:
    import httpx2

SAMPLING, OUTPUT = "Sampling", "Output"
Messages = list[dict[str, Any]]


def complete(
    prompt: Annotated[
        str,
        typer.Argument(
            help="The text to continue; - reads it from stdin. Without one you are asked.",
            callback=common.check_utf8,
            show_default=False,
        ),
    ] = "",
    url: remote.Url = "",
    api_key: remote.ApiKey = "",
    model: remote.ServedModel = "",
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Ask as a user, through the chat API.", rich_help_panel="Server"
        ),
    ] = False,
    system: Annotated[
        str,
        typer.Option(
            help="With --chat: what the model is told first.",
            callback=common.check_utf8,
            show_default=False,
            rich_help_panel="Server",
        ),
    ] = "",
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", "-n", help="Tokens, at most.", rich_help_panel=SAMPLING),
    ] = 128,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", "-t", help="0: the most probable token.", rich_help_panel=SAMPLING
        ),
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(help="Sample from tokens of this mass.", rich_help_panel=SAMPLING),
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="The same seed gives the same text.",
            show_default="random",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End before this text; may be repeated.",
            rich_help_panel=SAMPLING,
            callback=common.check_utf8,
        ),
    ] = None,
    schema: constraint.Schema = "",
    regex: constraint.Regex = "",
    choice: constraint.Choice = None,
    grammar: constraint.Grammar = "",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the server's answer whole.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Continue a prompt on a running server, and print the text as it comes.

    Any OpenAI-compatible server will do; constraints need radixgen or vLLM.
    To run a model without a server, use `radixgen generate`.

    \b
    Examples:
      radixgen complete "The capital of France is"
      radixgen complete --chat "Name three rivers." --max-tokens 80
      radixgen complete --chat "Is water wet?" --choice yes --choice no
      radixgen complete "Ann is 34. JSON:" --schema person.schema.json
      radixgen complete "Hi" --url https://models.example --model small --json
      cat notes.txt | radixgen complete - --url gpu-box:8000
    """
    if system and not chat:
        raise InvalidRequest("--system goes with --chat")
    spec = constraint.constraint(schema, regex, choice, grammar)
    fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p}
    fields |= {"seed": seed} if seed is not None else {}
    fields |= {"stop": stop} if stop else {}
    fields |= constraint.as_field(spec) if spec else {}
    address = remote.base_url(url)
    with remote.connect(address, api_key) as client:
        name = model or remote.first_model(remote.get_json(client, "/v1/models", address), address)
        asker = Asker(client, address, {"model": name} | fields, chat, system)
        if as_json:
            out.print_json(json.dumps(asker.whole(prompt_of(prompt))))
        elif prompt or not sys.stdin.isatty():
            show(asker.pieces(prompt_of(prompt)))
        else:
            converse(asker, name)


def prompt_of(given: str) -> str:
    """The prompt that was given, or what stdin holds. Raises InvalidRequest for an empty one."""
    text = common.read_stdin() if given in ("", "-") else given
    if not text:
        raise InvalidRequest("the prompt is empty: give one, or pipe one in")
    return text


@dataclass(frozen=True, slots=True)
class Asker:
    """One server, and how it is asked. `url` is for messages."""

    client: "httpx2.Client"
    url: str
    fields: dict[str, Any]
    chat: bool
    system: str

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str | Messages) -> dict[str, Any]:
        if not isinstance(prompt, str):
            return self.fields | {"messages": prompt}
        if not self.chat:
            return self.fields | {"prompt": prompt}
        messages = [{"role": "system", "content": self.system}] if self.system else []
        return self.fields | {"messages": [*messages, {"role": "user", "content": prompt}]}

    def whole(self, prompt: str) -> Any:
        """The answer as the server gives it."""
        return remote.post_json(self.client, self.path, self.url, self.body(prompt))

    def pieces(self, prompt: str | Messages) -> Iterator[str | dict[str, Any]]:
        """Pieces of text as they come, and the usage as an object; closing aborts."""
        body = self.body(prompt) | {"stream": True, "stream_options": {"include_usage": True}}
        with (
            remote.explained(self.url),
            self.client.stream("POST", self.path, json=body) as response,
        ):
            if response.status_code != 200:
                response.read()
                error = remote.refusal(response.status_code, response.content, response.headers)
                raise error or RadixgenError(f"status {response.status_code} is no answer")
            for event in remote.stream_events(response):
                text = text_of(event)
                if text:
                    yield text
                if event.get("usage"):
                    yield event["usage"]


def text_of(event: dict[str, Any]) -> str:
    """The text of a chunk of either API."""
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta")
    found = delta.get("content") if isinstance(delta, dict) else choices[0].get("text")
    return found if isinstance(found, str) else ""


def show(pieces: Iterator[str | dict[str, Any]]) -> None:
    """Print text as it comes, and then what it cost, aside."""
    begun, first, usage = time.perf_counter(), 0.0, {}
    for piece in pieces:
        if isinstance(piece, dict):
            usage = piece
            continue
        first = first or time.perf_counter() - begun
        common.write(piece)
    common.write("\n")
    err.print(f"[dim]{describe(usage, first, time.perf_counter() - begun)}[/]")


def describe(usage: dict[str, Any], first: float, total: float) -> str:
    """One line about what a request cost, as seen from here. Times in seconds."""
    num = int(usage.get("completion_tokens") or 0)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    parts = []
    if "prompt_tokens" in usage:
        reused = "" if cached is None else f", {cached} of them cached"
        parts.append(f"{usage['prompt_tokens']} prompt tokens{reused}")
    parts.append(f"first text after {first * 1000:.0f} ms")
    if num:
        rate = f" at {(num - 1) / (total - first):.1f}/s" if num > 1 and total > first else ""
        parts.append(f"{num} token{'' if num == 1 else 's'}{rate}")
    return "; ".join(parts)


def converse(asker: Asker, model: str) -> None:
    """Ask for prompts until the input ends; each stands for itself."""
    err.print(f"[dim]{model} at {asker.url}; Ctrl-D leaves, Ctrl-C stops an answer[/]", markup=True)
    while True:
        try:
            prompt = common.read_line("> ")
            if prompt.strip():
                _answer(asker, prompt)
        except EOFError:
            return
        except InvalidRequest as error:  # this prompt's fault: the next may do
            err.print("[bold red]error:[/]", escape(str(error)))


def _answer(asker: Asker, prompt: str) -> None:
    try:
        show(asker.pieces(prompt))
    except KeyboardInterrupt:
        common.write("\n")
