"""Forward passes a token with and without jump-forward and drafts, and the time that saves.

    python -m benchmarks.jump_forward [--quick]

The embedded model writes JSON of five kinds, the schema named in the prompt. `forced` drafts only
text that the grammar forces, `all` also text seen before in prompt, output and other outputs of the
kind. These must give the tokens of `plain`. `fast` takes forced text unverified, which changes the
law, so its outputs are others: what it saves is told by the token. Each prompt is another one; what
a mode has learned it keeps, as a server does. Seconds are the processor's, of one thread, so that
neighbours on the machine do not count. A full run takes about four minutes of one core, and says
how far it is.

That the law is unchanged is shown by the tokens, which are those of `plain` for each seed, and by a
chi-square test: of a grammar with few texts, `plain` and `all` draw as many with other seeds.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Report, arguments, progress, table
from benchmarks.local_engine import Ask, LocalEngine, Output, Run
from radixgen.runtime.drafts import Kind as Draft
from radixgen.types import GrammarSpec, SamplingParams

COMPACT = (("whitespace", "compact"),)
SPACED = (("item_separator", ", "), ("key_separator", ": "))
MODES: dict[str, dict[str, Any]] = {
    "plain": {"jump_forward": "off", "prompt_lookup": False, "suffix_drafts": False},
    "forced": {"prompt_lookup": False, "suffix_drafts": False},
    "all": {},
    "fast": {"jump_forward": "fast"},
}
FEW_TEXTS = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["cat", "dog", "horse"]},
        "favourite_colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["animal", "favourite_colour"],
    "additionalProperties": False,
}
NOISE = 0.1  # of one kind's ratio from run to run, drafts or not: its hundred steps vary by half
CHI_SQUARE = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9, 8: 31.8}
"""By degrees of freedom: exceeded by chance once in ten thousand runs."""
NAMES = ("Maria Lopez", "John Smith", "Aiko Tanaka", "Lena Fischer", "Omar Haddad", "Ines Costa")


@dataclass(frozen=True, slots=True)
class Kind:
    """A workload: what is asked, the schema, and the goal for passes as a share of plain."""

    name: str
    question: str
    schema: Any
    layout: tuple[tuple[str, str], ...]
    goal: float | None = None


def record(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD: dict[str, Any] = {"type": "string", "maxLength": 14}
SMALL: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 99}
BOOL: dict[str, Any] = {"type": "boolean"}
PERSON = record(
    {
        "first_name": WORD,
        "last_name": WORD,
        "age": SMALL,
        "is_member": BOOL,
        "favourite_colour": {"enum": ["red", "green", "blue"]},
    }
)
SHEET = record(
    {
        "character_name": WORD,
        "attributes": record(
            dict.fromkeys(
                ("strength", "dexterity", "constitution", "intelligence", "wisdom"), SMALL
            )
        ),
        "equipment": record({"weapon": WORD, "armour": WORD, "is_magical": BOOL}),
        "background": record({"home_town": WORD, "occupation": WORD}),
    }
)
CALL = record(
    {
        "name": {"const": "search_flights"},
        "arguments": record(
            {
                "origin_city": WORD,
                "destination_city": WORD,
                "number_of_passengers": SMALL,
                "only_direct_flights": BOOL,
            }
        ),
    }
)
ENTITY = record({"entity": WORD, "type": {"enum": ["person", "place", "company"]}})
KINDS = (
    Kind("flat, compact", "Describe {} as JSON", PERSON, COMPACT, 1 / 1.5),
    Kind("flat, spaced", "Describe {} as JSON", PERSON, SPACED, 1 / 1.9),
    Kind("nested sheet", "Write the game character sheet of {} as JSON", SHEET, SPACED, 1 / 2.5),
    Kind("tool call", "Call the tool that finds {} a flight from Lisbon to Rome", CALL, SPACED),
    Kind(
        "entities",
        "{} met Ana Silva of Acme in Lisbon, then Bo Lind of Initech in Oslo. List the entities",
        {"type": "array", "items": ENTITY, "minItems": 3, "maxItems": 6},
        SPACED,
    ),
)


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    prompts = {1: 3} if options.quick else {1: 8, 16: 32}  # by batch: of each kind
    report = Report("jump_forward", {"prompts": prompts})
    engines = {name: LocalEngine(time.process_time, **each) for name, each in MODES.items()}
    for batch, num_prompts in prompts.items():
        _measure(engines, batch, num_prompts, report)
    report.results["greedy prompts"] = len(KINDS) * sum(prompts.values())
    progress("chi-square")
    _compare_laws(engines["plain"], engines["all"], 60 if options.quick else 600, report)
    print()
    stats = engines["all"].engine.stats()
    counts = [
        (name, stats[f"verified_{name}_drafts"], stats[f"accepted_{name}_drafts"])
        for name in (draft.name.lower() for draft in Draft)
    ]
    rows = [
        [k, f"{seen:.0f}", f"{hit:.0f}", f"{hit / max(seen, 1):.0%}"] for k, seen, hit in counts
    ]
    table(["draft", "verified", "accepted", "share"], rows)
    report.results["acceptance"] = {k: hit / seen for k, seen, hit in counts if seen}
    return report.finish()


def _measure(engines: dict[str, LocalEngine], batch: int, num_prompts: int, report: Report) -> None:
    rows: list[list[str]] = []
    compared = differing = 0
    gains: list[float] = []
    spent = dict.fromkeys(MODES, 0.0)
    for kind in KINDS:
        for temperature in (0.0, 1.0):
            runs = _run(engines, kind, temperature, batch, num_prompts)
            for other in ("forced", "all"):
                pairs = zip(_tokens(runs["plain"]), _tokens(runs[other]), strict=True)
                differing += sum(a != b for a, b in pairs)
                compared += num_prompts
            progress(f"{batch} at once: {kind.name}, temperature {temperature:g}")
            costs = {name: _seconds_a_token(found) for name, found in runs.items()}
            gains.append(costs["plain"] / costs["all"])
            for name in MODES:
                spent[name] += costs[name] / costs["plain"]
            rows.append(_row(kind, temperature, batch, runs, report))
    print(f"\n{batch} at once: passes a token, and tokens/s as a multiple of plain")
    others = [name for name in MODES if name != "plain"]
    table(["output", "t", "tokens", *MODES, *(f"x {name}" for name in others)], rows)
    report.equal(f"outputs that differ, batch {batch}", differing, 0)
    report.results[f"outputs compared, batch {batch}"] = compared
    report.at_least(f"tokens/s over plain, batch {batch}", len(gains) / spent["all"], 1.0)
    report.at_least(f"the least of them, batch {batch}", min(gains), 1 - NOISE)


def _compare_laws(plain: LocalEngine, drafting: LocalEngine, count: int, report: Report) -> None:
    """Chi-square of two samples of `count` texts each: the sum over texts of (a - b)^2 / (a + b).

    Texts that are rare in both are counted as one.
    """
    spec = GrammarSpec("json_schema", json.dumps(FEW_TEXTS), COMPACT)
    counts = []
    for number, local in enumerate((plain, drafting)):
        prompt = local.chat("Which animal do you like, and which colour? Answer as JSON.")
        seeds = range(number * count, (number + 1) * count)
        asks: list[Ask] = [
            (prompt, SamplingParams(max_tokens=40, temperature=1.5, seed=s), spec) for s in seeds
        ]
        outputs = [
            o for low in range(0, count, 16) for o in local.run(asks[low : low + 16]).outputs
        ]
        counts.append(Counter(local.tokenizer.decode(output.token_ids) for output in outputs))
    one, other = counts
    cells = [(one[text], other[text]) for text in one | other]
    rare = [cell for cell in cells if sum(cell) < 10]
    cells = [cell for cell in cells if sum(cell) >= 10]
    cells += [(sum(a for a, _ in rare), sum(b for _, b in rare))] if rare else []
    chi_square = sum((a - b) ** 2 / (a + b) for a, b in cells)
    report.results["law"] = {"texts": len(one | other), "of each": count, "cells": len(cells)}
    report.at_least("law: cells compared", len(cells), 2)
    report.at_most("law: chi-square", chi_square, CHI_SQUARE[max(len(cells) - 1, 1)])


def _seconds_a_token(runs: Sequence[Run]) -> float:
    return sum(sum(run.steps) for run in runs) / sum(run.num_tokens for run in runs)


def _row(
    kind: Kind, temperature: float, batch: int, runs: dict[str, list[Run]], report: Report
) -> list[str]:
    tokens = {name: sum(run.num_tokens for run in found) for name, found in runs.items()}
    passes = {name: sum(len(run.steps) for run in found) for name, found in runs.items()}
    costs = {name: _seconds_a_token(found) for name, found in runs.items()}
    report.results[f"{kind.name}, t {temperature}, batch {batch}"] = {
        "tokens": tokens,
        "passes": passes,
        "seconds_a_token": costs,
    }
    if kind.goal is not None and batch == 1 and temperature == 0.0:
        report.at_most(
            f"{kind.name}: passes over plain", passes["all"] / passes["plain"], kind.goal
        )
    together = min(batch, sum(len(run.outputs) for run in runs["plain"]))
    shares = [f"{passes[name] * together / tokens[name]:.2f}" for name in MODES]
    gains = [f"{costs['plain'] / costs[name]:.2f}" for name in MODES if name != "plain"]
    return [kind.name, f"{temperature:g}", str(tokens["plain"]), *shares, *gains]


def _run(
    engines: dict[str, LocalEngine], kind: Kind, temperature: float, batch: int, num_prompts: int
) -> dict[str, list[Run]]:
    """The runs of each engine, which take steps in turn, as the machine is not always as fast."""
    spec = GrammarSpec("json_schema", json.dumps(kind.schema), kind.layout)
    keys = ", ".join(_keys(kind.schema))
    asks: list[Ask] = []
    for number in range(num_prompts):
        age = 20 + number + (num_prompts if batch > 1 else 0)  # each batch has its own prompts
        name = f"{NAMES[number % len(NAMES)]} ({age})"
        prompt = engines["plain"].chat(f"{kind.question.format(name)}, with the keys {keys}.")
        asks.append(
            (prompt, SamplingParams(max_tokens=250, temperature=temperature, seed=number), spec)
        )
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for low in range(0, num_prompts, batch):
        together = asks[low : low + batch]
        started = {name: Run([Output() for _ in together]) for name in engines}
        steps = {name: local.running(together, started[name]) for name, local in engines.items()}
        while steps:  # who has written least goes next
            name = min(steps, key=lambda name: started[name].num_tokens)
            if next(steps[name], steps) is steps:
                del steps[name]
        for name, run in started.items():
            runs[name].append(run)
    return runs


def _keys(schema: Any) -> list[str]:
    if schema.get("type") == "array":
        return _keys(schema["items"])
    return [n for k, v in schema.get("properties", {}).items() for n in (k, *_keys(v))]


def _tokens(runs: Sequence[Run]) -> list[list[int]]:
    return [output.token_ids for run in runs for output in run.outputs]


if __name__ == "__main__":
    sys.exit(main())
