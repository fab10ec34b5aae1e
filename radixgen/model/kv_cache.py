"""Owns the memory of the KV pages: two tensors a layer. Knows no request, tree or scheduler.

    k_pages[layer], v_pages[layer]   [num_pages, num_kv_heads, page_size, row width]

Pages of few bits (kernels/kivi.py) are full when they are written. They lie in two tensors more,
and those above hold plain pages, where tokens wait until there is a page of them:

    k_codes[layer], v_codes[layer]   [num_pages * run, num_kv_heads, page bytes]   page_size is
    k_pages[layer], v_pages[layer]   [num_plain * run, num_kv_heads, 32, head_dim]     run * 32

so that slots of plain pages, and parts to be copied, are counted as everywhere else.

Which page holds what is the scheduler's business; what a page held before never matters.
"""

from bisect import bisect_right
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from radixgen.config import CacheConfig, ScheduleConfig
from radixgen.errors import ConfigError
from radixgen.kernels.kivi import PAGE_SIZE, KiviForm
from radixgen.kernels.kv_types import FP8, PAGE_TYPES, row_width
from radixgen.kernels.kv_write import copy_pages
from radixgen.kernels.storage import take

DEFAULT_FRACTION = 0.3  # of a CPU's free memory
PAGES_A_PLAIN = 8  # of few bits, that come with a plain one: a running sequence has as many or more
MIN_PLAIN = 16  # plain pages, unless there are fewer pages
MAX_PLAIN = 1 << 16


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The sizes of one page. `dtype` is that of keys and values.

    `form`: of pages of few bits; `dtype` is then that of plain ones. `max_plain`: how many of those
    running sequences can make use of.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int  # tokens
    dtype: torch.dtype
    form: KiviForm | None = None
    max_plain: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        if self.form is None:
            return self.plain_bytes
        one = self.form.recent_pages * self.form.page_bytes(self.head_dim)
        return self.num_layers * 2 * self.num_kv_heads * one

    @property
    def plain_bytes(self) -> int:
        """Bytes of one page in `dtype`."""
        width = row_width(self.head_dim, self.dtype)
        per_token = self.num_layers * 2 * self.num_kv_heads * width
        return per_token * self.page_size * self.dtype.itemsize

    def num_plain(self, num_pages: int) -> int:
        """Plain pages beside so many of few bits."""
        if self.form is None:
            return 0
        return min(max(num_pages // PAGES_A_PLAIN, MIN_PLAIN), num_pages, self.max_plain)

    def num_bytes(self, num_pages: int) -> int:
        """Bytes of so many pages and the plain ones that come with them."""
        return num_pages * self.page_bytes + self.num_plain(num_pages) * self.plain_bytes

    def pages_in(self, num_bytes: int) -> int:
        """How many pages there is room for."""
        most = max(num_bytes, 0) // self.page_bytes
        return bisect_right(range(most + 1), max(num_bytes, 0), key=self.num_bytes) - 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a page that tokens are written to, of one layer."""
        page_size = PAGE_SIZE if self.form else self.page_size
        return self.num_kv_heads, page_size, row_width(self.head_dim, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """The pages of every layer, on one device."""

    layout: KVLayout
    num_pages: int
    k_pages: tuple[Tensor, ...]  # a layer each: [num_pages, num_kv_heads, page_size, row width]
    v_pages: tuple[Tensor, ...]
    k_codes: tuple[Tensor, ...]  # of few bits, where k_pages and v_pages are plain; else none
    v_codes: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, layout: KVLayout, num_pages: int, device: torch.device | str = "cpu"
    ) -> "KVCache":
        """Pages with arbitrary contents. Raises ConfigError when they do not fit into memory."""
        if layout.dtype not in PAGE_TYPES and layout.dtype != FP8:
            raise ConfigError(
                f"kv_dtype={layout.dtype}: use float32, bfloat16, float16, int8 or fp8"
            )
        device = torch.device(device)
        _check_fits(layout, num_pages, available_bytes(device))
        form = layout.form
        written = layout.num_plain(num_pages) * form.recent_pages if form else num_pages

        def tensors(*shape: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
            if device.type == "cpu":
                return tuple(take(shape, dtype) for _ in range(layout.num_layers))
            return tuple(
                torch.empty(shape, dtype=dtype, device=device) for _ in range(layout.num_layers)
            )

        pages = [tensors(written, *layout.shape, dtype=layout.dtype) for _ in "kv"]
        codes: list[tuple[Tensor, ...]] = [(), ()]
        if form is not None:
            shape = num_pages * form.recent_pages, layout.num_kv_heads
            width = form.page_bytes(layout.head_dim)
            codes = [tensors(*shape, width, dtype=torch.uint8) for _ in "kv"]
        return cls(layout, num_pages, *pages, *codes)

    @property
    def device(self) -> torch.device:
        return self.k_pages[0].device

    @property
    def num_bytes(self) -> int:
        return self.layout.num_bytes(self.num_pages)

    @property
    def num_plain(self) -> int | None:
        """Plain pages, where the others are of few bits."""
        return self.layout.num_plain(self.num_pages) if self.layout.form else None

    def copy(self, sources: Tensor, targets: Tensor, num_tokens: Tensor) -> None:
        """Copy the first num_tokens[i] tokens of page sources[i] to targets[i]; int64 [copies]."""
        for k_pages, v_pages in zip(self.k_pages, self.v_pages, strict=True):
            copy_pages(k_pages, v_pages, sources, targets, num_tokens)


def form_of(bits: int, page_size: int) -> KiviForm:
    """Pages of so few bits. Raises ConfigError where `page_size` is none of theirs."""
    if page_size % PAGE_SIZE:
        raise ConfigError(
            f"page_size={page_size}: pages of kv_dtype='int{bits}' have {PAGE_SIZE} tokens or a "
            f"multiple; set page_size={PAGE_SIZE}"
        )
    return KiviForm(bits, page_size // PAGE_SIZE)


def max_plain(schedule: ScheduleConfig, page_size: int) -> int:
    """Plain pages that running sequences can make use of: one each, and a step's tokens."""
    return schedule.max_running + -(-2 * schedule.max_step_tokens // page_size) + 1


def available_bytes(device: torch.device) -> int:
    """Memory that can be taken now, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def choose_num_pages(layout: KVLayout, config: CacheConfig, available: int) -> int:
    """config.num_pages, or what memory_fraction of `available` bytes holds.

    Raises ConfigError when not one page fits.
    """
    if config.num_pages is not None:
        return config.num_pages
    fraction = config.memory_fraction or DEFAULT_FRACTION
    budget = int(available * fraction)
    num_pages = layout.pages_in(budget)
    if num_pages < 1:
        raise ConfigError(
            f"memory_fraction={fraction} of {_mib(available)} free is "
            f"{_mib(budget)}, less than one KV page of {_mib(layout.num_bytes(1))}; raise "
            f"memory_fraction or lower "
            f"page_size={layout.page_size}"
        )
    return num_pages


def _check_fits(layout: KVLayout, num_pages: int, available: int) -> None:
    needed = layout.num_bytes(num_pages)
    if needed > available:
        raise ConfigError(
            f"{num_pages} KV pages of {layout.page_size} tokens need {_mib(needed)} but "
            f"{_mib(available)} are free: at most {layout.pages_in(available)} pages fit; "
            "lower num_pages or choose a smaller kv_dtype"
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
