"""Compiled kernels are kept on disk by content: starts at once share them, later ones find them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
COMPILE = """
from radixgen.kernels.triton.compile import inspect
from radixgen.kernels.triton.variants import variants
from radixgen.model.compilations import Compilations

with Compilations() as kernels:
    variant = next(v for v in variants() if v.name == "silu_mul")
    for _ in range(2):
        inspect(variant, "sm_90")
print(kernels.num_compiled, kernels.num_found, kernels.folder)
print(kernels)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    own = {"TRITON_INTERPRET": "0", "RADIXGEN_CACHE": str(folder)}
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    return subprocess.Popen(command, env=kept | own, stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> list[str]:
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    return out.splitlines()


def test_kernels_are_compiled_once(tmp_path: Path) -> None:
    """Two processes at once, then one more."""
    at_once = [start(tmp_path), start(tmp_path)]
    for process in at_once:
        compiled, found, folder = said(process)[0].split()
        assert int(compiled) + int(found) == 2
        assert int(found) >= 1
        assert folder == str(tmp_path / "triton")
    later, told = said(start(tmp_path))
    assert later.split()[:2] == ["0", "2"]
    assert told == f"0 kernels compiled in 0 s, 2 found in {tmp_path / 'triton'}"
