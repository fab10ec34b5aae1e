"""Law 6 over pages of few bits: cold, warm, chunked, together, preempted, forked: the same bits."""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from helpers import tiny_decoder, write_adapter, write_tiny_model
from scheduling import drive_engine, expect_empty
from test_triton_forward import Repeater
from torch import Tensor

from radixgen.batch import PageCopy, ScheduledRow
from radixgen.config import from_settings
from radixgen.errors import ConfigError, InvalidRequest, ModelError
from radixgen.kernels.kivi import PAGE_SIZE, KiviForm
from radixgen.messages import GenerateRequest, RequestFailed
from radixgen.model.attention import build_inputs, copy_pages
from radixgen.model.decoder import Decoder
from radixgen.model.kv_cache import KVCache, KVLayout
from radixgen.runtime.build import build_engine
from radixgen.runtime.costs import StepCosts
from radixgen.runtime.engine import Engine
from radixgen.schedule.request import SequenceOutput
from radixgen.types import GrammarSpec, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def cache_for(
    decoder: Decoder, bits: int, page_size: int, num_pages: int, dtype: torch.dtype | None = None
) -> KVCache:
    """Pages full of NaN: what a page held before must not matter."""
    cache = KVCache.allocate(decoder.kv_layout(page_size, dtype, bits), num_pages)
    for pages in (*cache.k_pages, *cache.v_pages, *cache.k_codes, *cache.v_codes):
        pages.view(torch.uint8).fill_(255)
    return cache


def forward(decoder: Decoder, cache: KVCache, rows: list[ScheduledRow]) -> list[Tensor]:
    """The logits of every token, a tensor [tokens, vocab] a row."""
    with torch.inference_mode():
        inputs = build_inputs(rows, cache, decoder.config.vocab_size, decoder.max_context)
        logits = decoder.logits(decoder.forward(inputs, cache))
    return list(torch.split(logits, [len(row.token_ids) for row in rows]))


@dataclass
class Text:
    """Tokens, and of which of them the logits are known."""

    tokens: list[int]
    wanted: Tensor
    pages: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)  # of the last of `pages`
    computed: int = 0
    end: int = 0  # of the step under way, without drafts


def one_shot(decoder: Decoder, bits: int, page_size: int, tokens: list[int]) -> Tensor:
    num_pages = -(-len(tokens) // page_size)
    cache = cache_for(decoder, bits, page_size, num_pages)
    pages = list(range(num_pages))
    return forward(decoder, cache, [row_of(tokens, 0, pages, pages)])[0]


def row_of(tokens: list[int], start: int, pages: list[int], plain: list[int]) -> ScheduledRow:
    """A row every token of which is an output."""
    return ScheduledRow(
        "r", 0, tokens, start, pages, False, GREEDY, 0, logprobs_from=0, next_id=0, plain_ids=plain
    )


class Steps:
    """Drives sequences by random chunks, batches, page tables, forks, prefixes that others have
    computed, drafts that are wrong, and preemptions."""

    def __init__(self, decoder: Decoder, cache: KVCache, seed: int) -> None:
        self.decoder, self.cache, self.page_size = decoder, cache, cache.layout.page_size
        self.choose = random.Random(seed)
        self.free = list(range(cache.num_pages))
        self.free_plain = list(range(cache.num_plain or 0))
        self.choose.shuffle(self.free)
        self.choose.shuffle(self.free_plain)

    def grow(self, s: Text, end: int) -> None:
        while len(s.pages) * self.page_size < end:
            s.pages.append(self.free.pop())
            s.plain.append(self.free_plain.pop())

    def shed(self, s: Text) -> None:
        """Plain pages of what is full go; those of drafts that were wrong too."""
        keep = s.pages[: -(-s.computed // self.page_size)]
        plain = s.plain[s.computed // self.page_size - len(s.pages) + len(s.plain) :]
        last = plain[: len(keep) - s.computed // self.page_size]
        self.free += s.pages[len(keep) :]
        self.free_plain[:0] = [page for page in s.plain if page not in last]
        s.pages, s.plain = keep, last

    def row(self, s: Text) -> ScheduledRow:
        left = len(s.tokens) - s.computed
        size = self.choose.choice([1, 1, 2, 5, 31, 33, 64, 100, left])
        s.end = end = s.computed + min(size, left)
        wrong = self.choose.choice([0, 0, 3, self.page_size + 2])  # drafts that will be refused
        self.grow(s, end + wrong)
        drafts = [self.choose.randrange(259) for _ in range(wrong)]
        return row_of([*s.tokens[s.computed : end], *drafts], s.computed, s.pages, s.plain)

    def preempt(self, s: Text, known: list[Text]) -> None:
        """Lose everything, and take over what another has computed of the same tokens."""
        self.free_plain[:0] = s.plain
        s.plain, s.computed, s.pages = [], 0, []
        for other in known:
            whole = other.computed // self.page_size
            while other.tokens[: whole * self.page_size] != s.tokens[: whole * self.page_size]:
                whole -= 1
            if whole * self.page_size < len(s.tokens) and whole > len(s.pages):
                s.pages, s.computed = other.pages[:whole], whole * self.page_size

    def fork(self, s: Text) -> None:
        """Move what is in the plain page, as a fork does that goes on from there."""
        used = s.computed % self.page_size
        if used:
            target = self.free_plain.pop(0)
            copy_pages([PageCopy(s.plain[0], target, used)], self.cache)
            self.free_plain.append(s.plain[0])
            s.plain[0], s.pages[-1] = target, self.free.pop()

    def run(self, sequences: list[Text]) -> None:
        while any(s.computed < len(s.tokens) for s in sequences):
            s = self.choose.choice(sequences)
            event = self.choose.random()
            if event < 0.1:
                self.preempt(s, sequences)
            elif event < 0.3:
                self.fork(s)
            chosen = self.choose.sample(sequences, self.choose.randint(1, len(sequences)))
            rows = [(s, self.row(s)) for s in chosen if s.computed < len(s.tokens)]
            if rows:
                self.step(rows)

    def step(self, chosen: list[tuple[Text, ScheduledRow]]) -> None:
        found = forward(self.decoder, self.cache, [row for _, row in chosen])
        for (s, row), logits in zip(chosen, found, strict=True):
            right = logits[: s.end - row.start]
            assert torch.equal(right, s.wanted[row.start : s.end]), (row.start, s.end, len(chosen))
            s.computed = s.end
            self.shed(s)


@pytest.mark.parametrize(
    ("bits", "page_size", "window"), [(4, 32, None), (2, 64, None), (4, 32, 50)]
)
def test_any_schedule_gives_the_bits_of_one_prefill(
    bits: int, page_size: int, window: int | None
) -> None:
    decoder = tiny_decoder(3, head_dim=32, sliding_windows=(window, None))
    choose = random.Random(page_size)
    stem = [choose.randrange(259) for _ in range(150)]
    lengths = [(0, 1), (64, 1), (150, 170), (140, 40), (0, 64), (70, 33)]  # of stem, of its own
    tokens = [stem[:n] + [choose.randrange(259) for _ in range(own)] for n, own in lengths]
    sequences = [Text(t, one_shot(decoder, bits, page_size, t)) for t in tokens]
    cache = cache_for(decoder, bits, page_size, 600)
    Steps(decoder, cache, seed=page_size).run(sequences)


# ---- as launches ----


def drafted(tokens: list[int], start: int, pages: list[int], drafts: int = 0) -> ScheduledRow:
    """A row that draws, over pages whose plain ones are those of the same numbers, doubled."""
    used = pages[: -(-(start + len(tokens)) // PAGE_SIZE)]
    plain = [2 * page for page in used[start // PAGE_SIZE :]]
    return ScheduledRow(
        "r", 0, tokens, start, used, True, GREEDY, 0, num_drafts=drafts, plain_ids=plain
    )


def decodes() -> Iterator[list[ScheduledRow]]:
    """Prompts, one over the end of a page, and decodes, one of them with drafts over an end."""
    text = [(7 * i) % 61 for i in range(62)]
    yield [drafted(text[:34], 0, [1, 3]), drafted(text[:31], 0, [0])]
    yield [drafted(text[34:], 34, [1, 3])]
    yield [drafted([1, 2, 3], 62, [1, 3, 4], 2), drafted([3], 31, [0])]
    for at in range(2):
        yield [drafted([9], 65 + at, [1, 3, 4]), drafted([4], 32 + at, [0, 2])]


def run_steps(decoder: Decoder, cache: KVCache) -> list[Tensor]:
    found = []
    with torch.inference_mode():
        for rows in decodes():
            inputs = build_inputs(rows, cache, 64, 512)
            hidden, logits = decoder.step(inputs, cache, want_logits=True)
            found.append((decoder.logits(hidden) if logits is None else logits).clone())
    return found


TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 32,
    "ffn_size": 32,
    "vocab_size": 64,
}


def test_launches_and_recorded_ones_give_the_numbers_of_c() -> None:
    found, caches, decoders = [], [], []
    both: tuple[Literal["c", "triton"], ...] = ("c", "triton")
    for kernels in both:
        decoder = tiny_decoder(2, kernels=kernels, **TINY)
        decoders.append(decoder)
        decoder.recorder = Repeater() if kernels == "triton" else None
        caches.append(cache_for(decoder, 4, PAGE_SIZE, 9))
        caches[-1].k_pages[0][0], caches[-1].v_pages[0][0] = 0, 0  # what pads a step reads them
        if kernels == "triton":
            decoder.launched_over(caches[-1]).warm_up(1)
        found.append(run_steps(decoder, caches[-1]))
    recordings = decoders[-1].launched_over(caches[-1]).recordings
    assert recordings is not None
    assert recordings.num_repeated == 2  # one that is idle, and the second decode of two
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    for cache in caches:
        assert (cache.k_codes[0][[2, 4, 5, 6, 7, 8]] == 255).all()  # which nothing is stored to
        assert (cache.v_codes[0][[0, 1, 3]] != 255).any(-1).all()


# ---- an engine of few bits ----

STEM = list(b"A stem that is longer than a page of thirty-two tokens, and than two of them. ")
PROMPTS = [[*STEM, *tail] for tail in (b"one", b"to", b"3rd, which is the longest", b"4")]
DRAWN = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, seed=3, logprobs=1)
Answer = list[tuple[int, float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = write_tiny_model(folder / "model", num_hidden_layers=2, head_dim=32)
    write_adapter(folder / "a", model, ["q_proj", "v_proj", "down_proj"], seed=2)
    return folder


def make(folder: Path, **more: Any) -> Engine:
    settings: dict[str, Any] = {"num_pages": 60, "threads": 1, "check": True, "kv_dtype": "int4"}
    adapters = {"a": str(folder / "a")}
    given = {**settings, "model": str(folder / "model"), "adapters": adapters, **more}
    return build_engine(from_settings(**given)).engine


def answers(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams = DRAWN,
    loras: Sequence[str] = ("",),
    grammar: GrammarSpec | None = None,
) -> list[Answer]:
    """Tokens and log-probabilities of requests that run together, choice by choice."""
    for number, prompt in enumerate(prompts):
        lora = loras[number % len(loras)]
        message = GenerateRequest(f"r{number}", sampling, grammar, lora=lora)
        assert not engine.add(message, array("i", list(prompt)))
    found: dict[tuple[str, int], Answer] = {}
    for event in drive_engine(engine):
        assert not isinstance(event, RequestFailed), event
        if isinstance(event, SequenceOutput):
            pairs = zip(event.token_ids, event.logprobs, strict=True)
            made = [(token, logprob.logprob) for token, logprob in pairs]
            found.setdefault((event.rid, event.index), []).extend(made)
    assert not engine.scheduler.cache.pool.num_held
    return [found[key] for key in sorted(found)]


@pytest.fixture(scope="module")
def cold(folder: Path) -> list[Answer]:
    """Without a cache, one by one."""
    engine = make(folder, prefix_cache=False, prompt_lookup=False, suffix_drafts=False)
    return [answers(engine, [prompt])[0] for prompt in PROMPTS]


WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "in chunks": {"max_step_tokens": 7},
    "in chunks that end with a page": {"max_step_tokens": 32},
    "preempted": {"num_pages": 8, "max_running": 4},
    "eagerly drafted": {"jump_forward": "exact", "prompt_lookup": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_answers(folder: Path, cold: list[Answer], way: str) -> None:
    engine = make(folder, **WAYS[way])
    assert answers(engine, PROMPTS) == cold
    counts = engine.stats()
    assert counts["held_plain_pages"] == 0
    assert (counts["preemptions"] > 0) == (way == "preempted")
    expect_empty(engine.scheduler)


def test_warm_pages_of_few_bits_give_the_same_answers(folder: Path, cold: list[Answer]) -> None:
    engine = make(folder)
    for prompt, answer in zip(PROMPTS, cold, strict=True):
        for _ in range(2):
            assert answers(engine, [prompt]) == [answer]
    # The stem's two whole pages each time but the first, and three of the longest prompt again.
    assert engine.stats()["cached_tokens"] == 7 * 64 + 32


def test_forks_adapters_and_drafts(folder: Path) -> None:
    sampling = replace(DRAWN, n=3, max_tokens=12)
    both = [PROMPTS[0], PROMPTS[2]]
    options: dict[str, Any] = {"prefix_cache": False, "prompt_lookup": False}
    wanted = [
        answer
        for prompt, lora in zip(both, ("a", ""), strict=True)
        for answer in answers(make(folder, **options), [prompt], sampling, [lora])
    ]
    engine = make(folder)
    assert answers(engine, both, sampling, ["a", ""]) == wanted
    assert engine.stats()["copied_pages"] == 4


def test_forced_text_is_verified_over_the_end_of_a_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepCosts, "least_chance", lambda costs, num_sequences: 0.0)
    monkeypatch.setattr(StepCosts, "pays", lambda costs, *counts: True)
    spec = GrammarSpec("regex", r"(so it is, and so it was before|so it never was)[.!]")
    sampling = replace(DRAWN, max_tokens=40, ignore_eos=False)
    wanted = answers(
        make(folder, jump_forward="off", prompt_lookup=False), PROMPTS[:2], sampling, grammar=spec
    )
    engine = make(folder)
    assert answers(engine, PROMPTS[:2], sampling, grammar=spec) == wanted
    assert engine.stats()["accepted_drafts"] > 10


def test_an_engine_on_triton_answers_alike(folder: Path, tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=0)
    prompts = [STEM[:33], [*STEM[:33], *b"or"]]
    model = write_tiny_model(
        tmp_path / "small", num_hidden_layers=1, head_dim=32, num_attention_heads=2,
        num_key_value_heads=1, hidden_size=32, intermediate_size=32,
    )  # fmt: skip
    small: dict[str, Any] = {"model": str(model), "adapters": {}}
    wanted = answers(make(folder, **small), prompts, sampling)
    engine = make(folder, **small, kernels="triton", max_step_tokens=20)
    for prompt, answer in zip(prompts, wanted, strict=True):
        (found,) = answers(engine, [prompt], sampling)
        assert [token for token, _ in found] == [token for token, _ in answer]
    assert engine.stats()["cached_tokens"] == 32


# ---- what is refused ----


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kv_dtype": "int4", "page_size": 16}, "page_size=16: pages of kv_dtype='int4' have 32"),
        ({"kv_dtype": "int2", "share_tail_pages": True}, "share_tail_pages=True: pages of"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_settings(**settings)


def test_settings_that_fit_come_with_few_bits() -> None:
    config = from_settings(kv_dtype="int2")
    assert (config.cache.page_size, config.cache.share_tail_pages) == (32, False)
    config = from_settings(kv_dtype="int4", page_size=96)
    assert config.cache.page_size == 96


def test_models_whose_heads_no_page_holds_are_refused(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", head_dim=12)
    with pytest.raises(ModelError, match="heads have 12 dimensions; kv_dtype='int4' takes"):
        build_engine(from_settings(model=str(model), kv_dtype="int4", num_pages=4))


def test_rows_without_their_plain_pages_are_refused() -> None:
    decoder = tiny_decoder(head_dim=32)
    cache = cache_for(decoder, 4, PAGE_SIZE, 4)
    for plain, said in (([], "0 plain pages, which do not cover 32 to 34"), ([9], "slot 288, not")):
        row = row_of([1, 2], 32, [0, 1], plain)
        with pytest.raises(InvalidRequest, match=said):
            build_inputs([row], cache, 259, 512)


# ---- memory ----


def test_pages_and_their_plain_ones_share_memory() -> None:
    """Of 8 layers, 4 KV heads of 64: 131,072 bytes a page in float16, 40,960 in 4 bits."""
    layout = KVLayout(8, 4, 64, PAGE_SIZE, torch.float16, KiviForm(4), 100)
    assert (layout.plain_bytes, layout.page_bytes) == (262_144, 81_920)
    assert [layout.num_plain(n) for n in (3, 16, 100, 400, 10_000)] == [3, 16, 16, 50, 100]
    assert layout.num_bytes(400) == 400 * 81_920 + 50 * 262_144
    for num_pages in (1, 5, 16, 17, 128, 129, 799, 5000):
        needed = layout.num_bytes(num_pages)
        assert layout.pages_in(needed) == num_pages
        assert layout.pages_in(needed - 1) == num_pages - 1
    assert layout.pages_in(0) == layout.pages_in(-5) == 0
    cache = KVCache.allocate(layout, 20)
    tensors = (*cache.k_pages, *cache.v_pages, *cache.k_codes, *cache.v_codes)
    assert cache.num_bytes == sum(t.numel() * t.element_size() for t in tensors)
