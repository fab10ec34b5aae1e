"""The GPU benchmark without a GPU: what it predicts, that it runs at all, and what it says."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_peers
from benchmarks.gpu_model import num_pages
from benchmarks.gpu_roofline import SHAPES, WORKS, Work, attention_cost, predict
from radixgen.kernels.triton.cost import DEVICES


def test_a_roofline_orders_what_is_known() -> None:
    eight, h100 = SHAPES["8B"], DEVICES["H100"]
    steps = {name: predict(eight, work, h100)["step"] for name, work in WORKS.items()}
    alone, many, shared, prefill = steps.values()
    weights = 8.03e9 * 2 / h100.bytes_per_s  # read once by any step
    assert weights < alone < many < prefill
    assert shared < 0.6 * many
    for work in WORKS.values():
        assert predict(eight, work, DEVICES["A100"])["step"] > predict(eight, work, h100)["step"]
        assert predict(SHAPES["1B"], work, h100)["step"] < predict(eight, work, h100)["step"] / 2


def test_shared_keys_are_counted_once() -> None:
    def moved(work: Work) -> float:
        return attention_cost(SHAPES["8B"], work, torch.bfloat16).bytes

    plain, shared = moved(Work(64, 1, 8192 + 63)), moved(Work(64, 1, 8192 + 63, shared=8192))
    assert plain > 8 * shared


def test_without_a_gpu_it_says_so_and_offers_a_prediction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == gpu.NO_DEVICE
    said = capsys.readouterr()
    assert "nothing is measured: device='cuda': the installed torch" in said.err
    assert "--predict" in said.err
    assert said.out == ""
    monkeypatch.setattr(sys, "argv", ["gpu", "--predict"])
    assert gpu.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert len(found) == len(SHAPES) * len(WORKS) * len(DEVICES)


def test_it_runs_where_kernels_are_interpreted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--quick"])
    assert gpu.main() == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["parameters"]["device"] == "the CPU, interpreted"
    assert all(check["ok"] for check in report["checks"].values())
    assert {"attention, decode: error", "draws: error"} <= set(report["checks"])
    results = report["results"]
    assert set(results) == {"rates", "kernels", "steps", "predicted"}
    assert all(seconds > 0 for seconds in results["steps"].values())


def test_rows_are_as_many_as_memory_holds() -> None:
    for free, rows in ((80e9, 64), (24e9, 22), (1e8, 1)):
        plan = gpu.full_plan("8B", True, int(free))
        assert max(work.rows for work in plan.decodes.values()) == rows


def test_shared_pages_are_held_once() -> None:
    assert num_pages(Work(64, 1, 4095)) == 64 * 256
    assert num_pages(Work(64, 1, 8192 + 63, shared=8192)) == 512 + 64 * 4


# ---- others beside it ----


def test_others_are_measured_by_scripts_that_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "measure.py"
    script.write_text("print('warming up'); print('{\"step\": 0.25}'); print('bye')")
    assert gpu_peers.run(script) == 0.25
    script.write_text("raise MemoryError('out of memory')")
    assert gpu_peers.run(script) == "MemoryError: out of memory"
    script.write_text("raise SystemExit(3)")
    assert gpu_peers.run(script) == "it ended with status 3"
    monkeypatch.setitem(gpu_peers.SCRIPTS, "vllm", "    measure(lambda count: len(prompts))")
    found = gpu_peers.step_seconds("vllm", SHAPES["1B"], 2, 3, 4)
    assert isinstance(found, float)
    assert abs(found) < 60


def test_others_get_the_same_shape(tmp_path: Path) -> None:
    from transformers import AutoConfig

    gpu_peers.write_config(tmp_path, SHAPES["1B"])
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.num_key_value_heads, config.head_dim) == (2048, 8, 64)
    assert config.tie_word_embeddings
