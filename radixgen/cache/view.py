"""The tree as a person may look at it: its largest branches, with what hangs below them counted.

Takes time in the number of nodes and changes nothing. Knows token ids and no text.
"""

import hashlib
import heapq
from array import array

from radixgen.cache.node import NO_TOKEN, TOKEN_BYTES, Node
from radixgen.cache.radix import RadixCache
from radixgen.messages import CacheNode

MAX_NODES = 4096
MAX_PREVIEW = 64  # tokens of an edge


def view(cache: RadixCache, max_nodes: int, max_preview: int) -> tuple[CacheNode, ...]:
    """The `max_nodes` nodes with the most tokens at and below them, parents before children.

    A namespace is named by a digest: its own name may be the salt that keeps others out.
    """
    max_nodes = min(max(max_nodes, 0), MAX_NODES)
    max_preview = min(max(max_preview, 0), MAX_PREVIEW)
    below = _below(cache)
    clock = max((root.last_access for root in cache.roots()), default=0)
    places: dict[Node, int] = {}
    shown: list[CacheNode] = []
    waiting = [(-below[root][1], root.serial, root) for root in cache.roots()]
    heapq.heapify(waiting)
    while waiting and len(shown) < max_nodes:
        *_, node = heapq.heappop(waiting)
        places[node] = len(shown)
        num_nodes, num_tokens = below[node]
        shown.append(
            CacheNode(
                parent=-1 if node.parent is None else places[node.parent],
                namespace=digest(node.namespace),
                num_tokens=node.num_tokens,
                num_locks=node.num_locks,
                hits=node.hits - (node.parent is None),  # a root is made before it is used
                idle=clock - node.last_access,
                nodes_below=num_nodes,
                tokens_below=num_tokens,
                preview=_ids(node, max_preview),
            )
        )
        for child in node.children.values():
            heapq.heappush(waiting, (-(below[child][1] + child.num_tokens), child.serial, child))
    return tuple(shown)


def digest(namespace: str) -> str:
    """Eight characters that tell namespaces apart; none for the one that all share."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:8] if namespace else ""


def _below(cache: RadixCache) -> dict[Node, tuple[int, int]]:
    """Node -> how many nodes, and tokens on their edges, hang below it."""
    order = [*cache.roots(), *cache.nodes()]  # parents first
    nodes, tokens = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    for node in reversed(order):
        if node.parent is not None:
            nodes[node.parent] += nodes[node] + 1
            tokens[node.parent] += tokens[node] + node.num_tokens
    return {node: (nodes[node], tokens[node]) for node in order}


def _ids(node: Node, limit: int) -> tuple[int, ...]:
    ids = array("i", node.key[: limit * TOKEN_BYTES])
    return tuple(token_id for token_id in ids if token_id != NO_TOKEN)
