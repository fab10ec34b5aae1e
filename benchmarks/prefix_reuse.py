"""What a known prefix saves, on a real model in a real runtime process.

    first token   a 512-token prefix that is known against one that is new, in turns
    prefill       64 requests with one 1,024-token prefix: tokens computed against unique tokens

Prompts are seeded random tokens, so that nothing is shared but what is meant to be. One token is
generated a request, so every token that the runtime computes is a token of a prompt.
"""

import itertools
import random
import sys
from collections.abc import Sequence

from benchmarks.harness import Report, Spread, arguments, table
from radixgen import Runtime
from radixgen.types import SamplingParams

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0)
PREFIX, SUFFIX = 512, 8  # tokens of the prompts that are timed
SHARED, OWN, REQUESTS = 1024, 16, 64  # tokens and number of the requests that are counted
GOAL_SPEEDUP = 4.0


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="default: the embedded model")
    args = parser.parse_args()
    repeats = 3 if args.quick else 15
    report = Report(
        "prefix_reuse",
        {"model": args.model or "embedded", "prefix": PREFIX, "shared": SHARED, "own": OWN,
         "requests": REQUESTS, "repeats": repeats, "quick": args.quick},
    )  # fmt: skip
    with Runtime(args.model, num_pages=2048, max_context=2048) as runtime:
        rng = random.Random(1)
        vocab_size = runtime.ready.vocab_size
        runtime.generate(tokens(rng, vocab_size, 64), ONE_TOKEN)  # load what is loaded late
        first_token(runtime, rng, repeats, report)
        prefill(runtime, rng, report)
    return report.finish()


def tokens(rng: random.Random, vocab_size: int, count: int) -> list[int]:
    """Random ids; those of special tokens are low and left out."""
    return [rng.randrange(256, vocab_size) for _ in range(count)]


def first_token(runtime: Runtime, rng: random.Random, repeats: int, report: Report) -> None:
    """Seconds to the first token, cold and warm in turns, as the runtime measures them."""
    cold: list[float] = []
    warm: list[float] = []
    vocab_size = runtime.ready.vocab_size
    for _ in range(repeats):
        prefix = tokens(rng, vocab_size, PREFIX)
        for seconds, cached in ((cold, 0), (warm, PREFIX)):
            result = runtime.generate(prefix + tokens(rng, vocab_size, SUFFIX), ONE_TOKEN)
            if result.usage.cached_tokens != cached:
                sys.exit(f"{result.usage.cached_tokens} tokens were cached, not {cached}")
            seconds.append(result.usage.first_token_seconds)
    speedup = Spread.of([c / w for c, w in zip(cold, warm, strict=True)])
    rows = [
        ["cold", milliseconds(cold)],
        ["warm", milliseconds(warm)],
        ["cold / warm", f"{speedup.median:.1f}x"],
    ]
    table(["time to first token", "median"], rows)
    report.results["cold_seconds"] = Spread.of(cold).as_dict()
    report.results["warm_seconds"] = Spread.of(warm).as_dict()
    report.results["speedup"] = speedup.as_dict()
    report.at_least("speedup of a warm prefix", speedup.median, GOAL_SPEEDUP)


def prefill(runtime: Runtime, rng: random.Random, report: Report) -> None:
    """Tokens that the runtime computed for requests that arrive together."""
    runtime.flush_cache()
    vocab_size = runtime.ready.vocab_size
    shared = tokens(rng, vocab_size, SHARED)
    prompts = [shared + tokens(rng, vocab_size, OWN) for _ in range(REQUESTS)]
    before = runtime.stats()
    results = runtime.generate(prompts, ONE_TOKEN)
    after = runtime.stats()
    computed = after["computed_tokens"] - before["computed_tokens"]
    given = sum(result.usage.prompt_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    unique = num_unique(prompts)
    rows = [["prompts", f"{given:,}"], ["unique", f"{unique:,}"], ["computed", f"{computed:,.0f}"]]
    print()
    table(["tokens of prompts", ""], rows)
    report.results["prompt_tokens"] = given
    report.results["cached_tokens"] = cached
    report.results["computed_tokens"] = computed
    report.results["unique_tokens"] = unique
    report.equal("computed tokens are the unique ones", computed, unique)
    report.equal("cached and computed tokens are all", cached + computed, given)


def num_unique(prompts: Sequence[Sequence[int]]) -> int:
    """Edges of the tree of all prompts, a token each: what any cache must compute at least."""
    ordered = sorted(map(list, prompts))
    total = len(ordered[0])
    for previous, prompt in itertools.pairwise(ordered):
        common = next(
            (i for i, (a, b) in enumerate(zip(previous, prompt, strict=False)) if a != b),
            min(len(previous), len(prompt)),
        )
        total += len(prompt) - common
    return total


def milliseconds(samples: Sequence[float]) -> str:
    """The median of seconds, for people."""
    return f"{Spread.of(samples).median * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
