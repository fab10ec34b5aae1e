"""The radix tree against a dict of prefixes: 10,000 random operations, every answer the same."""

import random
from itertools import pairwise

import pytest

from radixgen.cache.node import Node
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.verify import check_cache

Prefix = tuple[int, ...]


class PrefixDict:
    """The oracle: a page id for every known prefix of whole pages, and when its last user left."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[Prefix, int] = {}
        self.left: dict[Prefix, int] = {}
        self.locks: dict[Prefix, int] = {}
        self.now = 0

    def prefixes(self, tokens: Prefix) -> list[Prefix]:
        size = self.page_size
        return [tokens[:end] for end in range(size, len(tokens) + 1, size)]

    def match(self, tokens: Prefix) -> list[int]:
        found: list[int] = []
        for prefix in self.prefixes(tokens):
            if prefix not in self.pages:
                break
            found.append(self.pages[prefix])
        return found

    def tail(self, tokens: Prefix) -> int:
        """How many tokens of the next page are known."""
        done = len(self.match(tokens)) * self.page_size
        best, wanted = 0, tokens[done : done + self.page_size]
        for prefix in self.pages:
            if len(prefix) == done + self.page_size and prefix[:done] == tokens[:done]:
                same = [a == b for a, b in zip(prefix[done:], wanted, strict=False)]
                best = max(best, [*same, False].index(False))
        return best

    def lock(self, tokens: Prefix, change: int) -> None:
        self.now += 1
        for prefix in self.prefixes(tokens):
            self.locks[prefix] = self.locks.get(prefix, 0) + change
            self.left[prefix] = self.now

    def evict_one(self) -> bool:
        """Leave the pages with a longer known prefix, and of the others take the oldest."""
        inner = {prefix[: -self.page_size] for prefix in self.pages}
        leaves = [p for p in self.pages if p not in inner and not self.locks[p]]
        if not leaves:
            return False
        del self.pages[min(leaves, key=lambda prefix: self.left[prefix])]
        return True


class Pair:
    """The tree and the oracle, given the same operations."""

    def __init__(self, rng: random.Random, page_size: int, num_pages: int) -> None:
        self.rng = rng
        self.cache = RadixCache(PagePool(num_pages), page_size)
        self.oracle = PrefixDict(page_size)
        self.users: list[tuple[Node, Prefix, Prefix]] = []  # node, its path, what it wants

    def some_tokens(self) -> Prefix:
        """Short, over few letters, and often a continuation of something known."""
        rng = self.rng
        start: Prefix = ()
        if self.oracle.pages and rng.random() < 0.7:
            start = rng.choice(list(self.oracle.pages))
            start = start[: rng.randrange(len(start) + 1)]
        return start + tuple(rng.randrange(3) for _ in range(rng.randrange(9)))

    def ask(self) -> None:
        tokens = self.some_tokens()
        match = self.cache.match_prefix(tokens)
        assert match.page_ids == self.oracle.match(tokens)
        found = match.tail.num_tokens if match.tail else 0
        assert found == (self.oracle.tail(tokens) if self.cache.page_size > 1 else 0)

    def enter(self) -> None:
        tokens = self.some_tokens()
        match = self.cache.match_prefix(tokens)
        path = tokens[: match.num_tokens]
        self.users.append((self.cache.lock(match), path, tokens))
        self.oracle.lock(path, 1)

    def grow(self) -> None:
        """One more page, or several, of what a user wants; others may have come before."""
        if not self.users:
            return
        index = self.rng.randrange(len(self.users))
        node, path, tokens = self.users[index]
        size = self.cache.page_size
        left = (len(tokens) - len(path)) // size
        count = min(self.rng.randrange(1, 4), left, self.cache.pool.num_free)
        if not count:
            return
        longer = tokens[: len(path) + count * size]
        pages = self.cache.pool.allocate(count)
        added = self.cache.insert(node, longer[len(path) :], pages)
        self.cache.pool.release(added.duplicates)
        for prefix, page in zip(self.oracle.prefixes(longer)[-count:], pages, strict=True):
            self.oracle.pages.setdefault(prefix, page)
        assert added.page_ids == self.oracle.match(longer)[-count:]
        self.oracle.lock(path, -1)
        self.oracle.lock(longer, 1)
        self.users[index] = added.node, longer, tokens

    def leave(self) -> None:
        if self.users:
            node, path, _ = self.users.pop(self.rng.randrange(len(self.users)))
            self.cache.unlock(node)
            self.oracle.lock(path, -1)

    def evict(self) -> None:
        wanted = self.rng.randrange(1, 6)
        freed = sum(self.oracle.evict_one() for _ in range(wanted))
        assert self.cache.evict(wanted) == freed

    def step(self) -> None:
        moves = [self.ask, self.enter, self.grow, self.grow, self.leave, self.evict]
        self.rng.choice(moves[: 6 if self.cache.pool.num_free < 12 else 5])()


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_ten_thousand_operations_against_a_dict(page_size: int) -> None:
    pair = Pair(random.Random(page_size), page_size, num_pages=40)
    for _ in range(10_000 // 3 + 1):
        pair.step()
        check_cache(pair.cache)
        pool = pair.cache.pool
        assert pool.num_free + pool.num_tree == pool.num_pages
        assert pool.num_tree == len(pair.oracle.pages)
    for node, _, _ in pair.users:
        pair.cache.unlock(node)
    pair.cache.clear()
    assert pair.cache.pool.num_free == 40
    assert list(pair.cache.roots()) == []


def test_a_path_reads_back_as_its_tokens() -> None:
    pair = Pair(random.Random(9), 2, num_pages=300)
    for _ in range(300):
        pair.step()
    for node, path, _ in pair.users:
        chain = [node]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        data = b"".join(step.key for step in reversed(chain))
        assert tuple(memoryview(data).cast("i")) == path
        assert all(below.num_locks <= above.num_locks for below, above in pairwise(chain))
