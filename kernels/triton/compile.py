"""Compiles kernels for GPUs that are not here, and reads what the binaries say of themselves.

A `Variant` is a kernel with the types and constants of one use. `inspect` compiles it for a target
and returns registers, spills, shared memory and whether products run on tensor cores: what decides
speed before anything is measured. Needs no driver; triton's own ptxas is enough.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from radixgen.kernels.triton.launch import FUSED

TARGETS: dict[str, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),  # A100
    "sm_90": GPUTarget("cuda", 90, 32),  # H100
    "gfx942": GPUTarget("hip", "gfx942", 64),  # MI300
}
MAX_SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}  # bytes a program
MAX_THREADS = {"sm_80": 2048, "sm_90": 2048, "gfx942": 2048}  # of a multiprocessor
REGISTERS = {"sm_80": 65536, "sm_90": 65536, "gfx942": 131072}  # of a multiprocessor, 32 bits each
ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as it is launched. `types`: Triton's name of each argument that is no constant;
    `aligned`: those that are multiples of 16, as allocations and their strides are."""

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    amd: Mapping[str, Any] = field(default_factory=dict)  # other constants and options there
    options: Mapping[str, Any] = field(default_factory=dict)  # everywhere

    @classmethod
    def of(
        cls,
        name: str,
        kernel: Any,
        types: Mapping[str, str],
        *,
        odd: str = "",
        num_warps: int = 4,
        num_stages: int = 2,
        amd: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **constants: Any,
    ) -> "Variant":
        """`types`: by type, the names of its arguments with spaces between. `odd`: the numbers
        among them that are no multiples of 16."""
        each = {argument: kind for kind, names in types.items() for argument in names.split()}
        aligned = [
            argument
            for argument, kind in each.items()
            if argument not in odd.split() and kind not in ("fp32", "fp64")
        ]
        stated = (tuple(aligned), num_warps, num_stages)
        return cls(name, kernel, each, constants, *stated, amd or {}, options or {})

    def source(self) -> ASTSource:
        names: list[str] = self.kernel.arg_names
        signature = {name: self.types.get(name, "constexpr") for name in names}
        constants = {(names.index(name),): value for name, value in self.constants.items()}
        attributes = {(names.index(name),): ALIGNED for name in self.aligned}
        return ASTSource(self.kernel, signature, constants, attributes)


@dataclass(frozen=True, slots=True)
class Binary:
    """What a compiled variant takes. Registers are those of a thread; shared memory in bytes.

    `occupancy`: the share of a multiprocessor's threads that registers and shared memory allow.
    `products`: tensor-core instructions. `wide_loads`: loads of at least 512 bytes a warp, and
    asynchronous copies of 256.
    """

    registers: int
    spills: int
    shared: int
    occupancy: float
    products: int
    wide_loads: int
    instruction: str  # of its products

    def as_dict(self) -> dict[str, float | str]:
        return asdict(self)


def inspect(variant: Variant, target: str) -> Binary:
    """Compile for one of TARGETS. Raises what Triton raises when that cannot be done."""
    options: dict[str, Any] = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    options |= {**FUSED, **variant.options}
    if target == "gfx942":
        changed = {name: variant.amd[name] for name in variant.constants.keys() & variant.amd}
        options |= {name: value for name, value in variant.amd.items() if name not in changed}
        variant = replace(variant, constants={**variant.constants, **changed})
    compiled = triton.compile(variant.source(), target=TARGETS[target], options=options)
    shared = int(compiled.metadata.shared)
    text = compiled.asm["amdgcn" if target == "gfx942" else "ptx"]
    registers, spills = _amd(text) if target == "gfx942" else _nvidia(compiled.asm["cubin"])
    threads = options["num_warps"] * TARGETS[target].warp_size
    return Binary(
        registers=registers,
        spills=spills,
        shared=shared,
        occupancy=_occupancy(target, threads, registers, shared),
        products=len(re.findall(_PRODUCT, text)),
        wide_loads=len(re.findall(_WIDE_LOAD, text)),
        instruction=" ".join(sorted({_kind(name) for name in re.findall(_PRODUCT, text)})),
    )


_PRODUCT = r"(?:mma\.sync|wgmma\.mma_async|v_mfma|v_smfmac)[\w.]*"


def _kind(product: str) -> str:
    """A product's instruction without how many columns of results it makes at a time: on Hopper
    that is the tile's, and each is added up by itself."""
    return re.sub(r"(wgmma.*\.m64)n\d+", r"\1", product)


_WIDE_LOAD = (
    r"ld\.global[^;\n]*\.v4\.b32|cp\.async\.c[ag][^;\n]*, 0x(?:8|10)\b"
    r"|(?:global|buffer)_load_dwordx[24]"
)


def _nvidia(binary: bytes) -> tuple[int, int]:
    """Registers a thread and bytes of its stack, where what is spilled goes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {done.stdout[:500]}")
    return int(found[1]), int(found[2])


def _amd(assembly: str) -> tuple[int, int]:
    """Vector registers of a lane, and those spilled to memory."""

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        return int(found[1]) if found else 0

    return number("vgpr_count"), number("vgpr_spill_count")


def _occupancy(target: str, threads: int, registers: int, shared: int) -> float:
    by_registers = REGISTERS[target] // max(-(-registers // 8) * 8 * threads, 1)
    by_shared = MAX_SHARED[target] // shared if shared else by_registers
    programs = min(by_registers, by_shared, MAX_THREADS[target] // threads)
    return round(programs * threads / MAX_THREADS[target], 3)
