"""The radix tree over KV pages: finds the longest known prefix, keeps it, gives its pages back.

    root --[p0 p1 p2]-- node --[p3]-------- leaf       an edge holds whole pages of tokens
                          |                            and the page ids of their KV;
                          '----[p4 p5 p6]-- leaf       siblings differ in their first page

A request locks the path it uses; unlocked leaves may be evicted, page by page from their ends.
Knows token ids, page ids and a logical clock; no requests, no tensors, no time of day. Tokens are
compared with tokens, never by hash alone. Source of the idea: SGLang's RadixAttention (Zheng et
al. 2024).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radixgen import env
from radixgen.cache.eviction import FORK_CREDIT, EvictionHeap
from radixgen.cache.node import TOKEN_BYTES, Node
from radixgen.cache.pages import PagePool
from radixgen.config import CacheConfig, Eviction
from radixgen.types import CacheHint

TokenIds = Sequence[int] | bytes  # array('i') is fastest; bytes are int32 in native order


def to_bytes(token_ids: TokenIds) -> bytes:
    """Token ids as int32 in native byte order."""
    if isinstance(token_ids, bytes):
        return token_ids
    if isinstance(token_ids, array) and token_ids.typecode == "i":
        return token_ids.tobytes()
    return array("i", token_ids).tobytes()


def count_equal(a: bytes, a_start: int, b: bytes, b_start: int, limit: int, unit: int) -> int:
    """How many of at most `limit` units of `unit` bytes are equal, from the given byte offsets.

    Gallops: doubles the piece while it is equal, halves it where it is not, so the work is a few
    memcmp of the equal part and O(log limit) steps.
    """
    equal, high, step = 0, limit, 1
    while equal < high:
        num = min(step, high - equal)
        begin = b_start + equal * unit
        if a.startswith(b[begin : begin + num * unit], a_start + equal * unit):
            equal += num
            step *= 2
        elif num == 1:
            break
        else:
            high = equal + num - 1
            step = num // 2
    return equal


@dataclass(frozen=True, slots=True)
class TailMatch:
    """The first `num_tokens` tokens of `page_id` continue the match; less than a page."""

    node: Node
    page_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix. Valid until the next call that changes the tree: lock it at once.

    `offset` tokens of `node`'s edge belong to it; `node` is None when nothing matched and the
    namespace is empty. `tail` is what a page further on has in common, to be copied.
    """

    namespace: str
    node: Node | None
    offset: int
    page_ids: list[int]
    num_tokens: int
    tail: TailMatch | None = None


@dataclass(frozen=True, slots=True)
class Insertion:
    """Where a sequence now ends in the tree (`node`, locked for it) and the pages that hold it.

    `page_ids`: for each page given, the one to use from now on. `duplicates`: those of the given
    pages whose tokens the tree already had; they are still held by the caller, who frees them.
    """

    node: Node
    page_ids: list[int]
    duplicates: list[int]


class RadixCache:
    """Owns the tree and which of the pool's pages are in it."""

    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        eviction: Eviction = "lru",
        *,
        enabled: bool = True,
        share_tail_pages: bool = True,
        force_miss: bool = False,
    ) -> None:
        self.pool = pool
        self.page_size = page_size  # tokens
        self.enabled = enabled
        self.force_miss = force_miss
        self.share_tail_pages = share_tail_pages and page_size > 1
        self.heap = EvictionHeap(eviction)
        self.num_protected = 0  # pages of locked nodes
        self.num_evicted = 0  # pages, ever
        self.num_evicted_dead = 0  # of them, those that a hint had called done with
        self.num_evicted_due = 0  # of them, those that a program was expected back for
        self._width = page_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._clock = 0
        self._serial = 0

    @classmethod
    def from_config(cls, config: CacheConfig, num_pages: int) -> "RadixCache":
        """A cache of `num_pages` pages; RADIXGEN_FORCE_MISS=1 makes it find nothing."""
        return cls(
            PagePool(num_pages),
            config.page_size,
            config.eviction,
            enabled=config.enabled,
            share_tail_pages=config.share_tail_pages,
            force_miss=env.read("RADIXGEN_FORCE_MISS"),
        )

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could free now."""
        return self.pool.num_tree - self.num_protected

    @property
    def clock(self) -> int:
        """Uses of the tree so far: the time that eviction counts in."""
        return self._clock

    @property
    def can_match(self) -> bool:
        return self.enabled and not self.force_miss

    def roots(self) -> Iterator[Node]:
        return iter(self._roots.values())

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    # ---- finding ----

    def match_prefix(
        self, token_ids: TokenIds, namespace: str = "", max_tokens: int | None = None
    ) -> Match:
        """The longest prefix in the tree, of at most `max_tokens` tokens. Changes nothing."""
        root = self._roots.get(namespace)
        if root is None or not self.can_match:
            return Match(namespace, root, 0, [], 0)
        data = to_bytes(token_ids)
        limit = len(data) if max_tokens is None else min(len(data), max_tokens * TOKEN_BYTES)
        return self._walk(root, data, max(limit, 0))

    def _walk(self, root: Node, data: bytes, limit: int) -> Match:
        node, position, width = root, 0, self._width
        pages: list[int] = []
        while position + width <= limit:
            child = node.children.get(data[position : position + width])
            if child is None:
                break
            key = child.key
            size = len(key)
            if position + size <= limit and data.startswith(key, position):
                pages += child.page_ids
                position += size
                node = child
                continue
            room = min(size, limit - position) // width
            equal = count_equal(data, position, key, 0, room, width)
            pages += child.page_ids[:equal]
            position += equal * width
            tail = self._tail_in_edge(child, equal, data, position, limit)
            offset = equal * self.page_size
            return Match(root.namespace, child, offset, pages, position // TOKEN_BYTES, tail)
        tail = self._tail_below(node, data, position, limit)
        offset = node.num_tokens
        return Match(root.namespace, node, offset, pages, position // TOKEN_BYTES, tail)

    def _tail_in_edge(
        self, node: Node, page: int, data: bytes, position: int, limit: int
    ) -> TailMatch | None:
        if page >= len(node.page_ids):
            return None
        return self._tail(node, page, data, position, limit)

    def _tail_below(self, node: Node, data: bytes, position: int, limit: int) -> TailMatch | None:
        """Among sorted first pages, the one that shares most stands next to where ours would."""
        order = node.order
        if not order or position >= limit:
            return None
        place = bisect_left(order, data[position : min(limit, position + self._width)])
        best: TailMatch | None = None
        for first_page in order[max(place - 1, 0) : place + 1]:
            tail = self._tail(node.children[first_page], 0, data, position, limit)
            if tail and (best is None or tail.num_tokens > best.num_tokens):
                best = tail
        return best

    def _tail(
        self, node: Node, page: int, data: bytes, position: int, limit: int
    ) -> TailMatch | None:
        if not self.share_tail_pages:
            return None
        room = min(limit - position, self._width) // TOKEN_BYTES
        equal = count_equal(data, position, node.key, page * self._width, room, TOKEN_BYTES)
        return TailMatch(node, node.page_ids[page], equal) if equal else None

    # ---- locking ----

    def lock(self, match: Match, hint: CacheHint | None = None) -> Node:
        """Keep a matched prefix and count a use of it. Returns the node that ends it."""
        node = match.node if match.node is not None else self.root(match.namespace)
        if match.offset < node.num_tokens:
            node = self._split(node, match.offset)
        self._clock += 1
        credit = FORK_CREDIT * hint.forks if hint else 0
        step: Node | None = node
        while step is not None:
            step.hits += 1
            step.dead = False
            step.due = 0
            step.credit = max(step.credit - FORK_CREDIT, credit, 0)
            step = step.parent
        self.lock_node(node)
        return node

    def lock_node(self, node: Node) -> None:
        """Keep the path to `node` once more, counting no use."""
        step: Node | None = node
        while step is not None:
            if not step.num_locks:
                self.num_protected += len(step.page_ids)
                self.heap.discard(step)
            step.num_locks += 1
            step.last_access = self._clock
            step = step.parent

    def unlock(self, node: Node, hint: CacheHint | None = None, pause: int = 0) -> None:
        """Give up one lock of the path to `node`.

        A hint of last use lets pages that nobody else used leave first; promised forks, and a
        `pause` (ticks) after which the program comes back, make them stay as if used so much later.
        """
        self._clock += 1
        dying = hint is not None and hint.last_use
        credit = FORK_CREDIT * hint.forks if hint else 0
        due = self._clock + pause if pause else 0
        step: Node | None = node
        while step is not None:
            parent = step.parent
            step.num_locks -= 1
            step.due = max(step.due, due)
            step.last_access = self._clock
            step.credit = max(step.credit, credit)
            dying = dying and step.hits <= 1
            step.dead = step.dead or dying
            if not step.num_locks:
                self.num_protected -= len(step.page_ids)
                self._settle(step)
            step = parent

    def _settle(self, node: Node) -> None:
        """An unlocked node without children waits in the heap, or leaves at once."""
        if node.children:
            return
        if node.parent is None:
            if self._roots.get(node.namespace) is node:
                del self._roots[node.namespace]
        elif self.enabled:
            self.heap.push(node)
        else:
            self._remove(node)

    def root(self, namespace: str = "") -> Node:
        """The empty prefix of a namespace. An unlocked root without children does not stay."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = self._node(b"", [], None, 0, namespace)
        return root

    def at_depth(self, node: Node, num_tokens: int) -> Match:
        """The prefix of `num_tokens` tokens (whole pages) of the path to `node`, to be locked."""
        path: list[Node] = []
        step: Node | None = node
        while step is not None:
            path.append(step)
            step = step.parent
        pages: list[int] = []
        for below in reversed(path):
            pages += below.page_ids
            if below.end >= num_tokens:
                del pages[num_tokens // self.page_size :]
                offset = num_tokens - below.start
                return Match(node.namespace, below, offset, pages, num_tokens)
        raise ValueError(f"the path has {node.end} tokens, {num_tokens} wanted")

    # ---- growing ----

    def insert(self, node: Node, token_ids: TokenIds, page_ids: Sequence[int]) -> Insertion:
        """Put the pages that continue a locked path into the tree.

        `token_ids`: the whole pages of tokens that follow `node`; `page_ids`: held pages with their
        KV. Pages that the tree does not have become its own; the others are duplicates. The
        caller's lock moves from `node` to the returned node.
        """
        data, width = to_bytes(token_ids), self._width
        if len(data) != len(page_ids) * width:
            raise ValueError(f"{len(data) // TOKEN_BYTES} tokens do not fill {len(page_ids)} pages")
        self._clock += 1
        top, position = node, 0
        known: list[int] = []
        while position < len(data):
            child = node.children.get(data[position : position + width])
            if child is None:
                break
            room = min(len(child.key), len(data) - position) // width
            equal = count_equal(data, position, child.key, 0, room, width)
            if equal < len(child.page_ids):
                child = self._split(child, equal * self.page_size)
            known += child.page_ids
            position += equal * width
            node = child
        num_known = len(known)
        new = list(page_ids[num_known:])
        if new:
            node = self._attach(node, top, data[position:], new)
        self._move_lock(top, node)
        duplicates = [page for page, kept in zip(page_ids, known, strict=False) if page != kept]
        return Insertion(node, known + new, duplicates)

    def _attach(self, node: Node, top: Node, key: bytes, page_ids: list[int]) -> Node:
        """Grow `node` by new pages: in place where nobody else could tell, or by a new child."""
        self.pool.adopt(page_ids)
        tokens = len(key) // TOKEN_BYTES
        alone = node is top and node.num_locks == 1 and node.hits == 1 and not node.children
        if alone and node.parent is not None:
            node.key += key
            node.page_ids += page_ids
            node.end += tokens
            self.num_protected += len(page_ids)
            return node
        child = self._node(key, page_ids, node, node.end + tokens, node.namespace)
        self.heap.discard(node)
        node.add_child(key[: self._width], child)
        return child

    def _move_lock(self, top: Node, bottom: Node) -> None:
        """`top` is on the path to `bottom` and stays locked through it."""
        step = bottom
        while step is not top:
            if not step.num_locks:
                self.num_protected += len(step.page_ids)
                self.heap.discard(step)
            step.num_locks += 1
            step.last_access = self._clock
            assert step.parent is not None
            step = step.parent

    def _split(self, node: Node, offset: int) -> Node:
        """Cut an edge after `offset` tokens (whole pages). `node` stays the lower part, so that
        those who hold it still hold the end they meant; the new upper part is returned."""
        cut, parent = offset * TOKEN_BYTES, node.parent
        assert parent is not None
        num_pages = offset // self.page_size
        if not 0 < num_pages < len(node.page_ids):
            return parent if num_pages == 0 else node
        upper = self._node(
            node.key[:cut], node.page_ids[:num_pages], parent, node.start + offset, node.namespace
        )
        upper.num_locks, upper.last_access = node.num_locks, node.last_access
        upper.hits, upper.credit, upper.dead = node.hits, node.credit, node.dead
        upper.due = node.due
        first_page = node.key[: self._width]
        parent.children[first_page] = upper  # the same first page: `order` does not change
        node.key, node.page_ids, node.parent = node.key[cut:], node.page_ids[num_pages:], upper
        upper.add_child(node.key[: self._width], node)
        return upper

    def _node(
        self, key: bytes, page_ids: list[int], parent: Node | None, end: int, namespace: str
    ) -> Node:
        self._serial += 1
        node = Node(key, page_ids, parent, end, namespace, self._serial)
        node.last_access = self._clock
        return node

    # ---- shrinking ----

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` unlocked pages; returns how many. O(log leaves) a leaf.

        A leaf longer than what is wanted loses its end and keeps its place.
        """
        freed = 0
        while freed < num_pages and len(self.heap):
            node, wanted = self.heap.first(), num_pages - freed
            leaving = min(len(node.page_ids), wanted)
            freed += leaving
            self.num_evicted_dead += leaving if node.dead else 0
            self.num_evicted_due += leaving if node.due > self._clock else 0
            if len(node.page_ids) > wanted:
                self._trim(node, wanted)
            else:
                self.heap.pop()
                self._remove(node)
        self.num_evicted += freed
        return freed

    def clear(self) -> int:
        """Evict everything that is not locked; returns the number of pages freed."""
        return self.evict(self.num_evictable)

    def _trim(self, node: Node, num_pages: int) -> None:
        self.pool.reclaim(node.page_ids[-num_pages:])
        del node.page_ids[-num_pages:]
        node.key = node.key[: -num_pages * self._width]
        node.end -= num_pages * self.page_size

    def _remove(self, node: Node) -> None:
        """Take a leaf out; its parent may become an unlocked leaf."""
        self.pool.reclaim(node.page_ids)
        parent = node.parent
        assert parent is not None
        parent.drop_child(node.key[: self._width])
        node.parent = None
        if not parent.num_locks:
            self._settle(parent)
