"""What the language itself costs: time for each `gen`, memory for each waiting program.

    python -m benchmarks.program_overhead [--quick]

The backend answers at once with a fixed text, so that everything measured is the language's own:
the step to the event loop and back, the conversation's growth, variables, streams.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from benchmarks.harness import Report, Spread, arguments, table
from radixgen.lang import assistant, function, gen, user
from radixgen.lang.backends.protocol import Generation, Push, Scored
from radixgen.lang.chat import ChatFormat
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen, GenOptions, Node, Scores, Select
from radixgen.lang.state import AsyncProgramState
from radixgen.threads import LoopThread
from radixgen.types import CacheHint

GOAL_SECONDS = 200e-6  # for each gen
GOAL_BYTES = 1e9  # for all waiting programs
NUM_STATES = 10_000


def render(messages: list[dict[str, str]], generation: bool) -> str:
    text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
    return text + ("<assistant>" if generation else "")


class InstantBackend:
    """Answers every request at once, or when `gate` opens. Tokens are bytes."""

    def __init__(self) -> None:
        self._thread = LoopThread("instant backend")
        self.loop: asyncio.AbstractEventLoop = self._thread.loop
        self.chat = ChatFormat(render)
        self.gate: asyncio.Event | None = None
        self.num_waiting = 0
        self._thread.run(asyncio.sleep(0))

    def close(self) -> None:
        self._thread.stop()

    def encode(self, text: str, at_start: bool) -> Sequence[int]:
        return text.encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    def check(self, node: Node) -> None:
        if isinstance(node, Gen):
            node.options.sampling()

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        conversation.prompt()
        if self.gate is not None:
            self.num_waiting += 1
            await self.gate.wait()
        push("answer")
        return [Generation("answer", b"answer")]

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        return Scored(Scores(select.choices, ((0.0,),) * len(select.choices)))

    async def warm(
        self, conversation: Conversation, options: GenOptions, hint: CacheHint
    ) -> None: ...

    async def flush_cache(self) -> None: ...

    async def server_info(self) -> Mapping[str, Any]:
        return {}


@function
def reads_each(s: Any, num: int) -> None:
    for _ in range(num):
        s += user("question") + assistant(gen("a", max_tokens=8))
        s["a"]


@function
def reads_last(s: Any, num: int) -> None:
    for _ in range(num):
        s += "question " + gen("a", max_tokens=8)
    s["a"]


@function
async def awaits_each(s: AsyncProgramState, num: int) -> None:
    for _ in range(num):
        s += user("question") + assistant(gen("a", max_tokens=8))
        await s["a"]


@function
async def waits(s: AsyncProgramState, i: int) -> None:
    s += f"state {i} has a prompt of its own of some length, as programs do. " + gen("a")
    await s["a"]


def per_gen(backend: InstantBackend, program: Any, num: int, repeats: int) -> Spread:
    """Seconds for each gen of a program that has `num`."""
    program.run(num=num, backend=backend)
    samples = []
    for _ in range(repeats):
        begin = time.perf_counter()
        program.run(num=num, backend=backend)
        samples.append((time.perf_counter() - begin) / num)
    return Spread.of(samples)


def many_programs(backend: InstantBackend, num: int) -> dict[str, float]:
    """Programs that all wait for the model at once, in one process: bytes, threads, seconds."""

    async def main() -> dict[str, float]:
        gate = await _in(backend, _new_gate())
        backend.gate, backend.num_waiting = gate, 0
        begin = time.perf_counter()
        runs = [asyncio.create_task(waits.arun(i, backend=backend)) for i in range(num)]
        while backend.num_waiting < num:
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - begin
        process = psutil.Process()
        found = {"seconds_to_start": seconds, "rss": process.memory_info().rss}
        found["threads"] = process.num_threads()
        backend.loop.call_soon_threadsafe(gate.set)
        states = await asyncio.gather(*runs)
        found["seconds"] = time.perf_counter() - begin
        assert all(state.executor.error is None for state in states)
        backend.gate = None
        return found

    gc.collect()
    before = psutil.Process().memory_info().rss
    found = asyncio.run(main())
    return found | {"bytes_per_state": (found["rss"] - before) / num}


async def _new_gate() -> asyncio.Event:
    return asyncio.Event()


async def _in(backend: InstantBackend, work: Any) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, backend.loop))


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    num, repeats = (200, 5) if args.quick else (500, 15)
    backend = InstantBackend()
    try:
        costs = {
            "def, each value read": per_gen(backend, reads_each, num, repeats),
            "def, last value read": per_gen(backend, reads_last, num, repeats),
            "async def, each awaited": per_gen(backend, awaits_each, num, repeats),
        }
        many = many_programs(backend, NUM_STATES)
    finally:
        backend.close()
    rows = [
        [name, *(f"{value * 1e6:.0f}" for value in (cost.low, cost.median, cost.high))]
        for name, cost in costs.items()
    ]
    table(["microseconds for a gen", "p25", "median", "p75"], rows)
    print()
    names = {
        "MB of the process": many["rss"] / 1e6,
        "kB for a program": many["bytes_per_state"] / 1e3,
        "threads": many["threads"],
        "seconds until all wait": many["seconds_to_start"],
        "seconds in all": many["seconds"],
    }
    table([f"{NUM_STATES:,} programs at once", ""], [[k, f"{v:.1f}"] for k, v in names.items()])
    report = Report("program_overhead", {"gens": num, "states": NUM_STATES})
    report.results = {**costs, "many": many}
    for name, cost in costs.items():
        report.at_most(f"seconds for a gen: {name}", cost.median, GOAL_SECONDS)
    report.at_most(f"bytes of a process with {NUM_STATES} programs", many["rss"], GOAL_BYTES)
    report.at_most("threads with that many programs", many["threads"], 16)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
