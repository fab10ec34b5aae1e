"""Pages of few bits, which are full when they are written, and the plain ones before them."""

from collections.abc import Sequence

import pytest
from scheduling import (
    PAGE,
    VOCAB,
    HashModel,
    ask,
    drive,
    expect_empty,
    expect_tokens,
    make,
    prompt_of,
    take_step,
    tokens_of,
)

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.schedule.scheduler import Scheduler


def make_plain(
    num_plain: int, num_pages: int = 64, config: ScheduleConfig | None = None
) -> tuple[Scheduler, HashModel]:
    cache = RadixCache(PagePool(num_pages), PAGE, share_tail_pages=False)
    return make(config=config, cache=cache, num_plain_pages=num_plain)


def test_a_running_sequence_keeps_the_page_that_is_not_full() -> None:
    scheduler, model = make_plain(12)
    scheduler.add(ask("r", prompt_of(2 * PAGE + 1), max_tokens=PAGE))
    held = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        if batch is None:
            break
        scheduler.update(batch, model.run(batch))
        held.append(scheduler.stats()["held_plain_pages"])
    # Tokens 9, 10, 11 lie in a page of four, which the fourth fills; then the choice is over.
    assert held == [1, 1, 1, 0]
    assert scheduler.stats()["plain_pages"] == 12
    expect_empty(scheduler)


@pytest.mark.parametrize(("length", "copied"), [(2 * PAGE + 3, 2), (2 * PAGE, 0)])
def test_forks_copy_what_is_in_a_plain_page(length: int, copied: int) -> None:
    """A prompt that fills its last page has none: its last tokens are computed again."""
    scheduler, model = make_plain(12)
    prompt = prompt_of(length)
    scheduler.add(ask("r", prompt, n=3, seed=5))
    found = tokens_of(drive(scheduler, model))
    for index in range(3):
        assert found["r", index] == expect_tokens(prompt, 5 + index, 8, VOCAB)
    assert scheduler.stats()["copied_pages"] == copied
    expect_empty(scheduler)


def test_only_whole_pages_are_taken_over() -> None:
    scheduler, model = make_plain(12)
    prompt = prompt_of(3 * PAGE + 2)
    for rid in ("cold", "warm"):
        scheduler.add(ask(rid, prompt))
        events = drive(scheduler, model)
        assert tokens_of(events)[rid, 0] == expect_tokens(prompt, 7, 8, VOCAB)
    assert scheduler.stats()["computed_tokens"] == (len(prompt) + 7) + (2 + 7)


def test_too_few_plain_pages_are_shared_in_turn() -> None:
    config = ScheduleConfig(policy="fcfs", max_step_tokens=32, max_running=8)
    scheduler, model = make_plain(3, config=config)
    prompts = [prompt_of(6 + i, seed=i) for i in range(6)]
    for i, prompt in enumerate(prompts):
        scheduler.add(ask(f"r{i}", prompt, max_tokens=12))
    found = tokens_of(drive(scheduler, model))
    for i, prompt in enumerate(prompts):
        assert found[f"r{i}", 0] == expect_tokens(prompt, 7, 12, VOCAB)
    expect_empty(scheduler)


def test_drafts_that_fill_a_page_are_taken_back() -> None:
    """The page is written with them, and again once its tokens are certain."""
    scheduler, model = make_plain(12)
    prompt = prompt_of(PAGE)
    expected = expect_tokens(prompt, 7, 8, VOCAB)
    request = ask("r", prompt)

    def propose(known: Sequence[int], limit: int) -> list[int]:
        done = len(known) - len(prompt)
        return [*expected[done : done + 1], 1, 2, 3, 4][:limit]  # one right, the others wrong

    request.propose = propose
    scheduler.add(request)
    batch, result = take_step(scheduler, model)
    events = scheduler.update(batch, result)
    batch, result = take_step(scheduler, model)
    assert batch.rows[0].num_drafts == 5
    assert len(batch.rows[0].plain_ids) == 2
    events += scheduler.update(batch, result)
    assert scheduler.stats()["held_plain_pages"] == 2  # the second waits for the first
    events += drive(scheduler, model)
    assert tokens_of(events)["r", 0] == expected
    expect_empty(scheduler)


def test_parts_of_pages_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="share_tail_pages"):
        make(num_plain_pages=4)
