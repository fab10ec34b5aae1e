"""Does every output parse and validate, also when max_tokens is as small as it may be?

    python -m benchmarks.structured [--quick]

The embedded model at temperature 1.0 writes to public schemas, with max_tokens at 1.0, 1.2 and 2
times the shortest completion. Each output is parsed by `json` and validated by `jsonschema`, which
knows nothing of the grammars. Beside it the same prompts without a constraint: how many outputs one
would have to throw away and ask for again, and the tokens wasted on them.
"""

import json
import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema

from benchmarks.grammar_conformance import PUBLIC, rows_of
from benchmarks.harness import Report, Spread, arguments, table
from benchmarks.local_engine import Ask, LocalEngine, Output, Run
from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.runtime.build import make_compiler
from radixgen.types import GrammarSpec, SamplingParams

FACTORS = (1.0, 1.2, 2.0)
MAX_SHORTEST = 120  # tokens; longer schemas are left to the conformance tests
BATCH = 24
FREE_TOKENS = 80  # at most, where nothing is constrained


@dataclass(frozen=True, slots=True)
class Case:
    """A schema that compiles, and how many tokens its shortest text has."""

    name: str
    schema: Any
    spec: GrammarSpec
    shortest: int


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    num_cases, num_free = (24, 12) if options.quick else (10_000, 100)
    report = Report("structured", {"factors": FACTORS, "temperature": 1.0, "batch": BATCH})
    local = LocalEngine(num_pages=4096, max_running=BATCH)
    refused: Counter[str] = Counter()
    cases = list(_cases(make_compiler(local.tokenizer), num_cases, refused))
    rows = [_measure(local, cases, factor, report) for factor in FACTORS]
    table(["max_tokens", "outputs", "valid", "ended", "cut", "tokens", "tokens/s"], rows)
    report.results["refused schemas"] = dict(refused)
    report.results["schemas"] = len(cases)
    outputs = len(cases) * len(FACTORS)
    if not options.quick:
        report.at_least("outputs", outputs, 500)
    _retry_baseline(local, cases[:num_free], report)
    return report.finish()


def _cases(compiler: GrammarCompiler, count: int, refused: "Counter[str]") -> Iterator[Case]:
    found = 0
    rows = rows_of(PUBLIC)
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
        if matcher.error or not _can_judge(row["schema"]):
            refused[matcher.error or "no validator understands it"] += 1
        elif shortest > MAX_SHORTEST:
            refused[f"over {MAX_SHORTEST} tokens at least"] += 1
        else:
            found += 1
            yield Case(row["id"], row["schema"], spec, shortest)


def _can_judge(schema: Any) -> bool:
    try:
        _validator(schema).is_valid({})
    except Exception:  # a pattern of another dialect, a reference that is not in the file
        return False
    return True


def _validator(schema: Any) -> Any:
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
    return bool(_validator(case.schema).is_valid(value))


def _retry_baseline(local: LocalEngine, cases: list[Case], report: Report) -> None:
    """The same prompts, free. What fails would be asked for again, its tokens wasted."""
    failed = wasted = tokens = 0
    for low in range(0, len(cases), BATCH):
        batch = cases[low : low + BATCH]
        sampling = SamplingParams(max_tokens=FREE_TOKENS, seed=low)
        run: Run = local.run([(_prompt(local, case), sampling, None) for case in batch])
        tokens += run.num_tokens
        for case, output in zip(batch, run.outputs, strict=True):
            if not _is_valid(local, case, output):
                failed += 1
                wasted += len(output.token_ids)
    share = failed / len(cases)
    print(f"\nunconstrained: {share:.0%} of {len(cases)} outputs are not valid; ", end="")
    print(f"{wasted} of {tokens} tokens are wasted")
    report.results["unconstrained"] = {"retry_rate": share, "wasted_token_share": wasted / tokens}


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # of drafts that jsonschema has left
    sys.exit(main())
