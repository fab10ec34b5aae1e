"""What KV pages hold: the types of elements, and how 8-bit rows are packed. Knows no pages' tables.

    float32, bfloat16, float16    a row is head_dim values
    int8                          a row is head_dim codes and, in 4 bytes more, their float32 scale:
                                  of one token and head, its largest value / 127
    float8_e4m3fn                 a row is head_dim values; the C kernels do not read it

so that a page's tensor holds all there is to a page, and copying one needs to know no type.
"""

import torch
from torch import Tensor

from radixgen.kernels.checks import require

# Numbered as in cpu/ops.h.
PAGE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
SCALE_BYTES = 4
FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def page_type(pages: Tensor) -> int:
    """The number of the pages' type. Raises KernelError for one that pages cannot have."""
    require(
        pages.dtype in PAGE_TYPES,
        f"KV pages of {pages.dtype}: use {', '.join(str(dtype)[6:] for dtype in PAGE_TYPES)}",
    )
    return PAGE_TYPES[pages.dtype]


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a page's row for one token and head."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def head_dim_of(pages: Tensor) -> int:
    """Values in a row of pages [..., row width]."""
    return pages.shape[-1] - SCALE_BYTES if pages.dtype == torch.int8 else pages.shape[-1]


def pack_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [..., head_dim], float, as rows [..., row width] of pages of `dtype`.

    A row with a value that is not finite is NaN as a whole in int8. In float8_e4m3fn values beyond
    448 are 448, and what is not finite is NaN.
    """
    if dtype == FP8:
        x = x.float()
        return torch.where(x.isfinite(), x.clamp(-FP8_MAX, FP8_MAX), torch.nan).to(dtype)
    if dtype != torch.int8:
        return x.to(dtype)
    wide = x.float()
    finite = wide.isfinite().all(-1, keepdim=True)
    scale = torch.where(finite, wide, 0.0).abs().amax(-1, keepdim=True) / 127.0
    inverse = torch.where(scale > 1e-30, 1.0 / scale, 0.0)
    codes = (torch.where(finite, wide, 0.0) * inverse).round().clamp(-127, 127).to(torch.int8)
    scale = torch.where(finite, torch.where(inverse > 0, scale, 0.0), torch.nan)
    return torch.cat((codes, scale.contiguous().view(torch.int8)), -1)


def unpack_rows(rows: Tensor) -> Tensor:
    """The float32 values [..., head_dim] of rows [..., row width] of pages."""
    if rows.dtype != torch.int8:
        return rows.float()
    codes, scales = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    return codes.float() * scales.contiguous().view(torch.float32)
