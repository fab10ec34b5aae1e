"""One edge of the radix tree: its tokens, its pages, and what eviction needs to know of it."""

from bisect import bisect_left, insort
from typing import Final

TOKEN_BYTES: Final = 4  # token ids are int32, native byte order
NO_TOKEN: Final = -1  # fills up a page that a text ended in; no prompt has it
_NO_TOKEN_BYTES: Final = NO_TOKEN.to_bytes(TOKEN_BYTES, "little", signed=True)


class Node:
    """An edge and the point at its end.

    `key` holds whole pages of token ids as bytes: memcmp compares them, and a slice of one page is
    the name of a child. Two children of a node differ in their first page.
    """

    __slots__ = (
        "children",
        "credit",
        "dead",
        "due",
        "end",
        "heap_index",
        "hits",
        "key",
        "last_access",
        "namespace",
        "num_locks",
        "order",
        "page_ids",
        "parent",
        "serial",
    )

    def __init__(
        self,
        key: bytes,
        page_ids: list[int],
        parent: "Node | None",
        end: int,
        namespace: str,
        serial: int,
    ) -> None:
        self.key = key
        self.page_ids = page_ids
        self.parent = parent
        self.end = end  # tokens from the root to the end of this edge
        self.namespace = namespace
        self.serial = serial  # breaks ties, so that runs repeat
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []  # the children's first pages, sorted: neighbours share most
        self.num_locks = 0
        self.last_access = 0  # logical clock
        self.hits = 1  # requests that computed or reused these pages
        self.credit = 0  # ticks of the clock that a promise of forks adds to last_access
        self.due = 0  # the tick at which its program is expected back, after a pause
        self.dead = False  # its program promised not to continue it
        self.heap_index = -1  # where it is in the eviction heap, -1 when not

    @property
    def num_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    @property
    def start(self) -> int:
        """Tokens from the root to the beginning of this edge."""
        return self.end - len(self.key) // TOKEN_BYTES

    @property
    def is_rest(self) -> bool:
        """Whether it is but the last page of a text, not filled."""
        return len(self.page_ids) == 1 and self.key.endswith(_NO_TOKEN_BYTES)

    def add_child(self, first_page: bytes, child: "Node") -> None:
        self.children[first_page] = child
        insort(self.order, first_page)

    def drop_child(self, first_page: bytes) -> None:
        del self.children[first_page]
        del self.order[bisect_left(self.order, first_page)]
