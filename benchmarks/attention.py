"""What attention gains from shared pages, and how near to the speed of memory it comes without.

    apart    64 rows, each with its own 4,096 + 64 tokens: every page is another
    unaware  64 rows with one 4,096-token prefix, each row reading it for itself
    shared   the same rows and pages, the prefix read once for all

The decode step of one layer of the embedded model's shape, bfloat16. Results of the last two are
compared bit for bit.
"""

import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.harness import Report, Spread, arguments, table
from radixgen.kernels import library
from radixgen.kernels.attention import paged_attention, plan_attention
from radixgen.kernels.attention_plan import AttentionPlan
from radixgen.kernels.storage import take

ROWS, PREFIX, SUFFIX, PAGE = 64, 4096, 64, 16
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
READ_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments of one way to attend, and the bytes of KV that its rows look at."""

    arguments: tuple[Tensor, ...]
    plan: AttentionPlan | None
    num_bytes: int

    @classmethod
    def of(cls, given: tuple[Tensor, ...], share: bool) -> "Case":
        num_bytes = ROWS * (PREFIX + SUFFIX) * KV_HEADS * HEAD_DIM * 2 * 2
        return cls(given, plan_attention(*given, share=share), num_bytes)

    def __call__(self) -> Tensor:
        return paged_attention(*self.arguments, scale=HEAD_DIM**-0.5, plan=self.plan)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=library.default_threads())
    args = parser.parse_args()
    if library.library() is None:
        sys.exit("the C kernels are not built here: a C compiler is needed")
    library.set_num_threads(args.threads)
    repeats = 15 if args.quick else 60
    report = Report(
        "attention",
        {"rows": ROWS, "prefix": PREFIX, "suffix": SUFFIX, "page_size": PAGE, "heads": HEADS,
         "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "threads": args.threads,
         "repeats": repeats, "quick": args.quick},
    )  # fmt: skip
    with torch.inference_mode():
        compare(report, args.threads, repeats)
    return report.finish()


def compare(report: Report, threads: int, repeats: int) -> None:
    shared = given(tables(shared=True))
    cases = {
        "apart": Case.of(given(tables(shared=False)), share=False),
        "unaware": Case.of(shared, share=False),
        "shared": Case.of(shared, share=True),
    }
    source = torch.ones(READ_BYTES // 4)
    samples: dict[str, list[float]] = {name: [] for name in (*cases, "read")}
    for _ in range(repeats):
        for name, action in cases.items():
            begin = time.perf_counter()
            action()
            samples[name].append(time.perf_counter() - begin)
        torch.set_num_threads(threads)
        begin = time.perf_counter()
        source.sum()
        samples["read"].append(time.perf_counter() - begin)
        torch.set_num_threads(1)  # its threads spin for a while, in the way of the kernel's
    spreads = {name: Spread.of(seconds[1:]) for name, seconds in samples.items()}
    roof = READ_BYTES / spreads["read"].median
    rows = []
    for name, made in cases.items():
        rate = made.num_bytes / spreads[name].median
        rows.append([name, f"{spreads[name].median * 1e3:.2f}", f"{rate / 1e9:.1f}"])
    table(
        ["attention", "ms", "GB/s of KV looked at"],
        [*rows, ["plain read", "", f"{roof / 1e9:.1f}"]],
    )
    report.results.update({f"{name}_seconds": spread for name, spread in spreads.items()})
    apart, unaware, once = (spreads[name].median for name in cases)
    report.results["unaware_over_shared"] = unaware / once
    report.at_least("apart_over_shared", apart / once, 5)
    report.at_least("apart_bytes_of_read", cases["apart"].num_bytes / apart / roof, 0.6)
    same = torch.equal(cases["unaware"](), cases["shared"]())
    report.equal("shared_bits_equal_unaware", float(same), 1)


def tables(shared: bool) -> tuple[Tensor, Tensor]:
    """(kv_indptr, kv_indices): pages in random places, the prefix's common to all rows or not."""
    generator = torch.Generator().manual_seed(0)
    prefix, suffix = PREFIX // PAGE, SUFFIX // PAGE
    count = prefix + ROWS * suffix if shared else ROWS * (prefix + suffix)
    ids = torch.randperm(count, generator=generator).int()
    if shared:
        own = ids[prefix:].view(ROWS, suffix)
        ids = torch.cat((ids[:prefix].expand(ROWS, prefix), own), dim=1).flatten()
    return torch.arange(ROWS + 1).int() * (prefix + suffix), ids


def given(pages: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The arguments of `paged_attention`: random queries and pages, and these tables."""
    kv_indptr, kv_indices = pages
    shape = (int(kv_indices.max()) + 1, KV_HEADS, PAGE, HEAD_DIM)
    k_pages, v_pages = (take(shape, torch.bfloat16).normal_() for _ in range(2))
    last = torch.full((ROWS,), PAGE, dtype=torch.int32)
    q = torch.randn(ROWS, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1)).bfloat16()
    return q, k_pages, v_pages, torch.arange(ROWS + 1).int(), kv_indptr, kv_indices, last


if __name__ == "__main__":
    sys.exit(main())
