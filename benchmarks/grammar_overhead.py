"""What a constraint costs a step: decode steps under a JSON schema over decode steps without.

Same model, same prompts, same batch, nothing drafted. Rounds of both alternate; a ratio is taken of
the medians of neighbouring rounds, and the median of those is reported. The mask's own seconds are
timed apart, as a share of the step.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Report, Spread, arguments, table
from benchmarks.local_engine import Ask, LocalEngine
from radixgen.runtime import masks as runtime_masks
from radixgen.types import GrammarSpec, SamplingParams

GOAL = 1.05
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "notes": {"type": "string", "minLength": 20, "maxLength": 200},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "vip"]}, "minItems": 1},
    },
    "required": ["name", "age", "notes", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 8}
SPEC = GrammarSpec("json_schema", json.dumps(SCHEMA))


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    batches = {1: 60, 16: 14, 64: 6} if options.quick else {1: 200, 16: 40, 64: 16}
    rounds = 3 if options.quick else 7
    report = Report("grammar_overhead", {"rounds": rounds, "steps": batches})
    local = LocalEngine(
        num_pages=4096, jump_forward="off", prompt_lookup=False, suffix_drafts=False
    )
    rows = [_measure(local, batch, steps, rounds, report) for batch, steps in batches.items()]
    header = ["sequences", "free ms", "constrained ms", "ratio", "masks ms", "masks share"]
    table(header, rows)
    return report.finish()


def _measure(
    local: LocalEngine, batch: int, num_steps: int, rounds: int, report: Report
) -> list[str]:
    free, bound = _asks(local, batch, None), _asks(local, batch, SPEC)
    local.decode_steps(free, 2)
    local.decode_steps(bound, 2)
    ratios, plain, constrained, masks = [], [], [], []
    for _ in range(rounds):
        plain.append(Spread.of(local.decode_steps(free, num_steps)).median)
        with MaskTimer() as timer:
            constrained.append(Spread.of(local.decode_steps(bound, num_steps)).median)
        masks.append(Spread.of(timer.seconds).median)
        ratios.append(constrained[-1] / plain[-1])
    ratio, mask, step = Spread.of(ratios), Spread.of(masks), Spread.of(constrained)
    report.results[f"batch_{batch}"] = {
        "free_seconds": Spread.of(plain),
        "constrained_seconds": step,
        "ratio": ratio,
        "mask_seconds": mask,
    }
    report.at_most(f"step ratio at {batch}", ratio.median, GOAL)
    cells = [Spread.of(plain).median * 1e3, step.median * 1e3]
    share = mask.median / step.median
    return [
        str(batch),
        *(f"{cell:.2f}" for cell in cells),
        f"{ratio.median:.3f}",
        f"{mask.median * 1e3:.3f}",
        f"{share:.2%}",
    ]


def _asks(local: LocalEngine, batch: int, spec: GrammarSpec | None) -> Sequence[Ask]:
    return [
        (
            local.chat(f"List the {30 + number} people of a village as JSON."),
            SamplingParams(max_tokens=1500, seed=number, ignore_eos=True),
            spec,
        )
        for number in range(batch)
    ]


class MaskTimer:
    """Times the filling of masks while it is open."""

    def __enter__(self) -> "MaskTimer":
        self.seconds: list[float] = []
        self._fill = runtime_masks.fill_masks

        def timed(*args: Any) -> None:
            begin = time.perf_counter()
            self._fill(*args)
            self.seconds.append(time.perf_counter() - begin)

        runtime_masks.fill_masks = timed  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        runtime_masks.fill_masks = self._fill


if __name__ == "__main__":
    sys.exit(main())
