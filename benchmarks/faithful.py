"""How far from the model's own law, given the constraint, are constrained outputs?

    python -m benchmarks.faithful [--quick]

Constraints with few enough texts that every one of them, in every way to cut it into tokens, can be
scored: so the law is known. Total variation from it of as many outputs by plain masking and by
`constrained_law="faithful"`, of the first 100 outputs and of those after them; and what faithful
outputs cost: how often one was begun anew. A sample of the law itself is not at 0 either: its
distance is shown as `noise`.
"""

import json
import math
import random
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.harness import Report, arguments, table
from benchmarks.local_engine import LocalEngine
from radixgen.messages import ScoreOutput, ScoreRequest
from radixgen.types import GrammarSpec, SamplingParams

NUM_LEARNED = 100
MAX_TOKENS = 16
Law = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A question and all texts that may answer it."""

    name: str
    question: str
    texts: Sequence[str]


CASES = (
    Case(
        "cities",
        "Name a city in Europe. Answer with its name only.",
        ("Paris", "Prague", "Porto", "London", "Lisbon", "Oslo", "Rome", "Riga"),
    ),
    Case(
        "moods",
        "How do you feel about rain? Answer in two words.",
        ("I love", "I like", "I am", "It depends", "It is", "Not much", "No idea"),
    ),
    Case("legs", "How many legs has a spider? A number:", [str(n) for n in range(100)]),
)


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    num_samples = 300 if options.quick else 2000
    cases = CASES[:2] if options.quick else CASES
    report = Report("faithful", {"learned": NUM_LEARNED, "samples": num_samples})
    local = LocalEngine(max_running=64, num_pages=4096)
    rows = []
    for case in cases:
        rows += _measure(local, case, num_samples, report)
    table(["constraint", "outputs", "masked", "faithful", "noise", "restarts"], rows)
    return report.finish()


def _measure(local: LocalEngine, case: Case, num_samples: int, report: Report) -> list[list[str]]:
    prompt = local.chat(case.question)
    law = true_law(local, prompt, case.texts)
    rows, found = [], {}
    for kind, count in (("first", NUM_LEARNED), ("later", num_samples)):
        masked, _ = _sample(local, prompt, case, count, faithful=False)
        faithful, restarts = _sample(local, prompt, case, count, faithful=True)
        far = {"masked": variation(masked, law), "faithful": variation(faithful, law)}
        far["noise"] = variation(_draw(law, count), law)
        found[kind] = far | {"restarts": restarts}
        figures = [f"{far[name]:.3f}" for name in ("masked", "faithful", "noise")]
        rows.append([case.name, f"{kind} {count}", *figures, f"{restarts:.2f}"])
    later = found["later"]
    report.at_most(f"{case.name}: faithful / masked", later["faithful"] / later["masked"], 0.5)
    report.results[case.name] = found
    return rows


def _sample(
    local: LocalEngine, prompt: Sequence[int], case: Case, count: int, *, faithful: bool
) -> tuple[Counter[str], float]:
    """Texts drawn, and how often each was begun anew."""
    spec = GrammarSpec("choice", json.dumps(list(case.texts)))
    plain = SamplingParams(max_tokens=MAX_TOKENS)
    params = replace(plain, constrained_law="faithful") if faithful else plain
    asks = [(prompt, replace(params, seed=number), spec) for number in range(count)]
    run = local.run(asks)
    texts = [local.tokenizer.decode(output.token_ids) for output in run.outputs]
    errors = [output.error for output in run.outputs if output.error]
    if errors:
        raise RuntimeError(errors[0])
    return Counter(texts), run.counts["restarted_choices"] / count


def true_law(local: LocalEngine, prompt: Sequence[int], texts: Sequence[str]) -> Law:
    """The model's probability of each text and its end, over all ways to spell it, as shares."""
    pieces = _pieces(local, texts)
    spelled = [
        (text, [*ids, end])
        for text in texts
        for ids in _spellings(text.encode(), pieces)
        for end in local.tokenizer.eos_ids
    ]
    by_text: dict[str, list[float]] = defaultdict(list)
    for (text, _), log in zip(spelled, _score(local, prompt, [i for _, i in spelled]), strict=True):
        by_text[text].append(log)
    law = {text: math.fsum(map(math.exp, logs)) for text, logs in by_text.items()}
    total = math.fsum(law.values())
    return {text: p / total for text, p in law.items()}


def _pieces(local: LocalEngine, texts: Sequence[str]) -> dict[bytes, list[int]]:
    """Token ids of every piece of the texts."""
    joined = b"\n".join(text.encode() for text in texts)
    found: dict[bytes, list[int]] = defaultdict(list)
    for token_id in range(local.tokenizer.vocab_size):
        piece = local.tokenizer.token_bytes(token_id)
        if piece and piece in joined:
            found[piece].append(token_id)
    return found


def _spellings(text: bytes, pieces: Mapping[bytes, list[int]]) -> Iterator[list[int]]:
    if not text:
        yield []
    for size in range(1, len(text) + 1):
        for token_id in pieces.get(text[:size], ()):
            for rest in _spellings(text[size:], pieces):
                yield [token_id, *rest]


def _score(
    local: LocalEngine, prompt: Sequence[int], ends: Sequence[Sequence[int]]
) -> Iterator[float]:
    """Log-probability of each continuation of the prompt."""
    message = ScoreRequest("score", len(prompt), tuple(map(len, ends)))
    ids = array("i", [*prompt, *(token for end in ends for token in end)])
    events = list(local.engine.add(message, ids))
    while local.engine.has_work:
        events += local.engine.step()
    (output,) = events
    if not isinstance(output, ScoreOutput):
        raise RuntimeError(output)
    return (math.fsum(logprobs) for logprobs in output.logprobs)


def variation(counts: Counter[str], law: Law) -> float:
    """Total variation: the largest difference in the probability of any set of texts."""
    total = counts.total()
    return sum(abs(counts[text] / total - p) for text, p in law.items()) / 2


def _draw(law: Law, count: int) -> Counter[str]:
    rng = random.Random(0)
    return Counter(rng.choices(list(law), list(law.values()), k=count))


if __name__ == "__main__":
    sys.exit(main())
