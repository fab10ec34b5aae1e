"""What benchmarks share: arguments, medians, a table for people, a line of JSON for machines."""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT.parent / "shared" / "data" / "traces"
_BEGAN = time.monotonic()


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with `--quick`, which ends within a minute on two cores."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller, done within a minute")
    return parser


@dataclass(frozen=True, slots=True)
class Spread:
    """Samples of one quantity, as their median, quartiles and number."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    num_samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples))

    def as_dict(self) -> dict[str, float]:
        return {"median": self.median, "p25": self.low, "p75": self.high, "n": self.num_samples}


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that `percent` per cent of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def measure(action: Callable[[], Any], repeats: int) -> Spread:
    """Seconds of each of `repeats` calls."""
    samples: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        samples.append(time.perf_counter() - begin)
    return Spread.of(samples)


@dataclass(slots=True)
class Report:
    """One run of one benchmark: its results, and its goals with what was measured for each."""

    benchmark: str
    parameters: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def at_most(self, name: str, value: float, goal: float) -> None:
        self.checks[name] = {"value": value, "goal": f"<= {goal:g}", "ok": bool(value <= goal)}

    def at_least(self, name: str, value: float, goal: float) -> None:
        self.checks[name] = {"value": value, "goal": f">= {goal:g}", "ok": bool(value >= goal)}

    def equal(self, name: str, value: float, goal: float) -> None:
        self.checks[name] = {"value": value, "goal": f"== {goal:g}", "ok": bool(value == goal)}

    def near(self, name: str, value: float, goal: float, tolerance: float) -> None:
        ok = bool(abs(value - goal) <= tolerance)
        self.checks[name] = {"value": value, "goal": f"{goal:g} +- {tolerance:g}", "ok": ok}

    def finish(self) -> int:
        """Print the checks and, last, the JSON line; the exit status: 1 if any check is not ok."""
        if self.checks:
            rows = [
                [name, f"{check['value']:.6g}", check["goal"], "ok" if check["ok"] else "MISSED"]
                for name, check in self.checks.items()
            ]
            print()
            table(["check", "measured", "goal", ""], rows)
        line = {
            "benchmark": self.benchmark,
            "commit": _commit(),
            "device": _device(),
            "threads": self.parameters.get("threads") or _threads(),
            "parameters": self.parameters,
            "results": self.results,
            "checks": self.checks,
        }
        print(json.dumps(line, default=_plain))
        return 0 if all(check["ok"] for check in self.checks.values()) else 1


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; all but the first to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def progress(what: str) -> None:
    """A line for who waits, with the seconds since the process began; no part of the results."""
    seconds = time.monotonic() - _BEGAN
    print(f"[{seconds:5.0f} s] {what}", file=sys.stderr, flush=True)


def trace_file(name: str) -> Path:
    """A saved trace. Exits with the reason when it is not there."""
    path = TRACES / name
    if not path.exists():
        sys.exit(f"{path} is missing: the traces lie in a folder `shared` beside the checkout")
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return value.as_dict()
    raise TypeError(f"{type(value).__name__} in a report")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _threads() -> int:
    """Threads of the kernels that this process has loaded; without them everything runs on one."""
    library = sys.modules.get("radixgen.kernels.library")
    return library.num_threads() if library else 1


def _device() -> str:
    """The processor's name and its number of cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"
