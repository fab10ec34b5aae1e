"""Kernels for GPUs that are not here: what their binaries take, against what they took before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

BASELINE = Path(__file__).with_name("triton_baseline.json")


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, float]]:
    """Of every variant and target, by a process in which Triton compiles."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "radixgen.kernels.triton.table"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout)["binaries"]
    return found


def test_no_kernel_spills_or_outgrows_its_target(table: dict[str, dict[str, float]]) -> None:
    for name, binary in table.items():
        assert binary["spills"] == 0, name
        assert binary["occupancy"] > 0, name


def test_products_run_on_tensor_cores(table: dict[str, dict[str, float]]) -> None:
    for name, binary in table.items():
        assert (binary["products"] > 0) == ("product" in name.split()), name


def test_pages_are_loaded_in_wide_words(table: dict[str, dict[str, float]]) -> None:
    for name, binary in table.items():
        assert binary["wide_loads"] > 0 or "merge" in name, name


def test_binaries_take_no_more_than_they_did(table: dict[str, dict[str, float]]) -> None:
    """The baseline may only improve: write it anew with --write after a change that is better."""
    before = json.loads(BASELINE.read_text())
    baseline = before["binaries"]
    if before["triton"] != triton.__version__:
        pytest.skip(f"the baseline is of Triton {before['triton']}, this is {triton.__version__}")
    assert table.keys() == baseline.keys()
    for name, binary in table.items():
        for what in ("registers", "shared", "spills"):
            assert binary[what] <= baseline[name][what], (name, what)
