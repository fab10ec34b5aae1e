"""An engine whose model runs as Triton's launches answers as one on C: cold, warm, chunked,
batched, preempted, under grammars and drafts, with adapters. Interpreted, so of few tokens."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import write_adapter, write_tiny_model
from scheduling import drive_engine, expect_empty, overlapped, terminals_of, tokens_of
from test_triton_forward import Repeater

from radixgen.config import from_settings
from radixgen.errors import ConfigError
from radixgen.messages import GenerateRequest, RequestFinished
from radixgen.model.runner import ModelRunner
from radixgen.runtime.build import Built, build_engine
from radixgen.runtime.costs import StepCosts
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import Event, SequenceOutput
from radixgen.types import GrammarSpec, SamplingParams

GREEDY_TO_THE_END = SamplingParams(temperature=0, max_tokens=14)
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
STEM = list(b"A stem. ")
PROMPTS = [[*STEM, *tail] for tail in (b"one", b"to", b"3rd", b"4")]
Asked = tuple[Sequence[int], SamplingParams, GrammarSpec | None, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = write_tiny_model(folder / "model", num_hidden_layers=1, head_dim=32)
    write_adapter(folder / "a", model, ["q_proj", "v_proj", "down_proj"], seed=2)
    return folder


def build(folder: Path, kernels: str, **more: Any) -> Built:
    settings: dict[str, Any] = {"num_pages": 60, "page_size": 4, "threads": 1, "check": True}
    adapters = {"a": str(folder / "a")}
    model = str(folder / "model")
    given = {**settings, "model": model, "adapters": adapters, "kernels": kernels, **more}
    return build_engine(from_settings(**given))


def make(folder: Path, kernels: str, **more: Any) -> Engine:
    return build(folder, kernels, **more).engine


def plain(prompts: Sequence[Sequence[int]]) -> list[Asked]:
    return [(prompt, GREEDY, None, "") for prompt in prompts]


def events_of(engine: Engine, asked: Sequence[Asked]) -> list[Event]:
    """What comes of requests that run together, named r0, r1 and so on."""
    for number, (prompt, sampling, spec, lora) in enumerate(asked):
        message = GenerateRequest(f"r{number}", sampling, spec, lora=lora)
        assert not engine.add(message, array("i", list(prompt)))
    events = drive_engine(engine)
    assert all(isinstance(end, RequestFinished) for end in terminals_of(events).values())
    return events


def answers(engine: Engine, asked: Sequence[Asked]) -> list[list[int]]:
    """The tokens of each."""
    found = tokens_of(events_of(engine, asked))
    return [found[f"r{number}", 0] for number in range(len(asked))]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    """What C answers, cold and one by one."""
    found = [answers(make(folder, "c"), plain([prompt]))[0] for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in found}) > 1
    return found


def test_cold_and_warm(folder: Path, expected: list[list[int]]) -> None:
    engine = make(folder, "triton", share_tail_pages=False)
    assert answers(engine, plain(PROMPTS[:1])) == expected[:1]
    assert answers(engine, plain(PROMPTS[:2])) == expected[:2]
    assert engine.stats()["cached_tokens"] >= 2 * len(STEM)


def test_chunked_and_batched(folder: Path, expected: list[list[int]]) -> None:
    engine = make(folder, "triton", max_step_tokens=7)
    assert answers(engine, plain(PROMPTS)) == expected


def test_recorded(folder: Path, expected: list[list[int]]) -> None:
    """Decodes padded and repeated; three at once are of a size of their own."""
    engine = make(folder, "triton")
    assert isinstance(engine.runner, ModelRunner)
    for pages in (*engine.runner.cache.k_pages, *engine.runner.cache.v_pages):
        pages.zero_()  # what pads a step reads page 0, and the interpreter minds what it holds
    recorder = engine.runner.decoder.recorder = Repeater()
    assert answers(engine, plain(PROMPTS[:3])) == expected[:3]
    assert recorder.num_recorded > 0


def test_pages_of_fp8(folder: Path) -> None:
    """Cold, warm and together: the same tokens. C has no such pages."""
    cold = [answers(make(folder, "triton", kv_dtype="fp8"), plain([p]))[0] for p in PROMPTS[:2]]
    engine = make(folder, "triton", kv_dtype="fp8")
    assert answers(engine, plain(PROMPTS[:2])) == cold
    assert answers(engine, plain(PROMPTS[:1])) == cold[:1]
    assert engine.stats()["cached_tokens"] >= len(STEM)
    with pytest.raises(ConfigError, match="kv_dtype='fp8': for a GPU's kernels; on a CPU int8"):
        make(folder, "c", kv_dtype="fp8")


def test_preempted(folder: Path, expected: list[list[int]]) -> None:
    engine = make(folder, "triton", num_pages=5)
    assert answers(engine, plain(PROMPTS[:2])) == expected[:2]
    assert engine.stats()["preemptions"] > 0
    expect_empty(engine.scheduler)


def test_grammars_and_drafts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "least_chance", lambda costs, num_sequences: 0.0)
    monkeypatch.setattr(StepCosts, "pays", lambda costs, *counts: True)
    spec = GrammarSpec("regex", r"(yes it is|no never)[.!]")
    drawn = SamplingParams(temperature=1.0, max_tokens=14, seed=5)
    asked: list[Asked] = [(b"Is it? ", GREEDY_TO_THE_END, spec, ""), (b"Is it", drawn, spec, "")]
    wanted = answers(make(folder, "c", jump_forward="off", prompt_lookup=False), asked)
    engine = make(folder, "triton")
    assert answers(engine, asked) == wanted
    assert engine.stats()["accepted_drafts"] > 3
    for tokens in wanted:
        assert bytes(tokens).decode() in {
            f"{t}{e}" for t in ("yes it is", "no never") for e in ".!"
        }


def test_bias_penalties_and_min_tokens(folder: Path) -> None:
    edited = SamplingParams(
        temperature=0,
        max_tokens=4,
        min_tokens=3,
        repetition_penalty=1.4,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias=((9, 100.0), (40, -100.0)),
    )
    drawn = replace(edited, temperature=0.9, top_p=0.8, seed=3, logprobs=1)
    asked: list[Asked] = [(PROMPTS[0], each, None, "") for each in (edited, drawn, GREEDY)]
    wanted = answers(make(folder, "c"), asked)
    assert wanted[0] != wanted[2][: len(wanted[0])]
    assert answers(make(folder, "triton"), asked) == wanted


def test_two_ranks_launch_what_one_does(folder: Path) -> None:
    """Beside an adapter, and where a page is copied. Not to the bit: the interpreter's products
    depend on where in a tile they are."""
    told = replace(GREEDY, max_tokens=3, logprobs=1)
    asked: list[Asked] = [(PROMPTS[0], told, None, lora) for lora in ("a", "")]
    again = ([*PROMPTS[0], 9], told, None, "")
    alone = make(folder, "c")
    wanted = outcomes(alone, asked) + outcomes(alone, [again])
    built = build(folder, "triton", tensor_parallel=2)
    try:
        found = outcomes(built.engine, asked) + outcomes(built.engine, [again])
    finally:
        built.close()
    for ours, theirs in zip(found, wanted, strict=True):
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        assert [told for _, told in ours] == pytest.approx([told for _, told in theirs], abs=1e-3)
    assert built.engine.stats()["cached_tokens"] % 4 > 0
    assert "2 ranks" in built.forms
    assert "Triton on the CPU, interpreted" in built.forms


def test_two_ranks_overlap(folder: Path) -> None:
    """The other rank is told where tokens go that it does not know, and gets them in the step."""
    spec = GrammarSpec("regex", "[0-9]{3}")
    asked = [*plain(PROMPTS[:1]), (PROMPTS[3], replace(GREEDY, ignore_eos=False), spec, "a")]
    wanted = answers(make(folder, "c"), asked)
    built = build(folder, "triton", tensor_parallel=2, max_step_tokens=12)
    try:
        engine = overlapped(built.engine)
        assert answers(engine, asked) == wanted
    finally:
        built.close()
    assert engine.stats()["overlapped_steps"] > 2
    expect_empty(engine.scheduler)


def outcomes(engine: Engine, asked: Sequence[Asked]) -> list[list[tuple[int, float]]]:
    """The tokens of each and their log-probabilities."""
    found: list[list[tuple[int, float]]] = [[] for _ in asked]
    for event in events_of(engine, asked):
        if isinstance(event, SequenceOutput):
            found[int(event.rid[1:])] += [(told.token_id, told.logprob) for told in event.logprobs]
    return found


def test_adapters_beside_rows_without(folder: Path) -> None:
    asked = [(PROMPTS[0], GREEDY, None, lora) for lora in ("a", "")]
    wanted = answers(make(folder, "c"), asked)
    assert wanted[0] != wanted[1]
    assert answers(make(folder, "triton"), asked) == wanted


def test_overlapped(folder: Path, expected: list[list[int]]) -> None:
    """Tokens go from one step to the next on the device, beside one with a mask and an adapter's,
    in steps that are recorded and in others, and some end before the others."""
    engine = make(folder, "triton", max_step_tokens=24)
    assert isinstance(engine.runner, ModelRunner)
    for pages in (*engine.runner.cache.k_pages, *engine.runner.cache.v_pages):
        pages.zero_()  # as above
    recorder = engine.runner.decoder.recorder = Repeater()
    spec = GrammarSpec("regex", "[0-9]{4}")
    asked = [(PROMPTS[3], GREEDY_TO_THE_END, spec, ""), (PROMPTS[0], GREEDY, None, "a")]
    wanted = answers(make(folder, "c"), asked)
    engine = overlapped(engine)
    assert answers(engine, [*plain(PROMPTS[:2]), *asked]) == [*expected[:2], *wanted]
    assert engine.stats()["overlapped_steps"] > 2
    assert recorder.num_recorded > 0
    expect_empty(engine.scheduler)
