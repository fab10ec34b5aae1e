"""Shares a GPU's memory: weights, what a step needs, and KV pages from what is left.

    |  weights  |  a step's activations  |  KV pages: memory_fraction of what is left  | spare |

What a step needs is measured: the largest ones are run once before there are pages. When something
does not fit, the message says what takes how much and what would. Knows steps, no requests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from radixgen.batch import ScheduledBatch, ScheduledRow
from radixgen.config import CacheConfig, ScheduleConfig
from radixgen.errors import ConfigError
from radixgen.kernels.linear import PackedWeight, Weight
from radixgen.model.kv_cache import KVLayout
from radixgen.types import SamplingParams

DEFAULT_FRACTION = 0.9  # of what is left: recorded steps and the allocator take some beside


class DeviceMemory(Protocol):
    """A device's answers about its memory, in bytes."""

    def free(self) -> int:
        """What can be taken now; what the allocator keeps for later is given back first."""
        ...

    def total(self) -> int: ...
    def start_peak(self) -> None: ...
    def peak(self) -> int:
        """By how much more was in use since `start_peak` than when it was called, at most."""
        ...


class GpuMemory:
    """A GPU's, by torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held = 0

    def free(self) -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def total(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def start_peak(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._held = torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device)) - self._held


def weight_bytes(tensors: Mapping[str, Weight], dtype: torch.dtype) -> int:
    """What a model's tensors take on a GPU, floats in `dtype`."""
    return sum(_bytes_of(weight, dtype) for weight in tensors.values())


def _bytes_of(weight: Weight, dtype: torch.dtype) -> int:
    from radixgen.kernels.triton.blocks import FORMS

    count = torch.Size(weight.shape).numel()
    if isinstance(weight, PackedWeight):
        form = FORMS[weight.kind]
        return count * form.bits // 8 + count // form.group * form.group_bytes
    return count * dtype.itemsize


def check_weights_fit(needed: int, dtype: torch.dtype, memory: DeviceMemory) -> None:
    """Raises ConfigError, before anything is loaded, where the weights alone do not fit.

    `needed`: bytes, with floats in `dtype`.
    """
    free = memory.free()
    if needed <= free:
        return
    ways = ["take a smaller or quantised model (GGUF), or a GPU with more memory"]
    if dtype == torch.float32 and needed // 2 <= free:
        ways.insert(0, f"dtype='bfloat16' needs {_gib(needed // 2)}")
    raise ConfigError(
        f"the model's weights need {_gib(needed)} in {_name(dtype)}, but of the GPU's "
        f"{_gib(memory.total())} {_gib(free)} are free; {', or '.join(ways)}"
    )


def largest_steps(
    schedule: ScheduleConfig, max_context: int, page_size: int
) -> list[ScheduledBatch]:
    """The steps that need most: the last part of a prompt that fills the context, and decodes.

    All of one page, page 0, and one plain one: what is read and written there does not matter.
    """
    tokens = min(schedule.max_step_tokens, max_context)
    prompt = _row(0, max_context - tokens, tokens, page_size)
    num_decodes = min(schedule.max_running, schedule.max_step_tokens)
    decodes = [_row(number, 0, 1, page_size) for number in range(num_decodes)]
    return [ScheduledBatch([prompt]), ScheduledBatch(decodes)]


def _row(number: int, start: int, length: int, page_size: int) -> ScheduledRow:
    pages = [0] * -(-(start + length) // page_size)
    sampling = SamplingParams(temperature=1.0, logprobs=1)  # takes more room than a choice alone
    plain = pages[start // page_size :]
    return ScheduledRow("", number, [0] * length, start, pages, True, sampling, 0, plain_ids=plain)


@dataclass(frozen=True, slots=True)
class Share:
    """How a device's memory is shared, in bytes."""

    total: int
    held: int  # before anything of this is asked for: weights
    step: int  # what the largest step needs
    left: int  # for pages, the step's need already taken off
    fraction: float

    @property
    def for_pages(self) -> int:
        return int(self.left * self.fraction)


def measure(memory: DeviceMemory, run: Callable[[], None], fraction: float | None) -> Share:
    """Run the largest steps and see what they leave. `run` keeps nothing of what it took."""
    held = memory.total() - memory.free()
    memory.start_peak()
    run()
    step = memory.peak()
    left = max(memory.free() - step, 0)
    return Share(memory.total(), held, step, left, fraction or DEFAULT_FRACTION)


def explain_step(memory: DeviceMemory, schedule: ScheduleConfig) -> str:
    """Why a step could not be run to see what it needs."""
    total, free = _gib(memory.total()), _gib(memory.free())
    return (
        f"the largest step does not fit beside the weights: of the GPU's {total}, {free} are left; "
        f"lower max_step_tokens={schedule.max_step_tokens} or max_running={schedule.max_running}, "
        "or take a smaller model or dtype"
    )


def pages_in(
    share: Share,
    layout: KVLayout,
    cache: CacheConfig,
    schedule: ScheduleConfig,
) -> int:
    """cache.num_pages, or as many as there is room for. Raises ConfigError if they do not fit."""
    fits = layout.pages_in(share.for_pages)
    wanted = cache.num_pages
    if wanted is not None and layout.num_bytes(wanted) <= share.left:
        return wanted
    if wanted is None and fits >= 1:
        return fits
    tokens = fits * layout.page_size
    asked = "one KV page does" if wanted is None else f"{wanted} KV pages do"
    ways = ["lower num_pages" if wanted is not None and fits else "take a smaller model or dtype"]
    if share.step > layout.page_bytes and schedule.max_step_tokens > 1:
        ways.append(f"lower max_step_tokens={schedule.max_step_tokens}")
    raise ConfigError(
        f"{asked} not fit into the GPU's {_gib(share.total)}: weights (and what else is there) "
        f"take {_gib(share.held)}, the largest step {_gib(share.step)}; {_gib(share.left)} are "
        f"left, at {_gib(layout.page_bytes)} a page of {layout.page_size} tokens. What would fit: "
        f"{fits} pages, a context of {tokens} tokens; {', or '.join(ways)}"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**27 else f"{count / 2**20:,.2f} MiB"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
