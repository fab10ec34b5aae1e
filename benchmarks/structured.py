"""Does every output parse and validate, also when max_tokens is as small as it may be?

    python -m benchmarks.structured [--quick]

The embedded model at temperature 1.0 writes to public schemas and to those of the JSON Schema test
suite, with max_tokens at 1.0, 1.2 and 2 times the shortest completion. Each output is parsed by
`json` and validated by `jsonschema`, which knows nothing of the grammars.

Beside it what one does without constraints: the same prompts, the first JSON value of each answer
taken wherever it stands, and up to `TRIES` answers until one is valid. Told by the size of the
schema: how many are valid at the first try and in the end, and the tokens that were thrown away.
"""

import json
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from benchmarks.grammar_conformance import PUBLIC, SUITE, rows_of
from benchmarks.harness import Report, Spread, arguments, table
from benchmarks.local_engine import Ask, LocalEngine, Output
from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.runtime.build import make_compiler
from radixgen.types import GrammarSpec, SamplingParams

FACTORS = (1.0, 1.2, 2.0)
BATCH = 24
TRIES = 4  # answers without a constraint, before one gives up
SPARE_TOKENS = 60  # that these may have beyond twice the shortest value: for talk around it
SIZES = ((1, 8), (9, 24), (25, 10_000))  # of the shortest value, in tokens


@dataclass(frozen=True, slots=True)
class Case:
    """A schema that compiles, and how many tokens its shortest text has."""

    name: str
    schema: Any
    spec: GrammarSpec
    shortest: int


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    num_cases, num_free = (24, 24) if options.quick else (520, 100)
    report = Report("structured", {"factors": FACTORS, "temperature": 1.0, "batch": BATCH})
    local = LocalEngine(num_pages=4096, max_running=BATCH)
    refused: Counter[str] = Counter()
    cases = list(_cases(make_compiler(local.tokenizer), num_cases, refused))
    cases.sort(key=lambda case: case.shortest)  # what runs together ends together
    rows = [_measure(local, cases, factor, report) for factor in FACTORS]
    table(["max_tokens", "outputs", "valid", "ended", "cut", "tokens", "tokens/s"], rows)
    report.results["refused schemas"] = dict(refused)
    report.results["schemas"] = len(cases)
    if not options.quick:
        report.at_least("schemas", len(cases), 500)
    _retry_baseline(local, cases[:: max(1, len(cases) // num_free)], report)
    return report.finish()


def _cases(compiler: GrammarCompiler, count: int, refused: "Counter[str]") -> Iterator[Case]:
    found = 0
    rows = [*rows_of(PUBLIC), *rows_of(SUITE)]
    step = max(1, len(rows) // (count + count // 3 + 1))  # spread over the data sets
    for row in rows[::step]:
        if found == count:
            return
        spec = GrammarSpec("json_schema", json.dumps(row["schema"]))
        try:
            matcher = compiler.compile(spec).matcher()
        except InvalidGrammar:
            refused["does not compile"] += 1
            continue
        shortest = matcher.shortest_completion()
        if matcher.error or not can_judge(row["schema"]):
            refused[matcher.error or "no validator understands it"] += 1
        else:
            found += 1
            yield Case(row["id"], row["schema"], spec, shortest)


def can_judge(schema: Any) -> bool:
    """Whether `validator` can tell what is an instance."""
    try:
        validator(schema).is_valid({})
        for pattern in _patterns(schema):
            re.compile(pattern)
    except Exception:  # a pattern of another dialect, a reference that is not in the file
        return False
    return True


def _patterns(schema: Any) -> Iterator[str]:
    """Every pattern in a schema; what only looks like one does no harm."""
    if isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        if isinstance(schema.get("patternProperties"), dict):
            yield from schema["patternProperties"]
        yield from _patterns(list(schema.values()))


def validator(schema: Any) -> Any:
    """By `jsonschema`, of the schema's own draft."""
    kind: Any = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema)


def _measure(local: LocalEngine, cases: list[Case], factor: float, report: Report) -> list[str]:
    valid = ended = cut = tokens = 0
    seconds: list[float] = []
    wrong: list[str] = []
    for low in range(0, len(cases), BATCH):
        batch = cases[low : low + BATCH]
        run = local.run([_ask(local, case, factor, low + i) for i, case in enumerate(batch)])
        seconds.append(run.seconds)
        tokens += run.num_tokens
        for case, output in zip(batch, run.outputs, strict=True):
            ended += output.finish_reason == "stop"
            cut += output.finish_reason == "length"
            if _is_valid(local, case, output):
                valid += 1
            else:
                text = output.error or local.tokenizer.decode(output.token_ids)
                wrong.append(f"{case.name}: {text}")
    for line in wrong:
        print(line)
    report.results[f"max_tokens x {factor}"] = {
        "outputs": len(cases),
        "valid": valid,
        "tokens": tokens,
        "batch_seconds": Spread.of(seconds),
    }
    report.equal(f"valid share at {factor} x shortest", valid / len(cases), 1.0)
    numbers = (len(cases), valid, ended, cut, tokens)
    return [f"x {factor}", *map(str, numbers), f"{tokens / sum(seconds):.0f}"]


def _ask(local: LocalEngine, case: Case, factor: float, seed: int) -> Ask:
    limit = max(1, math.ceil(factor * case.shortest))
    return _prompt(local, case), SamplingParams(max_tokens=limit, seed=seed), case.spec


def _prompt(local: LocalEngine, case: Case) -> list[int]:
    schema = json.dumps(case.schema)[:400]
    return local.chat(f"Write one JSON value that meets this schema, nothing else:\n{schema}")


def _is_valid(local: LocalEngine, case: Case, output: Output) -> bool:
    if output.error is not None:
        return False
    try:
        value = json.loads(local.tokenizer.decode(output.token_ids))
    except ValueError:
        return False
    return bool(validator(case.schema).is_valid(value))


def _retry_baseline(local: LocalEngine, cases: list[Case], report: Report) -> None:
    tallies = [_Tally(low, high) for low, high in SIZES]
    for tally in tallies:
        for attempt in range(TRIES):
            tally.ask(local, [c for c in cases if tally.low <= c.shortest <= tally.high], attempt)
    print(f"\nwithout a constraint, up to {TRIES} answers each")
    header = ["shortest value", "schemas", "valid at first", "in the end", "tokens thrown away"]
    table(header, [tally.row() for tally in tallies if tally.num_cases])
    report.results["without constraints"] = {
        tally.name: tally.results() for tally in tallies if tally.num_cases
    }


@dataclass(slots=True)
class _Tally:
    """Answers without a constraint to schemas whose shortest values have `low` to `high` tokens."""

    low: int
    high: int
    valid: list[set[str]] = field(default_factory=list)  # after each attempt
    num_cases: int = 0
    num_tokens: int = 0
    num_wasted: int = 0

    @property
    def name(self) -> str:
        return f"{self.low} to {self.high} tokens"

    def ask(self, local: LocalEngine, cases: list[Case], attempt: int) -> None:
        """One more answer for each case that has no valid one yet."""
        self.num_cases = len(cases)
        done = set(self.valid[-1]) if self.valid else set()
        left = [case for case in cases if case.name not in done]
        for low in range(0, len(left), BATCH):
            batch = left[low : low + BATCH]
            asks = [
                _free_ask(local, case, 1000 * attempt + low + i) for i, case in enumerate(batch)
            ]
            for case, output in zip(batch, local.run(asks).outputs, strict=True):
                self.num_tokens += len(output.token_ids)
                if _holds_valid(local, case, output):
                    done.add(case.name)
                else:
                    self.num_wasted += len(output.token_ids)
        self.valid.append(done)

    def row(self) -> list[str]:
        first, last = (f"{len(done) / self.num_cases:.0%}" for done in self.valid[:: TRIES - 1])
        wasted = f"{self.num_wasted} of {self.num_tokens}"
        return [self.name, str(self.num_cases), first, last, wasted]

    def results(self) -> dict[str, float]:
        return {
            "schemas": self.num_cases,
            "valid_at_first": len(self.valid[0]) / self.num_cases,
            "valid_in_the_end": len(self.valid[-1]) / self.num_cases,
            "wasted_token_share": self.num_wasted / max(self.num_tokens, 1),
        }


def _free_ask(local: LocalEngine, case: Case, seed: int) -> Ask:
    limit = 2 * case.shortest + SPARE_TOKENS
    return _prompt(local, case), SamplingParams(max_tokens=limit, seed=seed), None


def _holds_valid(local: LocalEngine, case: Case, output: Output) -> bool:
    """Whether the first JSON value in an answer, wherever it begins, meets the schema."""
    text, decoder = local.tokenizer.decode(output.token_ids), json.JSONDecoder()
    for place, character in enumerate(text):
        if character in '{["-0123456789tfn':
            try:
                value, _ = decoder.raw_decode(text, place)
            except ValueError:
                continue
            return bool(validator(case.schema).is_valid(value))
    return False


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # of drafts that jsonschema has left
    sys.exit(main())
