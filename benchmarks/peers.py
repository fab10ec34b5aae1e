"""radixgen beside other engines: the same model file, prompts, threads and machine, in one run.

    W1   1 request of 128 tokens, 128 drawn
    W2  32 requests of 256, nothing in common, 128 drawn of each
    W3  64 requests of 1,024 common and 32 own tokens, 32 drawn of each
    W4  16 chats that extract a person under a JSON schema, at most 64 drawn of each

Engines take turns workload by workload, each in a process of its own, and after one small request
see a workload for the first time: nothing of it is cached. Prompts are token ids, drawing is
greedy. Peers are those that the interpreter, or the one named by `--python PEER=PATH`, can import:
llama.cpp (llama-cpp-python), openvino (openvino-genai), transformers. `--quick` makes them smaller.
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Report, arguments, table
from benchmarks.peer_engines import ENGINES, MODULES
from radixgen.kernels import library
from radixgen.model.hub import resolve
from radixgen.tokenizer import Tokenizer

WORKER = Path(__file__).with_name("peer_engines.py")
OURS = "radixgen"
PEERS = ("llama.cpp", "openvino", "transformers")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "age", "city", "tags"],
    "additionalProperties": False,
}
NAMES = ("Alice Smith", "Bob Jones", "Carla Diaz", "Deng Wei", "Eva Novak", "Femi Ade")
CITIES = ("Paris", "Oslo", "Lima", "Kyoto", "Accra", "Porto", "Delhi", "Quito")
ASK = (
    "Extract the person as JSON with keys name, age, city and tags (2 to 4 words). Text: "
    '"{} is {} years old, lives in {} and likes music and hiking." Reply with JSON only.'
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many requests of a workload, and their tokens: in common, of their own, drawn."""

    requests: int
    common: int
    own: int
    drawn: int


FULL = {
    "W1": Scale(1, 0, 128, 128),
    "W2": Scale(32, 0, 256, 128),
    "W3": Scale(64, 1024, 32, 32),
    "W4": Scale(16, 0, 0, 64),
}
QUICK = {
    "W1": Scale(1, 0, 128, 32),
    "W2": Scale(8, 0, 64, 16),
    "W3": Scale(8, 256, 16, 8),
    "W4": Scale(3, 0, 0, 48),
}


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    add_options(parser)
    args = parser.parse_args()
    model = str(resolve(args.model).path)
    scales = QUICK if args.quick else FULL
    workloads = {name: items(name, scale, model) for name, scale in scales.items()}
    tokens = max(
        sum(len(item["ids"]) + item["max_tokens"] for item in requests)
        for requests in workloads.values()
    )
    workers = start(args, model, tokens, PEERS)
    report = Report(
        "peers", {"model": Path(model).name, "threads": args.threads, "quick": args.quick}
    )
    try:
        compare(report, workers, workloads, Tokenizer.load(model))
    finally:
        for worker in workers.values():
            worker.stop()
    return report.finish()


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `start` reads."""
    parser.add_argument("--model", default="", help="a GGUF file; default: the embedded model")
    parser.add_argument("--threads", type=int, default=library.default_threads())
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH",
        help="an interpreter in which a peer is installed; may be given several times",
    )  # fmt: skip
    parser.add_argument("--only", default="", help="peers, separated by commas; default: all found")


# ---- workloads ----


def items(name: str, scale: Scale, model: str) -> list[dict[str, Any]]:
    """Requests of a workload: token ids that stay one token each however they are joined."""
    tokenizer = Tokenizer.load(model)
    if name == "W4":
        texts = [
            ASK.format(NAMES[i % len(NAMES)], 20 + 3 * i, CITIES[3 * i % len(CITIES)])
            for i in range(scale.requests)
        ]
        prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    else:
        rng = random.Random(name)
        common = words(tokenizer, scale.common, rng)
        prompts = [common + words(tokenizer, scale.own, rng) for _ in range(scale.requests)]
    schema = SCHEMA if name == "W4" else None
    return [{"ids": ids, "max_tokens": scale.drawn, "schema": schema} for ids in prompts]


def words(tokenizer: Tokenizer, count: int, rng: random.Random) -> list[int]:
    """Ids of `count` words, each one token with its space."""
    ids: list[int] = []
    while len(ids) < count:
        token_id = rng.randrange(300, 40_000)
        text = tokenizer.decode([token_id])
        if text[:1] == " " and text[1:].isascii() and text[1:].isalpha() and text[1:].islower():
            ids.append(token_id)
    return ids


# ---- engines ----


class Worker:
    """An engine's process; it answers a line with a line. One that crashes is started anew."""

    def __init__(self, name: str, python: str) -> None:
        self._command = [python, str(WORKER), name, str(ROOT)]
        self._loading: dict[str, Any] | None = None  # the request that loaded its model
        self._process = self._begin()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; {"error": ...} where the process went over it: the next one has another."""
        if line := self._exchange(request):
            if request["op"] == "start":
                self._loading = request
            return dict(json.loads(line))
        self.stop()
        self._process = self._begin()
        if self._loading is not None:
            self._exchange(self._loading)
        return {"error": "the process ended"}

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _begin(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def _exchange(self, request: dict[str, Any]) -> str:
        """The line of an answer, empty when there is no process to give one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except BrokenPipeError:
            return ""


def start(
    args: argparse.Namespace, model: str, tokens: int, peers: Sequence[str]
) -> dict[str, Worker]:
    """The engines that are there, radixgen first, and a line about each that is not.

    `tokens`: KV cells that the largest workload needs.
    """
    pythons = dict(pair.partition("=")[::2] for pair in args.python)
    only = args.only.split(",") if args.only else list(peers)
    unknown = ({*only} | {*pythons}) - {*peers}
    if unknown:
        sys.exit(f"unknown peer {min(unknown)!r}: use one of {', '.join(peers)}")
    workers: dict[str, Worker] = {}
    for name in ENGINES:
        python = pythons.get(name, sys.executable)
        if name != OURS and name not in only:
            continue
        if name != OURS and not importable(python, MODULES[name]):
            print(f"{name}: not found ({python} has no module {MODULES[name]})")
            continue
        worker = Worker(name, python)
        answer = worker.ask(op="start", model=model, threads=args.threads, tokens=tokens + 4096)
        if "version" not in answer:
            print(f"{name}: not started ({answer.get('error')})")
            worker.stop()
            continue
        worker.ask(op="run", items=[{"ids": [*range(300, 320)], "max_tokens": 4, "schema": None}])
        print(f"{name}: {answer['version']}", flush=True)
        workers[name] = worker
    if OURS not in workers:
        sys.exit("radixgen itself did not start")
    return workers


def importable(python: str, module: str) -> bool:
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", look], check=False, timeout=60).returncode == 0
    except OSError:
        return False


# ---- measuring ----


def compare(
    report: Report,
    workers: dict[str, Worker],
    workloads: dict[str, list[dict[str, Any]]],
    tokenizer: Tokenizer,
) -> None:
    for turn, (name, requests) in enumerate(workloads.items()):
        order = list(workers)[turn % len(workers) :] + list(workers)[: turn % len(workers)]
        answers = {engine: workers[engine].ask(op="run", items=requests) for engine in order}
        rates: dict[str, float] = {}
        rows = []
        for engine in workers:
            rows.append([engine, *cells(answers[engine])])
            if "outputs" in answers[engine]:
                rates[engine] = rate(answers[engine])
                report.results[f"{name}_{engine}_tokens_per_second"] = rates[engine]
                report.results[f"{name}_{engine}_first_seconds"] = first(answers[engine])
        best = max((r for engine, r in rates.items() if engine != OURS), default=None)
        if best is not None and OURS in rates:
            report.at_least(f"{name}_over_best_peer", rates[OURS] / best, 1)
        ours = answers[OURS]
        if "outputs" not in ours:
            sys.exit(f"radixgen failed at {name}: {ours.get('error')}")
        if name == "W4":
            valid = sum(is_json(tokenizer.decode(o["ids"])) for o in ours["outputs"])
            report.equal("W4_valid_of_all", valid / len(requests), 1)
        print()
        table([f"{name} of {len(requests)}", "tokens/s", "first token, s", "seconds"], rows)


def cells(answer: dict[str, Any]) -> list[str]:
    if "outputs" not in answer:
        reason = answer.get("not_run") or f"failed: {answer.get('error')}"
        return ["-", "-", f"({reason})"]
    return [f"{rate(answer):.1f}", f"{first(answer):.3f}", f"{answer['seconds']:.2f}"]


def rate(answer: dict[str, Any]) -> float:
    """Tokens drawn a second over the whole workload, prompts included."""
    return sum(len(output["ids"]) for output in answer["outputs"]) / float(answer["seconds"])


def first(answer: dict[str, Any]) -> float:
    """The median of the seconds to a first token."""
    return statistics.median(float(output["first"]) for output in answer["outputs"])


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
