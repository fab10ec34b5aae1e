"""LoRA adapters: the numbers of merged weights, bits that no neighbour changes, clear faults."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import merge_adapter, write_adapter, write_tiny_model
from scheduling import drive_engine, terminals_of

from radixgen.batch import ScheduledBatch, ScheduledRow
from radixgen.config import CacheConfig, ModelConfig, from_settings
from radixgen.errors import InvalidRequest, ModelError, ModelNotFound, UnsupportedModel
from radixgen.messages import GenerateRequest, RequestFailed, RequestFinished, ScoreRequest
from radixgen.model.adapters import load_adapter
from radixgen.model.config import DecoderConfig
from radixgen.model.hub import resolve
from radixgen.model.load import load_runner
from radixgen.model.runner import ModelRunner
from radixgen.model.weights import load_config
from radixgen.runtime.build import build_engine
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import SequenceOutput, model_namespace
from radixgen.types import SamplingParams, TokenLogprob

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOKENS = [(7 * i + i * i // 3) % 256 for i in range(45)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters of different places."""
    folder = tmp_path_factory.mktemp("adapters")
    model = write_tiny_model(folder / "model")
    write_adapter(folder / "a", model, ALL, seed=1)
    write_adapter(folder / "b", model, ["q_proj", "v_proj", "down_proj"], seed=2, use_rslora=True)
    return folder


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    named = {name: str(folder / name) for name in "ab"}
    return {"model": str(folder / "model"), "adapters": named, **more}


def scored(runner: ModelRunner, lora: str = "") -> list[float]:
    """Log-probabilities of all tokens, computed in two steps."""
    first = ScheduledRow(
        "r", 0, TOKENS[:20], 0, [0, 1, 2], False, SamplingParams(), 0,
        logprobs_from=0, next_id=TOKENS[20], lora=lora,
    )  # fmt: skip
    second = replace(first, token_ids=TOKENS[20:], start=20, next_id=5)
    results = [runner.run(ScheduledBatch([row])).rows[0] for row in (first, second)]
    return [given.logprob for result in results for given in result.given_logprobs]


# ---- the numbers ----


@pytest.mark.parametrize(
    ("family", "targets", "more"),
    [
        ("llama", ALL, {}),
        ("llama", ["k_proj"], {"use_rslora": True}),
        ("qwen3", ["q_proj", "k_proj", "up_proj"], {"lora_alpha": 3.5}),
        ("qwen2", ["v_proj", "o_proj", "gate_proj"], {}),
    ],
)
def test_an_adapter_is_the_model_with_merged_weights(
    tmp_path: Path, family: str, targets: Sequence[str], more: dict[str, Any]
) -> None:
    model = write_tiny_model(tmp_path / "model", family)
    adapter = write_adapter(tmp_path / "x", model, targets, **more)
    pages = CacheConfig(num_pages=4)
    adapted = load_runner(ModelConfig(str(model), adapters={"x": str(adapter)}), pages)
    merged = load_runner(ModelConfig(str(merge_adapter(tmp_path / "m", model, adapter))), pages)
    plain = load_runner(ModelConfig(str(model)), pages)
    assert scored(adapted, "x") == pytest.approx(scored(merged), abs=1e-4)
    assert scored(adapted) == scored(plain)
    assert scored(adapted, "x") != pytest.approx(scored(plain), abs=1e-2)


def test_all_linear_names_all_matrices(tmp_path: Path, folder: Path) -> None:
    again = write_adapter(
        tmp_path / "x", folder / "model", ALL, seed=1, target_modules="all-linear"
    )
    runners = [
        load_runner(ModelConfig(str(folder / "model"), adapters={"x": str(path)}), CacheConfig())
        for path in (folder / "a", again)
    ]
    assert scored(runners[0], "x") == scored(runners[1], "x")


# ---- exactness and sharing, through the scheduler ----

Logprobs = list[tuple[int, tuple[TokenLogprob, ...]]]


@pytest.fixture(params=["float32", "bfloat16"])
def make_engine(folder: Path, request: pytest.FixtureRequest) -> Callable[[], Engine]:
    more = {"num_pages": 200, "threads": 1, "check": True, "dtype": request.param}
    given = from_settings(**settings(folder, **more))
    return lambda: build_engine(given).engine


def add(engine: Engine, lora: str, prompt: Sequence[int], rid: str = "") -> None:
    sampling = SamplingParams(max_tokens=9, seed=4, logprobs=3, ignore_eos=True)
    message = GenerateRequest(rid or f"of {lora}", sampling, lora=lora)
    assert not engine.add(message, array("i", prompt))


def answers(engine: Engine) -> tuple[dict[str, Any], dict[str, int]]:
    """Of each request: tokens and every log-probability, and how much of its prompt was cached."""
    made: dict[str, Any] = {}
    cached: dict[str, int] = {}
    events = drive_engine(engine)
    for event in events:
        if isinstance(event, SequenceOutput):
            made.setdefault(event.rid, []).extend(zip(event.token_ids, event.logprobs, strict=True))
    for rid, end in terminals_of(events).items():
        assert isinstance(end, RequestFinished)
        cached[rid] = end.usage.cached_tokens
    return made, cached


def test_neighbours_and_the_cache_change_no_bit(make_engine: Callable[[], Engine]) -> None:
    prompts = {"": TOKENS, "a": TOKENS[:33], "b": TOKENS}
    alone: dict[str, Any] = {}
    for lora, prompt in prompts.items():
        engine = make_engine()
        add(engine, lora, prompt)
        alone |= answers(engine)[0]
    assert len({str(made) for made in alone.values()}) == 3
    together = make_engine()
    for expected in (0, 32):  # cold, and then warm
        for lora, prompt in prompts.items():
            add(together, lora, prompt)
        made, cached = answers(together)
        assert made == alone
        assert min(cached.values()) >= expected
        assert bool(expected) == any(cached.values())


def test_scores_are_the_adapters(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    for lora in ("", "a", "b", "a"):
        rid = f"{lora} {len(engine.scheduler.requests)}"
        message = ScoreRequest(rid, 20, (5, 7), lora=lora)
        assert not engine.add(message, array("i", [*TOKENS[:20], *TOKENS[30:42]]))
    ends: Any = list(terminals_of(drive_engine(engine)).values())
    found = {end.rid: end.logprobs for end in ends}
    assert found["a 1"] == found["a 3"]
    assert len({found[" 0"], found["a 1"], found["b 2"]}) == 3


def test_prefixes_are_shared_within_an_adapter_only(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    for expected in (0, len(TOKENS) - 1):
        for lora in ("", "a", "b"):
            add(engine, lora, TOKENS)
            assert list(answers(engine)[1].values()) == [expected]


def test_no_namespace_of_a_caller_is_an_adapters() -> None:
    names = ["", "a", "\0a\0", "\0a\0\0b\0", "\0\0"]
    pairs = [(space, lora) for space in names for lora in ("", "a", "b")]
    assert len({model_namespace(*pair) for pair in pairs}) == len(pairs)
    assert model_namespace("mine", "") == "mine"


def test_an_unknown_name_is_refused_with_the_known_ones(
    make_engine: Callable[[], Engine], folder: Path
) -> None:
    engine = make_engine()
    messages: list[GenerateRequest | ScoreRequest] = [
        GenerateRequest("r", SamplingParams(), lora="c"),
        ScoreRequest("r", 1, (1,), lora="c"),
    ]
    for message in messages:
        (refusal,) = engine.add(message, array("i", [1, 2]))
        assert isinstance(refusal, RequestFailed)
        assert refusal.param == "lora"
        assert "'a', 'b'" in refusal.message
    runner = load_runner(ModelConfig(str(folder / "model")), CacheConfig(num_pages=4))
    with pytest.raises(InvalidRequest, match="'a'"):
        scored(runner, "a")


# ---- bad adapters ----


@pytest.fixture(scope="module")
def config(folder: Path) -> DecoderConfig:
    return load_config(resolve(str(folder / "model")))


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"r": 8}, ModelError, r"shape \(4, 48\), the model and r say \(8, 48\)"),
        ({"r": 0}, ModelError, "r=0"),
        ({"r": True}, ModelError, "r=True"),
        ({"lora_alpha": "8"}, ModelError, "lora_alpha='8'"),
        ({"lora_alpha": float("nan")}, ModelError, "lora_alpha=nan"),
        ({"target_modules": ["q_proj", "lm_head"]}, UnsupportedModel, "'lm_head'"),
        ({"target_modules": ".*q_proj"}, UnsupportedModel, "target_modules='.*q_proj'"),
        ({"target_modules": []}, UnsupportedModel, "target_modules="),
        ({"target_modules": ["q_proj"]}, ModelError, "v_proj.lora_A.weight is of no target"),
        ({"target_modules": ["q_proj", "v_proj", "up_proj"]}, ModelError, "up_proj.* is missing"),
        ({"use_dora": True}, UnsupportedModel, "use_dora"),
        ({"bias": "all"}, UnsupportedModel, "bias='all'"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedModel, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, UnsupportedModel, "rank_pattern"),
        ({"layers_to_transform": [0]}, UnsupportedModel, "layers_to_transform"),
        ({"layers_to_transform": 0}, UnsupportedModel, "layers_to_transform"),
        ({"use_rslora": "no"}, ModelError, "use_rslora='no'"),
        ({"target_modules": [["q_proj"]]}, UnsupportedModel, "target_modules"),
        ({"some_new_key": 1}, UnsupportedModel, "some_new_key"),
        ({"peft_type": "IA3"}, UnsupportedModel, "IA3"),
        ({"init_lora_weights": "pissa"}, UnsupportedModel, "pissa"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path,
    folder: Path,
    config: DecoderConfig,
    said: dict[str, Any],
    error: Any,
    words: str,
) -> None:
    path = write_adapter(tmp_path / "x", folder / "model", ["q_proj", "v_proj"], **said)
    with pytest.raises(error, match=words):
        load_adapter("x", path, config)


def broken(path: Path) -> Iterator[tuple[Path, str, bytes | None]]:
    """Files of an adapter, what they hold instead (None: they are missing), and the complaint."""
    config, tensors = path / "adapter_config.json", path / "adapter_model.safetensors"
    yield config, "adapter_config.json", None
    yield config, "cannot be read", b"{"
    yield config, "no object", b"[]"
    yield tensors, "adapter_model.safetensors", None
    yield tensors, "damaged", b"a pickle of old"


def test_files_that_cannot_be_read_are_refused(
    tmp_path: Path, folder: Path, config: DecoderConfig
) -> None:
    path = write_adapter(tmp_path / "x", folder / "model", ["q_proj"])
    for file, words, data in broken(path):
        kept = file.read_bytes()
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(ModelNotFound if data is None else ModelError, match=words):
            load_adapter("x", path, config)
        file.write_bytes(kept)
    load_adapter("x", path, config)
    with pytest.raises(ModelNotFound, match="elsewhere"):
        load_adapter("x", tmp_path / "elsewhere", config)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, config: DecoderConfig) -> None:
    for name, more, words in (
        ("wide", {"hidden_size": 96}, "shape"),
        ("deep", {"num_hidden_layers": 3}, "layers.2"),
    ):
        other = write_tiny_model(tmp_path / name, **more)  # type: ignore[arg-type]
        with pytest.raises(ModelError, match=words):
            load_adapter("x", write_adapter(tmp_path / f"{name}-x", other, ["o_proj"]), config)


def test_numbers_that_are_not_finite_are_refused(
    tmp_path: Path, folder: Path, config: DecoderConfig
) -> None:
    from safetensors.torch import load_file, save_file

    path = write_adapter(tmp_path / "x", folder / "model", ["q_proj"])
    tensors = load_file(path / "adapter_model.safetensors")
    next(iter(tensors.values()))[0, 0] = torch.inf
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="not finite"):
        load_adapter("x", path, config)


@pytest.mark.parametrize("adapters", ["x", ["x"], {"": "x"}, {"a\n": "x"}, {"x": ""}, {"x": 1}])
def test_settings_of_adapters_are_checked(adapters: Any) -> None:
    with pytest.raises(ValueError, match="adapters"):
        from_settings(adapters=adapters)
