"""Owns the memory of the KV pages: two tensors a layer. Knows no request, tree or scheduler.

    k_pages[layer], v_pages[layer]   [num_pages, num_kv_heads, page_size, row width]

Which page holds what is the scheduler's business; what a page held before never matters.
"""

from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from radixgen.config import CacheConfig
from radixgen.errors import ConfigError
from radixgen.kernels.kv_types import PAGE_TYPES, row_width
from radixgen.kernels.kv_write import copy_pages
from radixgen.kernels.library import ask_for_huge_pages

DEFAULT_FRACTION = 0.3  # of a CPU's free memory


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The sizes of one page. `dtype` is that of keys and values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int  # tokens
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        width = row_width(self.head_dim, self.dtype)
        per_token = self.num_layers * 2 * self.num_kv_heads * width
        return per_token * self.page_size * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """The pages of every layer, on one device."""

    layout: KVLayout
    num_pages: int
    k_pages: tuple[Tensor, ...]  # a layer each: [num_pages, num_kv_heads, page_size, row width]
    v_pages: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, layout: KVLayout, num_pages: int, device: torch.device | str = "cpu"
    ) -> "KVCache":
        """Pages with arbitrary contents. Raises ConfigError when they do not fit into memory."""
        if layout.dtype not in PAGE_TYPES:
            raise ConfigError(f"kv_dtype={layout.dtype}: use float32, bfloat16, float16 or int8")
        device = torch.device(device)
        _check_fits(layout, num_pages, available_bytes(device))
        width = row_width(layout.head_dim, layout.dtype)
        shape = (num_pages, layout.num_kv_heads, layout.page_size, width)
        pages = [
            torch.empty(shape, dtype=layout.dtype, device=device)
            for _ in range(2 * layout.num_layers)
        ]
        for tensor in pages:
            ask_for_huge_pages(tensor)
        return cls(layout, num_pages, tuple(pages[0::2]), tuple(pages[1::2]))

    @property
    def device(self) -> torch.device:
        return self.k_pages[0].device

    @property
    def num_bytes(self) -> int:
        return self.num_pages * self.layout.page_bytes

    def copy(self, sources: Tensor, targets: Tensor, num_tokens: Tensor) -> None:
        """Copy the first num_tokens[i] tokens of page sources[i] to targets[i]; int64 [copies]."""
        for k_pages, v_pages in zip(self.k_pages, self.v_pages, strict=True):
            copy_pages(k_pages, v_pages, sources, targets, num_tokens)


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
    num_pages = budget // layout.page_bytes
    if num_pages < 1:
        raise ConfigError(
            f"memory_fraction={fraction} of {_mib(available)} free is "
            f"{_mib(budget)}, less than one KV page of {_mib(layout.page_bytes)}; raise "
            f"memory_fraction or lower "
            f"page_size={layout.page_size}"
        )
    return num_pages


def _check_fits(layout: KVLayout, num_pages: int, available: int) -> None:
    needed = num_pages * layout.page_bytes
    if needed > available:
        raise ConfigError(
            f"{num_pages} KV pages of {layout.page_size} tokens need {_mib(needed)} but "
            f"{_mib(available)} are free: at most {available // layout.page_bytes} pages fit; "
            "lower num_pages or choose a smaller kv_dtype"
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
