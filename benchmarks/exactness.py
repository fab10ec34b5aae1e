"""Does the way a request is computed ever change its answer?

    python -m benchmarks.exactness [--quick] [--prompts N] [--model NAME]

Prompts that share prefixes are answered alone and cold, and then in every other way: warm from the
tree, in chunks, together, preempted for want of pages, and all at once. Half are greedy, half drawn
with a seed. Token ids and log-probabilities (of the token drawn and the five best, so any bit of
the logits near the top) must be equal; a mismatch is a request that differs anywhere.
"""

import random
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.harness import Report, arguments, table
from radixgen.cache.radix import RadixCache
from radixgen.config import CacheConfig, ModelConfig, ScheduleConfig
from radixgen.kernels.linear import Weight
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.model.assemble import assemble
from radixgen.model.config import DecoderConfig, RopeConfig
from radixgen.model.decoder import Decoder
from radixgen.model.kv_cache import KVCache
from radixgen.model.load import load_runner
from radixgen.model.runner import ModelRunner
from radixgen.model.weights import expected_shapes
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import SequenceOutput
from radixgen.schedule.scheduler import Scheduler
from radixgen.types import SamplingParams, TokenLogprob

PAGE_SIZE = 8
MAX_NEW = 24  # tokens
LONGEST = 180  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class Prompt:
    rid: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(slots=True)
class Answer:
    token_ids: list[int]
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are computed. `pages` None: enough for all."""

    together: bool
    warm: bool = False  # everything was answered once before
    max_step_tokens: int = 512
    pages: int | None = None


TIGHT = 40  # pages: barely more than one sequence needs
WAYS = {
    "cold": Way(together=False),
    "warm": Way(together=False, warm=True),
    "chunked": Way(together=False, max_step_tokens=13),
    "batched": Way(together=True),
    "warm, batched": Way(together=True, warm=True),
    "preempted": Way(together=True, pages=TIGHT),
    "chunked, preempted": Way(together=True, pages=TIGHT, max_step_tokens=29),
}


def make_prompts(count: int, vocab_size: int, seed: int = 0) -> list[Prompt]:
    """About ten prompts to a shared prefix; greedy and seeded draws by turns."""
    rng = random.Random(seed)
    prefixes = [
        tokens_of(rng, rng.randint(1, LONGEST // 2), vocab_size) for _ in range(count // 10 + 1)
    ]
    greedy = SamplingParams(temperature=0.0, max_tokens=MAX_NEW, ignore_eos=True, logprobs=5)
    prompts = []
    for i in range(count):
        own = tokens_of(rng, rng.randint(1, LONGEST // 2), vocab_size)
        drawn = replace(greedy, temperature=0.9, top_p=0.95, seed=i)
        prompts.append(Prompt(str(i), rng.choice(prefixes) + own, drawn if i % 2 else greedy))
    return prompts


def tokens_of(rng: random.Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab_size) for _ in range(count))


def answer_all(decoder: Decoder, prompts: Sequence[Prompt], way: Way) -> tuple[list[Answer], float]:
    """The answers to all prompts, and how many preemptions it took."""
    engine = make_engine(decoder, len(prompts), way)
    if way.warm:
        run(engine, prompts, together=True)
    answers = run(engine, prompts, way.together, keep=way.warm)
    return answers, engine.stats()["preemptions"]


def make_engine(decoder: Decoder, num_prompts: int, way: Way) -> Engine:
    pages = way.pages or num_prompts * (LONGEST + MAX_NEW) // PAGE_SIZE + num_prompts + 64
    config = CacheConfig(page_size=PAGE_SIZE, num_pages=pages)
    runner = ModelRunner(decoder, KVCache.allocate(decoder.kv_layout(PAGE_SIZE), pages))
    scheduler = Scheduler(
        ScheduleConfig(max_step_tokens=way.max_step_tokens, max_running=32),
        RadixCache.from_config(config, pages),
        max_context=decoder.max_context,
        vocab_size=runner.vocab_size,
    )
    return Engine(scheduler, runner)


def run(
    engine: Engine, prompts: Sequence[Prompt], together: bool, keep: bool = True
) -> list[Answer]:
    """Answer all at once or one after the other; not `keep`: forget the prefixes after each."""
    answers = {prompt.rid: Answer([], []) for prompt in prompts}
    for group in [prompts] if together else [[prompt] for prompt in prompts]:
        for prompt in group:
            refused = engine.add(
                GenerateRequest(prompt.rid, prompt.sampling), array("i", prompt.token_ids)
            )
            check_events(refused, answers)
        while engine.has_work:
            check_events(engine.step(), answers)
        if not keep:
            engine.flush()
    for rid, answer in answers.items():
        if not len(answer.token_ids) == len(answer.logprobs) == MAX_NEW:
            sys.exit(f"request {rid} ended with {len(answer.token_ids)} tokens of {MAX_NEW}")
    return list(answers.values())


def check_events(events: Sequence[object], answers: dict[str, Answer]) -> None:
    for event in events:
        if isinstance(event, RequestFailed):
            sys.exit(f"request {event.rid} failed: {event.message}")
        if isinstance(event, SequenceOutput):
            answers[event.rid].token_ids += event.token_ids
            answers[event.rid].logprobs += event.logprobs


def random_decoder() -> Decoder:
    """Small, with every feature that could depend on the batch: windows, biases, q/k norm."""
    config = DecoderConfig(
        family="llama",
        hidden_size=96,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=20,
        ffn_size=176,
        vocab_size=1003,
        max_context=512,
        rms_norm_eps=1e-5,
        rope=RopeConfig(),
        tied_head=False,
        qkv_bias=True,
        qk_norm=True,
        sliding_windows=(None, 50, None),
    )
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Weight] = {
        name: torch.randn(shape, generator=generator) * 0.2 + (1.0 if "norm" in name else 0.0)
        for name, shape in expected_shapes(config).items()
    }
    return Decoder(config, assemble(config, tensors, torch.float32))


def compare(name: str, decoder: Decoder, num_prompts: int, report: Report) -> list[list[str]]:
    """Run every way and check it against the first; the rows of a table."""
    prompts = make_prompts(num_prompts, decoder.config.vocab_size)
    rows: list[list[str]] = []
    reference: list[Answer] = []
    for label, way in WAYS.items():
        begin = time.perf_counter()
        answers, preemptions = answer_all(decoder, prompts, way)
        seconds = time.perf_counter() - begin
        reference = reference or answers
        ids = sum(a.token_ids != b.token_ids for a, b in zip(answers, reference, strict=True))
        bits = sum(a.logprobs != b.logprobs for a, b in zip(answers, reference, strict=True))
        report.equal(f"{name}, {label}: mismatches", ids + bits, 0)
        if way.pages is not None and num_prompts >= 50:  # fewer may fit
            report.at_least(f"{name}, {label}: preemptions", preemptions, 1)
        counts = [str(ids), str(bits), f"{preemptions:g}", f"{seconds:.1f}"]
        rows.append([f"{name}, {label}", str(num_prompts), *counts])
    return rows


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, help="of each model; 200 by default")
    parser.add_argument("--model", default="", help="a model to load; the embedded one by default")
    options = parser.parse_args()
    small = options.prompts or (100 if options.quick else 200)
    large = options.prompts or (3 if options.quick else 200)
    report = Report("exactness", {"prompts": [small, large], "threads": torch.get_num_threads()})
    rows = compare("random weights", random_decoder(), small, report)
    loaded = load_runner(ModelConfig(options.model), CacheConfig(num_pages=1)).decoder
    rows += compare(options.model or "embedded model", loaded, large, report)
    header = ["model, way", "requests", "ids differ", "logprobs differ", "preemptions", "s"]
    table(header, rows)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
