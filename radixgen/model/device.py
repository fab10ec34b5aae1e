"""Where a model runs and by which kernels: asks the machine, and refuses in plain words.

    device     kernels        runs
    cpu        auto, c        the C operations, or torch's without a compiler
    cuda[:N]   auto, triton   Triton
    cpu        triton         Triton interpreted, where TRITON_INTERPRET=1 was set: for tests

Knows no weights, pages or steps. Loads Triton only where it is to run.
"""

import sysconfig
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Literal

import torch

from radixgen import env, native
from radixgen.config import ModelConfig
from radixgen.errors import ConfigError, ModelError
from radixgen.kernels.kv_types import FP8

MIN_CAPABILITY = (8, 0)  # of NVIDIA's GPUs: bfloat16 products, asynchronous copies
_WITHOUT = "or take device='cpu'"
_ANYWHERE = nullcontext()


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the kernels that run on it."""

    device: torch.device
    kernels: Literal["c", "triton"]

    @property
    def default_dtype(self) -> torch.dtype:
        """Of hidden states: what the device computes fastest at no cost to answers."""
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16


def place(model: ModelConfig, rank: int = 0) -> Placement:
    """What `device` and `kernels` mean on this machine, for a rank of those that share the model:
    each has a GPU of its own. Raises ConfigError where they cannot be."""
    if model.device == "cpu":
        if model.kernels == "triton":
            _check_interpreter()
        return Placement(torch.device("cpu"), "triton" if model.kernels == "triton" else "c")
    if model.tensor_parallel == 1:
        return Placement(find_gpu(model.device), "triton")
    find_gpu(model.device)
    count, ranks = torch.cuda.device_count(), model.tensor_parallel
    if count < ranks:
        there = "is one" if count == 1 else f"are {count}"
        raise ConfigError(
            f"tensor_parallel={ranks}: every rank takes a GPU of its own, and there {there}; lower "
            "tensor_parallel"
        )
    return Placement(find_gpu(f"cuda:{rank}"), "triton")


def find_gpu(name: str) -> torch.device:
    """The GPU of that name, fit to run Triton's kernels. Raises ConfigError with the reason."""
    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            f"device={name!r}: the installed torch {torch.__version__} computes on CPUs only; "
            f"install its build for CUDA or ROCm, {_WITHOUT}"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={name!r}: torch finds no GPU; see that nvidia-smi (or rocm-smi) lists one and "
            f"that its driver is recent enough for CUDA {torch.version.cuda}, {_WITHOUT}"
        )
    device, count = torch.device(name), torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        last = "is only cuda:0" if count == 1 else f"are cuda:0 to cuda:{count - 1}"
        raise ConfigError(f"device={name!r}: there {last}")
    device = torch.device("cuda", index)
    _check_capability(device)
    _check_triton(name)
    return device


def _check_capability(device: torch.device) -> None:
    if torch.version.hip is not None:
        return
    found = torch.cuda.get_device_capability(device)
    if found < MIN_CAPABILITY:
        title = torch.cuda.get_device_name(device)
        raise ConfigError(
            f"device={str(device)!r}: {title} has compute capability {_dotted(found)}, the kernels "
            f"need {_dotted(MIN_CAPABILITY)} (Ampere, 2020) or newer; take another GPU, {_WITHOUT}"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _check_triton(name: str) -> None:
    """Triton is there, and what it builds its launchers with at first use."""
    if util.find_spec("triton") is None:
        raise ConfigError(f"device={name!r}: Triton is not installed: pip install triton")
    if not env.is_set("CC"):
        try:
            native.find_compiler()
        except native.BuildError as error:
            raise ConfigError(f"device={name!r}: Triton builds its launchers: {error}") from None
    header = _python_headers()
    if header is not None:
        raise ConfigError(
            f"device={name!r}: Triton's launchers need Python's headers, and there is no {header}; "
            "install them (python3-dev or python3-devel)"
        )


def _python_headers() -> Path | None:
    """Where Python's headers should be and are not."""
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return None if header.exists() else header


def _check_interpreter() -> None:
    if util.find_spec("triton") is None:
        raise ConfigError("kernels='triton': Triton is not installed: pip install triton")
    if not import_module("triton").knobs.runtime.interpret:
        raise ConfigError(
            "kernels='triton' run on a GPU: set device='cuda' (on a CPU they are only interpreted, "
            "for tests, where TRITON_INTERPRET=1 was set before the start)"
        )


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Within, Triton launches on this device; a thread begins with the first one as its own."""
    return _ANYWHERE if device.type == "cpu" else torch.cuda.device(device)


def inference() -> AbstractContextManager[object]:
    """Within, torch keeps no track of gradients. Where it keeps none already nothing is entered: to
    enter takes a part of what a short step takes outside of its kernels."""
    return _ANYWHERE if torch.is_inference_mode_enabled() else torch.inference_mode()


def describe(device: torch.device) -> str:
    """`cuda:0 (NVIDIA H100 80GB HBM3)`; a CPU, where Triton is interpreted, is named as such."""
    if device.type == "cpu":
        return "the CPU, interpreted"
    return f"{device} ({torch.cuda.get_device_name(device)})"


# ---- what the kernels take of a model ----


def check_forms(
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    bits: int | None = None,
) -> None:
    """Raises ModelError for a model that Triton's kernels do not take, ConfigError for settings.

    `bits`: of pages of few bits, whose size is theirs to check.
    """
    from radixgen.kernels.triton import kivi
    from radixgen.kernels.triton.attention import HEAD_SIZES, PAGE_SIZES

    taken = kivi.HEAD_SIZES if bits else HEAD_SIZES
    if head_dim not in taken:
        sizes = ", ".join(map(str, taken))
        with_bits = f" for kv_dtype='int{bits}'" if bits else ""
        way_out = "leave kv_dtype out" if bits else "run it with device='cpu'"
        raise ModelError(
            f"this model's heads have {head_dim} dimensions; the GPU's kernels take {sizes}"
            f"{with_bits}; {way_out}"
        )
    if page_size not in PAGE_SIZES and not bits:
        sizes = ", ".join(map(str, PAGE_SIZES))
        raise ConfigError(f"page_size={page_size}: on a GPU it is one of {sizes}")
    if kv_dtype not in (dtype, torch.int8, FP8):
        raise ConfigError(
            f"kv_dtype={_name(kv_dtype)!r} with dtype={_name(dtype)!r}: on a GPU pages hold what "
            "hidden states do, int8 or fp8; leave kv_dtype out"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
