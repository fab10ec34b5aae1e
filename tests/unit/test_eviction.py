"""Which pages leave first, and that a heap which updates in place stays a heap."""

import random

import pytest
from scheduling import ids

from radixgen.cache.eviction import EvictionHeap
from radixgen.cache.node import Node
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.verify import check_cache
from radixgen.config import Eviction
from radixgen.types import CacheHint


def make(eviction: Eviction = "lru") -> RadixCache:
    return RadixCache(PagePool(64), 1, eviction)


def use(cache: RadixCache, *tokens: int, hint: CacheHint | None = None) -> int:
    """Match, compute the rest, insert, unlock; returns the tokens that were known."""
    match = cache.match_prefix(ids(*tokens))
    node = cache.lock(match, hint)
    rest = tokens[match.num_tokens :]
    added = cache.insert(node, ids(*rest), cache.pool.allocate(len(rest)))
    cache.unlock(added.node, hint)
    check_cache(cache)
    return match.num_tokens


def known(cache: RadixCache, *tokens: int) -> int:
    return cache.match_prefix(ids(*tokens)).num_tokens


def test_lru_takes_the_oldest_leaf_from_its_end() -> None:
    cache = make()
    use(cache, 1, 2, 3)
    use(cache, 1, 2, 4)
    use(cache, 9, 8)
    assert cache.evict(1) == 1
    assert (known(cache, 1, 2, 3), known(cache, 1, 2, 4), known(cache, 9, 8)) == (2, 3, 2)
    assert cache.evict(2) == 2
    assert (known(cache, 1, 2, 4), known(cache, 9, 8)) == (1, 2), "a parent follows its children"
    assert cache.evict(9) == 3
    check_cache(cache)


def test_a_long_leaf_is_trimmed_not_lost() -> None:
    cache = make()
    use(cache, *range(20))
    assert cache.evict(5) == 5
    assert known(cache, *range(20)) == 15
    check_cache(cache)


def test_use_renews() -> None:
    cache = make()
    use(cache, 1)
    use(cache, 2)
    use(cache, 1)
    cache.evict(1)
    assert (known(cache, 1), known(cache, 2)) == (1, 0)


def test_lfu_keeps_what_is_used_often() -> None:
    cache = make("lfu")
    for _ in range(3):
        use(cache, 1)
    use(cache, 2)
    cache.evict(1)
    assert (known(cache, 1), known(cache, 2)) == (1, 0)


def test_slru_takes_what_was_used_once() -> None:
    cache = make("slru")
    use(cache, 1)
    use(cache, 1)
    use(cache, 2)
    use(cache, 3)
    cache.evict(2)
    assert (known(cache, 1), known(cache, 2), known(cache, 3)) == (1, 0, 0)


def test_cost_keeps_the_deep_but_not_for_ever() -> None:
    cache = RadixCache(PagePool(9000), 1, "cost")
    use(cache, *range(8000))
    use(cache, -1, -2)
    cache.evict(2)
    assert (known(cache, *range(8000)), known(cache, -1, -2)) == (8000, 0)
    for round_ in range(40):  # what is used later gains on what lies still
        use(cache, -3 - round_)
        cache.evict(1)
    assert known(cache, *range(8000)) < 8000


def test_a_promise_of_last_use_lets_go_of_what_was_not_shared() -> None:
    cache = make()
    use(cache, 7)
    use(cache, 1, 2)
    use(cache, 1, 3, hint=CacheHint(last_use=True))
    cache.evict(1)
    assert (known(cache, 7), known(cache, 1, 2), known(cache, 1, 3)) == (1, 2, 1)
    use(cache, 1, 4, hint=CacheHint(last_use=True))
    use(cache, 1, 4)  # the promise was wrong: it is as any other now
    cache.evict(1)
    assert (known(cache, 7), known(cache, 1, 4)) == (0, 2)


def test_promised_forks_protect_until_they_have_come() -> None:
    cache = make()
    use(cache, 1, hint=CacheHint(forks=2))
    for token in range(10, 20):
        use(cache, token)
    cache.evict(1)
    assert (known(cache, 1), known(cache, 10)) == (1, 0)
    use(cache, 1)
    use(cache, 1)
    for token in range(20, 30):
        use(cache, token)
    cache.evict(10)
    assert known(cache, 1) == 0


def test_locked_pages_stay() -> None:
    cache = make()
    use(cache, 1, 2)
    node = cache.lock(cache.match_prefix(ids(1, 2)))
    use(cache, 1, 3)
    assert cache.evict(9) == 1
    assert known(cache, 1, 2) == 2
    cache.unlock(node)
    assert cache.clear() == 2


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "cost"])
def test_the_heap_against_a_sorted_list(policy: Eviction) -> None:
    rng, heap = random.Random(5), EvictionHeap(policy)
    nodes = [Node(b"", [], None, rng.randrange(99), "", i) for i in range(60)]
    inside: set[Node] = set()
    for _ in range(4000):
        node = rng.choice(nodes)
        choice = rng.random()
        if choice < 0.5:
            node.last_access, node.hits = rng.randrange(40), rng.randrange(1, 4)
            node.dead = rng.random() < 0.2
            heap.push(node)
            inside.add(node)
        elif choice < 0.7:
            heap.discard(node)
            inside.discard(node)
        elif inside:
            first = heap.first()
            if policy == "lru":
                assert first is min(inside, key=lambda n: (not n.dead, n.last_access, n.serial))
            assert heap.pop() is first
            inside.remove(first)
        assert len(heap) == len(inside)
        heap.check()
    assert all((node in heap) == (node in inside) for node in nodes)
