"""The radix tree: matching, splitting, growing, sharing tails, locks, namespaces."""

import pytest
from scheduling import ids

from radixgen.cache.node import Node
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import Match, RadixCache, count_equal
from radixgen.cache.verify import check_cache
from radixgen.config import CacheConfig


def make(num_pages: int = 32, page_size: int = 2, **options: bool) -> RadixCache:
    return RadixCache(PagePool(num_pages), page_size, "lru", **options)


def put(cache: RadixCache, *tokens: int, namespace: str = "") -> list[int]:
    """Insert whole pages of a sequence, as a request that has just computed them would."""
    match = cache.match_prefix(ids(*tokens), namespace)
    node = cache.lock(match)
    rest = tokens[match.num_tokens :]
    pages = cache.pool.allocate(len(rest) // cache.page_size)
    added = cache.insert(node, ids(*rest[: len(pages) * cache.page_size]), pages)
    cache.pool.release(added.duplicates)
    cache.unlock(added.node)
    check_cache(cache)
    return match.page_ids + added.page_ids


def test_finds_what_was_put_and_no_more() -> None:
    cache = make()
    pages = put(cache, 1, 2, 3, 4, 5, 6)
    assert cache.match_prefix(ids(1, 2, 3, 4, 5, 6)).page_ids == pages
    assert cache.match_prefix(ids(1, 2, 3, 4, 9, 9)).page_ids == pages[:2]
    assert cache.match_prefix(ids(1, 2, 3, 4, 5, 6, 7, 8)).num_tokens == 6
    assert cache.match_prefix(ids(1, 2, 3, 4, 5, 6), max_tokens=5).num_tokens == 4
    assert cache.match_prefix(ids(2, 1)).num_tokens == 0
    assert cache.match_prefix(ids()).num_tokens == 0


def test_matching_changes_nothing() -> None:
    cache = make()
    put(cache, 1, 2, 3, 4, 5, 6)
    before = [(node.key, node.last_access, node.hits) for node in cache.nodes()]
    match = cache.match_prefix(ids(1, 2, 9, 9))
    assert (match.offset, match.num_tokens) == (2, 2)
    assert [(node.key, node.last_access, node.hits) for node in cache.nodes()] == before


def test_a_branch_splits_the_edge_at_a_page() -> None:
    cache = make()
    first = put(cache, 1, 2, 3, 4, 5, 6)
    second = put(cache, 1, 2, 3, 9, 5, 6)  # differs inside the second page
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert sorted(node.num_tokens for node in cache.nodes()) == [2, 4, 4]


def test_siblings_may_share_a_first_token() -> None:
    cache = make()
    a, b = put(cache, 1, 2), put(cache, 1, 3)
    assert cache.match_prefix(ids(1, 2)).page_ids == a
    assert cache.match_prefix(ids(1, 3)).page_ids == b


def test_twins_keep_one_copy() -> None:
    cache = make()
    root = cache.lock(cache.match_prefix(ids(1, 2, 3, 4)))
    twin = cache.lock(cache.match_prefix(ids(1, 2, 3, 4)))
    mine, other = cache.pool.allocate(2), cache.pool.allocate(2)
    first = cache.insert(root, ids(1, 2, 3, 4), mine)
    second = cache.insert(twin, ids(1, 2, 3, 4), other)
    assert second.page_ids == first.page_ids == mine
    assert second.duplicates == other
    assert cache.pool.num_held == 2, "the caller frees its duplicates"
    cache.pool.release(second.duplicates)
    assert second.node is first.node
    assert second.node.num_locks == 2
    check_cache(cache)


def test_chunks_of_one_sequence_grow_one_edge() -> None:
    cache = make()
    node = cache.lock(cache.match_prefix(ids(1, 2)))
    for start in range(0, 12, 2):
        chunk = ids(start, start + 1)
        node = cache.insert(node, chunk, cache.pool.allocate(1)).node
        check_cache(cache)
    assert len(list(cache.nodes())) == 1
    assert cache.num_protected == 6
    cache.unlock(node)
    assert cache.num_evictable == 6


def test_an_edge_that_others_use_does_not_grow_in_place() -> None:
    cache = make()
    put(cache, 1, 2)
    first = cache.lock(cache.match_prefix(ids(1, 2)))
    second = cache.lock(cache.match_prefix(ids(1, 2)))
    assert first is second
    longer = cache.insert(first, ids(3, 4), cache.pool.allocate(1)).node
    assert longer is not second
    cache.unlock(second)
    check_cache(cache)
    assert (second.num_locks, longer.num_locks) == (1, 1)


def test_locking_inside_an_edge_protects_no_more_than_that() -> None:
    cache = make()
    put(cache, 1, 2, 3, 4, 5, 6)
    node = cache.lock(cache.match_prefix(ids(1, 2, 9)))
    assert (cache.num_protected, cache.num_evictable) == (1, 2)
    assert cache.evict(10) == 2
    check_cache(cache)
    cache.unlock(node)
    assert cache.num_evictable == 1


def test_a_holder_keeps_its_end_when_its_edge_is_split() -> None:
    cache = make()
    put(cache, 1, 2, 3, 4)
    holder = cache.lock(cache.match_prefix(ids(1, 2, 3, 4)))
    other = cache.lock(cache.match_prefix(ids(1, 2, 8, 8)))
    assert holder.parent is other
    assert (holder.end, other.end) == (4, 2)
    assert (holder.num_locks, other.num_locks) == (1, 2)
    check_cache(cache)


def test_tail_of_a_page_in_an_edge_and_below_a_node() -> None:
    cache = make(page_size=4)
    pages = put(cache, *range(8))
    match = cache.match_prefix(ids(0, 1, 2, 3, 4, 5, 99, 99))
    assert match.tail is not None
    assert (match.tail.page_id, match.tail.num_tokens) == (pages[1], 2)
    other = put(cache, 0, 1, 2, 3, 4, 5, 6, 9)
    match = cache.match_prefix(ids(0, 1, 2, 3, 4, 5, 6, 8))
    assert match.tail is not None
    assert match.tail.num_tokens == 3
    assert match.tail.page_id in (pages[1], other[1])
    match = cache.match_prefix(ids(0, 1, 2, 3, 4, 5, 6, 7), max_tokens=7)
    assert match.tail is not None
    assert (match.num_tokens, match.tail.num_tokens) == (4, 3)


def test_tails_can_be_left_alone() -> None:
    cache = make(page_size=4, share_tail_pages=False)
    put(cache, *range(8))
    assert cache.match_prefix(ids(0, 1, 2, 3, 4, 5)).tail is None


def test_namespaces_share_nothing() -> None:
    cache = make()
    mine = put(cache, 1, 2, namespace="a")
    assert cache.match_prefix(ids(1, 2), "b").num_tokens == 0
    assert put(cache, 1, 2, namespace="b") != mine
    assert cache.clear() == 2
    assert list(cache.roots()) == [], "an empty namespace leaves nothing behind"


def test_forced_miss_finds_nothing_and_keeps_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXGEN_FORCE_MISS", "1")
    cache = RadixCache.from_config(CacheConfig(page_size=2), num_pages=8)
    put(cache, 1, 2, 3, 4)
    put(cache, 1, 2, 3, 4)
    assert cache.match_prefix(ids(1, 2, 3, 4)).num_tokens == 0
    assert cache.pool.num_tree == 2


def test_disabled_keeps_nothing_after_the_last_user() -> None:
    cache = make(enabled=False)
    node = cache.insert(cache.lock(Match("", None, 0, [], 0)), ids(1, 2), cache.pool.allocate(1))
    assert cache.pool.num_tree == 1
    cache.unlock(node.node)
    assert cache.pool.num_free == cache.pool.num_pages
    check_cache(cache)


def test_a_prefix_by_depth() -> None:
    cache = make()
    pages = put(cache, 1, 2, 3, 4, 5, 6)
    put(cache, 1, 2, 9, 9)
    node = cache.lock(cache.match_prefix(ids(1, 2, 3, 4, 5, 6)))
    assert cache.at_depth(node, 0).page_ids == []
    for depth in (2, 4, 6):
        match = cache.at_depth(node, depth)
        assert match.page_ids == pages[: depth // 2]
        assert cache.lock(match).end == depth
        check_cache(cache)
    with pytest.raises(ValueError, match="6 tokens, 8 wanted"):
        cache.at_depth(node, 8)


def test_pages_must_fit_their_tokens() -> None:
    cache = make()
    with pytest.raises(ValueError, match="do not fill"):
        cache.insert(cache.root(), ids(1, 2, 3), [0])


def test_count_equal_against_a_loop() -> None:
    for length in range(40):
        for differs in range(length + 1):
            a = bytes(range(length))
            b = bytearray(a)
            if differs < length:
                b[differs] ^= 255
            assert count_equal(a, 0, bytes(b), 0, length, 1) == differs
    assert count_equal(b"xxabcd", 2, b"yabce", 1, 4, 1) == 3


def test_check_sees_broken_trees() -> None:
    def breaks(harm: str) -> None:
        cache = make()
        put(cache, 1, 2, 3, 4)
        put(cache, 1, 2, 5, 6)
        node: Node = cache.match_prefix(ids(1, 2, 3, 4)).node or pytest.fail("no match")
        match harm:
            case "lock":
                node.num_locks += 1
            case "page":
                node.page_ids[0] = 31
            case "token":
                node.key = node.key[4:] + node.key[:4]
            case "depth":
                node.end += 2
            case "heap":
                cache.heap.discard(node)
            case "order":
                node.parent.order.reverse() if node.parent else None
        with pytest.raises(AssertionError):
            check_cache(cache)

    for harm in ("lock", "page", "token", "depth", "heap", "order"):
        breaks(harm)
