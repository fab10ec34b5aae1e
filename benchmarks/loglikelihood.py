"""Whether log-likelihoods over HTTP are the model's: as evaluations ask, against transformers.

    python -m benchmarks.loglikelihood [--quick] [--model DIRECTORY]

The requests are those that lm-eval's `local-completions` sends: prompts of token ids, echoed with
log-probabilities, one token behind them. Answers of questions are scored by what a context gives
to each ending, and texts as a whole. The default model is the embedded one, its weights written
out in full precision, so that both sides have the same.
"""

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.harness import Report, arguments, table
from benchmarks.serve import Server
from radixgen.model.hub import resolve

GOAL = 1e-2  # natural log, of an ending as a whole

QUESTIONS = [
    ("The capital of France is", [" Paris.", " London.", " the moon.", " a kind of bread."]),
    ("Water freezes when it gets", [" cold.", " hot.", " louder.", " older than a week."]),
    ("She opened her umbrella because it began to", [" rain.", " sing.", " read.", " melt."]),
    ("Two plus two is", [" four.", " five.", " a river.", " green."]),
    ("A dog is an", [" animal.", " airport.", " equation.", " island in the north."]),
    ("To bake a cake you need flour, eggs and", [" sugar.", " sand.", " gravel.", " petrol."]),
    ("The opposite of hot is", [" cold.", " warm.", " quick.", " a summer's day."]),
    ("He could not find his glasses, so he", [" searched.", " could see.", " flew.", " ate."]),
]
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "def add(a, b):\n    return a + b\n",
    "In 1969 two people walked on the moon for the first time; 600 million watched.",
    "Naïve façade, 東京, and a \N{SNOWMAN}: not every text is plain.",
]


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-likelihood of an ending, and whether it is what greedy decoding would give."""

    total: float
    is_greedy: bool


def pairs(tokenizer: Any, quick: bool) -> list[tuple[list[int], list[int]]]:
    """Contexts and endings as token ids; a text as a whole follows its first token."""
    found = [
        (tokenizer.encode(context), tokenizer.encode(context + ending))
        for context, endings in (QUESTIONS[:3] if quick else QUESTIONS)
        for ending in endings
    ]
    split = [(whole[: len(context)], whole[len(context) :]) for context, whole in found]
    texts = [tokenizer.encode(text) for text in (TEXTS[:2] if quick else TEXTS)]
    return split + [(ids[:1], ids[1:]) for ids in texts]


async def over_http(server: Server, items: list[tuple[list[int], list[int]]]) -> list[Scored]:
    """All at once, so that they are batched with one another and share what they share."""
    async with httpx2.AsyncClient(timeout=600) as http:

        async def one(context: list[int], ending: list[int]) -> Scored:
            body = {"model": server.model, "prompt": [context + ending], "max_tokens": 1,
                    "temperature": 0, "echo": True, "logprobs": 1, "seed": 1234}  # fmt: skip
            url = f"http://127.0.0.1:{server.port}/v1/completions"
            answer = (await http.post(url, json=body)).raise_for_status().json()
            table = answer["choices"][0]["logprobs"]
            logprobs = table["token_logprobs"][len(context) : -1]
            tops = table["top_logprobs"][len(context) : -1]
            greedy = all(
                value == max(top.values()) for value, top in zip(logprobs, tops, strict=True)
            )
            return Scored(sum(logprobs), greedy)

        return list(await asyncio.gather(*(one(*item) for item in items)))


def reference(model: Any, items: list[tuple[list[int], list[int]]]) -> list[Scored]:
    """One at a time through transformers."""
    import torch

    scored = []
    with torch.no_grad():
        for context, ending in items:
            logits = model(torch.tensor([context + ending])).logits[0].float()
            rows = logits[len(context) - 1 : -1].log_softmax(-1)
            ids = torch.tensor(ending)
            total = rows.gather(1, ids[:, None]).sum().item()
            scored.append(Scored(total, bool((rows.argmax(-1) == ids).all())))
    return scored


def load(path: Path, folder: Path) -> tuple[Any, Any, Path]:
    """transformers' model and tokenizer, and a directory that has the same weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    loader: Any = AutoModelForCausalLM
    if path.is_dir():
        model = loader.from_pretrained(path, dtype=torch.float32).eval()
        return model, AutoTokenizer.from_pretrained(path), path
    source: Any = {"gguf_file": path.name}
    config = AutoConfig.from_pretrained(path.parent, **source)
    model = loader.from_config(config, dtype=torch.float32).eval()
    read: Any = load_gguf_checkpoint
    tensors = read(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, **source)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, folder


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="", help="default: the embedded one")
    chosen = parser.parse_args()
    report = Report("loglikelihood", {"model": chosen.model or "embedded", "quick": chosen.quick})
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, path = load(resolve(chosen.model).path, Path(folder))
        items = pairs(tokenizer, chosen.quick)
        expected = reference(model, items)
        server = Server.start(str(path))
        try:
            cold, warm = (asyncio.run(over_http(server, items)) for _ in range(2))
        finally:
            server.stop()
    differences = [abs(a.total - b.total) for a, b in zip(cold, expected, strict=True)]
    again = [abs(a.total - b.total) for a, b in zip(cold, warm, strict=True)]
    agreed = sum(a.is_greedy == b.is_greedy for a, b in zip(cold, expected, strict=True))
    rows = [
        ["endings", str(len(items))],
        ["largest difference to transformers", f"{max(differences):.2e}"],
        ["largest difference of a second time", f"{max(again):.2e}"],
        ["greedy or not: agreed", f"{agreed} of {len(items)}"],
    ]
    table(["log-likelihoods", ""], rows)
    report.results["differences"] = sorted(differences)
    report.at_most("difference to transformers", max(differences), GOAL)
    report.at_most("difference of a second time", max(again), GOAL)
    report.equal("agreement on what is greedy", agreed, len(items))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
