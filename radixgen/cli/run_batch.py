"""`radixgen run-batch`: a file of requests, answered by a runtime of its own or by a server.

Both are asked over the same API: the runtime's is served inside this process, without a port.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radixgen.cli import common, remote
from radixgen.cli.batch_file import Answers, Line, LineError, answered, failed, parse
from radixgen.cli.batch_file import read_requests as read_lines
from radixgen.cli.common import err
from radixgen.errors import ConfigError, InvalidRequest, RuntimeUnavailable
from radixgen.launch import make_config
from radixgen.model.hub import resolve

if TYPE_CHECKING:
    import httpx2

FILES, WHERE, HOW = "Files", "Who answers", "How"
JSON = {"content-type": "application/json"}
RETRIES = 6  # of a request that nobody could take
FIRST_PAUSE, MAX_PAUSE = 0.5, 20.0  # seconds between them
BUSY = (429, 502, 503, 504)
WRONG_KEY = 401  # 403 is of a request: others may be let in


class KeyRefused(ConfigError):
    """The server does not take the key: it would refuse every other request as well."""


def run_batch(
    input_file: Annotated[
        Path,
        typer.Option("--input", "-i", help="Requests; - reads stdin.", rich_help_panel=FILES),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Answers. Those that it holds already are not asked for again.",
            rich_help_panel=FILES,
        ),
    ],
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Ask again for what the output says has failed.",
            rich_help_panel=FILES,
        ),
    ] = False,
    url: Annotated[
        str,
        typer.Option(
            "--url",
            "-u",
            help="A server, or unix:PATH. Default: a runtime is started for this run.",
            show_default=False,
            rich_help_panel=WHERE,
        ),
    ] = "",
    api_key: Annotated[
        str,
        typer.Option(
            help="The server's key. Or RADIXGEN_API_KEY.",
            show_default=False,
            rich_help_panel=WHERE,
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Of the runtime: a directory, a .gguf file or a hub id.",
            callback=common.check_utf8,
            show_default=False,
            rich_help_panel=WHERE,
        ),
    ] = "",
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="What the requests call it; may be repeated.",
            callback=common.check_utf8,
            show_default="its own",
            rich_help_panel=WHERE,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            callback=common.check_utf8,
            help="A setting of the runtime; may be repeated.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", help="Requests at once.", rich_help_panel=HOW)
    ] = 64,
) -> None:
    """Answer a file of requests in OpenAI's batch format; go on where a killed run ended.

    Each line of the input is {"custom_id": "a", "method": "POST",
    "url": "/v1/chat/completions", "body": {...}}; /v1/completions and
    /v1/responses are answered too. The output has a line for each, in the
    order in which they finish. A request that fails has its error there.
    A key that the server does not know (401) ends the run instead.

    \b
    Examples:
      radixgen run-batch -i in.jsonl -o out.jsonl
      radixgen run-batch -i in.jsonl -o out.jsonl --model ./my-model
      radixgen run-batch -i in.jsonl -o out.jsonl --served-model-name gpt-4o
      radixgen run-batch -i in.jsonl -o out.jsonl --url localhost:8000 -c 256

    The exit status is 0 if every request succeeded, 1 if any failed.
    """
    if concurrency < 1:
        raise InvalidRequest(f"--concurrency {concurrency} must be at least 1", "concurrency")
    if url and (model or served_model_name or settings):
        raise InvalidRequest(
            "--url names a server that runs already: leave out --model, --served-model-name, --set"
        )
    lines = read_lines(_content(input_file), str(input_file))
    with Answers(output, {line.custom_id for line in lines}, retry_failed=retry_failed) as answers:
        run = Run(answers, Tally(len(lines), answers.done))
        todo = [line for line in lines if line.custom_id not in answers.done]
        if todo:
            served = server(url, api_key) if url else local(model, settings, served_model_name)
            try:
                common.run_async(run.all(todo, served, concurrency))
            except (KeyboardInterrupt, RuntimeUnavailable, KeyRefused):
                err.print(f"{run.tally.sentence()}. The same command goes on from here")
                raise
    err.print(run.tally.sentence())
    if run.tally.num_failed:
        raise typer.Exit(common.FAILURE)


def _content(path: Path) -> bytes:
    if str(path) == "-":
        return common.read_stdin().encode()
    if not path.exists():
        raise InvalidRequest(f"there is no file {path}", "input")
    return path.read_bytes()


@asynccontextmanager
async def server(url: str, api_key: str) -> "AsyncIterator[httpx2.AsyncClient]":
    """A client of the server at `url`."""
    async with remote.connect_async(remote.base_url(url), api_key) as client:
        yield client


@asynccontextmanager
async def local(
    model: str, settings: list[str] | None, names: list[str] | None
) -> "AsyncIterator[httpx2.AsyncClient]":
    """A client of a runtime that lives as long as the context; its API is served without a port."""
    import httpx2

    from radixgen.cli.serve import Launcher
    from radixgen.serve.app import create_app
    from radixgen.serve.settings import ServeConfig
    from radixgen.serve.supervisor import Supervisor

    parsed = common.runtime_settings(settings)
    make_config(model, **parsed)  # refuse a wrong setting before anything is fetched
    own = (await asyncio.to_thread(resolve, model)).name
    config = ServeConfig(model_names=tuple(names or dict.fromkeys([own, model or own])))
    supervisor = Supervisor(Launcher(model, parsed), config.max_open)
    try:
        with err.status("starting the runtime"):
            await supervisor.start()
        transport = httpx2.ASGITransport(create_app(supervisor, config))
        async with remote.connect_async(remote.DEFAULT_URL, "", transport) as client:
            yield client
    finally:
        await supervisor.stop()


@dataclass(slots=True)
class Tally:
    """What became of the requests. `earlier`: ids of former runs, and whether they succeeded."""

    num: int
    earlier: dict[str, bool]
    num_done: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.num_failed = sum(not good for good in self.earlier.values())

    def add(self, record: dict[str, Any]) -> None:
        """Count an answer, whichever API it is of."""
        response = record["response"] or {}
        if response.get("status_code") != 200:
            self.num_failed += 1
            return
        self.num_done += 1
        usage = response["body"].get("usage") or {}
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        self.prompt_tokens += usage.get("prompt_tokens") or usage.get("input_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or usage.get("output_tokens") or 0
        self.cached_tokens += details.get("cached_tokens") or 0

    def sentence(self) -> str:
        text = f"{self.num} requests: {self.num_done} answered, {self.num_failed} failed"
        if self.earlier:
            text += f", {len(self.earlier)} were in the output already"
        if self.prompt_tokens and self.seconds:
            share = self.cached_tokens / self.prompt_tokens
            text += (
                f"; {self.prompt_tokens:,} prompt tokens, {share:.0%} of them cached; "
                f"{self.completion_tokens:,} generated in {self.seconds:.1f} s, "
                f"{self.completion_tokens / self.seconds:.1f}/s"
            )
        return text


class Run:
    """Sends requests and writes what comes back."""

    def __init__(self, answers: Answers, tally: Tally) -> None:
        self.tally = tally
        self._answers = answers

    async def all(self, lines: list[Line], served: Any, concurrency: int) -> None:
        """Answer every line. Raises RuntimeUnavailable when nobody answers, and KeyRefused."""
        with common.progress() as bar:
            task = bar.add_task("requests", total=self.tally.num, completed=len(self.tally.earlier))
            async with served as client:
                begun, waiting = time.perf_counter(), iter(lines)
                work = [
                    asyncio.create_task(self._work(client, waiting, lambda: bar.advance(task)))
                    for _ in range(min(concurrency, len(lines)))
                ]
                try:
                    await asyncio.gather(*work)
                finally:
                    self.tally.seconds = time.perf_counter() - begun
                    for worker in work:
                        worker.cancel()
                    await asyncio.gather(*work, return_exceptions=True)

    async def _work(
        self, client: "httpx2.AsyncClient", waiting: Iterator[Line], advance: Any
    ) -> None:
        for line in waiting:
            try:
                path, body = parse(line)
                record = await post(client, line, path, body)
            except LineError as error:
                record = failed(line, error)
            self._answers.write(record)
            self.tally.add(record)
            advance()


async def post(client: "httpx2.AsyncClient", line: Line, path: str, body: bytes) -> dict[str, Any]:
    """The record of a request, tried again while nobody can take it.

    Raises RuntimeUnavailable when there is nobody even so, KeyRefused for a wrong key.
    """
    import httpx2

    pause = FIRST_PAUSE
    for last in [False] * RETRIES + [True]:
        try:
            answer = await client.post(path, content=body, headers=JSON)
        except httpx2.RequestError as error:
            if last:
                raise remote.unreachable(str(client.base_url), error) from None
        else:
            if answer.status_code == WRONG_KEY:
                why = remote.refusal(answer.status_code, answer.content, answer.headers)
                raise KeyRefused(f"the server lets nobody in with this key: {why}")
            if answer.status_code not in BUSY or last:
                request_id = answer.headers.get("x-request-id", "")
                return answered(line, answer.status_code, request_id, _body(answer.content))
            pause = max(pause, remote.retry_after(answer.headers, pause))
        await asyncio.sleep(min(pause, MAX_PAUSE))
        pause *= 2
    raise AssertionError("unreachable")


def _body(content: bytes) -> Any:
    try:
        value = json.loads(content, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    text = remote.message_of(content)
    return {"error": {"message": text, "type": "internal_error", "param": None, "code": None}}


def _finite(text: str) -> float | None:
    """A number of an answer; None for one that JSON does not have, such as NaN."""
    value = float(text)
    return value if math.isfinite(value) else None
