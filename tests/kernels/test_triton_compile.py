"""Kernels for GPUs that are not here: what their binaries take, against what they took before."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton

from radixgen.kernels.triton.compile import TARGETS

pytestmark = pytest.mark.timeout(1800)  # half a minute's work, on however slow a machine
BASELINE = Path(__file__).with_name("triton_baseline.json")
Table = dict[str, dict[str, Any]]
# Kernels that read few bytes, each a number here and there.
NARROW = ("attention merge", "packed rows", "edit_logits")


@pytest.fixture(scope="module")
def table() -> Table:
    """Of every variant and target, by a process in which Triton compiles."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    told = "error:TRITON_DEFAULT_FP_FUSION:UserWarning"  # how sums round is for us to say
    command = [sys.executable, "-W", told, "-m", "radixgen.kernels.triton.table"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Table = json.loads(done.stdout)["binaries"]
    return found


def test_no_kernel_spills_or_outgrows_its_target(table: Table) -> None:
    for name, binary in table.items():
        assert binary["spills"] == 0, name
        assert binary["occupancy"] > 0, name


def test_products_run_on_tensor_cores(table: Table) -> None:
    for name, binary in table.items():
        # Of float32, too, where there are such: AMD's.
        meant = "product" in name.split() or (" float32 " in name and name.endswith("gfx942"))
        assert (binary["products"] > 0) == meant, name


def test_shared_memory_of_smaller_gpus_is_enough(table: Table) -> None:
    """GeForce and workstation GPUs take Ampere's binaries, and give a program 99 KB."""
    for name, binary in table.items():
        assert binary["shared"] <= 99 << 10 or not name.endswith("sm_80"), name


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", ["linear product", "linear_packed product"])
def test_tiles_of_every_size_add_up_alike(table: Table, kernel: str, target: str) -> None:
    """So that how many rows are beside a row does not show in its bits."""
    found = [
        binary["instruction"]
        for name, binary in table.items()
        if name.startswith(kernel) and name.endswith(target)
    ]
    assert len(found) > 2
    assert len(set(found)) == 1


def test_what_is_read_is_loaded_in_wide_words(table: Table) -> None:
    for name, binary in table.items():
        assert binary["wide_loads"] > 0 or name.startswith(NARROW), name


def test_binaries_take_no_more_than_they_did(table: Table) -> None:
    """The baseline may only improve: write it anew with --write after a change that is better."""
    before = json.loads(BASELINE.read_text())
    baseline = before["binaries"]
    if before["triton"] != triton.__version__:
        pytest.skip(f"the baseline is of Triton {before['triton']}, this is {triton.__version__}")
    assert table.keys() == baseline.keys()
    for name, binary in table.items():
        for what in ("registers", "shared", "spills"):
            assert binary[what] <= baseline[name][what], (name, what)
