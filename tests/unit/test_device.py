"""What a machine cannot run is told at the start, in words; here its answers are made up."""

import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from radixgen import native
from radixgen.config import ModelConfig, from_settings
from radixgen.errors import ConfigError, ModelError
from radixgen.model import device as device_module
from radixgen.model.device import check_forms, describe, on_device, place
from radixgen.model.recordings import CudaGraphs

Fake = Callable[..., None]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes torch say that it has GPUs; by default two of an H100 and all that they need."""

    def answer(
        count: int = 2, capability: tuple[int, int] = (9, 0), built: bool = True, hip: bool = False
    ) -> None:
        monkeypatch.setattr(torch.version, "cuda", "12.8" if built and not hip else None)
        monkeypatch.setattr(torch.version, "hip", "6.4" if hip else None)
        said: dict[str, Any] = {
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "current_device": lambda: 0,
            "get_device_capability": lambda device: capability,
            "get_device_name": lambda device: "NVIDIA H100",
        }
        for name, value in said.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(device_module, "_python_headers", lambda: None)
        monkeypatch.setattr(native, "find_compiler", lambda: "/usr/bin/cc")

    return answer


def test_auto_is_c_on_a_cpu_and_triton_on_a_gpu(gpus: Fake) -> None:
    assert place(ModelConfig()).kernels == place(ModelConfig(kernels="c")).kernels == "c"
    assert place(ModelConfig()).default_dtype == torch.float32
    gpus()
    for name, found in (("cuda", "cuda:0"), ("cuda:1", "cuda:1")):
        placement = place(ModelConfig(device=name))
        assert (str(placement.device), placement.kernels) == (found, "triton")
        assert placement.default_dtype == torch.bfloat16
    assert describe(placement.device) == "cuda:1 (NVIDIA H100)"


def test_triton_on_a_cpu_is_interpreted_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = place(ModelConfig(kernels="triton"))
    assert (placement.device.type, placement.kernels) == ("cpu", "triton")
    assert describe(placement.device) == "the CPU, interpreted"
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(ConfigError, match=r"run on a GPU: set device='cuda' .* TRITON_INTERPRET=1"):
        place(ModelConfig(kernels="triton"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "gpu"}, "device='gpu': it is 'cpu', 'cuda' or 'cuda:N'"),
        ({"device": "cuda:x"}, "'cuda:N'"),
        ({"device": "cuda", "kernels": "c"}, "kernels='c' run on a CPU"),
        ({"kernels": "cutlass"}, "kernels='cutlass'"),
        ({"device": "cuda:1", "tensor_parallel": 2}, "write device='cuda'"),
        ({"device": "cuda", "tensor_exchange": "gloo"}, "it is one of auto, nccl there"),
        ({"tensor_exchange": "nccl"}, "it is one of auto, sockets, gloo there"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_settings(**settings)


@pytest.mark.parametrize(
    ("machine", "device", "said"),
    [
        ({"built": False}, "cuda", "computes on CPUs only; install its build for CUDA or ROCm"),
        ({"count": 0}, "cuda", "torch finds no GPU; see that nvidia-smi"),
        ({}, "cuda:2", "there are cuda:0 to cuda:1"),
        ({"count": 1}, "cuda:1", "there is only cuda:0"),
        (
            {"capability": (7, 5)},
            "cuda:1",
            r"NVIDIA H100 has compute capability 7.5, the kernels need 8.0",
        ),
    ],
)
def test_a_gpu_that_cannot_be_used_is_named(
    gpus: Fake, machine: dict[str, Any], device: str, said: str
) -> None:
    gpus(**machine)
    with pytest.raises(ConfigError, match=said):
        place(ModelConfig(device=device))


def test_every_rank_takes_a_gpu_of_its_own(gpus: Fake) -> None:
    gpus()
    two = ModelConfig(device="cuda", tensor_parallel=2)
    assert [str(place(two, rank).device) for rank in range(2)] == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match=r"tensor_parallel=3: .* there are 2; lower"):
        place(ModelConfig(device="cuda", tensor_parallel=3), 0)
    gpus(count=1)
    with pytest.raises(ConfigError, match=r"tensor_parallel=2: .* there is one; lower"):
        place(two, 1)


def test_amd_has_no_compute_capability_to_fail(gpus: Fake) -> None:
    gpus(hip=True, capability=(0, 0))
    assert place(ModelConfig(device="cuda")).kernels == "triton"


def test_what_triton_builds_with_is_asked_for(gpus: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus()

    def no_compiler() -> str:
        raise native.BuildError("no C compiler on PATH (cc, gcc, clang): install gcc or clang")

    monkeypatch.setattr(native, "find_compiler", no_compiler)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(
        ConfigError, match=r"Triton builds its launchers: no C compiler .* install gcc"
    ):
        place(ModelConfig(device="cuda"))
    monkeypatch.setenv("CC", "/opt/cc")
    assert place(ModelConfig(device="cuda")).kernels == "triton"
    monkeypatch.setattr(device_module, "_python_headers", lambda: "/usr/include/python3/Python.h")
    with pytest.raises(ConfigError, match=r"no /usr/include/python3/Python.h; install them"):
        place(ModelConfig(device="cuda"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install triton"):
        place(ModelConfig(device="cuda"))
    with pytest.raises(ConfigError, match="pip install triton"):
        place(ModelConfig(kernels="triton"))


def test_launches_are_made_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []

    def enter(device: torch.device) -> Any:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    with on_device(torch.device("cpu")):
        assert not entered
    with on_device(torch.device("cuda:1")):
        assert entered == [torch.device("cuda:1")]


class Graph:
    """A graph that counts its replays. Its pool is its own name."""

    def __init__(self) -> None:
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1

    def pool(self) -> str:
        return f"pool of {id(self)}"


def test_graphs_share_the_pool_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[tuple[Graph, Any]] = []

    def capture(graph: Graph, pool: Any) -> Any:
        captured.append((graph, pool))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    recorder, made = CudaGraphs(torch.device("cuda")), (torch.zeros(1), None)
    for _ in range(3):
        replay, outputs = recorder.record(lambda: made)
        assert outputs is made
        assert captured[-1][0].num_replays == 0
        replay()
        assert captured[-1][0].num_replays == 1
    first = captured[0][0].pool()
    assert [pool for _, pool in captured] == [None, first, first]


@pytest.mark.parametrize(
    ("head_dim", "page_size", "kv_dtype", "error", "said"),
    [
        (72, 16, torch.bfloat16, ModelError, "heads have 72 dimensions; the GPU's kernels take 32"),
        (128, 24, torch.bfloat16, ConfigError, "page_size=24: on a GPU it is one of 1, 2, 4"),
        (128, 16, torch.float32, ConfigError, "kv_dtype='float32' with dtype='bfloat16'"),
    ],
)
def test_forms_that_no_kernel_takes_are_refused(
    head_dim: int, page_size: int, kv_dtype: torch.dtype, error: type[Exception], said: str
) -> None:
    check_forms(128, 16, torch.bfloat16, torch.bfloat16)
    with pytest.raises(error, match=said):
        check_forms(head_dim, page_size, torch.bfloat16, kv_dtype)
