"""Drafts change the number of steps and nothing else: same tokens, same law, no page lost."""

import json
import math
import random
import re
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import write_tiny_model
from scheduling import HashModel, drive_engine, expect_empty, terminals_of, tokens_of

from radixgen.cache.pages import PagePool
from radixgen.cache.radix import RadixCache
from radixgen.config import JumpForward, ScheduleConfig, from_settings
from radixgen.errors import ConfigError
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished
from radixgen.runtime.build import build_engine
from radixgen.runtime.costs import StepCosts
from radixgen.runtime.drafts import Drafter
from radixgen.runtime.engine import Engine
from radixgen.runtime.grammar_pool import GrammarPool
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import FinishReason, GrammarSpec, SamplingParams

END = 256
EXTRA = [b'{"', b'":', b'", "', b"true", b"12", b"name", b"kind", b"\xc3\xa9", b"]}", b'":"']
TOKENS: list[bytes | None] = [*(bytes([b]) for b in range(256)), None, *EXTRA]


class LongestFirst:
    """A tokenizer that takes the longest token each time."""

    def __init__(self) -> None:
        self.ids = {data: i for i, data in enumerate(TOKENS) if data}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data, found = text.encode(), []
        while data:
            piece = next(data[:n] for n in range(5, 0, -1) if data[:n] in self.ids)
            found.append(self.ids[piece])
            data = data[len(piece) :]
        return found

    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes:
        return TOKENS[token_id] or b""


def make_engine(drafter: Drafter | None, num_pages: int = 256) -> Engine:
    scheduler = Scheduler(
        ScheduleConfig(max_step_tokens=64, max_running=8),
        RadixCache(PagePool(num_pages), 4),
        max_context=256,
        vocab_size=len(TOKENS),
        end_token_ids=[END],
        rng=random.Random(0),
        check=True,
    )
    vocabulary = Vocabulary.from_tokens(TOKENS, [END])
    pool = GrammarPool(lambda: GrammarCompiler(vocabulary))
    return Engine(scheduler, HashModel(4, len(TOKENS)), pool, drafter)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["kind name", "name kind", "12 names"]},
        "kinds": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "description_of_it": {"type": "string", "maxLength": 8},
    },
    "required": ["name", "description_of_it"],
    "additionalProperties": False,
}
COMPACT = (("whitespace", "compact"),)
SPECS = [
    GrammarSpec("json_schema", json.dumps(SCHEMA), COMPACT),
    GrammarSpec("json_schema", json.dumps(SCHEMA)),
    GrammarSpec("regex", r"(name is (true|kind)\. ){2,6}the end"),
    GrammarSpec("choice", '["a long choice that is forced from its second byte", "b"]'),
    None,
]


def add_crowd(engine: Engine, max_tokens: int) -> None:
    """Requests of each kind, whose grammars are there: else their steps would depend on when."""
    for number in range(12):
        spec = SPECS[number % len(SPECS)]
        sampling = SamplingParams(max_tokens=max_tokens, seed=number, n=1 + number % 2)
        engine.add(GenerateRequest(f"r{number}", sampling, spec), array("i", [number] * 6))
    deadline = time.monotonic() + 200
    while engine.grammars and not engine.grammars.is_idle:
        assert time.monotonic() < deadline, "grammars are still being compiled"
        time.sleep(0.001)


def ends_of(events: list[Event]) -> dict[tuple[str, int], Any]:
    outputs = [event for event in events if isinstance(event, SequenceOutput)]
    return {(e.rid, e.index): e.finish_reason for e in outputs if e.finish_reason}


@pytest.mark.parametrize("max_tokens", [70, 110])
@pytest.mark.parametrize("num_pages", [256, 60])
def test_the_same_tokens_in_fewer_steps(
    max_tokens: int, num_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Costs stay what they are taken to be before any is measured: else a busy machine drafts less.
    monkeypatch.setattr(StepCosts, "add", lambda costs, *seen: None)
    plain, drafting = make_engine(None, num_pages), make_engine(Drafter(LongestFirst()), num_pages)
    add_crowd(plain, max_tokens)
    add_crowd(drafting, max_tokens)
    expected, found = drive_engine(plain), drive_engine(drafting)
    assert all(isinstance(end, RequestFinished) for end in terminals_of(found).values())
    assert tokens_of(found) == tokens_of(expected)
    assert ends_of(found) == ends_of(expected)
    stats = drafting.stats()
    assert 0 < stats["accepted_drafts"] <= stats["verified_drafts"]
    assert stats["computed_tokens"] > 0
    if num_pages == 256:
        assert stats["steps"] < plain.stats()["steps"]
    expect_empty(drafting.scheduler)


@pytest.mark.parametrize("spec", [SPECS[0], None])
def test_what_was_written_before_is_verified_at_once(spec: GrammarSpec | None) -> None:
    """A request that comes again, the cache emptied, is drafted from its own first answer."""
    settings: Any = {"jump_forward": "off", "prompt_lookup": False}
    plain, drafting = make_engine(None), make_engine(Drafter(LongestFirst(), **settings))
    sampling = SamplingParams(max_tokens=70, seed=5)
    found, steps = {}, {}
    for name, engine in (("plain", plain), ("drafting", drafting)):
        for rid, namespace in (("a", ""), ("b", ""), ("c", "of another")):
            request = GenerateRequest(rid, sampling, spec, namespace=namespace)
            engine.add(request, array("i", [3] * 6))
            before = engine.stats()["steps"]
            found[name, rid] = tokens_of(drive_engine(engine))[rid, 0]
            steps[name, rid] = engine.stats()["steps"] - before
            engine.flush()
        expect_empty(engine.scheduler)
        assert found[name, "a"] == found[name, "b"] == found[name, "c"] == found["plain", "a"]
    assert steps["plain", "a"] == steps["plain", "b"]
    assert steps["drafting", "b"] < 0.5 * steps["plain", "a"]
    assert steps["drafting", "c"] == steps["drafting", "a"], "namespaces learn nothing of others"


FORCED = GrammarSpec("regex", r"the name is true, the kind is (name|12)[.!] That is all[.]")


def forced_run(jump_forward: JumpForward) -> tuple[Engine, list[Event]]:
    engine = make_engine(Drafter(LongestFirst(), jump_forward=jump_forward, suffix_drafts=False))
    for number in range(4):
        sampling = SamplingParams(max_tokens=80, seed=number, n=2)
        engine.add(GenerateRequest(f"r{number}", sampling, FORCED), array("i", [number] * 6))
    return engine, drive_engine(engine)


def test_unverified_text_is_spelled_as_the_tokenizer_would() -> None:
    engine, events = forced_run("fast")
    plain, verified = forced_run("exact")
    assert engine.stats()["jumped_tokens"] > 0 == plain.stats()["jumped_tokens"]
    outputs = tokens_of(events)
    assert outputs.keys() == tokens_of(verified).keys()
    usage = {
        e.rid: e.usage for e in terminals_of(events).values() if isinstance(e, RequestFinished)
    }
    for (rid, index), tokens in outputs.items():
        text = b"".join(TOKENS[token] or b"" for token in tokens).decode()
        assert re.fullmatch(FORCED.source, text)
        assert ends_of(events)[rid, index] is FinishReason.STOP
        assert usage[rid].completion_tokens == len(outputs[rid, 0]) + len(outputs[rid, 1])
        first = tokens[:1]  # drawn; what is forced behind it is spelled as a tokenizer would
        spelled = LongestFirst().encode(text[len(TOKENS[first[0]] or b"") :])
        assert tokens[1:6] == spelled[:5]
    expect_empty(engine.scheduler)


@pytest.mark.parametrize("spec", [FORCED, *SPECS[:2]])
def test_drafts_change_no_token_beside_unverified_text(spec: GrammarSpec) -> None:
    found = []
    for is_drafting in (False, True):
        settings: Any = {"prompt_lookup": is_drafting, "suffix_drafts": is_drafting}
        engine = make_engine(Drafter(LongestFirst(), jump_forward="fast", **settings))
        for turn in range(3):
            for seed in range(4):
                request = GenerateRequest(
                    f"r{turn} {seed}", SamplingParams(max_tokens=80, seed=seed), spec
                )
                engine.add(request, array("i", [seed] * 6))
            found.append(
                {rid[3:]: ids for (rid, _), ids in tokens_of(drive_engine(engine)).items()}
            )
        assert engine.stats()["jumped_tokens"] > 0
    assert engine.stats()["accepted_drafts"] > 0
    assert all(outputs == found[0] for outputs in found)


def test_unverified_text_keeps_within_max_tokens() -> None:
    """Where the tokenizer's spelling is too long to finish in time, the shortest one is drawn."""
    ends: list[Any] = []
    for most in range(20, 60, 3):
        engine = make_engine(Drafter(LongestFirst(), jump_forward="fast"))
        sampling = SamplingParams(max_tokens=most, seed=most)
        engine.add(GenerateRequest("r", sampling, FORCED), array("i", [1, 2]))
        events = drive_engine(engine)
        ends.append(terminals_of(events)["r"])
        if isinstance(ends[-1], RequestFinished):
            text = b"".join(TOKENS[token] or b"" for token in tokens_of(events)["r", 0])
            assert re.fullmatch(FORCED.source, text.decode())
            assert len(tokens_of(events)["r", 0]) <= most
    assert isinstance(ends[0], RequestFailed)
    assert isinstance(ends[-1], RequestFinished)


def test_tokens_whose_logprobs_are_wanted_are_verified() -> None:
    engine = make_engine(Drafter(LongestFirst(), jump_forward="fast"))
    sampling = SamplingParams(max_tokens=80, seed=1, logprobs=0)
    engine.add(GenerateRequest("r", sampling, FORCED), array("i", [1, 2]))
    drive_engine(engine)
    assert engine.stats()["jumped_tokens"] == 0


def test_an_abort_between_verifications_leaves_nothing() -> None:
    engine = make_engine(Drafter(LongestFirst()))
    add_crowd(engine, 80)
    events: list[Event] = []
    for number in range(12):
        deadline = time.monotonic() + 20
        while not engine.has_work and time.monotonic() < deadline:
            time.sleep(0.001)
        events += engine.step()
        events += engine.abort(f"r{number}")
    events += drive_engine(engine)
    assert len(terminals_of(events)) == 12
    expect_empty(engine.scheduler)


def test_a_text_that_is_complete_ends_without_an_end_token() -> None:
    engine = make_engine(None)
    spec = GrammarSpec("choice", '["name"]')
    engine.add(GenerateRequest("r", SamplingParams(seed=1), spec), array("i", [1, 2]))
    events = drive_engine(engine)
    assert b"".join(TOKENS[t] or b"" for t in tokens_of(events)["r", 0]) == b"name"
    assert ends_of(events) == {("r", 0): FinishReason.STOP}


def test_a_complete_text_that_could_go_on_needs_its_end_token() -> None:
    engine = make_engine(None)
    spec = GrammarSpec("regex", "(name)+")
    sampling = SamplingParams(seed=1, max_tokens=200)
    engine.add(GenerateRequest("r", sampling, spec), array("i", [1, 2]))
    tokens = tokens_of(drive_engine(engine))["r", 0]
    assert len(tokens) == 200 or tokens[-1] == END


def test_drafts_can_be_switched_off() -> None:
    assert from_settings().schedule.jump_forward == "exact"
    with pytest.raises(ConfigError, match=r"jump_forward=False: .*'exact', 'fast' or 'off'"):
        from_settings(jump_forward=False)
    off: Any = {"jump_forward": "off", "prompt_lookup": False, "suffix_drafts": False}
    engine = make_engine(Drafter(LongestFirst(), **off))
    add_crowd(engine, 70)
    drive_engine(engine)
    assert engine.stats()["verified_drafts"] == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


SHEET = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 5},
        "is_finished": {"type": "boolean"},
        "priority": {"enum": ["low", "high"]},
    },
    "required": ["title", "is_finished", "priority"],
    "additionalProperties": False,
}


def run(engine: Engine, prompts: list[list[int]], sampling: SamplingParams, spec: Any) -> Any:
    for number, prompt in enumerate(prompts):
        assert not engine.add(GenerateRequest(f"r{number}", sampling, spec), array("i", prompt))
    events = drive_engine(engine)
    assert all(isinstance(end, RequestFinished) for end in terminals_of(events).values())
    return tokens_of(events)


@pytest.fixture
def always_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft whatever it costs: this model is so small that no draft pays."""
    monkeypatch.setattr(StepCosts, "least_chance", lambda costs, num_sequences: 0.0)
    monkeypatch.setattr(StepCosts, "pays", lambda costs, *counts: True)


@pytest.mark.usefixtures("always_worth")
def test_a_real_model_draws_the_same_with_and_without_drafts(model: Path) -> None:
    spec = GrammarSpec("json_schema", json.dumps(SHEET), COMPACT)
    prompts = [list(b"A todo about number %d." % number) for number in range(4)]
    found = []
    for on in (True, False):
        settings = from_settings(
            model=str(model),
            num_pages=200,
            threads=1,
            jump_forward="exact" if on else "off",
            prompt_lookup=on,
            suffix_drafts=on,
            check=True,
        )
        engine = build_engine(settings).engine
        greedy = SamplingParams(temperature=0, max_tokens=70)
        drawn = SamplingParams(temperature=1.0, max_tokens=70, seed=4, n=2)
        found.append(
            [
                run(engine, prompts, greedy, spec),
                run(engine, prompts, drawn, spec),
                run(engine, prompts, greedy, None),
            ]
        )
        assert (engine.stats()["accepted_drafts"] > 0) == on
        expect_empty(engine.scheduler)
    assert found[0] == found[1]


def masked_law(model: Path, prompt: list[int], texts: list[bytes]) -> dict[bytes, float]:
    """The probability of each text under plain masked decoding, by transformers in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    reference = loader.from_pretrained(model).double().eval()
    law = {}
    for text in texts:
        with torch.no_grad():
            logits = reference(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 :]
        log = 0.0
        for place, byte in enumerate(text):
            allowed = sorted({t[place] for t in texts if t.startswith(text[:place])})
            scores = torch.log_softmax(logits[place, allowed], 0)
            log += float(scores[allowed.index(byte)])
        law[text] = math.exp(log)
    return law


@pytest.mark.usefixtures("always_worth")
def test_the_law_of_outputs_is_that_of_plain_masked_decoding(model: Path) -> None:
    """Chi-square over six texts; 20.5 is exceeded once in a thousand times with 5 degrees."""
    texts = [b"start:red", b"start:rust!", b"start:green", b"start:grey!", b"stop.", b"stop,now"]
    spec = GrammarSpec("choice", json.dumps([text.decode() for text in texts]))
    prompt, num_samples = list(b"Say it: "), 900
    law = masked_law(model, prompt, texts)
    assert math.isclose(sum(law.values()), 1.0, rel_tol=1e-6)
    engine = build_engine(from_settings(model=str(model), num_pages=2000, threads=1)).engine
    found = run(engine, [prompt], SamplingParams(n=num_samples, seed=11), spec)
    assert engine.stats()["accepted_drafts"] > 100
    counts = Counter(bytes(tokens) for tokens in found.values())
    assert set(counts) <= set(texts)
    square = sum(
        (counts[text] - num_samples * p) ** 2 / (num_samples * p) for text, p in law.items()
    )
    assert square < 20.5, (counts, law)
