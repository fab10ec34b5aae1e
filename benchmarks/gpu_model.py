"""Steps of a model of random weights on the device under test: decodes, prefill, masks, recordings,
and how long the device waits between the steps of an engine."""

import random
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu_rates import Bench
from benchmarks.gpu_roofline import Work
from radixgen.batch import ScheduledBatch, ScheduledRow
from radixgen.cache.radix import RadixCache
from radixgen.config import CacheConfig, ScheduleConfig
from radixgen.kernels.linear import Weight
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.model.assemble import assemble
from radixgen.model.config import DecoderConfig
from radixgen.model.decoder import Decoder
from radixgen.model.kv_cache import KVCache
from radixgen.model.recordings import CudaGraphs
from radixgen.model.runner import ModelRunner
from radixgen.model.sampler import Draw, Sampler
from radixgen.model.triton_sampler import TritonChooser
from radixgen.model.weights import expected_shapes
from radixgen.runtime.engine import Engine
from radixgen.runtime.overlap import OverlappedEngine
from radixgen.schedule.request import SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import SamplingParams

PAGE_SIZE = 16
SAMPLES = 3  # of an engine's steps, many in each
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True)


def random_decoder(bench: Bench, config: DecoderConfig) -> Decoder:
    """Weights drawn on the device, as those of no checkpoint."""
    torch.manual_seed(0)

    def draw(name: str, shape: tuple[int, ...]) -> Weight:
        if "norm" in name:
            return torch.ones(shape, dtype=bench.dtype, device=bench.device)
        return torch.randn(shape, dtype=bench.dtype, device=bench.device) * 0.02

    tensors = {name: draw(name, shape) for name, shape in expected_shapes(config).items()}
    weights = assemble(config, tensors, bench.dtype, device=bench.device)
    return Decoder(config, weights, bench.dtype, kernels="triton", recorder=_recorder(bench))


def _recorder(bench: Bench) -> CudaGraphs | None:
    return CudaGraphs(bench.device) if bench.device.type == "cuda" else None


class Model:
    """A decoder with pages for the largest step that is asked of it; they hold small numbers."""

    def __init__(self, bench: Bench, decoder: Decoder, works: Iterable[Work]) -> None:
        self.bench, self.decoder = bench, decoder
        most = max(num_pages(work) for work in works)
        self.cache = KVCache.allocate(decoder.kv_layout(PAGE_SIZE), most, bench.device)
        for pages in (*self.cache.k_pages, *self.cache.v_pages):
            pages.normal_(std=0.1)
        self.runner = ModelRunner(decoder, self.cache)

    def seconds(self, work: Work, masked: bool = False) -> float:
        """Of a step, from its plan to its tokens."""
        batch = ScheduledBatch(_rows(work, masked))
        masks = _masks(work.rows, self.runner.vocab_size) if masked else None
        return self.bench.seconds(lambda: self.runner.run(batch, masks))

    def seconds_unrecorded(self, work: Work) -> float:
        """The same with every launch made anew."""
        plain = ModelRunner(_without_recorder(self.decoder), self.cache)
        batch = ScheduledBatch(_rows(work))
        return self.bench.seconds(lambda: plain.run(batch))

    def draw_seconds(self, rows: int) -> float:
        """Of masking and drawing alone, from logits that are there."""
        vocab_size = self.runner.vocab_size
        masks = torch.from_numpy(_masks(rows, vocab_size))
        logits = torch.randn(rows, vocab_size, device=self.bench.device)
        draws = [Draw(DRAWN, number, 5, mask_row=number) for number in range(rows)]
        sampler = Sampler(vocab_size, chooser=TritonChooser(self.bench.device))
        return self.bench.seconds(lambda: sampler.sample(logits, draws, masks))


def _without_recorder(decoder: Decoder) -> Decoder:
    return Decoder(decoder.config, decoder.weights, decoder.dtype, kernels=decoder.kernels)


def num_pages(work: Work) -> int:
    """Of a step, shared ones counted once."""
    return 1 + max(page for row in _rows(work) for page in row.page_ids)


def _rows(work: Work, masked: bool = False) -> list[ScheduledRow]:
    """A row's pages: those that all share, then its own."""
    length = work.context + work.new
    common, pages = work.shared // PAGE_SIZE, -(-length // PAGE_SIZE)
    rows = []
    for number in range(work.rows):
        first = common + number * (pages - common)
        own = range(first, first + pages - common)
        rows.append(
            ScheduledRow(
                str(number), 0, [7] * work.new, work.context, [*range(common), *own], True, DRAWN,
                number, mask_row=number if masked else None,
            )
        )  # fmt: skip
    return rows


def _masks(rows: int, vocab_size: int) -> NDArray[np.int32]:
    """About half of the vocabulary, another half in each row."""
    words = np.random.default_rng(0).integers(0, 2**32, (rows, -(-vocab_size // 32)))
    return words.astype(np.uint32).view(np.int32)


# ---- an engine's steps ----


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds of a step of an engine all of whose requests decode, and what the device worked.

    `overlapped`: the share of steps that were launched before the one before was over.
    """

    step: float
    busy: float | None
    overlapped: float

    @property
    def idle_share(self) -> float | None:
        return None if self.busy is None else max(0.0, 1 - self.busy / self.step)


def engine_times(
    bench: Bench, decoder: Decoder, requests: int, prompt: int, steps: int
) -> EngineTimes:
    """Requests of `prompt` tokens of their own; steps are timed once all of them decode."""
    engine = _engine(bench, decoder, requests, prompt + (SAMPLES + 2) * steps + 8)
    choose = random.Random(0)
    for number in range(requests):
        ids = [choose.randrange(decoder.config.vocab_size) for _ in range(prompt)]
        message = GenerateRequest(str(number), DRAWN)
        assert not engine.add(message, array("i", ids))
    seen: set[str] = set()
    while len(seen) < requests:
        seen |= _decoding(engine)
    _steps(engine, steps)  # records what is to be repeated
    before = engine.stats()
    # Many in a row: to wait after each would leave none to be launched ahead.
    step = median(_seconds_of_steps(bench, engine, steps) for _ in range(SAMPLES))
    after = engine.stats()
    overlapped, whole = (after[key] - before[key] for key in ("overlapped_steps", "steps"))
    busy = bench.busy_seconds(lambda: _steps(engine, steps))
    for number in range(requests):
        engine.abort(str(number))
    return EngineTimes(step, None if busy is None else busy / steps, overlapped / whole)


def _seconds_of_steps(bench: Bench, engine: Engine, count: int) -> float:
    bench.wait()
    begin = time.perf_counter()
    _steps(engine, count)
    bench.wait()
    return (time.perf_counter() - begin) / count


def _engine(bench: Bench, decoder: Decoder, requests: int, length: int) -> Engine:
    pages = requests * (-(-length // PAGE_SIZE) + 1) + 8
    cache = KVCache.allocate(decoder.kv_layout(PAGE_SIZE), pages, bench.device)
    runner = ModelRunner(decoder, cache)
    scheduler = Scheduler(
        ScheduleConfig(max_running=requests, prompt_lookup=False, suffix_drafts=False),
        RadixCache.from_config(CacheConfig(page_size=PAGE_SIZE, num_pages=pages), pages),
        max_context=decoder.max_context,
        vocab_size=runner.vocab_size,
    )
    return (OverlappedEngine if runner.overlaps else Engine)(scheduler, runner)


def _decoding(engine: Engine) -> set[str]:
    """Requests that a step has drawn a token of."""
    found = set()
    for event in engine.step():
        if isinstance(event, RequestFailed):
            raise RuntimeError(f"request {event.rid} failed: {event.message}")
        if isinstance(event, SequenceOutput):
            found.add(event.rid)
    return found


def _steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()
