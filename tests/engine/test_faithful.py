"""Faithful constraints: the law of the outputs is the model's own, given that they obey."""

import json
import math
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import write_tiny_model
from scheduling import drive_engine, expect_empty, terminals_of, tokens_of

from radixgen.batch import TokenMass
from radixgen.config import from_settings
from radixgen.errors import InvalidRequest
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.runtime.build import build_engine
from radixgen.runtime.engine import Engine
from radixgen.runtime.faithful import LawKey, PrefixStore
from radixgen.schedule.request import SequenceOutput
from radixgen.types import GrammarSpec, SamplingParams

TEXTS = [b"axe", b"ant", b"arm", b"any", b"bee"]
SPEC = GrammarSpec("choice", json.dumps([text.decode() for text in TEXTS]))
PROMPT = list(b"Say it: ")
LAW = SamplingParams(constrained_law="faithful", seed=3, grammar_mass=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(model: Path) -> Engine:
    settings = from_settings(model=str(model), num_pages=400, threads=1, check=True)
    return build_engine(settings).engine


def generate(engine: Engine, sampling: SamplingParams, rid: str = "r") -> list[SequenceOutput]:
    assert not engine.add(GenerateRequest(rid, sampling, SPEC), array("i", PROMPT))
    events = drive_engine(engine)
    assert not any(isinstance(event, RequestFailed) for event in events)
    return [event for event in events if isinstance(event, SequenceOutput)]


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """Log-probabilities [position, next token] of a text's ids, by transformers in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    model_of_ids = loader.from_pretrained(model).double().eval()

    def logprobs(ids: list[int]) -> Any:
        with torch.no_grad():
            return torch.log_softmax(model_of_ids(torch.tensor([ids])).logits[0], -1)

    return logprobs


def true_law(reference: Any, end: int) -> dict[bytes, float]:
    """The share of each text, with the end token after it, among all of them."""
    law = {}
    for text in TEXTS:
        ids = [*PROMPT, *text, end]
        scores = reference(ids)
        places = range(len(PROMPT), len(ids))
        law[text] = math.exp(math.fsum(float(scores[place - 1, ids[place]]) for place in places))
    total = math.fsum(law.values())
    return {text: p / total for text, p in law.items()}


def variation(counts: Counter[bytes], law: dict[bytes, float]) -> float:
    total = counts.total()
    return sum(abs(counts[text] / total - p) for text, p in law.items()) / 2


def test_the_law_is_the_models_own_given_the_constraint(reference: Any, engine: Engine) -> None:
    num_samples = 400
    (end,) = engine.scheduler.rules.end_token_ids
    law = true_law(reference, end)
    counts: dict[str, Counter[bytes]] = {}
    for name in ("masked", "faithful"):
        sampling = SamplingParams(n=num_samples, seed=5, constrained_law=name)
        outputs = generate(engine, sampling, name)
        drawn = tokens_of(list(outputs)).values()
        counts[name] = Counter(bytes(token for token in ids if token != end) for ids in drawn)
        assert set(counts[name]) <= set(TEXTS)
        assert counts[name].total() == num_samples
    masked, faithful = variation(counts["masked"], law), variation(counts["faithful"], law)
    assert masked > 0.2, "the case shows nothing"
    assert faithful < masked / 3
    # Chi-square: 18.5 is exceeded once in a thousand times with 4 degrees of freedom.
    expected = {text: num_samples * p for text, p in law.items()}
    square = sum((counts["faithful"][t] - n) ** 2 / n for t, n in expected.items())
    assert square < 18.5, (counts, law)
    assert engine.stats()["restarted_choices"] > 0
    expect_empty(engine.scheduler)


@pytest.mark.parametrize("name", ["masked", "faithful"])
def test_a_mass_is_the_probability_of_all_legal_tokens(
    name: Any, reference: Any, engine: Engine
) -> None:
    (end,) = engine.scheduler.rules.end_token_ids
    sampling = SamplingParams(seed=1, constrained_law=name, grammar_mass=True)
    outputs = generate(engine, sampling)
    ids = [token for output in outputs for token in output.token_ids]
    masses = [mass for output in outputs for mass in output.grammar_masses]
    assert len(masses) == len(ids)
    assert (ids[-1] == end) == (name == "faithful")
    scores = reference([*PROMPT, *ids]).exp()
    for place, mass in enumerate(masses):
        known = bytes(ids[:place])
        legal = {text[place] for text in TEXTS if text.startswith(known) and text != known}
        legal |= {end} if known in TEXTS else set()
        expected = float(scores[len(PROMPT) + place - 1, sorted(legal)].sum())
        assert mass == pytest.approx(expected, rel=1e-3)


def test_tokens_are_told_once_and_only_when_they_stay(engine: Engine) -> None:
    outputs = generate(engine, LAW)
    assert len(outputs) == 1
    (only,) = outputs
    assert only.finish_reason is not None
    assert len(only.grammar_masses) == len(only.token_ids) > 0


def test_a_faithful_law_needs_a_constraint_and_the_whole_law(engine: Engine) -> None:
    events = engine.add(GenerateRequest("r", LAW), array("i", PROMPT))
    (refused,) = terminals_of(events).values()
    assert isinstance(refused, RequestFailed)
    assert refused.param == "constrained_law"
    cuts: list[Any] = [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"temperature": 0.0}]
    for cut in cuts:
        with pytest.raises(InvalidRequest, match="whole law"):
            SamplingParams(constrained_law="faithful", **cut)
    with pytest.raises(InvalidRequest, match="none of masked, faithful"):
        SamplingParams(constrained_law="true")  # type: ignore[arg-type]


def test_an_abort_in_the_middle_of_an_attempt_leaves_nothing(engine: Engine) -> None:
    sampling = SamplingParams(constrained_law="faithful", n=4, seed=1)
    for number in range(4):
        engine.add(GenerateRequest(f"r{number}", sampling, SPEC), array("i", PROMPT))
    events: list[Any] = []
    while not engine.scheduler.planner.running:
        events += engine.step()
    for number in range(4):
        for _ in range(2 * number):
            events += engine.step()
        events += engine.abort(f"r{number}")
    events += drive_engine(engine)
    assert len(terminals_of(events)) == 4
    expect_empty(engine.scheduler)


def test_old_laws_make_room_for_new_ones() -> None:
    store = PrefixStore(max_prefixes=10)
    for number in range(20):
        key = LawKey("", bytes([number]), SPEC, LAW)
        law = store.law(key, seed=1)
        for token in range(6):
            assert law.weights() == []
            law.take(token, TokenMass(1.0, 0.5))
        law.finish()
        assert store.num_prefixes <= 10
