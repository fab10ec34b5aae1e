"""Every invariant of the tree and its pool, for tests and RADIXGEN_CHECK=1. Slow by intent."""

from radixgen.cache.node import TOKEN_BYTES, Node
from radixgen.cache.pages import TREE
from radixgen.cache.radix import RadixCache


def check_cache(cache: RadixCache) -> None:
    """Raises AssertionError unless pages, edges, locks and the heap of leaves all agree."""
    cache.pool.check()
    cache.heap.check()
    seen: set[int] = set()
    num_protected = num_leaves = 0
    for root in cache.roots():
        assert root.parent is None
        assert root.end == 0
        assert root.children or root.num_locks, "an empty root stayed"
    for node in cache.nodes():
        _check_node(cache, node)
        assert seen.isdisjoint(node.page_ids), "a page is twice in the tree"
        seen.update(node.page_ids)
        num_protected += len(node.page_ids) if node.num_locks else 0
        num_leaves += not node.children and not node.num_locks
    assert len(seen) == cache.pool.num_tree, "the pool counts other pages than the tree holds"
    assert all(cache.pool.state(page) == TREE for page in seen)
    assert num_protected == cache.num_protected, "protected pages are miscounted"
    assert num_leaves == len(cache.heap), "an unlocked leaf is not in the heap"


def _check_node(cache: RadixCache, node: Node) -> None:
    width = cache.page_size * TOKEN_BYTES
    parent = node.parent
    assert parent is not None
    assert node.page_ids, "an edge without pages"
    assert len(node.key) == len(node.page_ids) * width, "tokens and pages disagree"
    assert node.end == parent.end + node.num_tokens, "depths do not add up"
    assert node.namespace == parent.namespace
    assert parent.children.get(node.key[:width]) is node, "the parent knows it by another page"
    assert node.num_locks <= parent.num_locks, "a lock does not reach the root"
    assert sum(child.num_locks for child in node.children.values()) <= node.num_locks
    assert node.order == sorted(node.children), "the order of children is broken"
    assert (node in cache.heap) == (not node.children and not node.num_locks)
