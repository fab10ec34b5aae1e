"""What a server lives through: crowds, clients that give up, and a runtime that is killed.

    python -m benchmarks.endurance [--quick] [--model PATH]

Each fault is done to one server on end; after each it must answer a new request soon, hold no
page for anybody, and have grown by little.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import psutil

from benchmarks.harness import Report, arguments, percentile, table
from benchmarks.serve import Server

LONG, SHORT = 1500, 4
GOAL_SECONDS = 5.0  # for a new request, after a fault
GOAL_GROWTH = 1.25  # of memory, against that after the first crowd


class Rig:
    """A server, and what is asked of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", timeout=120, verify=False
        )

    async def info(self) -> Any:
        return (await self.http.get("/server_info")).json()

    async def stream(self, text: str, tokens: int, seconds: float | None = None) -> str:
        """How a stream ended: done, error, gave up, refused, or cut."""
        body = json.dumps(
            {"model": self.server.model, "prompt": text, "max_tokens": tokens, "stream": True,
             "ignore_eos": True, "temperature": 0}
        ).encode()  # fmt: skip
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nconnection: close\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            answer = await asyncio.wait_for(reader.read(-1), seconds)
        except TimeoutError:
            return "gave up"
        except ConnectionError:
            return "cut"
        finally:
            writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            return f"refused {answer[9:12].decode()}"
        if b"[DONE]" not in answer:
            return "cut"
        return "error" if b'"error"' in answer else "done"

    async def settle(self) -> float:
        """Seconds until a new request is answered; then until nothing is open and no page held."""
        begin = time.perf_counter()
        while await self.stream("are you there?", SHORT) != "done":
            await asyncio.sleep(0.05)
        seconds = time.perf_counter() - begin
        while True:
            info = await self.info()
            pages = info["runtime"]
            if info["open_prompts"] == pages["open_requests"] == pages["held_pages"] == 0:
                assert pages["free_pages"] + pages["tree_pages"] == pages["total_pages"]
                return seconds
            await asyncio.sleep(0.05)

    def memory(self) -> float:
        """MiB of the server and its children."""
        process = psutil.Process(self.server.process.pid)
        family = [process, *process.children(recursive=True)]
        return sum(p.memory_info().rss for p in family) / 2**20

    def kill_runtime(self) -> None:
        for child in psutil.Process(self.server.process.pid).children():
            if "radixgen.runtime" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)


async def crowd(rig: Rig, num: int) -> list[str]:
    return list(await asyncio.gather(*(rig.stream(f"{i}", SHORT) for i in range(num))))


async def impatient(rig: Rig, num: int) -> list[str]:
    return list(await asyncio.gather(*(rig.stream(f"{i} now", LONG, 0.5) for i in range(num))))


async def aborted(rig: Rig, num: int) -> list[str]:
    """Streams that are all told to end, twice, while they run."""
    streams = [asyncio.create_task(rig.stream(f"{i} storm", LONG)) for i in range(num)]
    while (await rig.info())["open_prompts"] < num:
        await asyncio.sleep(0.02)
    for _ in range(2):
        await rig.http.post("/abort_request", json={"abort_all": True})
    return list(await asyncio.gather(*streams))


async def killed(rig: Rig, num: int) -> list[str]:
    """Streams whose runtime dies under them."""
    streams = [asyncio.create_task(rig.stream(f"{i} killed", LONG)) for i in range(num)]
    while (await rig.info())["open_prompts"] < num:
        await asyncio.sleep(0.02)
    rig.kill_runtime()
    return list(await asyncio.gather(*streams))


Fault = Callable[[Rig, int], Awaitable[list[str]]]


async def endure(rig: Rig, quick: bool, report: Report) -> None:
    faults: list[tuple[str, Fault, int, int, set[str]]] = [
        ("streams at once", crowd, 1000, 1 if quick else 5, {"done"}),
        ("clients that give up", impatient, 200, 1 if quick else 5, {"gave up"}),
        ("aborted streams", aborted, 100, 1 if quick else 5, {"done"}),
        ("streams of a killed runtime", killed, 20, 2 if quick else 10, {"error", "refused 503"}),
    ]
    rows, first = [], 0.0
    for name, fault, num, rounds, wanted in faults:
        ends: dict[str, int] = {}
        seconds = []
        for _ in range(rounds):
            for end in await fault(rig, num):
                ends[end] = ends.get(end, 0) + 1
            seconds.append(await rig.settle())
        memory = rig.memory()
        first = first or memory
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        slowest = percentile(seconds, 100)
        rows.append([name, f"{rounds} x {num}", told, f"{slowest:.2f} s", f"{memory:.0f} MiB"])
        report.results[name] = {"ends": ends, "seconds": seconds, "MiB": memory}
        report.equal(f"{name}: ends as they should", sum(ends.get(w, 0) for w in wanted),
                     rounds * num)  # fmt: skip
        if fault is not killed:  # there it is the start of a runtime, which a model takes
            report.at_most(f"{name}: seconds to a new answer", slowest, GOAL_SECONDS)
        report.at_most(f"{name}: memory", memory / first, GOAL_GROWTH)
    table(["", "rounds", "ends", "new answer", "memory"], rows)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="", help="default: the embedded one")
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = Report("endurance", {"model": chosen.model or "embedded", "quick": chosen.quick})
    server = Server.start(chosen.model)
    try:
        asyncio.run(endure(Rig(server), chosen.quick, report))
    finally:
        server.stop()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
