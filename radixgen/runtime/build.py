"""Builds an engine from its configuration: model, pages, tree, scheduler, runner.

The one place that knows all of them. It loads torch, so it is imported late.
"""

import gc
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from radixgen.cache.radix import RadixCache
from radixgen.config import RuntimeConfig
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.kernels import library
from radixgen.model.device import describe as describe_device
from radixgen.model.forms import choose_forms, describe
from radixgen.model.fused import fits
from radixgen.model.hub import resolve
from radixgen.model.load import load_runner
from radixgen.model.runner import ModelRunner
from radixgen.runtime.drafts import Drafter
from radixgen.runtime.engine import Engine
from radixgen.runtime.grammar_pool import LIGHT, NICE, SHARE, TIGHT_SHARE, GrammarPool
from radixgen.runtime.grammar_screen import Screen
from radixgen.runtime.overlap import OverlappedEngine
from radixgen.runtime.ranks import Ranks, set_threads, start_ranks
from radixgen.schedule.request import StopFactory, StopWatch
from radixgen.schedule.scheduler import Scheduler
from radixgen.tokenizer import StopMatcher, Tokenizer
from radixgen.types import SamplingParams

ENOUGH_CORES = 4  # threads of steps from which a compile takes little of what they wait for
SWITCH_SECONDS = 0.0005  # after which a compile lets the loop have the interpreter again

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and what there is to say of it. Counts in tokens, pages."""

    engine: Engine
    model: str  # the path of its files
    vocab_size: int
    max_context: int  # what a sequence may have, given the model and the pages
    num_pages: int
    page_size: int
    forms: str  # in which numbers it computes
    adapters: tuple[str, ...]  # names
    ranks: Ranks | None = None  # the processes that hold other parts of the model

    def close(self) -> None:
        """End the processes that compute with this one."""
        if self.ranks is not None:
            self.ranks.close()


def build_engine(
    config: RuntimeConfig,
    clock: Callable[[], float] = time.perf_counter,
    *,
    folder: Path | None = None,
    on_loss: Callable[[str], None] = logger.error,
) -> Built:
    """Load the model and put an engine together. `clock`: seconds, by which it times its steps.

    For a model that is split among ranks: `folder`, where they meet, one that only this user can
    enter; and `on_loss`, told the cause when one of them is lost, and with it this engine.
    Raises ModelError for files that cannot be used, ConfigError for settings that do not fit.
    """
    set_threads(config.model)
    files = resolve(config.model.model, config.model.revision)
    tokenizer = Tokenizer.load(files.path)
    ranks = None
    if config.model.tensor_parallel == 1:
        runner = load_runner(config.model, config.cache, files, config.schedule)
    else:
        runner, ranks = start_ranks(config, files, folder, on_loss)
    if fits(runner.decoder, runner.cache) or (ranks and library.library() is not None):
        torch.set_num_threads(1)  # its threads spin where those of the C kernels want to run
    num_pages = runner.cache.num_pages
    scheduler = Scheduler(
        config.schedule,
        RadixCache.from_config(config.cache, num_pages),
        max_context=runner.decoder.max_context,
        vocab_size=runner.vocab_size,
        end_token_ids=runner.decoder.config.eos_ids,
        stop_factory=stop_factory(tokenizer),
        check=config.check,
        num_plain_pages=runner.cache.num_plain,
    )
    make_engine = OverlappedEngine if runner.overlaps else Engine
    return Built(
        engine=make_engine(
            scheduler,
            runner,
            grammar_pool(tokenizer),
            drafter(config, tokenizer),
            tokenizer,
            adapters=tuple(runner.decoder.adapters),
            clock=clock,
        ),
        model=str(files.path),
        vocab_size=runner.vocab_size,
        max_context=scheduler.max_known,
        num_pages=num_pages,
        page_size=config.cache.page_size,
        forms=describe_forms(config, runner),
        adapters=tuple(runner.decoder.adapters),
        ranks=ranks,
    )


def settle() -> None:
    """For a process that has built what it serves with: steps are disturbed by little."""
    gc.freeze()  # what is here stays: no later collection need look through it
    sys.setswitchinterval(SWITCH_SECONDS)


def describe_forms(config: RuntimeConfig, runner: ModelRunner) -> str:
    """Types of hidden states and KV pages, and of what meets packed weights where."""
    layout = runner.cache.layout
    kept = f"{_name(runner.decoder.dtype)}, KV {_name(layout.dtype)}"
    if layout.form is not None:
        kept += f", full pages int{layout.form.bits}"
    if config.model.tensor_parallel > 1:
        kept += f"; {config.model.tensor_parallel} ranks, {config.model.tensor_split} split"
    if runner.decoder.kernels == "triton":
        return f"{kept}; Triton on {describe_device(runner.decoder.device)}"
    if library.library() is None:
        return f"{kept}; without C kernels"
    forms = choose_forms(config.model.activations, library.multiplies_by_tiles())
    return f"{kept}; inputs of quantised weights {describe(forms)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def grammar_pool(tokenizer: Tokenizer) -> GrammarPool:
    """Compiles constraints in threads of its own, after a trial in a process of its own."""
    share = SHARE if library.default_threads() >= ENOUGH_CORES else TIGHT_SHARE
    return GrammarPool(lambda: make_compiler(tokenizer), Screen(LIGHT), Screen(nice=NICE), share)


def make_compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    """For the model's own tokens; special ones are never spelled by a grammar."""
    tokens = [tokenizer.token_bytes(i) or None for i in range(tokenizer.vocab_size)]
    ends, special = tuple(tokenizer.eos_ids), tuple(tokenizer.special_ids)
    return GrammarCompiler(Vocabulary.from_tokens(tokens, ends, special))


def drafter(config: RuntimeConfig, tokenizer: Tokenizer) -> Drafter | None:
    """What guesses tokens ahead, unless every way to is switched off."""
    schedule = config.schedule
    jumps = schedule.jump_forward != "off"
    if not (jumps or schedule.prompt_lookup or schedule.suffix_drafts):
        return None
    if schedule.jump_forward == "fast":
        logger.info("jump_forward='fast' changes the law of constrained outputs")
    return Drafter(
        tokenizer,
        jump_forward=schedule.jump_forward,
        prompt_lookup=schedule.prompt_lookup,
        suffix_drafts=schedule.suffix_drafts,
    )


def stop_factory(tokenizer: Tokenizer) -> StopFactory:
    """Watchers of stop strings that decide as the frontend's IncrementalDecoder does."""

    def make(sampling: SamplingParams, num_skipped: int) -> StopWatch:
        matcher = StopMatcher(sampling.stop)
        special_text = not sampling.skip_special_tokens
        num_seen, left = 0, num_skipped

        def watch(token_id: int, is_thought: bool = False) -> str | None:
            nonlocal num_seen, left
            num_seen += 1
            if is_thought:  # blanks between thoughts and answer stop nothing
                matcher.after_blanks = True
                return None
            piece = tokenizer.token_bytes(token_id, special_text)
            matcher.push(piece[left:], armed=num_seen >= sampling.min_tokens)
            left = max(left - len(piece), 0)
            return matcher.stopped

        return watch

    return make
