"""Few-shot classification: the examples are computed once for all texts, labels are compared.

`run_batch` finds the constant beginning by tracing and puts it into the cache before the texts go.

radixgen run lang.programs.few_shot
"""

from radixgen.lang import ProgramState, function, select
from radixgen.lang.transcript import show

LABELS = ("positive", "negative", "neutral")
EXAMPLES = (
    ("The battery lasts two days and it charges in minutes.", "positive"),
    ("It broke after a week and nobody answers my mails.", "negative"),
    ("The parcel arrived on Tuesday in a brown box.", "neutral"),
    ("Best headphones I have ever owned.", "positive"),
    ("The manual is wrong and the screws do not fit.", "negative"),
    ("The cable is one metre long and black.", "neutral"),
)
TEXTS = (
    "I would buy it again without thinking twice.",
    "The zip was torn when I opened the bag.",
    "The box holds twelve pens.",
)


@function
def classify(s: ProgramState, text: str) -> str:
    """The label of a text: the one of `LABELS` that the model finds likeliest."""
    s += "Say whether a product review is positive, negative or neutral.\n\n"
    for example, label in EXAMPLES:
        s += f"Review: {example}\nSentiment: {label}\n\n"
    s += "Review: "
    s += text
    s += "\nSentiment: " + select("label", LABELS)
    return s.get("label", str)


def main() -> None:
    """The first text as it runs, then all of them as a batch."""
    show(classify.run(TEXTS[0], stream=True))
    for state in classify.run_batch([(text,) for text in TEXTS[1:]]):
        show(state)


if __name__ == "__main__":
    main()
