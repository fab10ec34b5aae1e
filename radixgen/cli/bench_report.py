"""What samples amount to: percentiles, rates, goodput, cost; as an object and as tables.

TTFT  to the first token       TPOT  of each further token of a request
ITL   between pieces           E2EL  to the last token
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from radixgen.cli.bench_load import Sample
from radixgen.errors import InvalidRequest

PERCENTILES = (50, 90, 99)
SLOS = ("ttft", "tpot", "itl", "e2el")  # names of objectives, as vLLM has them


def objectives(texts: Sequence[str]) -> dict[str, float]:
    """`ttft:500` and the like, in milliseconds. Raises InvalidRequest."""
    found: dict[str, float] = {}
    for text in " ".join(texts).replace(",", " ").split():
        name, _, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in SLOS or not limit > 0:
            known = ", ".join(SLOS)
            message = f"--goodput {text}: expected NAME:MILLISECONDS, a NAME of {known}"
            raise InvalidRequest(message, "goodput")
        found[name] = limit
    return found


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles in milliseconds; empty for nothing."""
    if not seconds:
        return {}
    values = np.asarray(seconds) * 1000
    marks = np.percentile(values, PERCENTILES)
    return {"mean": float(values.mean())} | {
        f"p{percent}": float(mark) for percent, mark in zip(PERCENTILES, marks, strict=True)
    }


def results(
    samples: Sequence[Sample],
    seconds: float,
    slos: dict[str, float] | None = None,
    dollars_per_hour: float | None = None,
) -> dict[str, Any]:
    """Everything that is told of a run, by name; times in milliseconds unless they say seconds."""
    good = [sample for sample in samples if sample.error is None]
    tokens_in = sum(sample.prompt_tokens for sample in good)
    tokens_out = sum(sample.output_tokens for sample in good)
    cached = sum(sample.cached_tokens for sample in good)
    per_token = [value for sample in good if (value := sample.per_token) is not None]
    found: dict[str, Any] = {
        "seconds": seconds,
        "requests": len(good),
        "failed": len(samples) - len(good),
        "prompt_tokens": tokens_in,
        "cached_tokens": cached,
        "output_tokens": tokens_out,
        "hit_rate": cached / tokens_in if tokens_in else 0.0,
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "total_tokens_per_second": (tokens_in + tokens_out) / seconds,
        "ttft_ms": spread([sample.first_token for sample in good]),
        "tpot_ms": spread(per_token),
        "itl_ms": spread([gap for sample in good for gap in sample.gaps]),
        "e2el_ms": spread([sample.total for sample in good]),
    }
    if slos:
        num = sum(_meets(sample, slos) for sample in good)
        found |= {
            "goodput_objectives_ms": slos,
            "goodput_requests_per_second": num / seconds,
            "goodput_share": num / len(samples),
        }
    if dollars_per_hour is not None:
        found |= costs(dollars_per_hour, seconds, tokens_in, tokens_out)
    return found


def costs(dollars: float, seconds: float, tokens_in: int, tokens_out: int) -> dict[str, float]:
    """What a million tokens cost on a machine of so many dollars an hour that is kept this busy."""
    spent = dollars * seconds / 3600
    found = {}
    if tokens_out:
        found["dollars_per_million_output_tokens"] = spent / tokens_out * 1e6
    if tokens_in + tokens_out:
        found["dollars_per_million_tokens"] = spent / (tokens_in + tokens_out) * 1e6
    return found


def _meets(sample: Sample, slos: dict[str, float]) -> bool:
    """A request without a second token meets what is asked of further ones."""
    gap = max(sample.gaps, default=0.0)
    times = {
        "ttft": sample.first_token,
        "tpot": sample.per_token or 0.0,
        "itl": gap,
        "e2el": sample.total,
    }
    return all(times[name] * 1000 <= limit for name, limit in slos.items())


def tables(found: dict[str, Any], best_hit_rate: float | None = None) -> list[Table]:
    """`results` for people."""
    rates = Table(box=None, show_header=False, pad_edge=False)
    rates.add_column()
    rates.add_column(justify="right")
    rates.add_column(style="dim")
    failed = f"{found['failed']} failed" if found["failed"] else ""
    rates.add_row("requests", f"{found['requests']:,}", failed)
    rates.add_row("seconds", f"{found['seconds']:.2f}", "")
    rates.add_row("requests/s", f"{found['requests_per_second']:.2f}", "")
    out, every = found["output_tokens_per_second"], found["total_tokens_per_second"]
    rates.add_row("tokens/s written", f"{out:,.1f}", f"{found['output_tokens']:,} tokens")
    rates.add_row("tokens/s read and written", f"{every:,.1f}", "")
    best = f"of {best_hit_rate:.1%} that prompts share" if best_hit_rate is not None else ""
    rates.add_row("prompt tokens from cache", f"{found['hit_rate']:.1%}", best)
    if "goodput_share" in found:
        limits = ", ".join(
            f"{name} ≤ {ms:g} ms" for name, ms in found["goodput_objectives_ms"].items()
        )
        share = f"{found['goodput_share']:.1%} of all within {limits}"
        rates.add_row("goodput, requests/s", f"{found['goodput_requests_per_second']:.2f}", share)
    for name, what in (("output_tokens", "written"), ("tokens", "read and written")):
        cost = found.get(f"dollars_per_million_{name}")
        if cost is not None:
            rates.add_row(f"$ per million tokens {what}", f"{cost:,.4g}", "")
    return [rates, latencies(found)]


def latencies(found: dict[str, Any]) -> Table:
    """One row a measure."""
    names = {
        "ttft_ms": "TTFT, first token",
        "tpot_ms": "TPOT, each further token",
        "itl_ms": "ITL, between pieces",
        "e2el_ms": "E2EL, whole answer",
        "batch_ms": "whole batch",
        "step_ms": "each token of a batch",
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("milliseconds")
    for name in ("mean", *(f"p{percent}" for percent in PERCENTILES)):
        table.add_column(name, justify="right")
    for key, what in names.items():
        if found.get(key):
            table.add_row(what, *(f"{value:,.2f}" for value in found[key].values()))
    return table
