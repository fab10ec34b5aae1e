"""What HTTP costs: streamed requests through a server, and through the runtime's own client.

    python -m benchmarks.serve [--quick] [--model PATH]

Both sides run the same prompts, with as many requests open at once, against a runtime of the same
settings; the runs are interleaved and their ratio is what counts. The client that
makes the load shares the cores with both, so its work is in the figures as well.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from typing import Any

import psutil

from benchmarks.harness import Report, Spread, arguments, table
from radixgen import AsyncRuntime, SamplingParams, env

CONNECTIONS = (1, 32, 256)
TOKENS = 32
GOAL = 0.90  # of the in-process rate: HTTP costs at most 10 %


def prompts(num: int, run: str) -> list[str]:
    """A shared beginning, and an end of its own for each run and request."""
    return [f"You are asked a question. Number {i} of {run}: what is it?" for i in range(num)]


async def direct(runtime: AsyncRuntime, texts: list[str]) -> float:
    """Tokens a second through the client of the runtime."""
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)

    async def one(text: str) -> int:
        return sum([len(p.token_ids) async for p in runtime.generate(text, sampling, stream=True)])

    begin = time.perf_counter()
    num_tokens = sum(await asyncio.gather(*map(one, texts)))
    return num_tokens / (time.perf_counter() - begin)


async def over_http(port: int, model: str, texts: list[str]) -> float:
    """Tokens a second through the server: plain sockets, so that the load itself costs little."""

    async def one(text: str) -> int:
        body = json.dumps(
            {"model": model, "prompt": text, "max_tokens": TOKENS, "temperature": 0,
             "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        ).encode()  # fmt: skip
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        found = re.search(rb'"completion_tokens":(\d+)', answer)
        if found is None or b"[DONE]" not in answer:
            raise RuntimeError(f"the server answered {answer[:300]!r}")
        return int(found[1])

    begin = time.perf_counter()
    num_tokens = sum(await asyncio.gather(*map(one, texts)))
    return num_tokens / (time.perf_counter() - begin)


def start_server(model: str, settings: list[str]) -> tuple["subprocess.Popen[str]", int, str]:
    """The process, its port, and the model's name."""
    command = [sys.executable, "-m", "radixgen", "serve", *([model] if model else [])]
    options = [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-log-requests", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=env.child_environment(COLUMNS="300"),
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        found = re.search(r"(\S+) is served at \S+:(\d+);", line)
        if found:
            return process, int(found[2]), found[1]
    raise RuntimeError(f"the server did not start: {said}")


async def compare(model: str, settings: list[str], repeats: int, report: Report) -> None:
    options: dict[str, Any] = {s.split("=")[0]: int(s.split("=")[1]) for s in settings}
    process, port, name = start_server(model, settings)
    try:
        async with AsyncRuntime(model, **options) as runtime:
            for connections in CONNECTIONS:
                rates: dict[str, list[float]] = {"direct": [], "http": []}
                front, tokens = 0.0, 0
                # One request is short against noise and the clock of CPU time: many of them.
                num_runs = 8 * repeats if connections == 1 else repeats
                for run in range(-1, num_runs):  # the first warms both
                    texts = prompts(connections, f"{connections}/{run}")
                    pair: dict[str, float] = {}
                    spent = 0.0
                    for side in ("direct", "http") if run % 2 else ("http", "direct"):
                        if side == "direct":
                            pair[side] = await direct(runtime, texts)
                        else:
                            before = _cpu_seconds(process.pid)
                            pair[side] = await over_http(port, name, texts)
                            spent = _cpu_seconds(process.pid) - before
                    if run >= 0:
                        for side, rate in pair.items():
                            rates[side].append(rate)
                        front += spent
                        tokens += connections * TOKENS
                ratios = [h / d for h, d in zip(rates["http"], rates["direct"], strict=True)]
                report.results[f"{connections} connections"] = {
                    "direct tokens/s": Spread.of(rates["direct"]).as_dict(),
                    "http tokens/s": Spread.of(rates["http"]).as_dict(),
                    "http/direct": Spread.of(ratios).as_dict(),
                    "front-end CPU us/token": 1e6 * front / tokens,
                }
                report.at_least(f"http/direct at {connections}", Spread.of(ratios).median, GOAL)
    finally:
        process.terminate()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def _cpu_seconds(pid: int) -> float:
    """Of the front end alone; the runtime is a process of its own."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def show(report: Report) -> None:
    rows = [
        [
            name,
            f"{found['direct tokens/s']['median']:.0f}",
            f"{found['http tokens/s']['median']:.0f}",
            f"{found['http/direct']['median']:.3f}",
            f"{found['front-end CPU us/token']:.0f}",
        ]
        for name, found in report.results.items()
    ]
    table(["", "direct tok/s", "http tok/s", "ratio", "front-end us/token"], rows)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="", help="default: the embedded one")
    chosen = parser.parse_args()
    repeats = 2 if chosen.quick else 5
    settings = ["threads=1", "num_pages=4000", "max_context=2048"]
    report = Report("serve", {"model": chosen.model or "embedded", "tokens": TOKENS})
    asyncio.run(compare(chosen.model, settings, repeats, report))
    show(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
