"""What share of the prompt blocks of public traces does the radix cache reuse?

    python -m benchmarks.trace_replay [--quick] [--policies lru lfu slru cost]

Replays the block hashes of two Mooncake traces (FAST'25) through the real tree and page pool:
match, lock, evict what is needed, insert, unlock. Each block becomes one page of tokens drawn from
its hash. Capacities are in blocks; "unlimited" holds the whole trace.
"""

import json
import random
import sys
import time
from array import array
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Report, arguments, table, trace_file
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.verify import check_cache
from radixgen.config import Eviction

PAGE = 16  # tokens a block stands for
CAPACITIES = (2_000, 5_000, 10_000, 20_000)


@dataclass(frozen=True, slots=True)
class Trace:
    """`hits` of `blocks` are reused with unlimited capacity; `lru`: hit rates by capacity."""

    file: str
    blocks: int
    hits: int
    lru: dict[int, float]


TRACES = {
    "conversation": Trace(
        "mooncake_conversation_first3000.jsonl", 80_619, 25_332, {5_000: 0.1108, 10_000: 0.2092}
    ),
    "synthetic": Trace(
        "mooncake_synthetic.jsonl", 121_877, 77_953, {5_000: 0.2793, 10_000: 0.4239}
    ),
}


def load_rows(trace: Trace) -> list[dict[str, Any]]:
    """timestamp (ms), input_length and output_length (tokens), hash_ids (one a 512-token block)."""
    with trace_file(trace.file).open() as lines:
        return [json.loads(line) for line in lines]


class BlockTokens:
    """The same tokens for the same block hash, whatever the run."""

    def __init__(self) -> None:
        self._known: dict[int, array[int]] = {}

    def of(self, hash_ids: list[int]) -> "array[int]":
        tokens = array("i")
        for block in hash_ids:
            if block not in self._known:
                rng = random.Random(block)
                self._known[block] = array("i", [rng.getrandbits(30) for _ in range(PAGE)])
            tokens += self._known[block]
        return tokens


def replay(requests: "list[array[int]]", capacity: int, eviction: Eviction) -> tuple[int, float]:
    """Blocks found, and seconds spent in the cache."""
    cache = RadixCache(PagePool(capacity), PAGE, eviction, share_tail_pages=False)
    pool, hits = cache.pool, 0
    begin = time.perf_counter()
    for tokens in requests:
        match = cache.match_prefix(tokens)
        hits += len(match.page_ids)
        node = cache.lock(match)
        wanted = len(tokens) // PAGE - len(match.page_ids)
        if wanted > pool.num_free:
            cache.evict(wanted - pool.num_free)
        pages = pool.allocate(min(wanted, pool.num_free))
        start = match.num_tokens
        added = cache.insert(node, tokens[start : start + len(pages) * PAGE], pages)
        cache.unlock(added.node)
    seconds = time.perf_counter() - begin
    check_cache(cache)
    return hits, seconds


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--policies", nargs="+", default=["lru", "lfu", "slru", "cost"])
    options = parser.parse_args()
    policies: list[Eviction] = ["lru"] if options.quick else options.policies
    capacities = (5_000, 10_000) if options.quick else CAPACITIES
    report = Report("trace_replay", {"page_size": PAGE, "policies": policies})
    tokens = BlockTokens()
    for name, trace in TRACES.items():
        requests = [tokens.of(row["hash_ids"]) for row in load_rows(trace)]
        total = sum(len(request) for request in requests) // PAGE
        hits, seconds = replay(requests, trace.blocks, "lru")
        report.equal(f"{name}: blocks", total, trace.blocks)
        report.equal(f"{name}: hits, unlimited", hits, trace.hits)
        report.results[f"{name}/unlimited"] = {"hits": hits, "rate": hits / total}
        rows = [["unlimited", "any", f"{hits / total:.4f}", f"{1e6 * seconds / len(requests):.0f}"]]
        for capacity in capacities:
            for policy in policies:
                hits, seconds = replay(requests, capacity, policy)
                rate = hits / total
                micros = 1e6 * seconds / len(requests)
                report.results[f"{name}/{capacity}/{policy}"] = {"rate": rate, "micros": micros}
                rows.append([f"{capacity}", policy, f"{rate:.4f}", f"{micros:.0f}"])
                if policy == "lru" and capacity in trace.lru:
                    report.near(f"{name}: lru, {capacity}", rate, trace.lru[capacity], 0.005)
        print(f"{name}: {len(requests)} requests, {total} blocks")
        table(["capacity", "eviction", "hit rate", "us/request"], rows)
        print()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
