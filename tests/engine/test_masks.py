"""A step's mask: written in one call as row by row, and beside the forward pass as after it."""

import random
import threading
from typing import Any

import numpy as np
import pytest

from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.runtime import masks as runtime_masks
from radixgen.runtime.masks import MaskWriter, fill_masks
from radixgen.schedule.step import MaskRequest
from radixgen.types import GrammarSpec

END = 256
EXTRA = [b"ab", b"ba", b"bbb", b"true", b'":']
TOKENS: list[bytes | None] = [*(bytes([b]) for b in range(256)), None, *EXTRA]
VOCABULARY = Vocabulary.from_tokens(TOKENS, [END])
PATTERNS = ("a+", "(ab)*c", "b{2,9}", "(true|ab){1,4}")


def place(matcher: GrammarMatcher, num_tokens: int, rng: random.Random) -> list[int]:
    """Go on by some allowed tokens; returns them."""
    taken = []
    for _ in range(num_tokens):
        mask = allocate_bitmask(1, VOCABULARY.size)
        matcher.fill_bitmask(mask, 0)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = [i for i in np.flatnonzero(bits).tolist() if i != END]
        if not allowed:
            break
        taken.append(rng.choice(allowed))
        assert matcher.accept_token(taken[-1])
    return taken


def make_masks(seed: int) -> list[MaskRequest]:
    """Of matchers of two compilers, with drafts that fit, and now and then one that does not."""
    rng = random.Random(seed)
    compilers = [GrammarCompiler(VOCABULARY) for _ in range(2)]
    masks, row = [], 0
    for number in range(12):
        spec = GrammarSpec("regex", rng.choice(PATTERNS))
        matcher = rng.choice(compilers).compile(spec).matcher()
        place(matcher, rng.randrange(3), rng)
        drafts = place(matcher.fork(), rng.randrange(4), rng)
        if rng.random() < 0.3:
            drafts.insert(rng.randrange(len(drafts) + 1), ord("z"))
        if rng.random() < 0.2 and matcher.is_accepting():
            assert matcher.accept_token(END)
            drafts = []
        budget = rng.choice([None, 3, 6, 50])
        masks.append(MaskRequest(f"r{number}", matcher, row, tuple(drafts), budget))
        row += 1 + len(drafts)
    return masks


def expected(masks: list[MaskRequest]) -> Any:
    """The same, row by row."""
    bitmask = np.full((masks[-1].row + 1 + len(masks[-1].drafts), VOCABULARY.num_words), -1)
    bitmask = bitmask.astype(np.int32)
    for mask in masks:
        path: Any = mask.matcher.fork()
        for number, draft in enumerate((None, *mask.drafts)):
            if draft is not None and not path.accept_token(draft):
                break
            left = None if mask.budget is None else mask.budget - number
            path.fill_bitmask(bitmask, mask.row + number, left)
    return bitmask


@pytest.mark.parametrize("seed", range(8))
def test_one_call_writes_what_one_a_row_writes(seed: int) -> None:
    masks = make_masks(seed)
    steps = [mask.matcher.fork() for mask in masks]
    bitmask = np.zeros_like(expected(masks))
    fill_masks(masks, bitmask)
    assert np.array_equal(bitmask, expected(masks))
    for mask, before in zip(masks, steps, strict=True):
        assert isinstance(mask.matcher, GrammarMatcher)
        assert isinstance(before, GrammarMatcher)
        assert mask.matcher.num_steps == before.num_steps, "drafts are tried on forks"


@pytest.mark.parametrize("long", [0.0, 1e9])
def test_a_thread_writes_what_the_step_itself_writes(
    long: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_masks, "LONG", long)
    writer, threads = MaskWriter(), []
    fill = fill_masks

    def noted(*args: Any) -> None:
        threads.append(threading.current_thread())
        fill(*args)

    monkeypatch.setattr(runtime_masks, "fill_masks", noted)
    for seed in range(4):
        masks = make_masks(seed)
        bitmask = np.zeros_like(expected(masks))
        writer.begin(masks, bitmask)()
        writer.end()
        assert np.array_equal(bitmask, expected(masks))
    assert all((thread is threading.main_thread()) == (long > 0) for thread in threads)
    assert len(threads) == 4


def test_a_thread_is_used_while_masks_take_long() -> None:
    now = iter([0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    writer = MaskWriter(lambda: next(now))
    masks = make_masks(0)
    bitmask = np.zeros_like(expected(masks))
    writer.begin(masks, bitmask)()
    assert writer.seconds > runtime_masks.LONG
    for _ in range(2):
        before = writer.seconds
        writer.begin(masks, bitmask)()
        writer.end()
        assert writer.seconds < before


def test_a_step_that_fails_waits_for_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_masks, "LONG", 0.0)
    go, done = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        assert go.wait(60)
        done.set()

    monkeypatch.setattr(runtime_masks, "fill_masks", slow)
    writer = MaskWriter()
    writer.begin([], np.zeros((1, 1), np.int32))
    threading.Timer(0.05, go.set).start()
    writer.end()  # the forward pass raised: nobody asked for the mask
    assert done.is_set()


def test_one_row_is_written_as_among_others() -> None:
    for mask in [mask for seed in range(4) for mask in make_masks(seed)]:
        alone = MaskRequest(mask.rid, mask.matcher, 0, (), mask.budget)
        bitmask = np.zeros((1, VOCABULARY.num_words), np.int32)
        fill_masks([alone], bitmask)
        assert np.array_equal(bitmask, expected([alone]))


def test_the_room_of_a_step_is_that_of_the_last_one_where_it_fits() -> None:
    writer = MaskWriter()
    for seed in range(6):
        masks = make_masks(seed)
        room = writer.room(masks, VOCABULARY.size)
        assert writer.room(masks, VOCABULARY.size) is room
        assert room.shape == expected(masks).shape
        room[:] = 0x5555_5555  # what an earlier step left
        fill_masks(masks, room)
        assert np.array_equal(room, expected(masks))
    assert writer.room(make_masks(0), 64).shape[1] == 2, "another vocabulary"
