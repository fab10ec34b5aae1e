"""What a constraint costs a step: decode steps under a JSON schema over decode steps without.

Same model, same prompts, same batch, nothing drafted. Two engines take steps in turn; a ratio is
taken of the medians of a round of steps, and the median of those is reported. The mask's own
seconds are timed apart, as a share of the step. Seconds are the processor's, of one thread, so that
neighbours on the machine do not count.
"""

import itertools
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
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
    engines = _engine(), _engine()
    rows = [_measure(engines, batch, steps, rounds, report) for batch, steps in batches.items()]
    header = ["sequences", "free ms", "constrained ms", "ratio", "masks ms", "masks share"]
    table(header, rows)
    return report.finish()


def _engine() -> LocalEngine:
    off: dict[str, Any] = {"jump_forward": "off", "prompt_lookup": False, "suffix_drafts": False}
    return LocalEngine(time.process_time, num_pages=4096, **off)


def _measure(
    engines: tuple[LocalEngine, LocalEngine],
    batch: int,
    num_steps: int,
    rounds: int,
    report: Report,
) -> list[str]:
    ratios, plain, constrained, masks = [], [], [], []
    for _ in range(rounds):
        free = engines[0].decoding(_asks(engines[0], batch, None))
        bound = engines[1].decoding(_asks(engines[1], batch, SPEC))
        with MaskTimer() as timer, closing(free), closing(bound):
            pairs = list(itertools.islice(zip(free, bound, strict=True), num_steps))
        plain.append(Spread.of([seconds for seconds, _ in pairs]).median)
        constrained.append(Spread.of([seconds for _, seconds in pairs]).median)
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
            begin = time.thread_time()
            self._fill(*args)
            self.seconds.append(time.thread_time() - begin)

        runtime_masks.fill_masks = timed  # type: ignore[assignment]  # of any arguments
        return self

    def __exit__(self, *_: object) -> None:
        runtime_masks.fill_masks = self._fill


if __name__ == "__main__":
    sys.exit(main())
