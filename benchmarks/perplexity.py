"""What does each form of weights, inputs and KV pages cost in answers?

    python -m benchmarks.perplexity [--quick] [--model NAME] [--text FILE]

A text is read by the model in every form and compared, token by token, with the model in float32
(its weights dequantised, its KV in float32): perplexity, the divergence of the distributions (KL,
in nats a token, which tells forms apart long before perplexity does), how often the likeliest token
is the same, and the seconds that reading the text took.

    weights   dequantised to bfloat16; quantised again to 8 bits; as they lie in the file
    inputs    of products with the file's weights in 8 bits, 16 bits, floats, as a runtime chooses
              (auto: bfloat16 where a matrix unit multiplies it); 8 bits at one place
    KV pages  in each type, all else exact; in 4 and 2 bits as kernels/kivi.py has them, which a
              runtime does without sinks (a page of so many tokens); its bytes a token, by float16's
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from benchmarks.harness import ROOT, Report, arguments, table
from radixgen.batch import ScheduledRow
from radixgen.kernels import library
from radixgen.kernels.block_types import Activations, PackedWeight
from radixgen.kernels.kivi import (
    PAGE_SIZE,
    KiviForm,
    dequantize_keys,
    dequantize_values,
    quantize_pages,
)
from radixgen.kernels.kv_types import PAGE_TYPES
from radixgen.kernels.linear import Weight, dequantize_rows
from radixgen.model.assemble import assemble
from radixgen.model.attention import build_inputs
from radixgen.model.config import DecoderConfig
from radixgen.model.decoder import Decoder
from radixgen.model.forms import BY_VECTORS, PLACES, Forms, choose_forms
from radixgen.model.hub import resolve
from radixgen.model.kv_cache import KVCache
from radixgen.model.weights import load_model
from radixgen.tokenizer import Tokenizer
from radixgen.types import SamplingParams

TEXT = ROOT / "tests" / "texts" / "perplexity.txt"
QUICK_TOKENS = 384
CHUNK = 512  # tokens a step
TILE = 128  # tokens whose logits are held at once
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Way:
    """A form of the model: `weights` is file, float32, bfloat16 or q8_0."""

    weights: str = "file"
    forms: Forms | None = None  # of inputs; None: floats
    kv: torch.dtype = torch.float32
    kivi: KiviForm | None = None  # of pages; None: all are of type `kv`


def everywhere(form: Activations) -> Forms:
    return dict.fromkeys(PLACES, form)


def ways(quick: bool) -> Iterator[tuple[str, Way]]:
    """Names and forms; the first is the one that the others are compared with."""
    exact = everywhere("float32")
    yield "float32", Way("float32")
    yield "weights bfloat16, hidden states too", Way("bfloat16")
    yield "weights q8_0, inputs float32", Way("q8_0", exact)
    yield "weights q8_0, inputs int8", Way("q8_0", everywhere("int8"))
    yield "weights of the file, inputs float32", Way("file", exact)
    yield "inputs int16", Way("file", everywhere("int16"))
    auto = choose_forms("auto", library.multiplies_by_tiles())
    yield "inputs auto", Way("file", auto)
    if auto != BY_VECTORS:
        yield "inputs auto, no matrix unit", Way("file", BY_VECTORS)
    yield "inputs int8", Way("file", everywhere("int8"))
    for place in PLACES:
        yield f"inputs int8 at {place} alone", Way("file", {**exact, place: "int8"})
    for dtype in PAGE_TYPES:
        if dtype != torch.float32:
            yield f"KV {str(dtype)[6:]}", Way("file", exact, dtype)
    for bits in (4, 2):
        for recent_pages, sink_pages in ((1, 0), (4, 1)) if quick else ((1, 0), (4, 0), (4, 1)):
            form = KiviForm(bits, recent_pages, sink_pages)
            name = f"KV {bits} bits, {form.run} recent" + (f", {form.sink} first" * bool(form.sink))
            yield name, Way("file", exact, kivi=form)
    yield "inputs auto, KV bfloat16", Way("file", auto, torch.bfloat16)


class Models:
    """Decoders of one model in each form, made when asked for."""

    def __init__(self, name: str) -> None:
        self.files = resolve(name, None)
        self._loaded = load_model(self.files)
        self.config: DecoderConfig = self._loaded.config
        self._kept: dict[str, Mapping[str, Weight]] = {"file": self._loaded.weights}

    def decoder(self, way: Way) -> Decoder:
        dtype = torch.bfloat16 if way.weights == "bfloat16" else torch.float32
        weights = assemble(
            self.config, dict(self._weights(way.weights)), dtype, way.forms or BY_VECTORS
        )
        return Decoder(self.config, weights, dtype)

    def _weights(self, form: str) -> Mapping[str, Weight]:
        if form not in self._kept:
            made = {name: converted(weight, form) for name, weight in self._loaded.weights.items()}
            self._kept = {"file": self._loaded.weights, form: made}
        return self._kept[form]


def converted(weight: Weight, form: str) -> Weight:
    """A quantised weight in float32, bfloat16 or, again quantised, q8_0; others as they are."""
    if not isinstance(weight, PackedWeight):
        return weight
    values = dequantize_rows(weight, None)
    if form == "q8_0":
        data = quants.quantize(values.numpy(), GGMLQuantizationType.Q8_0)
        return PackedWeight("q8_0", weight.shape, torch.from_numpy(data))
    return values.to(torch.bfloat16) if form == "bfloat16" else values


def hidden_states(decoder: Decoder, token_ids: list[int], way: Way) -> Tensor:
    """[tokens, hidden] of a text, read in chunks over a way's pages."""
    if way.kivi and not way.kivi.sink_pages:
        return few_bit_states(decoder, token_ids, way.kivi)
    return plain_states(decoder, token_ids, way)


def few_bit_states(decoder: Decoder, token_ids: list[int], form: KiviForm) -> Tensor:
    """As a runtime reads it: over pages of few bits, and plain ones for each chunk."""
    layout = decoder.kv_layout(form.run, torch.float32, form.bits)
    cache = KVCache.allocate(layout, max(-(-len(token_ids) // form.run), CHUNK // form.run))
    pages, parts = list(range(cache.num_pages)), []
    assert (cache.num_plain or 0) * form.run >= CHUNK
    for start in range(0, len(token_ids), CHUNK):
        row = ScheduledRow(
            "text", 0, token_ids[start : start + CHUNK], start, pages, False, GREEDY, 0,
            logprobs_from=0, next_id=0, plain_ids=range(CHUNK // form.run),
        )  # fmt: skip
        inputs = build_inputs([row], cache, decoder.config.vocab_size, decoder.max_context)
        parts.append(decoder.forward(inputs, cache))
    return torch.cat(parts)


def plain_states(decoder: Decoder, token_ids: list[int], way: Way) -> Tensor:
    """Over pages of a way's type. With sinks a chunk is a run, so that its tokens see it in full
    precision; then it is rounded."""
    num_pages = -(-len(token_ids) // PAGE_SIZE)
    cache = KVCache.allocate(decoder.kv_layout(PAGE_SIZE, way.kv), num_pages)
    step = way.kivi.run if way.kivi else CHUNK
    pages, parts = list(range(num_pages)), []
    plain = ScheduledRow(  # every token of which is an output
        "text", 0, (), 0, pages, False, GREEDY, 0, logprobs_from=0, next_id=0
    )
    for start in range(0, len(token_ids), step):
        chunk = token_ids[start : start + step]
        row = replace(plain, token_ids=chunk, start=start)
        inputs = build_inputs([row], cache, decoder.config.vocab_size, decoder.max_context)
        parts.append(decoder.forward(inputs, cache))
        if way.kivi and len(chunk) == step:
            round_pages(cache, way.kivi, slice(start // PAGE_SIZE, (start + step) // PAGE_SIZE))
    return torch.cat(parts)


def round_pages(cache: KVCache, form: KiviForm, run: slice) -> None:
    """Leave in full pages of a cache, but for the sinks among them, what their codes mean."""
    pages = slice(max(run.start, form.sink_pages), run.stop)
    for k, v in zip(cache.k_pages, cache.v_pages, strict=True):
        k_codes, v_codes = quantize_pages(k[pages], v[pages], form.bits)
        k[pages] = dequantize_keys(k_codes, form.bits)
        v[pages] = dequantize_values(v_codes, form.bits)


def kv_memory(decoder: Decoder, way: Way) -> float:
    """Of a full page, by what it takes in float16."""
    bits = way.kivi.bits if way.kivi else None
    layout = decoder.kv_layout(PAGE_SIZE, way.kv, bits)
    return layout.page_bytes / decoder.kv_layout(PAGE_SIZE, torch.float16).page_bytes


@dataclass(slots=True)
class Reading:
    """What a model makes of a text: of its distributions, beside the reference's."""

    losses: Tensor  # [tokens - 1], nats
    divergence: float  # mean KL(reference, this), nats
    agreement: float  # of the likeliest tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.losses.mean().item())


def compare(
    decoder: Decoder, hidden: Tensor, base: Decoder, base_hidden: Tensor, token_ids: list[int]
) -> Reading:
    """Both models' distributions of each next token, a tile of tokens at a time."""
    targets = torch.tensor(token_ids[1:])
    losses, divergence, same = [], 0.0, 0
    for low in range(0, len(targets), TILE):
        tile = slice(low, min(low + TILE, len(targets)))
        wanted = torch.log_softmax(base.logits(base_hidden[tile]), -1)
        found = torch.log_softmax(decoder.logits(hidden[tile]), -1)
        losses.append(-found.gather(1, targets[tile, None])[:, 0])
        divergence += float((wanted.exp() * (wanted - found)).double().sum())
        same += int((wanted.argmax(-1) == found.argmax(-1)).sum())
    return Reading(torch.cat(losses), divergence / len(targets), same / len(targets))


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="", help="a model to load; the embedded one by default")
    parser.add_argument("--text", type=Path, default=TEXT)
    options = parser.parse_args()
    if library.library() is None:
        sys.exit("the forms are those of the C kernels, which are not built: install a C compiler")
    models = Models(options.model)
    token_ids = list(Tokenizer.load(models.files.path).encode(options.text.read_text()))
    if options.quick:
        token_ids = token_ids[:QUICK_TOKENS]
    report = Report(
        "perplexity",
        {"model": options.model or "embedded", "text": options.text.name,
         "tokens": len(token_ids), "quick": options.quick},
    )  # fmt: skip
    with torch.inference_mode():
        readings = read_all(models, token_ids, report, options.quick)
    judge(report, readings)
    return report.finish()


def read_all(
    models: Models, token_ids: list[int], report: Report, quick: bool
) -> dict[str, Reading]:
    """Every way's reading; prints the table."""
    rows: list[list[str]] = []
    readings: dict[str, Reading] = {}
    base: tuple[Decoder, Tensor] | None = None
    reference = Tensor()
    for name, way in ways(quick):
        decoder = models.decoder(way)
        begin = time.perf_counter()
        hidden = hidden_states(decoder, token_ids, way)
        seconds = time.perf_counter() - begin
        base = base or (decoder, hidden)
        found = readings[name] = compare(decoder, hidden, *base, token_ids)
        if not rows:
            reference = found.losses
        change = found.losses - reference
        percent = 100 * math.expm1(change.mean().item())
        error = 100 * (change.std() / len(change) ** 0.5).item()
        cells = [f"{found.perplexity:.4f}", f"{percent:+.3f}", f"{error:.3f}"]
        cells += [f"{found.divergence:.7f}", f"{100 * found.agreement:.2f}", f"{seconds:.2f}"]
        memory = kv_memory(decoder, way)
        cells.append(f"{memory:.3f}")
        rows.append([name, *cells])
        report.results[name] = {
            "perplexity": found.perplexity, "change_percent": percent, "standard_error": error,
            "divergence": found.divergence, "agreement": found.agreement, "seconds": seconds,
            "kv_memory": memory,
        }  # fmt: skip
    header = ["form", "perplexity", "change %", "+-", "KL", "same %", "read s", "KV"]
    table(header, rows)
    return readings


def judge(report: Report, readings: dict[str, Reading]) -> None:
    """Floats are the reference to rounding, 16 bits give its answers, defaults cost little."""
    base = readings["float32"].losses.mean().item()

    def change(name: str) -> float:
        return 100 * abs(math.expm1(readings[name].losses.mean().item() - base))

    exact, wide = readings["weights of the file, inputs float32"], readings["inputs int16"]
    report.at_most("float32 inputs: KL", exact.divergence, 1e-6)
    report.at_most("int16 inputs: KL", wide.divergence, 1e-5)
    report.at_least("int16 inputs: same token %", 100 * wide.agreement, 99.7)
    report.at_most("auto inputs: change %", change("inputs auto"), 0.5)
    report.at_most("float16 KV: KL", readings["KV float16"].divergence, 1e-5)
    report.at_least("float16 KV: same token %", 100 * readings["KV float16"].agreement, 99.7)
    report.at_most("int8 KV: change %", change("KV int8"), 0.5)
    report.at_most("4-bit KV: change %", change("KV 4 bits, 32 recent"), 1.0)
    sinks = change("KV 2 bits, 128 recent, 32 first")
    report.at_most("2-bit KV, first page kept: change %", sinks, 15.0)
    report.at_most("auto, bfloat16 KV: change %", change("inputs auto, KV bfloat16"), 0.5)


if __name__ == "__main__":
    raise SystemExit(main())
