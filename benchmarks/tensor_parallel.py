"""Does a model that is split between two processes answer as a whole one, and at which rate?

    python -m benchmarks.tensor_parallel [--quick] [--model NAME]

Fifty prompts, greedy and drawn with a seed, are answered by one rank, by two of an exact split that
exchange by sockets or by gloo, and by two that add partial sums. Of the exact split every token and
every log-probability (of the token drawn and the two best) must be those of one rank. The answers
by partial sums are counted, since they may differ: their rounding is their own. Rates are of one
sequence and of eight, without drafts; all ranks share the threads that one has alone.
"""

import time
from collections.abc import Sequence
from itertools import product
from typing import Any

from benchmarks.harness import Report, Spread, arguments, table
from radixgen import Runtime, SamplingParams
from radixgen.types import GenerateResult

BEGINNINGS = (
    "The capital of France", "A good way to learn", "The recipe for bread", "In the year 1990",
    "My favourite animal", "The first step of", "Water boils when", "The train to Berlin",
    "A poem about rain", "The largest planet",
)  # fmt: skip
MIDDLES = (" is", " and then", " because", " was known for", " means that")
PROMPTS = ["".join(pair) for pair in product(BEGINNINGS, MIDDLES)]
WAYS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two, exact": {"tensor_parallel": 2},
    "two, exact, gloo": {"tensor_parallel": 2, "tensor_exchange": "gloo"},
    "two, fast": {"tensor_parallel": 2, "tensor_split": "fast"},
}
# Drafts would make a rate one of how often they are right.
WITHOUT_DRAFTS = {"jump_forward": "off", "prompt_lookup": False, "suffix_drafts": False}


def sampling(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=2, **more)


def answers(runtime: Runtime, max_tokens: int) -> dict[str, Sequence[GenerateResult]]:
    greedy = sampling(max_tokens, temperature=0)
    drawn = sampling(max_tokens, temperature=0.8, top_p=0.95, seed=11)
    return {
        "greedy": runtime.generate(PROMPTS, greedy),
        "drawn": runtime.generate(PROMPTS, drawn),
    }


def rate(runtime: Runtime, prompts: Sequence[str], max_tokens: int) -> float:
    """Tokens a second."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    begin = time.perf_counter()
    runtime.generate(list(prompts), params)
    return len(prompts) * max_tokens / (time.perf_counter() - begin)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="", help="a model to load; the embedded one by default")
    options = parser.parse_args()
    max_tokens, repeats = (12, 1) if options.quick else (32, 5)
    report = Report("tensor_parallel", {"prompts": len(PROMPTS), "max_tokens": max_tokens})
    whole: dict[str, Sequence[GenerateResult]] = {}
    rows = []
    for name, settings in WAYS.items():
        with Runtime(options.model, num_pages=1024, **WITHOUT_DRAFTS, **settings) as runtime:
            found = answers(runtime, max_tokens)
            alone = Spread.of([rate(runtime, PROMPTS[:1], max_tokens) for _ in range(repeats)])
            eight = Spread.of([rate(runtime, PROMPTS[:8], max_tokens) for _ in range(repeats)])
        whole = whole or found
        exact = settings.get("tensor_split") != "fast"
        same = {kind: count_same(found[kind], whole[kind], to_the_bit=exact) for kind in found}
        report.results[name] = {"same": same, "tokens/s, 1": alone, "tokens/s, 8": eight}
        if exact:
            for kind, count in same.items():
                report.equal(f"{name}, {kind}: answers to the bit", count, len(PROMPTS))
        counts = [f"{count} of {len(PROMPTS)}" for count in same.values()]
        rows.append([name, *counts, f"{alone.median:.1f}", f"{eight.median:.1f}"])
    table(["", "greedy: the same", "drawn: the same", "tokens/s, 1", "tokens/s, 8"], rows)
    return report.finish()


def count_same(
    found: Sequence[GenerateResult], whole: Sequence[GenerateResult], *, to_the_bit: bool
) -> int:
    """How many answers have equal tokens, and equal log-probabilities if asked."""

    def key(result: GenerateResult) -> object:
        return result.choices if to_the_bit else result.token_ids

    return sum(key(a) == key(b) for a, b in zip(found, whole, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
