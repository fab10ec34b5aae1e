"""Free, held, tree: each page in one state, each move checked."""

import pytest

from radixgen.cache.pages import FREE, HELD, TREE, OutOfPages, PagePool


def test_a_page_goes_round() -> None:
    pool = PagePool(3)
    assert pool.allocate(2) == [0, 1]
    assert (pool.num_free, pool.num_held, pool.num_tree) == (1, 2, 0)
    pool.adopt([0])
    assert [pool.state(page) for page in range(3)] == [TREE, HELD, FREE]
    pool.reclaim([0])
    pool.release([1])
    assert pool.num_free == 3
    pool.check()


def test_too_many_changes_nothing() -> None:
    pool = PagePool(2)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 free"):
        pool.allocate(3)
    assert pool.allocate(0) == []
    assert pool.num_free == 2


@pytest.mark.parametrize("move", ["release", "adopt", "reclaim"])
def test_a_page_in_another_state_is_refused(move: str) -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.adopt(pages)
    wrong = {"release": pages, "adopt": pages, "reclaim": [1]}[move]
    with pytest.raises(AssertionError, match="page"):
        getattr(pool, move)(wrong)


def test_check_sees_a_lost_page() -> None:
    pool = PagePool(2)
    pool.allocate(1)
    pool.num_held = 0
    with pytest.raises(AssertionError):
        pool.check()


def test_no_pages_at_all() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PagePool(0)
