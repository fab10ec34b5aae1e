"""The last page of a text, which it does not fill: kept, copied by whoever goes on, then let go."""

import random
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
    terminals_of,
    tokens_of,
)

from radixgen.cache.node import NO_TOKEN
from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.cache.view import view
from radixgen.messages import RequestFinished
from radixgen.schedule.memory import MIN_TAIL_TOKENS
from radixgen.schedule.request import Event
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import CacheHint


def cached(events: list[Event], rid: str) -> int:
    found = terminals_of(events)[rid]
    assert isinstance(found, RequestFinished)
    return found.usage.cached_tokens


@pytest.mark.parametrize("length", range(5, 14))
def test_a_text_that_goes_on_loses_nothing_of_its_last_page(length: int) -> None:
    scheduler, model = make()
    prompt, said, known = list(prompt_of(length)), 6, 0
    for turn in range(4):
        events = drive_one(scheduler, model, f"{turn}", prompt, said)
        answer = tokens_of(events)[f"{turn}", 0]
        assert answer == expect_tokens(prompt, 7, said, VOCAB)
        alone = known % PAGE < MIN_TAIL_TOKENS  # sooner computed than copied
        assert cached(events, f"{turn}") == (known - known % PAGE if alone else known)
        known = len(prompt) + said - 1  # the last token drawn is not computed
        prompt = [*prompt, *answer, *prompt_of(3, turn)]
    expect_empty(scheduler)


def drive_one(
    scheduler: Scheduler,
    model: HashModel,
    rid: str,
    prompt: Sequence[int],
    max_tokens: int,
    hint: CacheHint | None = None,
) -> list[Event]:
    request = ask(rid, prompt, max_tokens)
    request.hint = hint
    scheduler.add(request)
    return drive(scheduler, model)


def rests(cache: RadixCache) -> list[bool]:
    """For each last page in the tree, whether it may go first."""
    return [node.dead for node in cache.nodes() if node.is_rest]


def test_a_last_page_goes_first_once_its_text_has_gone_on() -> None:
    scheduler, model = make()
    prompt = prompt_of(7)
    events = drive_one(scheduler, model, "a", prompt, 4)
    assert all(NO_TOKEN not in node.preview for node in view(scheduler.cache, 100, 64))
    longer = [*prompt, *tokens_of(events)["a", 0], 5, 6, 7]
    drive_one(scheduler, model, "b", longer, 4)
    assert rests(scheduler.cache) == [True]
    expect_empty(scheduler)


def test_no_last_page_is_kept_of_what_nobody_continues() -> None:
    scheduler, model = make()
    drive_one(scheduler, model, "a", prompt_of(6), 4, CacheHint(last_use=True))
    assert rests(scheduler.cache) == []
    whole, model = make(cache=RadixCache(PagePool(64), PAGE, share_tail_pages=False))
    drive_one(whole, model, "a", prompt_of(6), 4)
    assert rests(whole.cache) == []


def test_forks_copy_one_last_page() -> None:
    scheduler, model = make()
    prompt = prompt_of(7)
    drive_one(scheduler, model, "warm", prompt, 0)
    for child in range(3):
        scheduler.add(ask(f"{child}", [*prompt, child], 5, seed=child))
    events = drive(scheduler, model)
    for child in range(3):
        assert cached(events, f"{child}") == 7
        assert tokens_of(events)[f"{child}", 0] == expect_tokens([*prompt, child], child, 5, VOCAB)
    expect_empty(scheduler)


@pytest.mark.parametrize("seed", range(4))
def test_conversations_that_branch_in_few_pages_say_the_same(seed: int) -> None:
    scheduler, model = make(24)
    rng = random.Random(seed)
    texts = [list(prompt_of(5, i)) for i in range(3)]
    for turn in range(25):
        asked = {f"{turn}-{i}": rng.choice(texts)[: rng.randrange(4, 40)] for i in range(2)}
        for rid, text in asked.items():
            scheduler.add(ask(rid, text, 5, seed=turn))
        said = tokens_of(drive(scheduler, model))
        for rid, text in asked.items():
            assert said[rid, 0] == expect_tokens(text, turn, 5, VOCAB)
            texts.append([*text, *said[rid, 0], rng.randrange(9)])
    expect_empty(scheduler)
