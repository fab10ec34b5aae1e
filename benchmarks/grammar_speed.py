"""How fast are grammars compiled and masks filled, beside other engines where they are installed?

    python -m benchmarks.grammar_speed [--quick] [--tokenizer FILE] [--engines NAMES] [--site DIR]
                                       [--processes N]

Public schemas with their instances: each schema is compiled by every engine in turn, then its
instances are followed token by token, one mask before each token and one at the end. `--tokenizer`
is a byte-level tokenizer.json (default: that of the embedded model); `--site` is a folder with the
other engines' packages, if they are not in this environment. The garbage collector runs between
schemas and not within a measurement, for all engines alike. All is done in so many `--processes`,
one after the other, each with engines anew, and of each compile and mask the least time counts:
what a machine that does other things too adds to one of them is no engine's. `--clock cpu` counts
the thread's own time (and 0.3 us a call). outlines-core, which has to be named in `--engines`,
counts as not compiling a schema after five seconds.
"""

import gc
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.grammar_adapters import ADAPTERS
from benchmarks.harness import ROOT, Report, arguments, percentile, progress, table
from radixgen.grammars.token_bytes import read_json
from radixgen.model.hub import resolve
from radixgen.tokenizer_files import prepare

DATA = ROOT.parent / "shared" / "data" / "maskbench_public.jsonl"
MODULES = {"llguidance": "llguidance", "xgrammar": "xgrammar", "outlines-core": "outlines_core"}
MAX_TOKENS = 4000  # of an instance
# Goals in microseconds at a 128k vocabulary.
GOALS = {
    ("compile", "p50"): 500.0,
    ("compile", "p99"): 10_000.0,
    ("compile", "max"): 30_000.0,
    ("mask", "p50"): 3.0,
    ("mask", "mean"): 10.0,
    ("mask", "p99"): 100.0,
    ("mask", "max"): 5_000.0,
}
COLUMNS = ("p50", "mean", "p95", "p99", "max")


class Vocab:
    """A tokenizer.json as every adapter takes it."""

    def __init__(self, path: Path, end_ids: list[int]) -> None:
        from tokenizers import Tokenizer

        tree = json.loads(path.read_bytes())
        self.path, self.eos = str(path), end_ids
        self.tokenizer = Tokenizer.from_file(self.path)
        spelled = read_json(tree, tuple(end_ids))
        self.bytes = [data or b"" for data in spelled.tokens]
        self.size = len(self.bytes)
        self.special = {token["id"] for token in tree.get("added_tokens") or ()}
        self.raw = [""] * self.size
        for text, i in self.tokenizer.get_vocab(with_added_tokens=True).items():
            self.raw[i] = text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@dataclass(slots=True)
class Times:
    """One engine's samples in microseconds, and how it judged the schemas."""

    adapter: Any
    compile: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    accept: list[float] = field(default_factory=list)
    compiled: int = 0
    right: int = 0
    accepted_wrongly: int = 0
    refused_wrongly: int = 0


CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}
clock = time.perf_counter_ns


def timed(samples: list[float], call: Callable[..., Any], *arguments: Any) -> Any:
    """Call, and note how long it took, also when it raised."""
    begin = clock()
    try:
        return call(*arguments)
    finally:
        samples.append((clock() - begin) / 1000)


def follow(times: Times, token_ids: list[int], ends: list[int]) -> bool:
    """Whether an instance is accepted, the end included."""
    adapter = times.adapter
    adapter.reset()
    for token in token_ids:
        timed(times.mask, adapter.fill)
        if not adapter.allowed(token) or not timed(times.accept, adapter.accept, token):
            return False
    timed(times.mask, adapter.fill)
    return any(adapter.allowed(end) for end in ends)


def finishes(call: Callable[[], Any], seconds: float) -> bool:
    """Whether a call ends within so many seconds, tried in a child that shares nothing."""
    child = os.fork()
    if not child:
        try:
            call()
        finally:
            os._exit(0)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.001)
    return True


def run_schema(times: Times, row: dict[str, Any], texts: list[list[int]], ends: list[int]) -> None:
    gc.collect(0)
    limit = times.adapter.max_seconds
    if limit is not None and not finishes(lambda: times.adapter.compile(row["schema"]), limit):
        times.compile.append(limit * 1e6)
        return
    try:
        timed(times.compile, times.adapter.compile, row["schema"])
    except Exception:  # whatever another engine raises for what it does not take
        return
    times.compiled += 1
    wrong = 0
    for test, token_ids in zip(row["tests"], texts, strict=True):
        accepted = follow(times, token_ids, ends)
        times.accepted_wrongly += accepted and not test["valid"]
        times.refused_wrongly += test["valid"] and not accepted
        wrong += accepted != test["valid"]
    times.right += wrong == 0


def summary(samples: list[float]) -> dict[str, float]:
    return {
        "p50": percentile(samples, 50),
        "mean": sum(samples) / len(samples),
        "p95": percentile(samples, 95),
        "p99": percentile(samples, 99),
        "max": max(samples),
    }


def present(names: list[str]) -> list[str]:
    """Those of the engines that can be imported here."""
    return [n for n in names if n not in MODULES or importlib.util.find_spec(MODULES[n])]


def embedded_tokenizer() -> tuple[Path, list[int]]:
    """The embedded model's tokenizer.json, and its end tokens."""
    prepared = prepare(resolve().path)
    return prepared.directory / "tokenizer.json", list(prepared.eos_ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process measures."""

    names: list[str]
    rows: list[dict[str, Any]]
    tokenizer: Path
    end_ids: list[int]
    site: str | None
    clock: str

    def prepare(self) -> None:
        global clock
        clock = CLOCKS[self.clock]
        if self.site and self.site not in sys.path:
            sys.path.append(self.site)


def least_of(plan: Plan, processes: int) -> dict[str, Times]:
    """The least of each sample of several processes, each with engines anew."""
    found: dict[str, Times] = {}
    for number in range(processes):
        progress(f"process {number + 1} of {processes}")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            for name, times in pool.submit(measure, plan).result().items():
                before = found.setdefault(name, times)
                for kind in ("compile", "mask", "accept"):
                    pairs = zip(getattr(before, kind), getattr(times, kind), strict=True)
                    setattr(before, kind, [min(pair) for pair in pairs])
    return found


def measure(plan: Plan) -> dict[str, Times]:
    """Each engine's samples, its adapter left out."""
    plan.prepare()
    vocab = Vocab(plan.tokenizer, plan.end_ids)
    engines = {}
    for name in plan.names:
        adapter = ADAPTERS[name]()
        adapter.setup(vocab)
        engines[name] = Times(adapter)
    gc.collect()
    gc.freeze()
    gc.disable()
    for row in plan.rows:
        texts = [
            vocab.encode(json.dumps(test["data"], ensure_ascii=False))[:MAX_TOKENS]
            for test in row["tests"]
        ]
        for times in engines.values():
            run_schema(times, row, texts, vocab.eos)
    return {name: replace(times, adapter=None) for name, times in engines.items()}


def show(engines: dict[str, Times], total: int) -> None:
    rows = []
    for name, times in engines.items():
        cells = [f"{times.compiled}/{total}", f"{times.right}"]
        cells += [f"{times.accepted_wrongly}/{times.refused_wrongly}"]
        for samples in (times.compile, times.mask, times.accept):
            found = summary(samples)
            cells += [" ".join(f"{found[c]:.3g}" for c in COLUMNS)]
        rows.append([name, *cells])
    marks = "us p50 mean p95 p99 max"
    table(
        ["engine", "compiled", "right", "wrong +/-", f"compile {marks}", "mask", "accept"],
        rows,
    )


def check(report: Report, engines: dict[str, Times]) -> None:
    """The goals, and no column behind the best other engine."""
    found = {
        name: {"compile": summary(t.compile), "mask": summary(t.mask)}
        for name, t in engines.items()
    }
    report.results.update(found)
    ours = found["radixgen"]
    for (what, column), goal in GOALS.items():
        report.at_most(f"{what} {column} us", ours[what][column], goal)
        others = [f[what][column] for name, f in found.items() if name != "radixgen"]
        if others:
            ratio = ours[what][column] / min(others)
            report.at_most(f"{what} {column} against the best other", ratio, 1.0)
    report.equal("accepted wrongly", engines["radixgen"].accepted_wrongly, 0)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--end-ids", type=int, nargs="+")
    parser.add_argument("--engines", default="radixgen,llguidance,xgrammar")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--site", help="a folder with the packages of other engines")
    given = parser.parse_args()
    if given.tokenizer and not given.end_ids:
        parser.error("--tokenizer needs --end-ids, the ids of its end tokens")
    if given.processes < 1:
        parser.error(f"--processes {given.processes} must be at least 1")
    if not DATA.exists():
        sys.exit(f"{DATA} is missing: the data lie in a folder `shared` beside the checkout")
    rows = [row for row in map(json.loads, DATA.read_text().splitlines()) if row.get("bench300")]
    rows = rows[::6] if given.quick else rows
    path, end_ids = (given.tokenizer, given.end_ids) if given.tokenizer else embedded_tokenizer()
    plan = Plan([], rows, path, end_ids, given.site, given.clock)
    plan.prepare()
    plan.names.extend(present(given.engines.split(",")))
    engines = least_of(plan, given.processes)
    show(engines, len(rows))
    parameters = {"schemas": len(rows), "vocabulary": Vocab(path, end_ids).size}
    settings = {"engines": plan.names, "clock": given.clock, "processes": given.processes}
    report = Report("grammar_speed", parameters | settings)
    check(report, engines)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
