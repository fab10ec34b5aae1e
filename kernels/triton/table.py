"""Every kernel in the configurations in use, compiled for every target, as a table.

    python -m radixgen.kernels.triton.table [--write FILE]

Prints JSON: Triton's version, and "kernel configuration, target" -> what its binary takes
(`compile.Binary`).
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton

from radixgen.kernels.triton import attention, sampling
from radixgen.kernels.triton.compile import TARGETS, Variant, inspect


def variants() -> Iterator[Variant]:
    """The kernels as launched for bfloat16 models of several shapes."""
    for head_dim in (64, 128, 256):
        for rows in (16, 64):
            yield _partials(head_dim, rows)
        yield _merge(head_dim)
    for filtered in (False, True):
        yield _sample(filtered)


def _partials(head_dim: int, rows: int) -> Variant:
    constants: dict[str, Any] = {
        "GROUP": 4,
        "PAGE_SIZE": 16,
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": head_dim,
        "BLOCK_ROWS": rows,
        "BLOCK_KEYS": attention.block_keys(head_dim),
        "WINDOW": 0,
        "SOFTCAP": False,
        "PRECISION": "tf32",
        "WIDEN": False,
    }
    pages = dict.fromkeys(("q", "k_pages", "v_pages"), "*bf16")
    partials = dict.fromkeys(("out", "stats"), "*fp32")
    tables = dict.fromkeys(("items", "rows", "pages", "positions"), "*i32")
    numbers = {"scale": "fp32", "softcap": "fp32"}
    strides = dict.fromkeys(("q_stride", "page_stride", "num_heads"), "i32")
    return Variant(
        name=f"attention partials product head_dim={head_dim} rows={rows}",
        kernel=attention.partials_kernel,
        types=pages | partials | tables | numbers | strides,
        constants=constants,
        aligned=(*pages, *partials, *tables, "q_stride", "page_stride"),
        num_warps=attention.num_warps(rows),
    )


def _merge(head_dim: int) -> Variant:
    pointers = {"partial": "*fp32", "stats": "*fp32", "out": "*bf16"}
    tables = dict.fromkeys(("merge_indptr", "merge_slots"), "*i32")
    strides = dict.fromkeys(("num_heads", "out_stride"), "i32")
    return Variant(
        name=f"attention merge head_dim={head_dim}",
        kernel=attention.merge_kernel,
        types=pointers | tables | strides,
        constants={"HEAD_DIM": head_dim, "BLOCK_DIM": head_dim},
        aligned=(*pointers, *tables, "out_stride"),
        num_warps=1,
    )


def _sample(filtered: bool) -> Variant:
    floats = dict.fromkeys(("logits", "temperatures", "top_ps", "min_ps"), "*fp32")
    numbers = dict.fromkeys(("bitmask", "mask_rows", "top_ks", "legal"), "*i32")
    pointers = floats | numbers | {"points": "*fp64", "token_ids": "*i64"}
    sizes = dict.fromkeys(("logits_stride", "bitmask_stride", "vocab"), "i32")
    return Variant(
        name=f"sample filtered={filtered}",
        kernel=sampling.sample_kernel,
        types=pointers | sizes,
        constants={"MASKED": True, "FILTERED": filtered, "BLOCK": sampling.BLOCK},
        aligned=(*pointers, "logits_stride", "vocab"),
        num_warps=sampling.NUM_WARPS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    found = {
        f"{variant.name}, {target}": inspect(variant, target).as_dict()
        for variant in variants()
        for target in TARGETS
    }
    text = json.dumps({"triton": triton.__version__, "binaries": found}, indent=1)
    if options.write:
        options.write.write_text(text + "\n")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
