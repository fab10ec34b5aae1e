"""Takes pages for sequences and gives them back. The only user of the cache and its pool.

    page_ids   |-- tree: locked through `node` --|-- held: private --|
               0                    num_tree_pages            len(page_ids)
    plain_ids                                 |-- not full yet ------|     where pages are of few
                                      num_computed                         bits: one a page

A page of few bits is written once it is full and its tokens are certain. Until then its tokens are
in a plain page, of a pool of its own, which only a running sequence has: who is preempted computes
them again.

Knows sequences' pages; nothing of order, budgets of tokens, or sampling.
"""

from collections.abc import Callable, Sequence

from radixgen.batch import PageCopy
from radixgen.cache.eviction import FORK_CREDIT
from radixgen.cache.node import NO_TOKEN, Node
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import Match, RadixCache
from radixgen.schedule.request import SequenceState

MIN_TAIL_TOKENS = 2  # fewer are computed sooner than copied
SMOOTHING = 0.3  # weight of the newest measurement of the cache's pace
MEASURE_SECONDS = 0.05  # between two
LATENESS = 2.0  # a pause may take so many times as long as expected
MAX_PAUSE = 64 * FORK_CREDIT  # ticks of the cache that a promise to come back is worth


class Pace:
    """How many ticks the cache's clock goes in a second, of late."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at, self._ticks = clock(), 0
        self._rate = 0.0

    def pause(self, ticks: int, seconds: float) -> int:
        """The ticks in which a program that pauses for so long is back; `ticks`: of now."""
        now = self._clock()
        if now - self._at >= MEASURE_SECONDS:
            rate = (ticks - self._ticks) / (now - self._at)
            self._rate += (rate - self._rate) * (SMOOTHING if self._rate else 1.0)
            self._at, self._ticks = now, ticks
        expected = int(LATENESS * seconds * self._rate)
        return min(max(expected, FORK_CREDIT), MAX_PAUSE) if seconds else 0


class Memory:
    """The pages of running sequences, at most `limit_pages` of them at any time.

    `num_plain_pages`: of those in full precision, where the cache's are of few bits.
    """

    def __init__(
        self,
        cache: RadixCache,
        max_total_tokens: int | None,
        clock: Callable[[], float],
        num_plain_pages: int | None = None,
    ) -> None:
        if num_plain_pages is not None and cache.share_tail_pages:
            raise ValueError("pages of few bits are shared as a whole: share_tail_pages=False")
        self.cache = cache
        self._plain = None if num_plain_pages is None else PagePool(num_plain_pages)
        self._pace = Pace(clock)
        self.page_size = cache.page_size
        total = cache.pool.num_pages
        if max_total_tokens is not None:
            total = min(total, max(max_total_tokens // cache.page_size, 1))
        self.limit_pages = total
        self._pins: list[Node] = []
        self._keeps_rests = cache.share_tail_pages and cache.can_match

    @property
    def num_used(self) -> int:
        """Pages that running sequences hold or lock."""
        return self.cache.pool.num_held + self.cache.num_protected

    @property
    def num_available(self) -> int:
        """Pages that can be had now, by eviction where needed."""
        return self.limit_pages - self.num_used

    @property
    def num_open(self) -> int:
        """Pages that can be begun now: each that is not full needs a plain one."""
        room = max(self.num_available, 0)
        return room if self._plain is None else min(room, self._plain.num_free)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def find(self, sequence: SequenceState) -> Match:
        """What the tree, or a running sibling, has of a sequence's known tokens."""
        return self.cache.match_prefix(
            sequence.tokens, sequence.request.namespace, sequence.max_match
        )

    def unlocked_pages(self, match: Match) -> int:
        """Pages of a match that can be evicted now and could not once it is locked."""
        node, total, inside = match.node, 0, match.offset
        while node is not None:
            if not node.num_locks:
                total += inside // self.page_size
            node = node.parent
            inside = node.num_tokens if node else 0
        return total

    def enter(self, sequence: SequenceState, match: Match) -> None:
        """Lock a match and start the sequence's pages with it."""
        assert sequence.node is None
        sequence.node = self.cache.lock(match, sequence.request.hint)
        sequence.page_ids = list(match.page_ids)
        sequence.num_tree_pages = len(match.page_ids)
        sequence.num_computed = match.num_tokens

    def copy_tail(self, sequence: SequenceState, match: Match, spare: int) -> PageCopy | None:
        """Take over the part of a page that continues the match, where pages allow it.

        The source stays pinned until `unpin`. `spare`: pages that may be protected for it.
        """
        tail = match.tail
        if tail is None or tail.num_tokens < MIN_TAIL_TOKENS:
            return None
        if not tail.node.num_locks and len(tail.node.page_ids) > spare:
            return None
        self.cache.lock_node(tail.node)
        if tail.node.is_rest:  # its text goes on in the copy
            tail.node.dead = True
        self._pins.append(tail.node)
        return self._copy(sequence, tail.page_id, tail.num_tokens)

    def fork(self, child: SequenceState, parent: SequenceState) -> PageCopy | None:
        """Share the parent's whole pages and copy its partial one, up to the child's last known
        token. The parent has computed that far and stays until the step is over."""
        num_tokens = child.max_match
        whole = num_tokens // self.page_size
        assert parent.node is not None
        match = self.cache.at_depth(parent.node, whole * self.page_size)
        self.enter(child, match)
        rest = num_tokens - match.num_tokens
        if not rest:
            return None
        if self._plain is None:
            return self._copy(child, parent.page_ids[whole], rest)
        place = whole - len(parent.page_ids) + len(parent.plain_ids)
        if place < 0 or not self.num_open:  # full by now, and of few bits: computed again
            return None
        copy = self._copy(child, parent.plain_ids[place], rest)
        return PageCopy(copy.source, child.plain_ids[-1], rest)

    def _copy(self, sequence: SequenceState, source: int, num_tokens: int) -> PageCopy:
        self._extend(sequence, 1)
        sequence.num_computed += num_tokens
        return PageCopy(source, sequence.page_ids[-1], num_tokens)

    def unpin(self) -> None:
        """The step that copies is over."""
        for node in self._pins:
            self.cache.unlock(node)
        self._pins.clear()

    def grow(self, sequence: SequenceState, num_tokens: int) -> int:
        """Pages for up to `num_tokens` more tokens; returns for how many there are pages now."""
        wanted = self.pages_for(sequence.num_computed + num_tokens) - len(sequence.page_ids)
        if wanted > 0:
            self._extend(sequence, min(wanted, self.num_open))
        room = len(sequence.page_ids) * self.page_size - sequence.num_computed
        return min(num_tokens, room)

    def _extend(self, sequence: SequenceState, num_pages: int) -> None:
        pool = self.cache.pool
        if num_pages > pool.num_free:
            self.cache.evict(num_pages - pool.num_free)
        sequence.page_ids += pool.allocate(num_pages)
        if self._plain is not None:
            sequence.plain_ids += self._plain.allocate(num_pages)

    def shed(self, sequence: SequenceState) -> None:
        """Give up the plain ones of pages that are full of computed tokens."""
        if self._plain is not None:
            left = len(sequence.page_ids) - sequence.num_computed // self.page_size
            full = len(sequence.plain_ids) - left
            self._plain.release(sequence.plain_ids[:full])
            del sequence.plain_ids[:full]

    def commit(self, sequence: SequenceState) -> None:
        """Put the whole computed pages into the tree, so that others find them."""
        whole = min(sequence.num_computed, len(sequence.tokens)) // self.page_size
        start = sequence.num_tree_pages
        if whole <= start or sequence.node is None:
            return
        tokens = sequence.tokens[start * self.page_size : whole * self.page_size]
        added = self.cache.insert(sequence.node, tokens, sequence.page_ids[start:whole])
        sequence.node = added.node
        sequence.page_ids[start:whole] = added.page_ids
        sequence.num_tree_pages = whole
        self.cache.pool.release(added.duplicates)

    def _keep_rest(self, sequence: SequenceState) -> None:
        """Put the computed beginning of a last page into the tree, filled up with no tokens at all:
        nothing continues such a page, but whoever continues the text can copy from it."""
        first = sequence.num_tree_pages
        end = min(sequence.num_computed, len(sequence.tokens))
        rest = sequence.tokens[first * self.page_size : end]
        if sequence.node is None or len(rest) < MIN_TAIL_TOKENS or not self._keeps_rests:
            return
        page = [*rest, *[NO_TOKEN] * (self.page_size - len(rest))]
        added = self.cache.insert(sequence.node, page, sequence.page_ids[first : first + 1])
        sequence.node = added.node
        sequence.page_ids[first : first + 1] = added.page_ids
        sequence.num_tree_pages += 1
        self.cache.pool.release(added.duplicates)

    def leave(self, sequence: SequenceState, *, keep: bool, final: bool = False) -> None:
        """Give up every page; with `keep`, what is computed stays in the tree as long as it may.

        `final`: the sequence will not come back, so its hint speaks.
        """
        if sequence.node is None:
            return
        hint = sequence.request.hint if final else None
        if keep:
            self.commit(sequence)
            if hint is None or not hint.last_use:
                self._keep_rest(sequence)
        self.cache.pool.release(sequence.page_ids[sequence.num_tree_pages :])
        if self._plain is not None:
            self._plain.release(sequence.plain_ids)
            sequence.plain_ids = []
        pause = self._pace.pause(self.cache.clock, hint.tool_seconds) if hint else 0
        self.cache.unlock(sequence.node, hint, pause)
        sequence.node = None
        sequence.page_ids = []
        sequence.num_tree_pages = 0
        sequence.num_computed = 0

    def unshared_tokens(self, sequence: SequenceState) -> int:
        """Computed tokens that no other running sequence protects: what a preemption may lose."""
        node, shared = sequence.node, 0
        while node is not None:
            if node.num_locks > 1:
                shared = node.end
                break
            node = node.parent
        return sequence.num_computed - shared

    def counts(self) -> dict[str, float]:
        """Pages and where they are; those that had to go, and among them those called done with,
        and those that a program is to come back to; plain ones, where there are any."""
        cache, pool, plain = self.cache, self.cache.pool, self._plain
        counts: dict[str, float] = (
            {}
            if plain is None
            else {
                "plain_pages": plain.num_pages,
                "held_plain_pages": plain.num_held,
            }
        )
        return counts | {
            "total_pages": pool.num_pages,
            "free_pages": pool.num_free,
            "held_pages": pool.num_held,
            "tree_pages": pool.num_tree,
            "protected_pages": cache.num_protected,
            "evicted_pages": cache.num_evicted,
            "evicted_dead_pages": cache.num_evicted_dead,
            "evicted_due_pages": cache.num_evicted_due,
        }

    def check(self, running: Sequence[SequenceState]) -> None:
        """Raises AssertionError unless every held page has one owner and every lock a holder."""
        held: set[int] = set()
        plain: list[int] = []
        locks: dict[str, int] = {}
        for sequence in running:
            node = sequence.node
            assert node is not None, f"{sequence.request.rid} runs without a place in the tree"
            private = sequence.page_ids[sequence.num_tree_pages :]
            assert held.isdisjoint(private), f"{sequence.request.rid}: a page has two owners"
            held.update(private)
            assert node.end == sequence.num_tree_pages * self.page_size
            path = self.cache.at_depth(node, node.end)
            assert path.page_ids == sequence.page_ids[: sequence.num_tree_pages]
            assert len(sequence.page_ids) >= self.pages_for(sequence.num_computed)
            plain += sequence.plain_ids
            not_full = len(sequence.page_ids) - sequence.num_computed // self.page_size
            assert self._plain is None or len(sequence.plain_ids) == not_full
            locks[node.namespace] = locks.get(node.namespace, 0) + 1
        for node in self._pins:
            locks[node.namespace] = locks.get(node.namespace, 0) + 1
        assert len(held) == self.cache.pool.num_held, "held pages without an owner"
        if self._plain is not None:
            self._plain.check()
            assert len(plain) == len(set(plain)) == self._plain.num_held, "plain pages' owners"
        for root in self.cache.roots():
            assert root.num_locks == locks.get(root.namespace, 0), "a lock without a holder"
        assert self.num_used <= self.limit_pages, "more pages in use than allowed"
