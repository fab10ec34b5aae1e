"""Thoughts before an answer: free until they end, ended within a budget, then the constraint."""

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import write_tiny_model
from scheduling import drive_engine, expect_empty, terminals_of, tokens_of

from radixgen.config import from_settings
from radixgen.errors import InvalidRequest
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.runtime.build import build_engine
from radixgen.runtime.engine import Engine
from radixgen.runtime.thinking import ThinkingTokens, TokenThinking
from radixgen.types import GrammarSpec, SamplingParams, Thinking

DIGITS = GrammarSpec("regex", "[0-9]{3}")
PROMPT = list(b"Think: ")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(model: Path) -> Engine:
    settings = from_settings(model=str(model), num_pages=200, threads=1, check=True)
    return build_engine(settings).engine


def run(
    engine: Engine, thinking: Thinking, spec: GrammarSpec | None, **sampling: Any
) -> dict[tuple[str, int], list[int]]:
    given: dict[str, Any] = {"seed": 2, "max_tokens": 60} | sampling
    message = GenerateRequest("r", SamplingParams(**given), spec, thinking=thinking)
    assert not engine.add(message, array("i", PROMPT))
    events = drive_engine(engine)
    assert not any(isinstance(event, RequestFailed) for event in events)
    expect_empty(engine.scheduler)
    return tokens_of(events)


@pytest.mark.parametrize("budget", [5, 12, 40])
def test_thoughts_end_within_their_budget_and_the_constraint_follows(
    engine: Engine, budget: int
) -> None:
    found = run(engine, Thinking(budget, begin="<t>", end="</"), DIGITS, n=4)
    assert len(found) == 4
    for ids in found.values():
        text = bytes(ids)
        end = text.index(b"</") + 2
        assert text.startswith(b"<t>")
        assert end <= budget
        assert len(text) == end + 3
        assert text[end:].isdigit()


def test_thoughts_survive_preemption(model: Path) -> None:
    """With pages for few of the choices at once, they are the same."""
    found = []
    for num_pages in (200, 14):
        settings = from_settings(model=str(model), num_pages=num_pages, threads=1, check=True)
        engine = build_engine(settings).engine
        found.append(run(engine, Thinking(40, "<t>", "</t>"), DIGITS, n=6))
        assert (engine.stats()["preemptions"] > 0) == (num_pages == 14)
    assert found[0] == found[1]


def test_without_a_constraint_the_answer_is_free(engine: Engine) -> None:
    (ids,) = run(engine, Thinking(10, end="#"), None, ignore_eos=True).values()
    assert len(ids) == 60
    assert ord("#") in ids[:10]


def test_thoughts_leave_room_for_the_answer(engine: Engine) -> None:
    (ids,) = run(engine, Thinking(1000, end="</t>"), DIGITS, max_tokens=20).values()
    text = bytes(ids)
    assert len(text) <= 20
    assert text.partition(b"</t>")[2].isdigit()


def test_a_special_token_ends_thoughts_as_one_token(engine: Engine) -> None:
    end = "<|im_start|>"
    ids = run(engine, Thinking(6, end=end), DIGITS, n=3)
    for tokens in ids.values():
        (place,) = [at for at, token in enumerate(tokens) if token > 255]
        assert place < 6
        assert bytes(tokens[place + 1 :]).isdigit()
        assert len(tokens) == place + 4


@pytest.mark.parametrize(
    ("thinking", "sampling", "reason"),
    [
        (Thinking(3, end="</t>"), {}, "budget=3 is too few tokens.*take 4"),
        (Thinking(9, end="</t>"), {"max_tokens": 6}, "thoughts take 4 tokens and .* answer 3"),
        (Thinking(9), {"constrained_law": "faithful"}, "thinking has no law"),
        (Thinking(9, "<t>", "<|im_start|>"), {}, "is a special token of this model, and begin"),
        (Thinking(9, end="<|im_end|>"), {}, "ends this model's texts"),
    ],
)
def test_thoughts_that_cannot_be_are_refused(
    engine: Engine, thinking: Thinking, sampling: dict[str, Any], reason: str
) -> None:
    message = GenerateRequest("r", SamplingParams(**sampling), DIGITS, thinking=thinking)
    events = [*engine.add(message, array("i", PROMPT)), *drive_engine(engine)]
    (end,) = terminals_of(events).values()
    assert isinstance(end, RequestFailed)
    assert re.search(reason, end.message), end.message
    expect_empty(engine.scheduler)


@pytest.mark.parametrize(
    "options",
    [{"budget": -1}, {"budget": 2.5}, {"budget": 5, "end": ""}, {"budget": 5, "begin": 3}],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Thinking(**options)
    assert caught.value.param == "thinking"


class Special:
    special_ids = (3, 40)
    vocab_size = 70

    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes:
        return {3: b"<think>", 40: b"</think>"}[token_id] if special_text else b""


def allowed(matcher: TokenThinking, budget: int | None) -> set[int]:
    mask = np.full((2, 3), -1, np.int32)
    matcher.fill_bitmask(mask, 1, budget)
    assert (mask[0] == -1).all()
    return set(np.flatnonzero(np.unpackbits(mask[1].view(np.uint8), bitorder="little")).tolist())


def test_the_masks_of_thoughts_between_special_tokens() -> None:
    tokens = ThinkingTokens.find(Thinking(9, "<think>"), Special())
    assert tokens is not None
    matcher = TokenThinking(tokens)
    assert allowed(matcher, None) == {3}
    assert not matcher.accept_token(5)
    assert matcher.accept_token(3)
    assert allowed(matcher, 2) == set(range(70)) - {3}
    assert allowed(matcher, 1) == {40}
    fork = matcher.fork()
    assert fork.accept_token(40)
    assert fork.is_finished()
    assert matcher.accept_token(41)
    assert not matcher.is_finished()
