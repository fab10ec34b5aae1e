"""From settings to a model runner: finds the model, loads it, and gives it pages."""

import logging

import torch

from radixgen.config import FEW_BITS, CacheConfig, KVDtype, ModelConfig, ScheduleConfig
from radixgen.errors import ConfigError, ModelError
from radixgen.kernels import library
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.kivi import PAGE_SIZE
from radixgen.kernels.kv_types import FP8
from radixgen.model.adapters import load_adapters
from radixgen.model.assemble import assemble
from radixgen.model.compilations import Compilations
from radixgen.model.config import DecoderConfig
from radixgen.model.decoder import Decoder
from radixgen.model.device import check_forms, place
from radixgen.model.forms import choose_forms
from radixgen.model.hub import ModelFiles, resolve
from radixgen.model.kv_cache import (
    KVCache,
    KVLayout,
    available_bytes,
    choose_num_pages,
    form_of,
    max_plain,
)
from radixgen.model.memory import (
    DeviceMemory,
    GpuMemory,
    check_weights_fit,
    explain_step,
    largest_steps,
    measure,
    pages_in,
    weight_bytes,
)
from radixgen.model.peers import Peers
from radixgen.model.recordings import CudaGraphs
from radixgen.model.runner import ModelRunner
from radixgen.model.split import Split
from radixgen.model.weights import load_model

logger = logging.getLogger(__name__)


def load_runner(
    model: ModelConfig,
    cache: CacheConfig,
    files: ModelFiles | None = None,
    schedule: ScheduleConfig | None = None,
) -> ModelRunner:
    """The runner of `model` (at `files` when they are found already) with pages as `cache` says.

    dtype "auto" is float32 on a CPU and bfloat16 on a GPU; kv_dtype "auto": `choose_kv_dtype`.
    Without C kernels quantised weights become floats here, so that they are not held twice. The end
    tokens are those of `runner.decoder.config.eos_ids`. Raises ModelError for files (also of
    adapters) that cannot be used and ConfigError for settings that do not fit the model or the
    machine. `schedule`: by whose largest step a GPU's memory is shared, its steps warmed up.
    """
    schedule = schedule or ScheduleConfig()
    files = files or resolve(model.model, model.revision)
    decoder, layout = load_decoder(model, cache, files, schedule=schedule)
    if decoder.device.type == "cpu":
        num_pages = choose_num_pages(layout, cache, available_bytes(decoder.device))
        return _runner(decoder, layout, num_pages)
    memory = GpuMemory(decoder.device)
    with Compilations() as kernels:
        num_pages = pages_beside(decoder, layout, cache, schedule, memory)
        runner = _runner(decoder, layout, num_pages)
        runner.warm_up(schedule.max_running)
    logger.info("%s", kernels)
    return runner


def load_decoder(
    model: ModelConfig,
    cache: CacheConfig,
    files: ModelFiles,
    split: Split | None = None,
    schedule: ScheduleConfig | None = None,
) -> tuple[Decoder, KVLayout]:
    """The model and what its pages are like, without any.

    `split`: a rank's part of it, which has not joined its peers yet. `schedule`: what runs at once.
    Errors as `load_runner`.
    """
    bits = FEW_BITS.get(model.kv_dtype)
    if bits is not None:
        form_of(bits, cache.page_size)  # refused before anything is loaded
    placement = place(model, 0 if split is None else split.rank)
    dtype = _torch_dtype(model.dtype, placement.default_dtype)
    on_triton = placement.kernels == "triton"
    packed = on_triton or library.library() is not None or dtype != torch.float32
    loaded = load_model(files, dtype, packed, split)
    config = loaded.config
    max_context = _max_context(config, model.max_context)
    is_packed = any(isinstance(weight, PackedWeight) for weight in loaded.weights.values())
    rounds = is_packed and not on_triton and model.activations != "float32"
    by_matrix_unit = library.multiplies_by_tiles()
    forms = choose_forms("float32" if on_triton else model.activations, by_matrix_unit)
    by_tiles = rounds and model.activations != "int16" and library.attends_by_tiles(config.head_dim)
    kv_dtype = choose_kv_dtype(model.kv_dtype, dtype, rounds_inputs=rounds, by_tiles=by_tiles)
    if on_triton:
        check_forms(config.head_dim, cache.page_size, dtype, kv_dtype, bits)
    elif kv_dtype == FP8:
        raise ConfigError("kv_dtype='fp8': for a GPU's kernels; on a CPU int8 is as small")
    elif bits and config.head_dim % PAGE_SIZE:
        raise ModelError(
            f"this model's heads have {config.head_dim} dimensions; kv_dtype={model.kv_dtype!r} "
            f"takes multiples of {PAGE_SIZE}: leave kv_dtype out, or take int8"
        )
    tensors = dict(loaded.weights)
    if placement.device.type == "cuda":
        check_weights_fit(weight_bytes(tensors, dtype), dtype, GpuMemory(placement.device))
    del loaded  # or the parts of joined matrices would stay
    weights = assemble(config, tensors, dtype, forms, placement.device)
    adapters = load_adapters(model.adapters, config, split)
    peers = None
    if split is not None:
        config, peers = split.own_config, Peers(split, placement.device)
    # Not where ranks exchange in the midst of a step: that a recording repeats exchanges in the
    # same order on every GPU can be tested on several of them only.
    records = placement.device.type == "cuda" and split is None
    recorder = CudaGraphs(placement.device) if records else None
    decoder = Decoder(
        config, weights, dtype, max_context, adapters, placement.kernels, peers, recorder=recorder
    )
    most = max_plain(schedule or ScheduleConfig(), cache.page_size)
    return decoder, decoder.kv_layout(cache.page_size, kv_dtype, bits, most)


def _runner(decoder: Decoder, layout: KVLayout, num_pages: int) -> ModelRunner:
    pages = KVCache.allocate(layout, num_pages, decoder.device)
    return ModelRunner(decoder, pages, decoder.config.eos_ids)


def pages_beside(
    decoder: Decoder,
    layout: KVLayout,
    cache: CacheConfig,
    schedule: ScheduleConfig,
    memory: DeviceMemory,
) -> int:
    """How many pages fit beside the weights, which are there, and the largest step, which is run.

    Raises ConfigError where one of them does not fit, with what would.
    """

    def run() -> None:
        runner = _runner(decoder, layout, 1)
        for pages in (*runner.cache.k_pages, *runner.cache.v_pages):
            pages.zero_()
        for batch in largest_steps(schedule, decoder.max_context, layout.page_size):
            errors = [row.error for row in runner.run(batch).rows if row.error]
            assert not errors, errors

    try:
        share = measure(memory, run, cache.memory_fraction)
    except torch.OutOfMemoryError:
        raise ConfigError(explain_step(memory, schedule)) from None
    return pages_in(share, layout, cache, schedule)


def choose_kv_dtype(
    setting: KVDtype, dtype: torch.dtype, *, rounds_inputs: bool = False, by_tiles: bool = False
) -> torch.dtype:
    """What pages hold, for hidden states in `dtype`: auto is the same.

    Where products round their inputs anyway, auto is narrower in the place of float32: float16,
    half the memory for a thousandth of what that rounding moves answers; or bfloat16, for a
    twentieth, where a matrix unit attends over it and not over float16 (what each moves:
    benchmarks/perplexity.py; what it takes: benchmarks/decode.py --kv-dtype).
    Of int4 and int2 it is what plain pages hold: float16, or `dtype`.
    """
    if not (rounds_inputs and dtype == torch.float32):
        return _torch_dtype(setting, dtype)
    fast = by_tiles and setting == "auto"
    return _torch_dtype(setting, torch.bfloat16 if fast else torch.float16)


def _torch_dtype(name: KVDtype, default: torch.dtype) -> torch.dtype:
    if name == "auto" or name in FEW_BITS:
        return default
    return {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "int8": torch.int8,
        "fp8": FP8,
    }[name]


def _max_context(config: DecoderConfig, wanted: int | None) -> int:
    if wanted is None or wanted <= config.max_context or config.rope.kind == "dynamic":
        return wanted or config.max_context
    raise ConfigError(
        f"max_context={wanted} is above the {config.max_context} tokens that the model was made for"
    )
