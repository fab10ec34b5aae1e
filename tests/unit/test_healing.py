"""Token healing: what is backed off, what may come instead, and what is told of it."""

import random
import re
from array import array
from typing import Any

import numpy as np
import pytest
from scheduling import HashModel, drive_engine, expect_empty, tokens_of

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import ScheduleConfig
from radixgen.errors import InvalidRequest
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.healing import Healer
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.runtime.beginnings import BeginsWith, TokenTexts
from radixgen.runtime.drafts import Drafter
from radixgen.runtime.engine import Engine
from radixgen.runtime.grammar_pool import GrammarPool
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import GrammarSpec, SamplingParams, Thinking

END = 256
EXTRA = [b"ca", b"cat", b"cats", b"at", b"://", b"//", b"\xff\xff", b"\xff\xffa", b" cat", b"cat"]
TOKENS: list[bytes | None] = [*(bytes([b]) for b in range(256)), None, *EXTRA]
CAT = 258  # one of two tokens "cat"


class Words:
    """Longest token first."""

    vocab_size = len(TOKENS)
    special_ids = frozenset({END})

    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes:
        return TOKENS[token_id] or b""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data, found = text.encode(), []
        while data:
            piece = next(data[:n] for n in range(5, 0, -1) if data[:n] in TOKENS)
            found.append(TOKENS.index(piece))
            data = data[len(piece) :]
        return found


def ids(*pieces: bytes) -> list[int]:
    return [TOKENS.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("prompt", "kept", "data"),
    [
        (ids(b"x", b":"), 1, b":"),
        (ids(b"x", b" ", b"ca"), 1, b" ca"),
        (ids(b"x", b"c", b"a", b"t"), 1, b"cat"),
        (ids(b"x", b"cats"), 2, b""),
        (ids(b"x", b"z"), 2, b""),
        (ids(b"ca"), 1, b""),
        (ids(b"c", b"a"), 1, b"a"),
        ([*ids(b"x"), END], 2, b""),
        ([END, *ids(b"ca")], 1, b"ca"),
        (ids(b"x", b"\xff"), 1, b"\xff"),
    ],
)
def test_the_most_that_a_longer_token_begins_with_is_backed_off(
    prompt: list[int], kept: int, data: bytes
) -> None:
    assert Healer(Words()).heal(prompt) == (kept, data)


def allowed(matcher: BeginsWith, budget: int | None = None) -> set[int]:
    mask = np.full((2, (len(TOKENS) + 31) // 32 + 1), -1, np.int32)
    matcher.fill_bitmask(mask, 1, budget)
    assert (mask[0] == -1).all()
    bits = np.unpackbits(mask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize("data", [b"c", b"ca", b"cat", b" ca", b":", b"\xff", b"\xff\xff", b"zq"])
def test_tokens_on_the_way_and_beyond_are_allowed(data: bytes) -> None:
    matcher = BeginsWith(TokenTexts(Words()), data)
    fitting = {i for i, t in enumerate(TOKENS) if t and (t.startswith(data) or data.startswith(t))}
    assert allowed(matcher) == fitting
    assert allowed(matcher, 100) == fitting
    for token_id, token in enumerate(TOKENS):
        path = matcher.fork()
        assert path.accept_token(token_id) == (token_id in fitting)
        assert path.is_finished() == bool(token and token.startswith(data))
    assert not matcher.is_finished()


def test_the_last_token_of_a_budget_spells_what_is_left() -> None:
    matcher = BeginsWith(TokenTexts(Words()), b"cat")
    assert allowed(matcher, 1) == {i for i, t in enumerate(TOKENS) if t and t.startswith(b"cat")}
    assert allowed(matcher, 2) == allowed(matcher)
    assert allowed(BeginsWith(TokenTexts(Words()), b"zqx"), 3) == {ord("z")}
    assert allowed(BeginsWith(TokenTexts(Words()), b"zqx"), 2) == set()


# ---- in an engine ----


def make_engine(drafts: bool = True) -> Engine:
    scheduler = Scheduler(
        ScheduleConfig(max_step_tokens=64, max_running=8),
        RadixCache(PagePool(128), 4),
        max_context=128,
        vocab_size=len(TOKENS),
        end_token_ids=[END],
        stop_factory=watcher,
        rng=random.Random(0),
        check=True,
    )
    pool = GrammarPool(lambda: GrammarCompiler(Vocabulary.from_tokens(TOKENS, [END])))
    drafter = Drafter(Words()) if drafts else None
    return Engine(scheduler, HashModel(4, len(TOKENS)), pool, drafter, Words())


def watcher(sampling: SamplingParams, num_skipped: int) -> Any:
    text = bytearray()

    def watch(token_id: int, is_thought: bool) -> str | None:
        assert not is_thought
        text.extend(TOKENS[token_id] or b"")
        stops = [s for s in sampling.stop if s.encode() in text[num_skipped:]]
        return stops[0] if stops else None

    return watch


def ask(engine: Engine, healed: bytes, grammar: GrammarSpec | None = None, **params: Any) -> Any:
    sampling = SamplingParams(**{"seed": 3, "max_tokens": 12, **params})
    message = GenerateRequest("r", sampling, grammar, healed=healed.decode("latin-1"))
    events = engine.add(message, array("i", ids(b"x", b"y", b"z", b"a", b"b"))) + drive_engine(
        engine
    )
    expect_empty(engine.scheduler)
    return events


def text_of(tokens: list[int]) -> bytes:
    return b"".join(TOKENS[token] or b"" for token in tokens)


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("healed", [b":", b"ca", b" ca", b"\xff"])
def test_an_output_begins_with_the_bytes_and_goes_on_freely(healed: bytes, drafts: bool) -> None:
    engine = make_engine(drafts)
    found = tokens_of(ask(engine, healed, n=6, ignore_eos=True))
    assert len(found) == 6
    free = set()
    for tokens in found.values():
        assert len(tokens) == 12
        assert text_of(tokens).startswith(healed)
        free.update(tokens[4:])
    assert len(free) > 20, "nothing is masked behind the bytes"


def test_one_token_is_enough() -> None:
    for seed in range(8):
        (tokens,) = tokens_of(ask(make_engine(), b"ca", max_tokens=1, seed=seed)).values()
        assert text_of(tokens).startswith(b"ca")


def test_a_constraint_begins_behind_the_bytes() -> None:
    spec = GrammarSpec("regex", "(s|t){2,4}!")
    for seed in range(6):
        engine = make_engine()
        (tokens,) = tokens_of(ask(engine, b"ca", spec, seed=seed)).values()
        assert re.fullmatch(rb"ca(s|t){2,4}!", text_of(tokens))
    tokens = tokens_of(ask(make_engine(), b"ca", GrammarSpec("choice", '["ts"]')))["r", 0]
    assert text_of(tokens) == b"cats"


def test_stop_strings_are_sought_behind_the_bytes() -> None:
    spec = GrammarSpec("choice", '["scat"]')
    (tokens,) = tokens_of(ask(make_engine(), b"ca", spec, stop=["ca"])).values()
    assert text_of(tokens) in (b"cascat", b"casca")


def test_bytes_that_are_none_and_thoughts_are_refused() -> None:
    engine = make_engine()
    for message in (
        GenerateRequest("r", SamplingParams(), healed="\u20ac"),
        GenerateRequest("r", SamplingParams(), healed="a", thinking=Thinking(9)),
    ):
        (event,) = engine.add(message, array("i", [1, 2]))
        assert isinstance(event, RequestFailed)
        assert event.param == "healed"
    with pytest.raises(InvalidRequest, match="token_healing=1 is not True or False"):
        SamplingParams(token_healing=1)  # type: ignore[arg-type]  # what is refused
