"""What HTTP costs: streamed requests through a server, and through the runtime's own client.

    python -m benchmarks.serve [--quick] [--model PATH]

Both sides run the same prompts, with as many requests open at once, against a runtime of the same
settings; the runs are interleaved in pairs and their ratio is what counts. The client that makes
the load shares the cores with both, so its work is in the figures as well. Then the time to the
first token of requests with a shared prefix is taken under load, with the cache and without it.
All of it takes about three minutes on two cores; what is being measured is told on stderr.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.harness import Report, Spread, arguments, percentile, progress, table
from radixgen import AsyncRuntime, SamplingParams, env

SETTINGS = {"threads": 1, "num_pages": 4000, "max_context": 2048}
GOAL = 0.90  # of the in-process rate: HTTP costs at most 10 %
GOAL_TTFT = 2.0  # a cached prefix against none
MIN_PAIRS = 3
SHARED = "You are a careful assistant and answer from the notes below and from nothing else. " * 24


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests at once of so many tokens each. Pairs are run for so many seconds, and
    at least MIN_PAIRS of them."""

    connections: int
    tokens: int
    seconds: float


QUICK = (Load(1, 32, 5), Load(32, 16, 12), Load(256, 4, 8))
FULL = (Load(1, 64, 20), Load(32, 32, 40), Load(256, 8, 40))
FIRST_TOKENS = {True: 8, False: 48}  # requests by `quick`


def prompts(num: int, run: str) -> list[str]:
    """A shared beginning, and an end of its own for each run and request."""
    return [f"You are asked a question. Number {i} of {run}: what is it?" for i in range(num)]


async def direct(runtime: AsyncRuntime, texts: list[str], tokens: int) -> float:
    """Seconds through the client of the runtime."""
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)

    async def one(text: str) -> int:
        return sum([len(p.token_ids) async for p in runtime.generate(text, sampling, stream=True)])

    begin = time.perf_counter()
    counts = await asyncio.gather(*map(one, texts))
    assert counts == [tokens] * len(texts)
    return time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Server:
    """A server's process, its port, and the name of its model."""

    process: "subprocess.Popen[str]"
    port: int
    model: str

    @classmethod
    def start(cls, model: str, **environment: str) -> "Server":
        command = [sys.executable, "-m", "radixgen", "serve", *([model] if model else [])]
        options = [part for n, v in SETTINGS.items() for part in ("--set", f"{n}={v}")]
        process = subprocess.Popen(
            [*command, "--port", "0", "--no-log-requests", *options],
            stderr=subprocess.PIPE,
            text=True,
            env=env.child_environment(COLUMNS="300", **environment),
        )
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            found = re.search(r"(\S+) is served at \S+:(\d+);", line)
            if found:
                return cls(process, int(found[2]), found[1])
        raise RuntimeError(f"the server did not start: {said}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def cpu_seconds(self) -> float:
        """Of the front end alone; the runtime is a process of its own."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    async def stream(self, text: str, tokens: int) -> float:
        """Seconds to the first event. Plain sockets, so that the load itself costs little."""
        body = json.dumps(
            {"model": self.model, "prompt": text, "max_tokens": tokens, "temperature": 0,
             "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        ).encode()  # fmt: skip
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"data: ")
        first = time.perf_counter() - begin
        answer += await reader.read()
        writer.close()
        found = re.search(rb'"completion_tokens":(\d+)', answer)
        if found is None or int(found[1]) != tokens or b"[DONE]" not in answer:
            raise RuntimeError(f"the server answered {answer[:300]!r}")
        return first

    async def run(self, texts: list[str], tokens: int) -> float:
        """Seconds that all of them take."""
        begin = time.perf_counter()
        await asyncio.gather(*(self.stream(text, tokens) for text in texts))
        return time.perf_counter() - begin


async def compare(server: Server, runtime: AsyncRuntime, load: Load, report: Report) -> None:
    """Pairs of runs, one a side, in turn first and second."""
    seconds: dict[str, list[float]] = {"direct": [], "http": []}
    num, tokens, spent = load.connections, load.connections * load.tokens, 0.0
    end, run = time.perf_counter() + load.seconds, 0
    while run <= MIN_PAIRS or time.perf_counter() < end:
        texts = prompts(num, f"{num}/{run}")
        pair: dict[str, float] = {}
        for side in ("direct", "http") if run % 2 else ("http", "direct"):
            if side == "direct":
                pair[side] = await direct(runtime, texts, load.tokens)
            else:
                before = server.cpu_seconds()
                pair[side] = await server.run(texts, load.tokens)
                spent += server.cpu_seconds() - before if run else 0.0
        for side, value in pair.items() if run else ():  # the first warms both
            seconds[side].append(value)
        progress(f"{num} connections, pair {run}: {pair['direct'] / pair['http']:.3f}")
        run += 1
    ratios = [d / h for h, d in zip(seconds["http"], seconds["direct"], strict=True)]
    ratio = Spread.of(ratios)
    report.results[f"{num} connections"] = {
        "direct tokens/s": Spread.of([tokens / s for s in seconds["direct"]]).as_dict(),
        "http tokens/s": Spread.of([tokens / s for s in seconds["http"]]).as_dict(),
        "http requests/s": Spread.of([num / s for s in seconds["http"]]).as_dict(),
        "http/direct": ratio.as_dict(),
        "front-end CPU us/token": 1e6 * spent / (tokens * len(ratios)),
    }
    report.at_least(f"http/direct at {num}", ratio.median, GOAL)


async def first_tokens(model: str, server: Server, num: int, report: Report) -> None:
    """Requests that share most of their prompt, eight at once: with the cache, and without."""
    found: dict[str, list[float]] = {}
    for name in ("on", "off"):
        side = server if name == "on" else Server.start(model, RADIXGEN_FORCE_MISS="1")
        gate = asyncio.Semaphore(8)

        async def one(number: int, side: Server = side, gate: asyncio.Semaphore = gate) -> float:
            async with gate:
                return await side.stream(f"{SHARED}Question {number}: why?", 8)

        progress(f"time to first token of {num} requests, cache {name}")
        try:
            await one(-1)
            found[name] = list(await asyncio.gather(*map(one, range(num))))
        finally:
            if side is not server:
                side.stop()
    rows = [
        [f"cache {name}", *(f"{1000 * percentile(times, p):.0f} ms" for p in (50, 99))]
        for name, times in found.items()
    ]
    print()
    table(["time to first token", "median", "p99"], rows)
    for name, times in found.items():
        report.results[f"first token, cache {name}"] = Spread.of(times).as_dict()
    gain = percentile(found["off"], 50) / percentile(found["on"], 50)
    report.at_least("first token without the cache / with it", gain, GOAL_TTFT)


def show(report: Report) -> None:
    rows = [
        [
            name,
            f"{found['direct tokens/s']['median']:.0f}",
            f"{found['http tokens/s']['median']:.0f}",
            f"{found['http requests/s']['median']:.1f}",
            f"{found['http/direct']['median']:.3f}",
            str(found["http/direct"]["n"]),
            f"{found['front-end CPU us/token']:.0f}",
        ]
        for name, found in report.results.items()
    ]
    columns = ["direct tok/s", "http tok/s", "http req/s", "ratio", "pairs", "front-end us/token"]
    table(["", *columns], rows)


async def measure(model: str, quick: bool, report: Report) -> None:
    server = Server.start(model)
    options: dict[str, Any] = dict(SETTINGS)
    try:
        async with AsyncRuntime(model, **options) as runtime:
            for load in QUICK if quick else FULL:
                await compare(server, runtime, load, report)
        show(report)
        await first_tokens(model, server, FIRST_TOKENS[quick], report)
    finally:
        server.stop()


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="", help="default: the embedded one")
    chosen = parser.parse_args()
    report = Report("serve", {"model": chosen.model or "embedded", "settings": SETTINGS})
    asyncio.run(measure(chosen.model, chosen.quick, report))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
