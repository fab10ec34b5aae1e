"""What the kernels and the engine do on a GPU: right, and how near to what the device can.

    python -m benchmarks.gpu [--quick] [--device cuda] [--model 8B|1B]
    python -m benchmarks.gpu --predict          what a roofline says of named GPUs; needs none

Every kernel against its reference; shares of the device's own copy and product rates; decodes and
prefill of a model of random weights; shared prefixes; masks; recorded launches on and off; how long
the device waits between steps; vLLM and SGLang beside it where they are installed. Under 9 minutes.

With --device cpu and TRITON_INTERPRET=1 all of it runs at tiny sizes, to try the benchmark itself:
then only what is right is checked.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import gpu_roofline
from benchmarks.gpu_rates import Bench, copy_rate, product_rate
from benchmarks.gpu_roofline import SHAPES, Work
from benchmarks.harness import Report, arguments, table
from radixgen.config import ModelConfig
from radixgen.errors import ConfigError
from radixgen.kernels.triton.cost import DEVICES
from radixgen.model.config import DecoderConfig
from radixgen.model.device import describe, place

NO_DEVICE = 2  # exit status


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured on this device."""

    config: DecoderConfig
    decodes: dict[str, Work]
    prefill: Work
    tree: Work
    engine: tuple[int, int, int]  # requests, tokens of a prompt, steps
    peers: bool


def full_plan(model: str, quick: bool, free: int) -> Plan:
    """64 rows, or as many as half of `free` bytes holds the keys of."""
    config = SHAPES[model]
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2  # bytes
    rows = max(1, min(64, int(0.5 * free) // (4096 * token)))
    return Plan(
        config,
        {"1 row at 4k": Work(1, 1, 4095), f"{rows} rows at 4k": Work(rows, 1, 4095)},
        Work(1, 2048, 0),
        Work(rows, 1, 8192 + 63, shared=8192),
        (rows, 512, 16 if quick else 64),
        peers=not quick,
    )


def tiny_plan() -> Plan:
    """Of a few tokens, for an interpreter."""
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "num_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
    }
    sizes: dict[str, Any] = {"ffn_size": 96, "vocab_size": 300, "max_context": 512}
    config = replace(SHAPES["8B"], sliding_windows=(), **shape, **sizes)
    return Plan(
        config,
        {"1 row": Work(1, 1, 6), "2 rows": Work(2, 1, 6)},
        Work(1, 3, 0),
        Work(2, 1, 258, shared=256),
        (2, 3, 1),
        peers=False,
    )


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--predict", action="store_true", help="a roofline's answer, without a GPU")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try this itself")
    parser.add_argument("--model", default="8B", choices=list(SHAPES), help="the shape of a model")
    options = parser.parse_args()
    if options.predict:
        return gpu_roofline.report()
    try:
        device = place(ModelConfig(device=options.device, kernels="triton")).device
    except ConfigError as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        print("python -m benchmarks.gpu --predict tells what to expect", file=sys.stderr)
        return NO_DEVICE
    return measure(device, options.model, options.quick)


def measure(device: torch.device, model: str, quick: bool) -> int:
    """Run it all and print it; the exit status."""
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    bench = Bench(device, dtype, small=not on_gpu, repeats=(5 if quick else 15) if on_gpu else 1)
    if on_gpu:
        torch.cuda.set_device(device)  # where kernels are launched
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else 0
    plan = full_plan(model, quick, free) if on_gpu else tiny_plan()
    parameters = {"device": describe(device), "model": model, "dtype": str(dtype)[6:]}
    report = Report("gpu", {**parameters, "quick": quick})
    parts: list[Callable[[Bench, Plan, Report], None]] = [
        measure_rates,
        check_kernels,
        measure_kernels,
        measure_model,
        *([measure_peers] if plan.peers else []),
    ]
    for part in parts:
        begin = time.perf_counter()
        part(bench, plan, report)
        print(f"({part.__name__.replace('_', ' ')}: {time.perf_counter() - begin:.0f} s)\n")
    return report.finish()


def measure_rates(bench: Bench, plan: Plan, report: Report) -> None:
    copy, product = copy_rate(bench), product_rate(bench)
    report.results["rates"] = {"copy bytes/s": copy, "product flops/s": product}
    cells = [[f"{copy / 1e12:.3f} TB/s", f"{product / 1e12:.2f} TFLOP/s"]]
    table(["copy", "product"], cells)


def check_kernels(bench: Bench, plan: Plan, report: Report) -> None:
    from benchmarks.gpu_kernels import TOLERANCE, errors

    found = errors(bench, plan.config)
    for name, error in found.items():
        report.at_most(f"{name}: error", error, TOLERANCE[bench.dtype])
    table(["kernel", "largest error"], [[name, f"{error:.1e}"] for name, error in found.items()])


def measure_kernels(bench: Bench, plan: Plan, report: Report) -> None:
    from benchmarks import gpu_kernels as kernels

    rates = report.results["rates"]
    copy, product = rates["copy bytes/s"], rates["product flops/s"]
    decode = list(plan.decodes.values())[-1]
    few, many = kernels.linear_shares(bench, plan.config, copy, product)
    shares = {
        "decode attention, of the copy rate": kernels.attention_share(
            bench, plan.config, decode, copy
        ),
        "prefill attention, of the product rate": kernels.prefill_share(
            bench, plan.config, plan.prefill, product
        ),
        "linear of few rows, of the copy rate": few,
        "linear of many rows, of the product rate": many,
        "shared prefix, times plain": kernels.tree_gain(bench, plan.config, plan.tree),
        "KV of 4 bits, times plain": kernels.few_bits_gain(bench, plan.config, decode),
    }
    report.results["kernels"] = shares
    if not bench.small:
        report.at_least(
            "decode attention, share of the copy rate",
            shares["decode attention, of the copy rate"],
            0.75,
        )
        report.at_least("tree decode, times plain", shares["shared prefix, times plain"], 8.0)
    table(["kernel", "share"], [[name, f"{share:.2f}"] for name, share in shares.items()])


def measure_model(bench: Bench, plan: Plan, report: Report) -> None:
    from benchmarks import gpu_model

    decoder = gpu_model.random_decoder(bench, plan.config)
    works = {**plan.decodes, "prefill": plan.prefill, "shared prefix": plan.tree}
    model = gpu_model.Model(bench, decoder, works.values())
    steps = {name: model.seconds(work) for name, work in works.items()}
    last, decode = list(plan.decodes.items())[-1]
    steps[f"{last}, not recorded"] = model.seconds_unrecorded(decode)
    steps[f"{last}, constrained"] = model.seconds(decode, masked=True)
    draw = model.draw_seconds(decode.rows)
    del model
    times = gpu_model.engine_times(bench, decoder, *plan.engine)
    report.results["steps"] = {**steps, "mask and draw": draw, "engine": times.step}
    report.results["predicted"] = _predicted(bench, plan, works)
    if not bench.small:
        report.at_most("mask and draw, share of a step", draw / steps[last], 0.02)
    if times.idle_share is not None:
        report.results["idle share"] = times.idle_share
        report.results["overlapped share"] = times.overlapped
        report.at_most("GPU idle, share of an engine's step", times.idle_share, 0.03)
        report.at_least("steps launched before the last was over, share", times.overlapped, 0.9)
    rows = [[name, f"{seconds * 1e3:.2f}"] for name, seconds in report.results["steps"].items()]
    table(["step", "ms"], rows)


def _predicted(bench: Bench, plan: Plan, works: dict[str, Work]) -> dict[str, float]:
    """Seconds by the roofline, where the figures of this GPU are known."""
    if bench.device.type != "cuda":
        return {}
    title = torch.cuda.get_device_name(bench.device)
    known = next((each for name, each in DEVICES.items() if name in title), None)
    if known is None:
        return {}
    return {
        name: gpu_roofline.predict(plan.config, work, known)["step"] for name, work in works.items()
    }


def measure_peers(bench: Bench, plan: Plan, report: Report) -> None:
    from benchmarks import gpu_peers

    torch.cuda.empty_cache()
    found = {
        name: gpu_peers.step_seconds(name, plan.config, *plan.engine)
        for name in gpu_peers.installed()
    }
    report.results["peers"] = found or "neither vllm nor sglang is installed"
    ours = report.results["steps"]["engine"]
    rows = [["radixgen", f"{ours * 1e3:.2f}"]]
    rows += [
        [name, said if isinstance(said, str) else f"{said * 1e3:.2f}"]
        for name, said in found.items()
    ]
    table(["engine's step, all decoding", "ms"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
