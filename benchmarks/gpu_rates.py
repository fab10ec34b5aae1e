"""Times what a device does, and what it can do: the copy and product rates to hold kernels to.

A device with a queue is waited for before and after; a CPU, where kernels are interpreted to try
the benchmark itself, has none.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True, slots=True)
class Bench:
    """A device under test. `small`: sizes that take seconds even interpreted."""

    device: torch.device
    dtype: torch.dtype
    small: bool
    repeats: int

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, action: Callable[[], object], in_a_row: int = 1) -> float:
        """The median time of an action, launched `in_a_row` times between two waits."""
        if self.small:
            in_a_row = 1
        else:
            action()  # compiled and warm
        samples = []
        for _ in range(self.repeats):
            self.wait()
            begin = time.perf_counter()
            for _ in range(in_a_row):
                action()
            self.wait()
            samples.append((time.perf_counter() - begin) / in_a_row)
        return median(samples)

    def busy_seconds(self, action: Callable[[], object]) -> float | None:
        """What a GPU's kernels took within an action, by its profiler; None: there is no GPU."""
        if self.device.type != "cuda":
            return None
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            action()
            self.wait()
        return float(sum(each.self_device_time_total for each in profile.key_averages())) * 1e-6


def copy_rate(bench: Bench) -> float:
    """Bytes a second, read and written, of a large copy."""
    count = (1 << 20) if bench.small else (1 << 30)
    source = torch.empty(count, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    return 2 * count / bench.seconds(lambda: target.copy_(source), in_a_row=5)


def product_rate(bench: Bench) -> float:
    """Operations a second of a large matrix product."""
    size = 256 if bench.small else 8192
    a = torch.randn(size, size, device=bench.device, dtype=bench.dtype)
    b = torch.randn(size, size, device=bench.device, dtype=bench.dtype)
    return 2 * size**3 / bench.seconds(lambda: a @ b, in_a_row=5)
