"""Marks of waiting and prefilling sequences in a tree of prompts: who is about to need what.

A weightless radix tree beside the one that holds pages: its keys are whole pages of known tokens of
the sequences that wait or prefill. It answers, in O(length / page) an arrival and without ever
looking at the whole queue:

    is somebody computing the prefix this sequence needs?   it is held until that is in the tree
    whose prefix has just been computed?                    their place in the queue improves

Knows sequences' tokens; no pages, no order of the queue.
"""

from collections.abc import Iterator
from typing import Final

from radixgen.cache.node import TOKEN_BYTES
from radixgen.cache.radix import count_equal
from radixgen.schedule.request import SequenceState, Status

MIN_SHARED_TOKENS: Final = 16  # a shorter common prefix is not worth a wait


Depths = dict[SequenceState, int]  # tokens of each sequence that the tree should have by now


class Mark:
    """An edge of the tree of prompts. `num_leaders` prefilling sequences pass through it."""

    __slots__ = ("children", "end", "held", "key", "members", "num_leaders", "num_ready", "parent")

    def __init__(self, key: bytes, parent: "Mark | None", end: int) -> None:
        self.key = key
        self.parent = parent
        self.end = end  # tokens from the root
        self.children: dict[bytes, Mark] = {}
        self.members: dict[SequenceState, None] = {}  # sequences whose whole pages end here
        self.held: dict[SequenceState, None] = {}  # until the tree has `end` tokens of theirs
        self.num_leaders = 0
        self.num_ready = 0  # of the subtree, in the queue; kept by the dfs order


class Marks:
    """The tree of prompts, one root a namespace."""

    def __init__(self, page_size: int) -> None:
        self._width = page_size * TOKEN_BYTES
        self._roots: dict[str, Mark] = {}
        self._mark_of: dict[SequenceState, Mark] = {}
        self._leaders: dict[SequenceState, int] = {}  # and how many tokens are computed of each

    def __len__(self) -> int:
        return len(self._mark_of)

    def mark(self, sequence: SequenceState) -> Mark | None:
        return self._mark_of.get(sequence)

    def root(self, namespace: str) -> Mark:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Mark(b"", None, 0)
        return root

    def roots(self) -> Iterator[Mark]:
        return iter(self._roots.values())

    # ---- coming and going ----

    def enrol(self, sequence: SequenceState) -> Mark:
        """Mark a sequence's whole pages. O(length / page)."""
        known = self._mark_of.get(sequence)
        if known is not None:
            return known
        data = sequence.tokens.tobytes()
        size = len(data) - len(data) % self._width
        mark, position = self.root(sequence.request.namespace), 0
        while position < size:
            child = mark.children.get(data[position : position + self._width])
            if child is None:
                child = Mark(data[position:size], mark, size // TOKEN_BYTES)
                mark.children[child.key[: self._width]] = child
                mark, position = child, size
                continue
            room = min(len(child.key), size - position) // self._width
            equal = count_equal(data, position, child.key, 0, room, self._width) * self._width
            mark = child if equal == len(child.key) else self._split(child, equal)
            position += equal
        mark.members[sequence] = None
        self._mark_of[sequence] = mark
        return mark

    def withdraw(self, sequence: SequenceState) -> Depths:
        """Forget a sequence; those it held up are returned, as by `end`."""
        mark = self._mark_of.get(sequence)
        if mark is None:
            return {}
        released = self.end(sequence)
        del mark.members[sequence]
        del self._mark_of[sequence]
        self._prune(mark, sequence.request.namespace)
        return released

    def _split(self, mark: Mark, cut: int) -> Mark:
        """`mark` stays the lower part; the new upper one is returned."""
        parent = mark.parent
        assert parent is not None
        upper = Mark(mark.key[:cut], parent, mark.end - (len(mark.key) - cut) // TOKEN_BYTES)
        upper.num_leaders, upper.num_ready = mark.num_leaders, mark.num_ready
        parent.children[upper.key[: self._width]] = upper
        mark.key, mark.parent = mark.key[cut:], upper
        upper.children[mark.key[: self._width]] = mark
        return upper

    def _prune(self, mark: Mark, namespace: str) -> None:
        while not (mark.members or mark.children or mark.held):
            parent = mark.parent
            if parent is None:
                if self._roots.get(namespace) is mark:
                    del self._roots[namespace]
                return
            del parent.children[mark.key[: self._width]]
            mark = parent

    # ---- leading and being held ----

    def lead(self, sequence: SequenceState) -> None:
        """A sequence begins to compute the rest of its known tokens."""
        mark: Mark | None = self.enrol(sequence)
        self._leaders[sequence] = sequence.num_computed
        while mark is not None:
            mark.num_leaders += 1
            mark = mark.parent

    def leader_depth(self, sequence: SequenceState) -> int:
        """Tokens of this sequence's prefix that some leader has computed or will compute."""
        mark = self._mark_of.get(sequence)
        while mark is not None and not mark.num_leaders:
            mark = mark.parent
        return 0 if mark is None else mark.end

    def hold(self, sequence: SequenceState) -> None:
        """Wait until a leader has computed all that it shares with this sequence."""
        mark: Mark | None = self.enrol(sequence)
        while mark is not None and not mark.num_leaders:
            mark = mark.parent
        if mark is None:
            raise ValueError(f"nobody computes a prefix of {sequence.request.rid}")
        mark.held[sequence] = None
        sequence.status = Status.HELD

    def unhold(self, sequence: SequenceState) -> None:
        """A held sequence is cancelled."""
        mark = self._mark_of.get(sequence)
        while mark is not None:
            mark.held.pop(sequence, None)
            mark = mark.parent

    def progress(self, leader: SequenceState) -> Depths:
        """A leader's whole pages are in the tree: the sequences that can use them, and how far.

        Each edge that the leader has completed is reported once, so a sequence is reported once
        for each edge newly in the tree, however long the queue is.
        """
        done = self._leaders.get(leader)
        if done is None:
            return {}
        depth = leader.num_tree_pages * self._width // TOKEN_BYTES
        self._leaders[leader] = max(depth, done)
        path = [mark for mark in self._path(leader) if done < mark.end <= depth]
        return _below(path)

    def end(self, leader: SequenceState) -> Depths:
        """A leader computes no more; those it alone held up are released with what there is."""
        if self._leaders.pop(leader, None) is None:
            return {}
        released: Depths = {}
        for mark in self._path(leader):
            mark.num_leaders -= 1
            if not mark.num_leaders:
                _let_go(mark, {seq: seq.matched for seq in mark.held}, released)
        return released

    def _path(self, sequence: SequenceState) -> list[Mark]:
        """Deepest first."""
        path: list[Mark] = []
        mark: Mark | None = self._mark_of[sequence]
        while mark is not None:
            path.append(mark)
            mark = mark.parent
        return path


def _let_go(mark: Mark, depths: Depths, released: Depths) -> None:
    for sequence in mark.held:
        sequence.status = Status.WAITING
        released.setdefault(sequence, depths.get(sequence, mark.end))
    mark.held.clear()


def _below(path: list[Mark]) -> Depths:
    """`path`: completed edges, deepest first. Whoever has them in common, and how far."""
    found: Depths = {}
    done: Mark | None = None
    for mark in path:
        _let_go(mark, {}, found)
        stack = [mark]
        while stack:
            deeper = stack.pop()
            for sequence in deeper.members:
                found.setdefault(sequence, mark.end)
            stack.extend(child for child in deeper.children.values() if child is not done)
        done = mark
    return found
