"""JSON under schemas, beside other engines: the same model file, prompts and schemas, in one run.

    python -m benchmarks.structured_peers [--quick] [--python PEER=PATH ...]

    each its own   public schemas, one request at a time: every schema is a new one to the engine
    one for all    chats that extract a person under one schema, together in a batch

Both at temperature 1. An output is valid if `json` parses it and `jsonschema`, which knows nothing
of grammars, validates it; one that `max_tokens` cut off is not. A schema that an engine refuses
counts as not valid, and is told apart. Seconds to the first token of a new schema include its
compilation. Engines take turns request by request. Peers are those that the interpreter, or the one
named by `--python PEER=PATH`, can import: llama.cpp (llama-cpp-python, its own grammars), and
transformers' generate under masks of xgrammar or of llguidance.
"""

import json
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.grammar_conformance import PUBLIC, rows_of
from benchmarks.harness import Report, Spread, arguments, table
from benchmarks.peers import ASK, CITIES, NAMES, OURS, SCHEMA, Worker, add_options, start
from benchmarks.structured import can_judge, validator
from radixgen.errors import InvalidGrammar
from radixgen.model.hub import resolve
from radixgen.runtime.build import make_compiler
from radixgen.tokenizer import Tokenizer
from radixgen.types import GrammarSpec

PEERS = ("llama.cpp", "xgrammar", "llguidance")
SHORTEST = range(6, 41)  # tokens of the shortest value of a schema that is taken
SPARE = 96  # tokens that it may have beyond twice as many
Item = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """What an engine did of one workload."""

    asked: int = 0
    refused: list[str] = field(default_factory=list)  # why
    valid: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of what was not refused
    first: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def main() -> int:
    parser = arguments(__doc__ or "")
    add_options(parser)
    args = parser.parse_args()
    num_schemas, batch = (3, 3) if args.quick else (40, 16)
    model = str(resolve(args.model).path)
    tokenizer = Tokenizer.load(model)
    single = [[item] for item in _public(tokenizer, num_schemas)]
    together = [_people(tokenizer, batch, seed) for seed in range(1 if args.quick else 3)]
    widest = max(sum(len(i["ids"]) + i["max_tokens"] for i in group) for group in together)
    workers = start(args, model, widest, PEERS)
    report = Report(
        "structured_peers",
        {"model": Path(model).name, "threads": args.threads, "temperature": 1.0},
    )
    try:
        for worker in workers.values():  # what is loaded at the first schema is no schema's time
            worker.ask(op="run", items=_people(tokenizer, 1, 99))
        alone = compare(workers, single, tokenizer)
        tell("each its own", alone, report)
        tell(f"one for all, {batch} at once", compare(workers, together, tokenizer), report)
        taken = max(1, alone[OURS].asked - len(alone[OURS].refused))
        report.equal("valid of what is not refused", alone[OURS].valid / taken, 1)
    finally:
        for worker in workers.values():
            worker.stop()
    return report.finish()


# ---- workloads ----


def _public(tokenizer: Tokenizer, count: int) -> list[Item]:
    """Requests for instances of public schemas, spread over the sample."""
    compiler = make_compiler(tokenizer)
    rows = [row for row in rows_of(PUBLIC) if can_judge(row["schema"])]
    found: list[Item] = []
    for row in rows[:: max(1, len(rows) // (4 * count))]:
        shortest = _shortest(compiler, row["schema"])
        if len(found) < count and shortest in SHORTEST:
            text = json.dumps(row["schema"])[:400]
            prompt = f"Write one JSON value that meets this schema, nothing else:\n{text}"
            found.append(_item(tokenizer, prompt, row["schema"], 2 * shortest + SPARE, len(found)))
    return found


def _shortest(compiler: Any, schema: Any) -> int:
    """Tokens of the shortest instance; 0 if it is not known, since the schema is refused here."""
    try:
        grammar = compiler.compile(GrammarSpec("json_schema", json.dumps(schema)))
    except InvalidGrammar:
        return 0
    return int(grammar.matcher().shortest_completion())


def _people(tokenizer: Tokenizer, count: int, seed: int) -> list[Item]:
    return [
        _item(
            tokenizer,
            ASK.format(NAMES[i % len(NAMES)], 20 + 3 * i + seed, CITIES[3 * i % len(CITIES)]),
            SCHEMA,
            64,
            100 * seed + i,
        )
        for i in range(count)
    ]


def _item(tokenizer: Tokenizer, text: str, schema: Any, max_tokens: int, seed: int) -> Item:
    prompt = tokenizer.chat([{"role": "user", "content": text}])
    return {"ids": prompt, "schema": schema, "max_tokens": max_tokens, "temperature": 1.0,
            "seed": seed}  # fmt: skip


# ---- measuring ----


def compare(
    workers: dict[str, Worker], groups: list[list[Item]], tokenizer: Tokenizer
) -> dict[str, Tally]:
    """Every group of requests by every engine, which take turns at being the first."""
    tallies = {name: Tally() for name in workers}
    names = list(workers)
    for turn, group in enumerate(groups):
        start_at = turn % len(names)
        for name in names[start_at:] + names[:start_at]:
            answer = workers[name].ask(op="run", items=group)
            _count(tallies[name], group, answer, tokenizer)
    return tallies


def _count(tally: Tally, group: list[Item], answer: dict[str, Any], tokenizer: Tokenizer) -> None:
    tally.asked += len(group)
    outputs = answer.get("outputs")
    if outputs is None:
        tally.refused += len(group) * [str(answer.get("error"))]
        return
    tally.seconds += float(answer["seconds"])
    for item, output in zip(group, outputs, strict=True):
        tally.tokens += len(output["ids"])
        tally.first.append(float(output["first"] or answer["seconds"]))
        tally.valid += _is_valid(tokenizer.decode(output["ids"]), item["schema"])


def _is_valid(text: str, schema: Any) -> bool:
    try:
        return bool(validator(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def tell(workload: str, tallies: dict[str, Tally], report: Report) -> None:
    """A table of a workload, its numbers, and how ours stands to the best of the others."""
    rows = []
    for name, tally in tallies.items():
        first = Spread.of(tally.first) if tally.first else None
        report.results[f"{workload}: {name}"] = {
            "asked": tally.asked,
            "refused": tally.refused,
            "valid": tally.valid,
            "tokens_per_second": tally.rate,
            "first_token_seconds": first,
        }
        late = "-" if first is None else f"{first.median:.3f}"
        counts = (tally.asked, len(tally.refused), tally.valid)
        rows.append([name, *map(str, counts), f"{tally.rate:.1f}", late])
    print()
    table([workload, "asked", "refused", "valid", "tokens/s", "first token, s"], rows)
    for name, tally in tallies.items():
        for reason in tally.refused:
            print(f"{name} refused: {reason}")
    ours, others = tallies[OURS], [tally for name, tally in tallies.items() if name != OURS]
    ran = [tally for tally in others if tally.first]
    report.at_least(f"{workload}: valid", ours.valid, max((t.valid for t in others), default=0))
    if ran:
        best = max(tally.rate for tally in ran)
        soonest = min(statistics.median(tally.first) for tally in ran)
        report.at_least(f"{workload}: tokens/s over the best peer", ours.rate / best, 1)
        late = statistics.median(ours.first) / soonest
        report.at_most(f"{workload}: first token over the soonest peer", late, 1)


if __name__ == "__main__":
    sys.exit(main())
