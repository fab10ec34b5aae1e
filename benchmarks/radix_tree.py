"""What do match, insert and evict cost as the tree grows, beside a rival that rebuilds a heap?

    python -m benchmarks.radix_tree [--quick]

The tree of a busy server: long documents of 32,768 tokens, each with questions that branch off at
16 places, and sessions that grow turn by turn from anywhere (a random recursive tree), about 40
tokens a node. A prompt is a document and a new question. "deep" is a worst case: the path of a
prompt of the same length is cut into 512 nodes. An eviction frees one page: "trim" from the end of
a longer leaf, "drop" with the last page of a leaf. The rival picks its victim as engines do that
collect every unlocked leaf into a new heap for each eviction; it must pick the same leaf.
"""

import heapq
import random
import sys
import time
from array import array
from collections.abc import Callable

from benchmarks.harness import Report, Spread, arguments, percentile, table
from radixgen.cache.node import Node
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.verify import check_cache

PAGE = 16
DOCUMENT = 32_768
BRANCHES = 16  # a document
TOKENS_PER_NODE = 40
DEEP_NODES = 512


class Forest:
    """A cache filled to `num_nodes` nodes, and the documents to ask for."""

    def __init__(self, num_nodes: int, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        total = max(num_nodes * TOKENS_PER_NODE, 2 * DOCUMENT)
        self.cache = RadixCache(PagePool(total // PAGE * 2 + 30_000), PAGE)
        self.num_nodes = 0
        self.num_tokens = 0
        self.documents = [self.tokens(DOCUMENT) for _ in range(max(total // 5 // DOCUMENT, 1))]
        for document in self.documents:
            self._document(document)
        self._sessions(num_nodes, total)
        for document in self.documents:
            self.put(document)  # used last: the sessions' leaves leave first

    def tokens(self, count: int) -> "array[int]":
        return array("i", (self.rng.getrandbits(17) for _ in range(count)))

    def put(self, tokens: "array[int]") -> None:
        """What a request does: match, lock, compute the rest, insert, unlock."""
        cache = self.cache
        match = cache.match_prefix(tokens)
        node = cache.lock(match)
        rest = tokens[match.num_tokens :]
        added = cache.insert(node, rest, cache.pool.allocate(len(rest) // PAGE))
        cache.unlock(added.node)

    def grow(self, node: Node, tokens: "array[int]") -> Node:
        """A turn below a node."""
        cache = self.cache
        cache.lock(cache.at_depth(node, node.end))
        added = cache.insert(node, tokens, cache.pool.allocate(len(tokens) // PAGE))
        cache.unlock(added.node)
        return added.node

    def _document(self, document: "array[int]") -> None:
        self.put(document)
        step = DOCUMENT // BRANCHES
        for branch in range(1, BRANCHES + 1):
            self.put(document[: branch * step] + self.tokens(2 * PAGE))

    def _sessions(self, num_nodes: int, total: int) -> None:
        cache = self.cache
        self.num_nodes = sum(1 for _ in cache.nodes())
        tokens = cache.pool.num_tree * PAGE
        left = num_nodes - self.num_nodes
        pages = max((total - tokens) // PAGE, left)
        grown = [self.grow(cache.root(), self.tokens(4 * PAGE)) for _ in range(32)]
        left, pages = left - 32, pages - 4 * 32
        for index in range(left):
            share = -(-pages * (index + 1) // left) - -(-pages * index // left)
            grown.append(self.grow(self.rng.choice(grown), self.tokens(max(share, 1) * PAGE)))
        self.num_nodes += left + 32
        self.num_tokens = cache.pool.num_tree * PAGE


def micros(action: Callable[[], object], repeats: int) -> list[float]:
    samples: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        samples.append(1e6 * (time.perf_counter() - begin))
    return samples


def rival_victim(cache: RadixCache) -> Node:
    """The leaf that was used longest ago, by a heap of all of them built for the occasion."""
    leaves = [
        (node.last_access, node.serial, node)
        for node in cache.nodes()
        if not node.children and not node.num_locks
    ]
    heapq.heapify(leaves)
    return heapq.heappop(leaves)[2]


def deep_match(forest: Forest, repeats: int) -> list[float]:
    document, step = forest.tokens(DOCUMENT), DOCUMENT // DEEP_NODES
    forest.put(document)
    for cut in range(step, DOCUMENT, step):
        forest.put(document[:cut] + forest.tokens(PAGE))
    return micros(lambda: forest.cache.match_prefix(document), repeats)


def measure(num_nodes: int, repeats: int, rival_repeats: int) -> dict[str, object]:
    forest = Forest(num_nodes)
    cache = forest.cache
    check_cache(cache)
    prompts = [doc + forest.tokens(100) for doc in forest.documents]
    leaf = [forest.tokens(2 * PAGE) for _ in range(repeats)]
    parents = [node for node in cache.nodes() if node.end < DOCUMENT // 2]
    forest.rng.shuffle(parents)
    turns = iter(prompts * (repeats // len(prompts) + 1))
    match = micros(lambda: cache.match_prefix(next(turns)), repeats)
    num_leaves = len(cache.heap)
    children = iter(zip(parents * (repeats // len(parents) + 1), leaf, strict=False))
    insert = micros(lambda: forest.grow(*next(children)), repeats)
    depth = len(_path(cache.match_prefix(prompts[0]).node))
    rival: list[float] = []
    trim: list[float] = []
    drop: list[float] = []
    for _ in range(rival_repeats):  # interleaved
        begin = time.perf_counter()
        victim = rival_victim(cache)
        rival.append(1e6 * (time.perf_counter() - begin))
        assert victim is cache.heap.first(), "another victim"
        for _ in range(repeats // rival_repeats):
            kind = drop if len(cache.heap.first().page_ids) == 1 else trim
            kind += micros(lambda: cache.evict(1), 1)
    check_cache(cache)
    return {
        "nodes": forest.num_nodes,
        "tokens": forest.num_tokens,
        "leaves": num_leaves,
        "depth": depth,
        "match_us": Spread.of(match),
        "match_p99_us": percentile(match, 99),
        "insert_us": Spread.of(insert),
        "trim_us": Spread.of(trim),
        "drop_us": Spread.of(drop),
        "drop_p99_us": percentile(drop, 99),
        "rival_us": Spread.of(rival),
        "deep_match_us": Spread.of(deep_match(forest, max(repeats // 10, 20))),
    }


def _path(node: Node | None) -> list[Node]:
    path: list[Node] = []
    while node is not None:
        path.append(node)
        node = node.parent
    return path


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    repeats, rival_repeats = (2000, 10) if options.quick else (10_000, 40)
    sizes = (1_000, 10_000, 100_000)
    report = Report("radix_tree", {"page_size": PAGE, "repeats": repeats, "prompt": DOCUMENT + 100})
    rows: list[list[str]] = []
    for size in sizes:
        result = measure(size, repeats, rival_repeats)
        report.results[str(size)] = result
        cells = [str(result[name]) for name in ("nodes", "tokens", "leaves", "depth")]
        for name in ("match_us", "deep_match_us", "insert_us", "trim_us", "drop_us", "rival_us"):
            spread = result[name]
            assert isinstance(spread, Spread)
            cells.append(f"{spread.median:.1f}")
        rows.append(cells)
    header = [
        "nodes",
        "tokens",
        "leaves",
        "depth",
        "match",
        "deep",
        "insert",
        "trim",
        "drop",
        "rival",
    ]
    print("medians in microseconds; a match of 32,868 tokens, an eviction of one page")
    table(header, rows)
    small, large = report.results["1000"], report.results["100000"]
    report.at_least("nodes", large["nodes"], 100_000)
    report.at_least("tokens", large["tokens"], 4_000_000)
    report.at_least("leaves", large["leaves"], 40_000)
    report.at_most("match p50, us", large["match_us"].median, 100)
    report.at_most("evict a page, p50, us: trim", large["trim_us"].median, 20)
    report.at_most("evict a page, p50, us: drop", large["drop_us"].median, 20)
    growth = large["drop_us"].median / small["drop_us"].median
    report.at_most("drop, 100k nodes over 1k", growth, 10)
    report.at_least("rival over drop", large["rival_us"].median / large["drop_us"].median, 100)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
