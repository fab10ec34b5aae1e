"""The kernels as they are launched for bfloat16 models of several shapes. Compiles nothing."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from radixgen.kernels import kivi
from radixgen.kernels.triton import (
    activation,
    attention,
    edits,
    linear,
    lora,
    norm,
    packed,
    page_copy,
    rope_write,
    sampling,
    slices,
)
from radixgen.kernels.triton import kivi as triton_kivi
from radixgen.kernels.triton.blocks import FORMS
from radixgen.kernels.triton.compile import Variant
from radixgen.kernels.triton.launch import AMD_OPTIONS, power_of_two
from radixgen.kernels.triton.tiles import AMD_TILE_OPTIONS, Tile


def variants() -> Iterator[Variant]:
    """All of them, each with a name of its own; those that have a matrix product say so in it."""
    return chain(
        _attention(),
        _kivi(),
        _sampling(),
        _edits(),
        _rows(),
        _rope_write(),
        _linear(),
        _packed(),
        _moves(),
        _lora(),
    )


def _attention() -> Iterator[Variant]:
    for head_dim in (64, 128, 256):
        for rows in (16, 64):
            yield _partials(head_dim, rows, "")
        yield Variant.of(
            f"attention merge head_dim={head_dim}",
            attention.merge_kernel,
            {
                "*fp32": "partial stats",
                "*bf16": "out",
                "*i32": "merge_indptr merge_slots",
                "i32": "num_heads out_stride",
            },
            odd="num_heads",
            num_warps=1,
            HEAD_DIM=head_dim,
            BLOCK_DIM=head_dim,
        )
    for form in ("int8", "fp8"):
        yield _partials(128, 16, form)
        for head_dim in (64, 128, 192, 256):
            yield _partials(head_dim, 64, form)
        yield _sliding(_partials(192, 64, form))
    yield _sliding(_partials(128, 64, ""))
    for head_dim in (80, 192):
        yield _partials(head_dim, 64, "")
    for head_dim in (64, 128, 256):
        yield _wide_partials(head_dim)


def _sliding(whole: Variant) -> Variant:
    """The same with a window of keys, over pages of one token and heads in no group of a power of
    two."""
    changed = {"WINDOW": 4096, "PAGE_SIZE": 1, "GROUP": 7}
    constants = {**whole.constants, **changed}
    return replace(whole, name=f"{whole.name} window", constants=constants)


def _wide_partials(head_dim: int) -> Variant:
    return replace(
        _wide(_partials(head_dim, 64, ""), BLOCK_KEYS=16, PRECISION="ieee"),
        num_warps=attention.wide_warps(head_dim),
        num_stages=1,
        amd=AMD_OPTIONS | {"num_warps": attention.wide_warps(head_dim, amd=True)},
    )


def _wide(half: Variant, **constants: Any) -> Variant:
    """The same of a model in float32."""
    return replace(
        half,
        name=half.name.replace(" product", " float32"),
        types={name: kind.replace("bf16", "fp32") for name, kind in half.types.items()},
        constants={**half.constants, **constants},
    )


def _partials(head_dim: int, rows: int, form: str) -> Variant:
    pages, scales, partials = "k_pages v_pages", "k_scales v_scales", "out stats"
    plain = {"*bf16": f"q {pages} {scales}", "*fp32": partials}
    codes = {"*bf16": "q", {"int8": "*i8"}.get(form, "*u8"): pages, "*fp32": f"{partials} {scales}"}
    return Variant.of(
        f"attention partials product{form and f' {form}'} head_dim={head_dim} rows={rows}",
        attention.partials_kernel,
        {
            **(codes if form else plain),
            "*i32": "items rows pages positions",
            "fp32": "scale softcap",
            "i32": "q_stride page_stride num_heads",
        },
        odd="num_heads",
        num_warps=attention.num_warps(rows, head_dim, form or "plain"),
        amd=AMD_OPTIONS | {"BLOCK_KEYS": attention.block_keys(head_dim, amd=True)},
        GROUP=4,
        PAGE_SIZE=16,
        HEAD_DIM=head_dim,
        BLOCK_DIM=power_of_two(head_dim),
        BLOCK_ROWS=rows,
        BLOCK_KEYS=attention.block_keys(head_dim),
        WINDOW=0,
        SOFTCAP=False,
        INT8=form == "int8",
        FP8=form == "fp8",
        PRECISION="tf32",
        WIDEN=False,
    )


def _kivi() -> Iterator[Variant]:
    codes = {"*u8": "k_codes v_codes", "*fp16": "k_numbers v_numbers"}
    for bits in kivi.BITS:
        for head_dim, rows in ((64, 16), (128, 64)):
            half = Variant.of(
                f"kivi partials product bits={bits} head_dim={head_dim} rows={rows}",
                triton_kivi.kivi_partials_kernel,
                {
                    "*bf16": "q",
                    **codes,
                    "*fp32": "out stats",
                    "*i32": "items rows pages positions recent",
                    "fp32": "scale softcap",
                    "i32": "q_stride num_heads",
                },
                odd="num_heads",
                num_warps=attention.num_warps(rows),
                num_stages=triton_kivi.NUM_STAGES,
                amd=AMD_OPTIONS,
                GROUP=4,
                BITS=bits,
                HEAD_DIM=head_dim,
                BLOCK_ROWS=rows,
                WINDOW=0,
                SOFTCAP=False,
                PRECISION="tf32",
                WIDEN=False,
            )
            yield half
            if rows == 64:
                yield replace(
                    _wide(half, PRECISION="ieee"),
                    num_warps=triton_kivi.WIDE_WARPS,
                    num_stages=1,
                    amd=AMD_OPTIONS
                    | {"num_warps": half.num_warps, "num_stages": triton_kivi.NUM_STAGES},
                )
        yield Variant.of(
            f"kivi store bits={bits} head_dim=128",
            triton_kivi.store_kernel,
            {"*bf16": "k v", **codes, "*i64": "sources targets"},
            num_warps=triton_kivi.STORE_WARPS,
            BITS=bits,
            HEAD_DIM=128,
        )


def _sampling() -> Iterator[Variant]:
    for filtered in (False, True):
        yield Variant.of(
            f"sample filtered={filtered}",
            sampling.sample_kernel,
            {
                "*fp32": "logits temperatures top_ps min_ps",
                "*i32": "bitmask mask_rows top_ks outcomes",
                "*fp64": "points",
                "*i64": "token_ids",
                "i32": "logits_stride bitmask_stride vocab",
            },
            odd="bitmask_stride",
            num_warps=sampling.NUM_WARPS,
            MASKED=True,
            FILTERED=filtered,
            BLOCK=sampling.BLOCK,
        )


def _edits() -> Iterator[Variant]:
    yield Variant.of(
        "edit_logits",
        edits.edit_kernel,
        {
            "*fp32": "logits numbers",
            "*i32": "rows token_ids",
            "i32": "num_cells num_rows logits_stride vocab",
        },
        odd="num_cells num_rows",
        num_warps=1,
        options={"enable_fp_fusion": False},
        BLOCK=edits.BLOCK,
    )


def _rows() -> Iterator[Variant]:
    for size in (576, 4096):
        block = power_of_two(size)
        yield Variant.of(
            f"add_rms_norm size={size}",
            norm.norm_kernel,
            {
                "*bf16": "x residual weight normed total",
                "i32": "x_stride residual_stride size",
                "fp32": "eps",
            },
            num_warps=norm.num_warps(block),
            ADDS=True,
            BLOCK=block,
        )
    yield Variant.of(
        "silu_mul",
        activation.silu_mul_kernel,
        {"*bf16": "gate_up out", "i32": "stride size"},
        num_warps=activation.NUM_WARPS,
        BLOCK=activation.BLOCK,
    )


def _rope_write() -> Iterator[Variant]:
    pages, scales = "k_pages v_pages", "k_scales v_scales"
    floats = {"*bf16": f"qkv q_norm k_norm q {pages} {scales}", "*fp32": "cos sin"}
    heads = "qkv q_norm k_norm q"
    kinds = {
        "bf16": floats,
        "int8": {"*bf16": heads, "*i8": pages, "*fp32": f"cos sin {scales}"},
        "fp8": {"*bf16": heads, "*u8": f"{pages} {scales}", "*fp32": "cos sin"},
    }
    cases = (64, False, "int8"), (128, False, "bf16"), (128, True, "bf16"), (128, False, "fp8")
    for head_dim, norms, kind in cases:
        yield Variant.of(
            f"rope_write head_dim={head_dim} norms={norms} pages={kind}",
            rope_write.rope_write_kernel,
            {
                **kinds[kind],
                "*i64": "positions slots",
                "i32": "qkv_stride max_context num_slots num_heads num_kv_heads",
                "fp32": "eps",
            },
            odd="num_heads num_kv_heads max_context",
            num_warps=rope_write.NUM_WARPS,
            NORMS=norms,
            PACKED=kind == "int8",
            FP8=kind == "fp8",
            PAGE_SIZE=16,
            HALF=head_dim // 2,
            BLOCK_HALF=head_dim // 2,
            BLOCK_HEADS=rope_write.block_heads(head_dim),
        )


def _linear() -> Iterator[Variant]:
    ways = {"whole": linear.TILES, "slices": linear.SLICED_TILES, "split": linear.TILES[:-1]}
    for way, tiles in ways.items():
        for tile in tiles:
            yield _product(way, tile, "bf16")
        for tile in linear.WIDE_TILES:
            yield _product(way, tile, "fp32")
    yield Variant.of(
        "linear sum of slices",
        slices.add_slices_kernel,
        {"*fp32": "parts", "*bf16": "bias out", "i32": "rows outputs num_slices"},
        odd="rows num_slices",
        num_warps=1,
        BIASED=False,
        BLOCK=slices.SUM_BLOCK,
    )


def _product(way: str, tile: Tile, kind: str) -> Variant:
    """Of one tile. The whole of a product, with or without slices, or a slice by itself."""
    sort = "product" if kind == "bf16" else "float32"
    return Variant.of(
        f"linear {sort} {way} rows={tile.rows}",
        linear.linear_kernel,
        _by_type(
            (f"*{kind}", "x weight bias"),
            ("*fp32" if way == "split" else f"*{kind}", "out"),
            ("i32", "rows outputs columns x_stride weight_stride"),
        ),
        odd="rows",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        amd=AMD_TILE_OPTIONS,
        BIASED=False,
        SLICED=way == "slices",
        SPLIT=way == "split",
        SLICE=linear.SLICE,
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
    )


def _by_type(*named: tuple[str, str]) -> dict[str, str]:
    """Types and the names that have them, where several pairs may be of one type."""
    types = dict.fromkeys(kind for kind, _ in named)
    return {kind: " ".join(names for own, names in named if own == kind) for kind in types}


def _packed() -> Iterator[Variant]:
    for kind in ("q4_1", "q8_0", "q4_k", "q6_k"):
        form = FORMS[kind]
        codes = "*u8" if form.bits == 4 else "*i8"
        scales = "*fp32" if form.scale_dtype == torch.float32 else "*fp16"
        for tile in packed.TILES:
            half = Variant.of(
                f"linear_packed product {kind} rows={tile.rows}",
                packed.linear_packed_kernel,
                _by_type(
                    ("*bf16", "x bias"),
                    ("*fp32" if tile.rows == 16 else "*bf16", "out"),
                    (codes, "codes"),
                    (scales, "scales lows"),
                    ("i32", "rows outputs columns x_stride"),
                ),
                odd="rows",
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
                amd=AMD_TILE_OPTIONS,
                BITS=form.bits,
                OFFSET=form.offset,
                HAS_LOW=form.has_low,
                GROUPS=packed.TILE // form.group,
                BIASED=False,
                SPLIT=tile.rows == 16,
                SLICE=packed.SLICE,
                BLOCK_OUTPUTS=tile.outputs,
                BLOCK_ROWS=tile.rows,
            )
            yield half
            if kind in ("q4_1", "q6_k") and tile in packed.WIDE_TILES:
                yield _wide(half)
        yield Variant.of(
            f"packed rows {kind}",
            packed.rows_kernel,
            {
                "*i64": "token_ids",
                codes: "codes",
                scales: "scales lows",
                "*bf16": "out",
                "i32": "columns",
            },
            num_warps=1,
            BITS=form.bits,
            OFFSET=form.offset,
            HAS_LOW=form.has_low,
            GROUPS=packed.TILE // form.group,
            BLOCK=packed.EMBED_BLOCK,
        )


def _moves() -> Iterator[Variant]:
    yield Variant.of(
        "page_copy",
        page_copy.page_copy_kernel,
        {
            "*i64": "addresses sources targets num_tokens",
            "i32": "num_pages page_words head_words row_words",
        },
        odd="num_pages",
        num_warps=page_copy.NUM_WARPS,
        ALIGNED=True,
        BLOCK=page_copy.BLOCK,
    )


def _lora() -> Iterator[Variant]:
    for rank in (16, 64, lora.MAX_RANK):
        yield from _lora_of(rank, torch.bfloat16)
        yield from map(_wide, _lora_of(rank, torch.float32))


def _lora_of(rank: int, dtype: torch.dtype) -> Iterator[Variant]:
    """Types are bfloat16's; `dtype`: whose blocks it takes."""
    block_columns, block_outputs, num_warps = lora.blocks(rank, dtype)
    yield Variant.of(
        f"lora shrink product rank={rank}",
        lora.shrink_kernel,
        {
            "*bf16": "x a",
            "*fp32": "shrunk",
            "*i32": "segments rows",
            "i32": "num_rows columns x_stride num_parts",
        },
        odd="num_rows num_parts",
        num_warps=num_warps,
        amd=AMD_OPTIONS,
        RANK=rank,
        SLICE=lora.SLICE,
        BLOCK_ROWS=lora.BLOCK_ROWS,
        BLOCK_COLUMNS=block_columns,
    )
    yield Variant.of(
        f"lora expand product rank={rank}",
        lora.expand_kernel,
        {
            "*bf16": "y b",
            "*fp32": "shrunk scales",
            "*i32": "starts segments rows",
            "i32": "num_rows num_slices outputs y_stride num_parts",
        },
        odd="num_rows num_slices num_parts",
        num_warps=num_warps,
        amd=AMD_OPTIONS,
        RANK=rank,
        BLOCK_ROWS=lora.BLOCK_ROWS,
        BLOCK_OUTPUTS=block_outputs,
    )
