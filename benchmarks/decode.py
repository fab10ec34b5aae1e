"""How near the CPU path comes to the machine: weights read, tokens decoded, prompts computed.

    weights   one row through a model's linear layers in each form: bytes/s against a plain read
    decode    whole steps of a real model at batch 1, 8, 32 and 64
    prefill   a prompt's operations/s against the fastest matrix product of torch

Each is measured in turns with what it is compared to, in one run.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import torch

from benchmarks.harness import Report, Spread, arguments, table
from radixgen.batch import ScheduledBatch, ScheduledRow
from radixgen.config import ActivationForm, CacheConfig, ModelConfig
from radixgen.kernels import library
from radixgen.kernels.block_types import BLOCK_SIZES, Activations, PackedWeight
from radixgen.kernels.program import Program, Weight
from radixgen.kernels.storage import take
from radixgen.model.forms import choose_forms
from radixgen.model.load import load_runner
from radixgen.model.runner import ModelRunner
from radixgen.types import SamplingParams

FORMS = ("q4_1", "q8_0", "bfloat16")
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # (out, in) of the embedded model
LAYERS = 30
GREEDY = SamplingParams(temperature=0.0)
CONTEXT = 256  # tokens before the decoded ones
PROMPT = 512
BATCHES = (1, 8, 32, 64)
KV_TYPES = ("float32", "bfloat16", "float16", "int8")
READ_BYTES = 256 << 20
QUIET = 0.01  # seconds: torch's threads go on turning for some milliseconds after each use
SLOW_PRODUCT = 0.01  # seconds of 256^3: below 4 G operations/s


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="default: the embedded model")
    parser.add_argument("--threads", type=int, default=library.default_threads())
    parser.add_argument("--kv-dtype", default="bfloat16", choices=KV_TYPES)
    parser.add_argument(
        "--activations", default="auto", choices=get_args(ActivationForm),
        help="what inputs of quantised weights are rounded to; default: as a runtime chooses",
    )  # fmt: skip
    args = parser.parse_args()
    if library.library() is None:
        sys.exit("the C kernels are not built here: a C compiler is needed")
    library.set_num_threads(args.threads)
    repeats = 7 if args.quick else 25
    report = Report(
        "decode",
        {"model": args.model or "embedded", "threads": args.threads, "kv_dtype": args.kv_dtype,
         "activations": args.activations, "context": CONTEXT, "prompt": PROMPT,
         "repeats": repeats, "quick": args.quick},
    )  # fmt: skip
    with torch.inference_mode():
        read_weights(report, args.threads, args.activations, repeats)
        model = ModelConfig(args.model, kv_dtype=args.kv_dtype, activations=args.activations)
        runner = load_runner(model, CacheConfig(num_pages=64 * 20))
        decode(report, runner, repeats)
        prefill(report, runner, args.threads, max(3, repeats // 3))
    return report.finish()


def in_turns(actions: Sequence[Callable[[], object]], repeats: int) -> list[Spread]:
    """Seconds of each action, all once a round, so that a busy moment meets them alike."""
    samples: list[list[float]] = [[] for _ in actions]
    for round_number in range(repeats + 1):
        for seconds, action in zip(samples, actions, strict=True):
            time.sleep(QUIET)
            begin = time.perf_counter()
            action()
            if round_number:  # the first round warms up
                seconds.append(time.perf_counter() - begin)
    return [Spread.of(seconds) for seconds in samples]


# ---- weights ----


def read_weights(report: Report, threads: int, setting: ActivationForm, repeats: int) -> None:
    """Weight bytes/s of the linear layers at one row, beside a sum over a large tensor."""
    source = torch.ones(READ_BYTES // 4)
    activations = choose_forms(setting, library.multiplies_by_tiles())["gate_up"]
    made = {form: linear_layers(form, activations) for form in FORMS}
    programs = [program for program, _ in made.values()]

    def read() -> None:
        torch.set_num_threads(threads)
        source.sum()
        torch.set_num_threads(1)

    actions = [read, *(lambda p=p: p.run({"rows": 1}) for p in programs)]
    roof, *spreads = in_turns(actions, repeats)
    roof_rate = READ_BYTES / roof.median
    rows = [["plain read", f"{READ_BYTES / 1e6:.0f}", f"{roof.median * 1e3:.2f}",
             f"{roof_rate / 1e9:.1f}", ""]]  # fmt: skip
    for (form, (_, num_bytes)), spread in zip(made.items(), spreads, strict=True):
        rate = num_bytes / spread.median
        rows.append([form, f"{num_bytes / 1e6:.0f}", f"{spread.median * 1e3:.2f}",
                     f"{rate / 1e9:.1f}", f"{rate / roof_rate:.2f}"])  # fmt: skip
        report.results[f"linear_{form}_seconds"] = spread
        report.at_least(f"{form}_weight_bytes_of_read", rate / roof_rate, 0.75)
    report.results["read_seconds"] = roof
    table([f"one row, inputs {activations}", "MB", "ms", "GB/s", "of read"], rows)


def linear_layers(form: str, activations: Activations) -> tuple[Program, int]:
    """All linear layers of a step as one program, and the bytes of their weights."""
    program, num_bytes = Program(1), 0
    dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
    for layer in range(LAYERS):
        for out_size, in_size in LAYER:
            weight = random_weight(form, out_size, in_size, activations, layer)
            data = weight if isinstance(weight, torch.Tensor) else weight.data
            num_bytes += data.numel() * data.element_size()
            x = program.buffer(f"x{in_size}", in_size, dtype)
            program.linear(x, [(weight, None)], program.buffer("out", out_size, dtype), "rows")
    return program, num_bytes


def random_weight(
    form: str, out_size: int, in_size: int, activations: Activations, seed: int
) -> Weight:
    if form not in BLOCK_SIZES:
        made = torch.randn(out_size, in_size)
        return take((out_size, in_size), torch.bfloat16).copy_(made)  # as a model's joined maps
    weights, num_bytes = BLOCK_SIZES[form]
    shape = (out_size, in_size // weights * num_bytes)
    data = np.random.default_rng(seed).integers(0, 60, shape, dtype=np.uint8)
    return PackedWeight(form, (out_size, in_size), torch.from_numpy(data), activations)


# ---- whole steps ----


def decode(report: Report, runner: ModelRunner, repeats: int) -> None:
    """Tokens/s of whole steps, sampling and Python included, and Python's part at batch 1."""
    rates: dict[int, float] = {}
    rows = []
    for batch in BATCHES:
        pages = fill(runner, batch)
        steps, forwards = [], []
        for i in range(repeats if batch < 64 else max(5, repeats // 2)):
            step = [row(b, [100 + b], CONTEXT + i, pages[b]) for b in range(batch)]
            begin = time.perf_counter()
            result = runner.run(ScheduledBatch(step))
            steps.append(time.perf_counter() - begin)
            forwards.append(result.forward_seconds)
        spread = Spread.of(steps[1:])
        rates[batch] = batch / spread.median
        report.results[f"step_{batch}_seconds"] = spread
        forward = statistics.median(forwards)
        cells = (spread.median * 1e3, forward * 1e3, rates[batch])
        rows.append([str(batch), *(f"{cell:.2f}" for cell in cells)])
    print()
    table(["batch", "step ms", "forward ms", "tokens/s"], rows)
    report.at_least("batch_8_over_batch_1", rates[8] / rates[1], 4)
    report.at_least("batch_32_over_batch_1", rates[32] / rates[1], 8)
    report.at_most("python_share_at_batch_1", python_share(runner, repeats), 0.10)


def fill(runner: ModelRunner, batch: int) -> list[list[int]]:
    """Compute CONTEXT tokens for each of `batch` sequences; the pages of each."""
    per = -(-(CONTEXT + 64) // runner.cache.layout.page_size)
    pages = [list(range(b * per, (b + 1) * per)) for b in range(batch)]
    for b in range(batch):
        runner.run(ScheduledBatch([row(b, prompt(CONTEXT, b), 0, pages[b])]))
    return pages


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(256, 40_000, length).tolist()


def row(name: int, token_ids: list[int], start: int, pages: list[int]) -> ScheduledRow:
    return ScheduledRow(str(name), 0, token_ids, start, pages, True, GREEDY, 0)


def python_share(runner: ModelRunner, repeats: int) -> float:
    """The part of a step's time, at batch 1, that is not spent in the C kernels."""
    loaded = library.library()
    assert loaded is not None
    inside = 0.0
    plain = loaded.rk_run

    def timed(*arguments: int) -> int:
        nonlocal inside
        begin = time.perf_counter()
        code = plain(*arguments)
        inside += time.perf_counter() - begin
        return int(code)

    pages = fill(runner, 1)
    loaded.rk_run = timed
    try:
        shares = []
        for i in range(repeats):
            inside, begin = 0.0, time.perf_counter()
            runner.run(ScheduledBatch([row(0, [100], CONTEXT + i, pages[0])]))
            shares.append(1 - inside / (time.perf_counter() - begin))
    finally:
        loaded.rk_run = plain
    return statistics.median(shares)


def prefill(report: Report, runner: ModelRunner, threads: int, repeats: int) -> None:
    """Prompt tokens/s, and their operations beside torch's products: the peak is the fastest."""
    config = runner.decoder.config
    per_token = (
        2
        * config.num_layers
        * (
            config.hidden_size * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
            + 3 * config.hidden_size * config.ffn_size
        )
    )
    pages = list(range(-(-PROMPT // runner.cache.layout.page_size)))

    def product(action: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            action()
            torch.set_num_threads(1)

        return run

    rivals = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
    sizes = {name: product_size(dtype) for name, dtype in rivals.items()}
    actions: list[Callable[[], object]] = [
        lambda: runner.run(ScheduledBatch([row(0, prompt(PROMPT, 0), 0, pages)])),
        *(product(square_product(rivals[name], sizes[name])) for name in rivals),
    ]
    seconds, *spreads = in_turns(actions, repeats)
    rate = PROMPT / seconds.median
    peaks = {}
    report.results["prefill_seconds"] = seconds
    for name, spread in zip(rivals, spreads, strict=True):
        peaks[name] = 2 * sizes[name] ** 3 / spread.median
        report.results[f"gemm_{name}_seconds"] = spread
        report.results[f"gemm_{name}_size"] = sizes[name]
        report.results[f"prefill_of_{name}_gemm"] = rate * per_token / peaks[name]
    print()
    rows = [
        ["prompt tokens/s", f"{rate:.0f}"],
        ["operations/s, G", f"{rate * per_token / 1e9:.0f}"],
    ]
    rows += [[f"torch's {name} product, G", f"{peak / 1e9:.0f}"] for name, peak in peaks.items()]
    table(["prefill", ""], rows)
    report.at_least("prefill_of_gemm", rate * per_token / max(peaks.values()), 0.5)


def square_product(dtype: torch.dtype, size: int) -> Callable[[], object]:
    """A product of two square matrices by torch."""
    if dtype == torch.int8:
        whole = torch.randint(-9, 9, (size, size), dtype=dtype)
        return lambda: torch._int_mm(whole, whole)
    made = torch.randn(size, size).to(dtype)
    return lambda: made @ made


def product_size(dtype: torch.dtype) -> int:
    """1536, or 256 where torch has but plain loops for the type: seconds for a large product."""
    small = 256
    run = square_product(dtype, small)
    (spread,) = in_turns([run], 5)
    plain = dtype != torch.float32 and spread.low > SLOW_PRODUCT
    return small if plain else 1536


if __name__ == "__main__":
    sys.exit(main())
