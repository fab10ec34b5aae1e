"""On a GPU: every kernel is right in every type, and an engine's steps are those of a CPU.

TRITON_INTERPRET=0 python -m pytest -m gpu
"""

from pathlib import Path

import pytest
import torch
from helpers import write_tiny_model
from test_triton_engine import PROMPTS, answers, make, plain

from benchmarks.gpu import full_plan
from benchmarks.gpu_kernels import TOLERANCE, errors
from benchmarks.gpu_rates import Bench

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def device() -> None:
    from triton import knobs

    if not torch.cuda.is_available() or knobs.runtime.interpret:
        pytest.skip("no GPU, or TRITON_INTERPRET is not 0")


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_kernels_are_right(dtype: torch.dtype) -> None:
    bench = Bench(torch.device("cuda"), dtype, small=False, repeats=1)
    for model in ("1B", "8B"):
        config = full_plan(model, True, 2**30).config
        for name, error in errors(bench, config).items():
            assert error <= TOLERANCE[dtype], (name, model)


def test_an_engine_answers_as_on_a_cpu(tmp_path: Path) -> None:
    """Alone, together, in chunks and preempted, the decodes recorded."""
    write_tiny_model(tmp_path / "model", head_dim=32)
    wanted = [answers(make(tmp_path, "c", adapters={}), plain([p]))[0] for p in PROMPTS]
    gpu = {"adapters": {}, "device": "cuda", "dtype": "float32"}
    for more in ({}, {"max_step_tokens": 7}, {"num_pages": 5}):
        engine = make(tmp_path, "triton", **gpu, **more)
        count = 2 if "num_pages" in more else len(PROMPTS)
        for _ in range(2):
            assert answers(engine, plain(PROMPTS[:count])) == wanted[:count]
        assert engine.stats()["overlapped_steps"] > 0
