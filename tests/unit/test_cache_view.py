"""The tree as it is shown: counts add up, the largest branches come first, salts are hidden."""

import random

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.view import MAX_NODES, view
from radixgen.messages import CacheNode

PAGE = 4


def grow(cache: RadixCache, ids: list[int], namespace: str = "", *, keep: bool = False) -> None:
    match = cache.match_prefix(ids, namespace)
    node = cache.lock(match)
    rest = ids[match.num_tokens :]
    pages = cache.pool.allocate(len(rest) // PAGE)
    found = cache.insert(node, rest, pages)
    cache.pool.release(found.duplicates)
    if not keep:
        cache.unlock(found.node)


def tree() -> RadixCache:
    cache = RadixCache(PagePool(1000), PAGE)
    shared = list(range(8))
    grow(cache, [*shared, *range(100, 104)])
    grow(cache, [*shared, *range(200, 220)], keep=True)
    grow(cache, list(range(300, 304)), "secret salt")
    return cache


def test_nodes_say_what_they_hold() -> None:
    nodes = view(tree(), 100, 3)
    assert [(n.parent, n.num_tokens, n.num_locks, n.hits) for n in nodes] == [
        (-1, 0, 1, 2),  # the root
        (0, 8, 1, 2),  # what both share
        (1, 20, 1, 1),  # kept by a request
        (1, 4, 0, 1),
        (-1, 0, 0, 1),  # the other namespace
        (4, 4, 0, 1),
    ]
    assert [(n.nodes_below, n.tokens_below) for n in nodes[:3]] == [(3, 32), (2, 24), (0, 0)]
    assert nodes[1].preview == (0, 1, 2)
    assert nodes[2].idle <= nodes[3].idle
    salted = {n.namespace for n in nodes}
    assert "" in salted
    assert len(salted) == 2
    assert not any("salt" in name for name in salted)


def test_the_largest_branches_are_kept() -> None:
    assert [n.num_tokens for n in view(tree(), 3, 0)] == [0, 8, 20]
    assert view(tree(), 3, 0)[2].preview == ()
    assert view(tree(), 0, 0) == ()
    assert view(RadixCache(PagePool(4), PAGE), 10, 10) == ()


def test_a_random_tree_adds_up() -> None:
    cache, draw = RadixCache(PagePool(4000), PAGE), random.Random(3)
    for _ in range(300):
        ids = [draw.randrange(3) for _ in range(PAGE * draw.randrange(1, 6))]
        grow(cache, ids, draw.choice(["", "a"]))
    whole = view(cache, MAX_NODES, 1)
    assert sum(n.num_tokens for n in whole) == cache.pool.num_tree * PAGE
    below: list[list[CacheNode]] = [[] for _ in whole]
    for place, node in enumerate(whole):
        assert node.parent < place
        if node.parent >= 0:
            below[node.parent].append(node)
    for node, children in zip(whole, below, strict=True):
        assert node.nodes_below == sum(1 + child.nodes_below for child in children)
        assert node.tokens_below == sum(c.num_tokens + c.tokens_below for c in children)
    assert whole[:50] == view(cache, 50, 1)
