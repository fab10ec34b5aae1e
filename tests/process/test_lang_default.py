"""The local runtime that programs start for themselves."""

import os
import signal
from pathlib import Path

import pytest
from helpers import write_tiny_model
from scripted_backend import wait_until

import radixgen as rg
from radixgen.lang.backends import default


@rg.function
def program(s: rg.ProgramState) -> None:
    s += "Once" + rg.gen("a", max_tokens=2, temperature=0, ignore_eos=True)


def test_a_default_runtime_that_was_killed_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXGEN_MODEL", str(write_tiny_model(tmp_path)))
    rg.set_default_backend(None)
    runtimes = []
    try:
        said = program.run()["a"]
        runtimes.append(default._default())
        assert default._default() is runtimes[0]
        os.kill(runtimes[0].process.pid, signal.SIGKILL)
        wait_until(lambda: runtimes[0].engine_client.connection.is_lost)
        assert program.run()["a"] == said
        runtimes.append(default._default())
        assert runtimes[0] is not runtimes[1]
    finally:
        rg.set_default_backend(None)
        for runtime in runtimes:
            runtime.shutdown()
