"""A runtime of two ranks gives the tokens of one, and all of it ends when a part does."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import wait_for_end, write_adapter, write_tiny_model

from radixgen import ConfigError, GrammarSpec, Runtime, RuntimeUnavailable, SamplingParams
from radixgen.config import from_settings
from radixgen.runtime import ranks
from radixgen.runtime.build import build_engine

SECONDS = 200.0
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=1, top_p=0.9, seed=7, max_tokens=16, ignore_eos=True)
SHARED = "Fifty prompts begin with the same words, "
PROMPTS = [SHARED + "and end in others: " * (n % 3) + str(n * n) for n in range(50)]
# Short steps and few pages: prompts are cut into chunks, and wait for each other.
CROWDED: dict[str, Any] = {"num_pages": 48, "max_step_tokens": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    model = write_tiny_model(folder / "model")
    write_adapter(folder / "adapter", model, ["q_proj", "v_proj", "o_proj", "down_proj"])
    return model


def outputs(runtime: Runtime) -> dict[str, Any]:
    """What a runtime answers, by the kind of question."""
    named = GrammarSpec("regex", r'\{"name": "[a-z]{3,8}", "at": \[[0-9]{1,3}, [0-9]{1,3}\]\}')
    found: dict[str, Any] = {
        "greedy": runtime.generate(PROMPTS, GREEDY),
        "seeded": runtime.generate(PROMPTS, SEEDED),
        "adapter": runtime.generate(PROMPTS[:8], GREEDY, lora="x"),
        "constrained": runtime.generate(PROMPTS[:8], SEEDED, grammar=named, max_tokens=60),
    }
    return {kind: [result.token_ids for result in results] for kind, results in found.items()}


@pytest.fixture(scope="module")
def of_one(model: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    """The outputs of one rank, and log-probabilities of given tokens."""
    with start(model) as runtime:
        yield outputs(runtime), runtime.score(SHARED, PROMPTS[:5])


def start(model: Path, ranks: int = 1, **settings: Any) -> Runtime:
    adapters = {"x": model.parent / "adapter"}
    settings = {"num_pages": 600, "adapters": adapters, **settings}
    return Runtime(model, tensor_parallel=ranks, threads=1, **settings)


def ranks_of(runtime: Runtime) -> list[psutil.Process]:
    """The processes of ranks 1 and up."""
    pid = runtime.process.pid
    assert pid is not None
    return [p for p in psutil.Process(pid).children() if "ranks" in " ".join(p.cmdline())]


def test_two_ranks_give_the_bits_of_one(model: Path, of_one: tuple[dict[str, Any], Any]) -> None:
    with start(model, 2, tensor_exchange="gloo", **CROWDED) as runtime:
        (rank,) = ranks_of(runtime)
        assert outputs(runtime) == of_one[0]
        assert runtime.score(SHARED, PROMPTS[:5]).totals == of_one[1].totals
    wait_for_end(rank.pid, SECONDS)


def test_sums_in_parts_give_the_tokens_of_one(
    model: Path, of_one: tuple[dict[str, Any], Any]
) -> None:
    """And numbers that do not depend on who is in the batch; kill -9 leaves no orphan."""
    runtime = start(model, 2, tensor_split="fast", **CROWDED).start()
    (rank,) = ranks_of(runtime)
    assert outputs(runtime) == of_one[0]
    asked = SamplingParams(temperature=0, max_tokens=4, logprobs=2)
    together = runtime.generate(PROMPTS, asked)
    runtime.flush_cache()
    for prompt, result in list(zip(PROMPTS, together, strict=True))[::10]:
        assert runtime.generate(prompt, asked).choices == result.choices
    assert runtime.process.pid is not None
    os.kill(runtime.process.pid, signal.SIGKILL)
    wait_for_end(rank.pid, SECONDS)
    runtime.shutdown()


def test_pages_of_few_bits_are_those_of_one_rank(tmp_path: Path) -> None:
    """Each rank quantises those of its own heads; prompts are long enough to fill some."""
    model = write_tiny_model(tmp_path / "model", head_dim=32)
    write_adapter(tmp_path / "adapter", model, ["q_proj", "v_proj"])
    few: dict[str, Any] = {
        "kv_dtype": "int2",
        "page_size": 32,
        "share_tail_pages": False,
        "num_pages": 24,
    }
    with start(model, **few, prompt_lookup=False) as runtime:
        wanted = [each.token_ids for each in runtime.generate(PROMPTS[:12], SEEDED)]
    with start(model, 2, **few, max_step_tokens=64) as runtime:
        found = [each.token_ids for each in runtime.generate(PROMPTS[:12], SEEDED)]
        (alone,) = runtime.generate(PROMPTS[7:8], GREEDY, lora="x")
    assert found == wanted
    assert len(alone.token_ids) == 16


def test_the_loss_of_a_rank_ends_all_and_is_told(model: Path) -> None:
    with start(model, 2) as runtime:
        (rank,) = ranks_of(runtime)
        assert len(runtime.generate("x", GREEDY).token_ids) == 16
        rank.suspend()  # so that no answer can be complete
        threading.Timer(0.5, rank.kill).start()
        with pytest.raises(RuntimeUnavailable, match="rank 1 of 2 ended by signal 9"):
            runtime.generate("y", GREEDY)
        assert runtime.process.pid is not None
        wait_for_end(runtime.process.pid, SECONDS)
        assert not Path(runtime.address).parent.exists()
        with pytest.raises(RuntimeUnavailable, match="rank 1 of 2 ended by signal 9"):
            runtime.generate("x", GREEDY)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("sys.exit(3)", RuntimeUnavailable, "rank 1 of 2 ended with status 3"),
        (
            """print('{"code": "config_error", "message": "too little memory"}')""",
            ConfigError,
            "too little memory",
        ),
    ],
)
def test_a_rank_that_does_not_start_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception], said: str
) -> None:
    monkeypatch.setattr(ranks, "_BOOT", f"import sys; {code}")
    with pytest.raises(error, match=said):
        build_engine(from_settings(model=str(model), tensor_parallel=2, threads=1, num_pages=8))


def test_a_failure_half_way_ends_all_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ranks, "_BOOT", "import time; time.sleep(1000)")
    monkeypatch.setattr(ranks, "CAUSE_SECONDS", 0.01)
    said: list[str] = []
    others = ranks.Ranks(from_settings(tensor_parallel=3), tmp_path / "meeting", said.append)
    others.watch()
    error = others.give_up(ValueError("no memory"))
    assert isinstance(error, RuntimeUnavailable)
    assert "rank 0 of 3 failed: ValueError('no memory')" in str(error)
    assert said == [str(error)]
    others.close()
