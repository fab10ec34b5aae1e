"""Which unlocked leaf leaves first: one key function a policy, and a heap that updates in place.

The heap holds exactly the unlocked leaves. A leaf enters when its last lock or last child goes and
leaves when it is locked or grows a child, each in O(log n): nothing is ever rebuilt or scanned.
"""

from collections.abc import Callable
from typing import Final

from radixgen.cache.node import Node
from radixgen.config import Eviction

Key = tuple[float, ...]  # the smallest leaves first
FORK_CREDIT: Final = 64  # clock ticks of protection a promised fork is worth
_FAR: Final = 4096  # tokens at whose distance from the root a page costs twice as much to recompute


def _recency(node: Node) -> int:
    """The tick of the last use, or of a promised one that counts as if it had happened."""
    return max(node.last_access + node.credit, node.due)


def _uses(node: Node) -> float:
    """Uses so far and promised ones."""
    return node.hits + node.credit / FORK_CREDIT + (node.due > node.last_access)


def _lru(node: Node, floor: float) -> Key:
    return (_recency(node),)


def _lfu(node: Node, floor: float) -> Key:
    return (_uses(node), node.last_access)


def _slru(node: Node, floor: float) -> Key:
    return (_uses(node) > 1, _recency(node))


def _cost(node: Node, floor: float) -> Key:
    """GreedyDual-Size-Frequency (Cherkasova 1998): `floor` rises to the value of what was evicted,
    so that old value decays. A page's value is its uses times its cost, which grows with depth."""
    return (floor + _uses(node) * (1.0 + node.end / _FAR), node.last_access)


_KEYS: Final[dict[Eviction, Callable[[Node, float], Key]]] = {
    "lru": _lru,
    "lfu": _lfu,
    "slru": _slru,
    "cost": _cost,
}


class EvictionHeap:
    """A binary heap of nodes that know their place in it (`heap_index`)."""

    __slots__ = ("_floor", "_key", "_keys", "_nodes", "_values_first")

    def __init__(self, policy: Eviction) -> None:
        self._key = _KEYS[policy]
        self._keys: list[Key] = []
        self._nodes: list[Node] = []
        self._floor = 0.0
        self._values_first = policy == "cost"

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        index = node.heap_index
        return 0 <= index < len(self._nodes) and self._nodes[index] is node

    def first(self) -> Node:
        """The leaf to evict next. Raises IndexError when there is none."""
        return self._nodes[0]

    def push(self, node: Node) -> None:
        """Add a leaf, or give one that is here the key it has now."""
        key = (not node.dead, *self._key(node, self._floor), node.serial)
        if node.heap_index < 0:
            node.heap_index = len(self._nodes)
            self._nodes.append(node)
            self._keys.append(key)
            self._up(node.heap_index)
            return
        index, old = node.heap_index, self._keys[node.heap_index]
        self._keys[index] = key
        if key < old:
            self._up(index)
        else:
            self._down(index)

    def discard(self, node: Node) -> None:
        """Remove a node, if it is here."""
        index = node.heap_index
        if index < 0:
            return
        node.heap_index = -1
        last_node, last_key = self._nodes.pop(), self._keys.pop()
        if last_node is node:
            return
        self._nodes[index], self._keys[index] = last_node, last_key
        last_node.heap_index = index
        self._up(index)
        self._down(last_node.heap_index)

    def pop(self) -> Node:
        """Remove the leaf to evict next and return it."""
        node = self._nodes[0]
        if self._values_first and not node.dead:
            self._floor = max(self._floor, self._keys[0][1])
        self.discard(node)
        return node

    def check(self) -> None:
        """Raises AssertionError unless this is a heap and every node knows its place."""
        for index, node in enumerate(self._nodes):
            assert node.heap_index == index, f"node {node.serial} does not know its place"
            assert self._keys[(index - 1) // 2 if index else 0] <= self._keys[index], "heap order"
            assert not node.children, f"node {node.serial} is no leaf"
            assert not node.num_locks, f"node {node.serial} is locked"

    def _up(self, index: int) -> None:
        keys, nodes = self._keys, self._nodes
        key, node = keys[index], nodes[index]
        while index:
            above = (index - 1) >> 1
            if keys[above] <= key:
                break
            keys[index], nodes[index] = keys[above], nodes[above]
            nodes[index].heap_index = index
            index = above
        keys[index], nodes[index] = key, node
        node.heap_index = index

    def _down(self, index: int) -> None:
        keys, nodes = self._keys, self._nodes
        size, key, node = len(keys), keys[index], nodes[index]
        while (below := 2 * index + 1) < size:
            if below + 1 < size and keys[below + 1] < keys[below]:
                below += 1
            if key <= keys[below]:
                break
            keys[index], nodes[index] = keys[below], nodes[below]
            nodes[index].heap_index = index
            index = below
        keys[index], nodes[index] = key, node
        node.heap_index = index
