"""`radixgen bench serve`, `throughput` and `latency`: how fast a server or this machine is."""

import asyncio
import json
import math
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from radixgen.cli import common, remote
from radixgen.cli.bench_load import (
    ASSUMED_VOCABULARY,
    Sample,
    Target,
    Workload,
    put_under_load,
)
from radixgen.cli.bench_report import latencies, objectives, results, spread, tables
from radixgen.cli.common import err, out
from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.launch import Runtime
from radixgen.options import Prompt
from radixgen.types import SamplingParams

app = typer.Typer(
    help="Measure a server under load, or what this machine can do by itself.",
    no_args_is_help=True,
)

PROMPTS, ARRIVAL, REPORT, RUNTIME = "Prompts", "Arrival", "Report", "Runtime"

Requests = Annotated[
    int, typer.Option("--requests", "-N", help="How many.", rich_help_panel=PROMPTS)
]
PromptTokens = Annotated[
    int, typer.Option(help="Of each prompt, its own.", rich_help_panel=PROMPTS)
]
OutputTokens = Annotated[int, typer.Option(help="Of each answer.", rich_help_panel=PROMPTS)]
PrefixTokens = Annotated[
    int, typer.Option(help="That prompts begin with and share.", rich_help_panel=PROMPTS)
]
NumPrefixes = Annotated[
    int,
    typer.Option("--prefixes", help="Different beginnings, in turns.", rich_help_panel=PROMPTS),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Of prompts and arrivals. The same seed again finds its prompts in the cache.",
        show_default="random",
        rich_help_panel=PROMPTS,
    ),
]
Dollars = Annotated[
    float | None,
    typer.Option(
        help="What the machine costs: tells the cost of a million tokens.",
        rich_help_panel=REPORT,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=REPORT)
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A directory, a .gguf file or a hub id. Default: the embedded one.",
        callback=common.check_utf8,
        show_default=False,
        rich_help_panel=RUNTIME,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        callback=common.check_utf8,
        help="A setting of the runtime; may be repeated.",
        rich_help_panel=RUNTIME,
    ),
]


@app.command("serve")
def bench_serve(
    more_objectives: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    url: remote.Url = "",
    api_key: remote.ApiKey = "",
    model: remote.ServedModel = "",
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Use the chat API, with words.", rich_help_panel="Server"),
    ] = False,
    ignore_eos: Annotated[
        bool,
        typer.Option(help="Have every answer reach its length.", rich_help_panel="Server"),
    ] = True,
    requests: Requests = 100,
    prompt_tokens: PromptTokens = 128,
    output_tokens: OutputTokens = 32,
    prefix_tokens: PrefixTokens = 0,
    num_prefixes: NumPrefixes = 1,
    seed: Seed = None,
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            "-r",
            help="Requests a second, as they come by chance (Poisson); inf: all at once.",
            rich_help_panel=ARRIVAL,
        ),
    ] = math.inf,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            help="Open at once, at most.",
            show_default="no limit",
            rich_help_panel=ARRIVAL,
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Requests before, not measured.", rich_help_panel=ARRIVAL)
    ] = 1,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:MS …",
            help="Count the requests within ttft, tpot, itl or e2el.",
            rich_help_panel=REPORT,
        ),
    ] = None,
    dollars_per_hour: Dollars = None,
    as_json: AsJson = False,
) -> None:
    """Put a running server under load and tell how long its answers took.

    Works with any OpenAI-compatible server. Prompts are random tokens; give
    --prefix-tokens for prompts that share a beginning. The load is made by
    this process, which takes its part of a small machine.

    \b
    Examples:
      radixgen bench serve
      radixgen bench serve --rate 4 --goodput ttft:500 tpot:50
      radixgen bench serve -N 500 -c 64 --prefix-tokens 1000 --prefixes 5
      radixgen bench serve -u gpu-box:8000 -r 20 --dollars-per-hour 2.5 --json

    The exit status is 1 if a request failed.
    """
    if more_objectives and not goodput:
        raise InvalidRequest(f"unexpected argument {more_objectives[0]!r}; `bench serve` has none")
    slos = objectives([*(goodput or ()), *(more_objectives or ())])
    _check_dollars(dollars_per_hour)
    workload = Workload(requests, prompt_tokens, output_tokens, prefix_tokens, num_prefixes, rate,
                        concurrency, _seed(seed))  # fmt: skip
    address = remote.base_url(url)
    with remote.connect(address, api_key) as client:
        listed = remote.get_json(client, "/v1/models", address)
        name = model or remote.first_model(listed, address)
        vocab_size = None if chat else _vocabulary(client, address)

    async def measure() -> tuple[list[Sample], float]:
        async with remote.connect_async(address, api_key) as client:
            target = Target(client, name, chat, ignore_eos)
            with remote.explained(address):
                await _warm(target, workload, vocab_size, warmup)
            with common.progress() as bar:
                task = bar.add_task("requests", total=requests)
                prompts = workload.prompts(vocab_size)
                return await put_under_load(target, workload, prompts, lambda: bar.advance(task))

    samples, seconds = common.run_async(measure())
    found = results(samples, seconds, slos, dollars_per_hour)
    pace = "all at once" if math.isinf(rate) else f"{rate:g} a second"
    limit = f", {concurrency} open at most" if concurrency else ""
    title = f"{requests} requests to {name} at {address}, {pace}{limit}; seed {workload.seed}"
    _tell(title, "serve", workload, found, as_json)
    _fail_if_failed(samples)


async def _warm(target: Target, workload: Workload, vocab_size: int | None, num: int) -> None:
    """Requests like those to come, with prompts of their own. Raises what is wrong with them."""
    if num:
        seed = secrets.randbelow(2**31)
        like = Workload(num, workload.prompt_tokens + workload.prefix_tokens, 2, seed=seed)
        await asyncio.gather(*(target.time(prompt, 2) for prompt in like.prompts(vocab_size)))


def _vocabulary(client: Any, address: str) -> int:
    """The size of the server's vocabulary, if it tells, else one that fits."""
    try:
        info = remote.get_json(client, "/model_info", address)
        return int(info["vocab_size"])
    except (RadixgenError, KeyError, TypeError, ValueError):
        return ASSUMED_VOCABULARY


def _fail_if_failed(samples: list[Sample]) -> None:
    errors = [sample.error for sample in samples if sample.error is not None]
    if errors:
        err.print(
            f"[bold red]error:[/] {len(errors)} requests failed; one said:", escape(errors[0])
        )
        raise typer.Exit(common.FAILURE)


@app.command()
def throughput(
    model: Model = "",
    settings: Settings = None,
    requests: Requests = 100,
    prompt_tokens: PromptTokens = 128,
    output_tokens: OutputTokens = 32,
    prefix_tokens: PrefixTokens = 0,
    num_prefixes: NumPrefixes = 1,
    seed: Seed = None,
    dollars_per_hour: Dollars = None,
    as_json: AsJson = False,
) -> None:
    """Give a runtime everything at once, and tell how many tokens a second pass.

    \b
    Examples:
      radixgen bench throughput
      radixgen bench throughput --prefix-tokens 500 --prefixes 4
      radixgen bench throughput -m ./my-model --set max_running=512 --json
    """
    _check_dollars(dollars_per_hour)
    workload = Workload(requests, prompt_tokens, output_tokens, prefix_tokens, num_prefixes,
                        seed=_seed(seed))  # fmt: skip
    with common.started(model, settings) as runtime:
        name = Path(runtime.ready.model).name
        _run(runtime, [[1]], 2)
        prompts = workload.prompts(runtime.ready.vocab_size)
        with common.progress() as bar:
            task = bar.add_task("requests", total=requests)
            begun = time.perf_counter()
            samples = _run(runtime, prompts, output_tokens, lambda: bar.advance(task))
            seconds = time.perf_counter() - begun
    found = results(samples, seconds, None, dollars_per_hour)
    title = f"{requests} requests at once to {name}; seed {workload.seed}"
    _tell(title, "throughput", workload, found, as_json)


@app.command()
def latency(
    model: Model = "",
    settings: Settings = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Requests side by side.", rich_help_panel=PROMPTS)
    ] = 1,
    prompt_tokens: PromptTokens = 32,
    output_tokens: OutputTokens = 32,
    repeats: Annotated[
        int, typer.Option(min=1, help="Batches that are measured.", rich_help_panel=PROMPTS)
    ] = 10,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Run one batch after the other through a runtime, and tell how long each takes.

    \b
    Examples:
      radixgen bench latency
      radixgen bench latency --batch-size 8 --output-tokens 128 --repeats 30
      radixgen bench latency --model ./my-model --set prompt_lookup=false --json
    """
    num = batch_size * repeats
    workload = Workload(num, prompt_tokens, output_tokens, seed=_seed(seed))
    with common.started(model, settings) as runtime:
        name = Path(runtime.ready.model).name
        prompts = workload.prompts(runtime.ready.vocab_size)
        batches = [prompts[i : i + batch_size] for i in range(0, num, batch_size)]
        _run(runtime, [[1]] * batch_size, 2)
        samples: list[Sample] = []
        times: list[float] = []
        with common.progress() as bar:
            for batch in bar.track(batches, description="batches"):
                begun = time.perf_counter()
                samples += _run(runtime, batch, output_tokens)
                times.append(time.perf_counter() - begun)
    found = {
        "batch_size": batch_size,
        "repeats": repeats,
        "batch_ms": spread(times),
        "step_ms": spread([seconds / output_tokens for seconds in times]),
        "ttft_ms": spread([sample.first_token for sample in samples]),
        "tpot_ms": spread([sample.per_token or 0.0 for sample in samples]),
    }
    if as_json:
        out.print_json(json.dumps(_object("latency", workload, found)))
        return
    shape = f"{prompt_tokens} tokens in, {output_tokens} out"
    out.print(f"{repeats} batches of {batch_size} to {escape(name)}: {shape}\n")
    out.print(latencies(found))


def _run(
    runtime: Runtime,
    prompts: list[Prompt],
    max_tokens: int,
    advance: Any = lambda: None,
) -> list[Sample]:
    """All prompts at once, as samples; how long each took is the runtime's own account."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    samples: list[Sample] = []
    for piece in runtime.generate(prompts, sampling, stream=True):
        if piece.result is not None:
            usage = piece.result.usage
            samples.append(
                Sample(
                    usage.first_token_seconds,
                    usage.total_seconds,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cached_tokens,
                    output_tokens=usage.completion_tokens,
                )
            )
            advance()
    return samples


def _seed(given: int | None) -> int:
    return secrets.randbelow(2**31) if given is None else abs(given)


def _check_dollars(dollars: float | None) -> None:
    if dollars is not None and not 0 <= dollars < math.inf:
        message = f"--dollars-per-hour {dollars} must not be negative"
        raise InvalidRequest(message, "dollars_per_hour")


def _object(kind: str, workload: Workload, found: dict[str, Any]) -> dict[str, Any]:
    given = asdict(workload)
    given["rate"] = None if math.isinf(workload.rate) else workload.rate  # JSON has no infinity
    return {"benchmark": kind, "parameters": given, "results": found}


def _tell(title: str, kind: str, workload: Workload, found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        out.print_json(json.dumps(_object(kind, workload, found)))
        return
    shared = f"{workload.prefix_tokens} shared + " if workload.prefix_tokens else ""
    out.print(escape(title))
    out.print(f"{shared}{workload.prompt_tokens} tokens in, {workload.output_tokens} out\n")
    for table in tables(found, workload.best_hit_rate if workload.prefix_tokens else None):
        out.print(table)
        out.print()
