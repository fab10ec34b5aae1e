"""The team of threads: programs that follow each other closely, forks, callers from threads."""

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from radixgen.kernels import library
from radixgen.kernels.linear import linear
from radixgen.kernels.program import Program


@pytest.fixture(autouse=True)
def native_only() -> Iterator[None]:
    if library.library() is None:
        pytest.skip("no C compiler")
    yield
    library.set_num_threads(library.default_threads())


def chain(length: int) -> tuple[Program, torch.Tensor, torch.Tensor]:
    """A program whose every operation needs the one before to be complete."""
    program, size = Program(8), 40
    weight = torch.eye(size).roll(1, 0)  # shifts a row by one place
    first, second = (program.buffer(name, size, torch.float32) for name in ("first", "second"))
    for _ in range(length):
        program.linear(first, [(weight, None)], second, "rows")
        program.linear(second, [(weight, None)], first, "rows")
    return program, first, weight


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_programs_of_different_length_follow_each_other(threads: int) -> None:
    library.set_num_threads(threads)
    long, long_data, _ = chain(7)
    short, short_data, _ = chain(1)
    x = torch.randn(8, 40)
    for repeat in range(100):
        rows = repeat % 8 + 1
        for program, data, turns in ((long, long_data, 14), (short, short_data, 2)):
            data[:rows] = x[:rows]
            program.run({"rows": rows})
            assert torch.equal(data[:rows], x[:rows].roll(turns, 1)), (repeat, turns)


def test_callers_from_many_threads_take_turns() -> None:
    weight, x = torch.randn(64, 48), torch.randn(5, 48)
    expected = linear(x, weight)
    right: list[bool] = []

    def call() -> None:
        right.extend(torch.equal(linear(x, weight), expected) for _ in range(50))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [True] * 200


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_has_a_team_of_its_own() -> None:
    library.set_num_threads(2)
    weight, x = torch.randn(64, 48), torch.randn(5, 48)
    expected = linear(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads is the point
        child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(linear(x, weight), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_every_piece_is_run_whoever_takes_it(threads: int) -> None:
    """More threads than cores, so that some take the pieces of others; 9 share lanes."""
    weight, x = torch.randn(1024, 96), torch.randn(64, 96)
    library.set_num_threads(1)
    expected = linear(x, weight)
    library.set_num_threads(threads)
    for _ in range(20):
        assert torch.equal(linear(x, weight), expected)


def test_a_quota_of_time_bounds_the_threads(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    for text, cores in (
        ("max 100000", None),
        ("250000 100000", 3),
        ("10000 100000", 1),
        ("", None),
    ):
        file.write_text(text)
        assert library.cores_of_quota(file) == cores
    assert library.cores_of_quota(tmp_path / "none") is None
