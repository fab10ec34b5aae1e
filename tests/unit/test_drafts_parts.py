"""The parts of drafting: how forced text is spelled, what was seen before, when to guess."""

from array import array
from collections.abc import Sequence

import pytest

from radixgen.runtime import suffixes
from radixgen.runtime.drafts import Chance, Drafter
from radixgen.runtime.spelling import Habits, Speller
from radixgen.runtime.suffixes import LONG, SHORT, Recent, Shelf
from radixgen.schedule.request import Request, SequenceState

WORDS = [b"", b" ", b'"', b'":', b": ", b" the", b"the", b"n", b"name", b"na", b"me", b"\n"]
WORDS += [bytes([b]) for b in range(256) if bytes([b]) not in WORDS]


class Words:
    """Longest token first; a special token (0) has no bytes. `blank`: as sentencepiece does, a
    blank is put before every text."""

    def __init__(self, blank: bool = False) -> None:
        self.blank = blank
        self.num_encoded = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += 1
        data, found = b" " * self.blank + text.encode(), []
        while data:
            piece = next(data[:n] for n in range(4, 0, -1) if data[:n] in WORDS)
            found.append(WORDS.index(piece))
            data = data[len(piece) :]
        return found

    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes:
        return WORDS[token_id]


def ids(*words: str) -> list[int]:
    return [WORDS.index(word.encode()) for word in words]


def test_forced_text_is_spelled_as_the_whole_text_would_be() -> None:
    speller = Speller(Words())
    assert speller.spell(ids(" the", '"'), b'name":') == ids("name", '":')
    assert speller.spell([], b"name") == ids("name")
    assert speller.spell([*ids("the"), 0], b"the") == ids("the")


def test_text_whose_beginning_is_spelled_otherwise_is_spelled_alone() -> None:
    # All of it is `name`, so no token begins behind `n`: what follows is spelled by itself.
    assert Speller(Words()).spell(ids("n"), b"ame") == ids("a", "me")


def test_a_blank_that_a_vocabulary_puts_before_a_text_is_no_part_of_it() -> None:
    assert Speller(Words(blank=True)).spell(ids('"'), b"the") == ids("the")
    assert Speller(Words(blank=True)).spell([], b"the") == ids("the")


def test_forced_text_that_ends_within_a_character_is_cut_there() -> None:
    assert Speller(Words()).spell(ids('"'), b"name\xc3") == ids("name")
    assert Speller(Words()).spell(ids('"'), b"\xc3") == []
    assert Speller(Words()).spell([WORDS.index(b"\xc3")], b"\xa9") == [WORDS.index(b"\xa9")]
    assert Speller(Words()).spell([WORDS.index(b"\xa9")], b"name") == ids("name")


def test_spellings_are_kept() -> None:
    words = Words()
    speller = Speller(words)
    for _ in range(3):
        speller.spell(ids('"'), b"name")
    assert words.num_encoded == 1


def test_habits_are_known_from_every_token_on() -> None:
    habits = Habits(Words())
    written = ids("na", "me", '":')
    assert not habits.is_over(b'name":', written[:2])
    assert habits.is_over(b'name"', written)
    habits.learn(5, b'name"', written)
    assert habits.spell(5, b'name"') == ids("na", "me"), "the last went beyond what was forced"
    assert habits.spell(WORDS.index(b"na"), b'me"') == ids("me")
    assert habits.spell(6, b'name"') == []


def sequence_of(tokens: Sequence[int]) -> SequenceState:
    request = Request("r", array("i", tokens))
    return SequenceState(request, 0, array("i", tokens), len(tokens), 0)


def test_what_followed_the_same_tokens_last_is_proposed() -> None:
    drafter = Drafter(Words())
    assert drafter.propose(sequence_of([1, 2, 3, 4, 8, 9, 1, 2, 3, 4]), 3, 1) == [8, 9, 1]
    assert drafter.propose(sequence_of([1, 2, 7, 3, 1, 2, 8, 3, 1, 2]), 1, 1) == [8], "the latest"
    assert drafter.propose(sequence_of([5, 6, 7]), 5, 1) == []
    assert drafter.propose(sequence_of([5]), 5, 1) == []
    assert drafter.propose(sequence_of([4, 4, 4, 4, 4]), 3, 1) == [4] * 3


def test_a_shelf_tells_what_usually_came_next() -> None:
    shelf = Shelf()
    shelf.add(array("i", [1, 2, 3, 4, 5]), 0)
    assert shelf.follow([9, 1, 2, 3], SHORT, 9) == [4, 5]
    assert shelf.follow([9, 1, 2, 3], SHORT, 1) == [4]
    assert shelf.follow([9, 2, 3], SHORT, 9) == []
    assert shelf.follow([2, 3], SHORT, 9) == [], "too few tokens to go by"
    assert shelf.follow([1, 2, 3, 4, 5, 6], LONG, 9) == []
    for last in (7, 7):
        shelf.add(array("i", [1, 2, 3, last]), 3)
    assert shelf.follow([1, 2, 3], SHORT, 9) == [7], "seen more often than 4"


def test_a_shelf_counts_only_what_is_new() -> None:
    shelf = Shelf()
    shelf.add(array("i", [1, 2, 3, 4, 5, 6]), 4)
    assert shelf.follow([1, 2, 3], SHORT, 9) == [], "a prompt, not an output"
    assert shelf.follow([2, 3, 4], SHORT, 9) == [5, 6]


def test_a_shelf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffixes, "MAX_CONTEXTS", 20)
    shelf = Shelf()
    for start in range(0, 200, 10):
        shelf.add(array("i", range(start, start + 10)), 0)
        assert len(shelf) <= 20
    assert shelf.follow([190, 191, 192], SHORT, 2) == [193, 194]
    assert shelf.follow([0, 1, 2], SHORT, 2) == []


def test_the_shelves_used_last_are_kept() -> None:
    recent = Recent(Shelf, most=2)
    first = recent.of("a")
    recent.of("b")
    assert recent.of("a") is first
    second = recent.of("c")
    assert recent.of("a") is first
    assert recent.of("c") is second
    recent.of("b")
    assert recent.of("a") is not first


def test_other_outputs_are_drafted_from_unless_that_is_off() -> None:
    for on in (True, False):
        drafter = Drafter(Words(), suffix_drafts=on)
        written = sequence_of([1, 2])
        drafter.propose(written, 8, 1)
        written.tokens.extend([3, 4, 5, 6, 7])
        drafter.learn(written, [], 0)
        assert drafter.propose(sequence_of([9, 3, 4, 5]), 8, 1) == ([6, 7] if on else [])


def test_only_whole_tokens_match() -> None:
    # The bytes of (1 << 8, 2 << 8) are those of (1, 2) one byte further on.
    assert Drafter(Words()).propose(sequence_of([1 << 8, 2 << 8, 3, 1, 2]), 4, 1) == []


def test_drafts_that_are_always_wrong_stop_and_are_tried_again() -> None:
    drafter = Drafter(Words())
    sequence = sequence_of([1, 2, 3, 4, 8, 9, 1, 2, 3, 4])
    lengths = []
    for _ in range(600):
        drafts = drafter.propose(sequence, 8, 4)
        lengths.append(len(drafts))
        if drafts:
            drafter.learn(sequence, drafts, 0)
    assert lengths[0] > 0
    assert sum(map(bool, lengths)) < 40, "off most of the time"
    assert any(lengths[100:]), "but looked at again"


def test_drafts_that_are_always_right_grow() -> None:
    drafter = Drafter(Words())
    sequence = sequence_of([1, 2, 3, 4, *range(20, 40), 1, 2, 3, 4])
    first = drafts = drafter.propose(sequence, 16, 4)
    for _ in range(60):
        drafts = drafter.propose(sequence, 16, 4)
        drafter.learn(sequence, drafts, len(drafts))
    assert 0 < len(first) < len(drafts) == 16


def test_what_does_not_pay_in_a_large_batch_is_tried_now_and_then() -> None:
    drafter = Drafter(Words())
    sequence = sequence_of([1, 2, 3, 4, *range(20, 40), 1, 2, 3, 4])
    drafts = drafter.propose(sequence, 16, 20)
    assert drafts == []
    for _ in range(3000):
        drafts = drafter.propose(sequence, 16, 20)
        if drafts:
            drafter.learn(sequence, drafts, len(drafts))
    assert len(drafts) > 1, "it turned out to be worth it"


def test_fewer_drafts_pay_where_fewer_are_right_than_by_their_chances() -> None:
    tokens = [1, 2, 3, 4, *range(20, 40), 1, 2, 3, 4]
    for kept in (0, 16):
        drafter, sequence = Drafter(Words()), sequence_of(tokens)
        drafts = drafter.propose(sequence, 16, 1)
        drafter.learn(sequence, drafts, min(kept, len(drafts)))
        assert (drafter.trust[1].rate > 1) == (kept > 0)
    trusted, doubted = Drafter(Words()), Drafter(Words())
    doubted.trust[1].count(0, 40)
    lengths = [len(each.propose(sequence_of(tokens), 16, 4)) for each in (doubted, trusted)]
    assert 0 < lengths[0] < lengths[1], "of the same chances"


def test_refused_drafts_say_nothing_of_those_behind_them() -> None:
    drafter = Drafter(Words())
    sequence = sequence_of([1, 2, 3, 4, 8, 9, 7, 1, 2, 3, 4])
    drafts = drafter.propose(sequence, 3, 1)
    drafter.learn(sequence, drafts, 1)
    stats = drafter.stats()
    assert (stats["verified_copy_long_drafts"], stats["accepted_copy_long_drafts"]) == (2, 1)


def test_a_chance_starts_as_a_belief() -> None:
    chance = Chance(0.5)
    assert chance.rate == 0.5
    for _ in range(100):
        chance.count(True)
    assert chance.rate > 0.9
    trials = [chance.pass_over() for _ in range(256)]
    assert sum(trials) == 4


def test_a_batch_whose_drafts_do_not_pay_goes_without_for_some_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = Drafter(Words())
    batch = [sequence_of([1, 2, 3, 4, 8, 9, 1, 2, 3, 4]) for _ in range(4)]
    for _ in range(200):
        drafter.costs.add(4, 4, 0.010)
        drafter.costs.add(4, 12, 0.100)
    monkeypatch.setattr(drafter.costs, "least_chance", lambda num_sequences: 0.0)
    made, paid = [], []
    for _ in range(130):
        drafts = [drafter.propose(sequence, 2, 4) for sequence in batch]
        made.append(all(drafts))
        assert all(drafts) == any(drafts)
        if all(drafts):
            paid.append(drafter.pays(batch, 4))
        if all(drafts) and paid[-1]:
            for sequence, each in zip(batch, drafts, strict=True):
                drafter.learn(sequence, each, 0)
    assert made[:4] == [True, False, True, False]
    assert 10 < sum(made) < 20, "every ninth time in the end"
    assert sum(paid) == 1, "to see what drafts cost now"


def test_sequences_of_a_batch_try_in_the_same_step() -> None:
    drafter = Drafter(Words())
    batch = [sequence_of([1, 2, 3, 4, 8, 9, 1, 2, 3, 4]) for _ in range(64)]
    tries = []
    for _ in range(200):
        drafts = [drafter.propose(sequence, 8, 64) for sequence in batch]
        tries.append(sum(map(bool, drafts)))
        if any(drafts):
            assert drafter.pays(batch, 64), "to be seen"
            for sequence, each in zip(batch, drafts, strict=True):
                drafter.learn(sequence, each, 0)
    assert set(tries) == {0, 64}
    assert 1 <= sum(map(bool, tries)) <= 4
