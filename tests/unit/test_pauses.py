"""Programs that pause and come back: how long that is in the cache's time, and what it is worth."""

from typing import get_args

import pytest
from scheduling import ids

from radixgen.cache.eviction import FORK_CREDIT
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.verify import check_cache
from radixgen.config import Eviction
from radixgen.schedule.memory import LATENESS, MAX_PAUSE, Pace


def use(cache: RadixCache, *tokens: int, pause: int = 0) -> int:
    match = cache.match_prefix(ids(*tokens))
    node = cache.lock(match)
    rest = tokens[match.num_tokens :]
    cache.evict(max(len(rest) - cache.pool.num_free, 0))
    added = cache.insert(node, ids(*rest), cache.pool.allocate(len(rest)))
    cache.unlock(added.node, pause=pause)
    check_cache(cache)
    return match.num_tokens


@pytest.mark.parametrize("eviction", get_args(Eviction))
@pytest.mark.parametrize("pause", [0, 64])
def test_what_a_program_comes_back_to_outlives_what_came_later(
    eviction: Eviction, pause: int
) -> None:
    cache = RadixCache(PagePool(8), 1, eviction)
    use(cache, 1, 2, 3, pause=pause)
    for other in range(10, 16):
        use(cache, other, other)
    assert (use(cache, 1, 2, 3) == 3) == bool(pause)
    assert cache.num_evicted_due == 0


def test_a_promise_lasts_as_long_as_it_says_and_is_kept_once() -> None:
    cache = RadixCache(PagePool(8), 1)
    use(cache, 1, 2, 3, pause=20)
    for other in range(10, 40):
        use(cache, other, other)
    assert use(cache, 1, 2, 3) == 0, "it did not come back in time"
    use(cache, 1, 2, 3, pause=1000)
    use(cache, 1, 2, 3)
    for other in range(10, 16):
        use(cache, other, other)
    assert use(cache, 1, 2, 3) == 0, "it had come back"


def test_pages_that_are_due_and_must_go_are_counted() -> None:
    cache = RadixCache(PagePool(8), 1)
    use(cache, 1, 2, 3, pause=1000)
    use(cache, *range(10, 18))
    assert (cache.num_evicted, cache.num_evicted_due) == (3, 3)


def test_a_pause_is_counted_in_the_caches_own_time() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.pause(0, 0.0) == 0
    assert pace.pause(0, 1e6) == FORK_CREDIT, "nothing is known of the pace yet"
    now[0] = 2.0
    assert pace.pause(400, 1.0) == int(LATENESS * 200)
    now[0] = 4.0  # it slows down; the newest measurement counts most, not alone
    assert int(LATENESS * 100) < pace.pause(600, 1.0) < int(LATENESS * 200)
    assert pace.pause(600, 0.001) == FORK_CREDIT
    assert pace.pause(600, 1e6) == MAX_PAUSE
