"""LLM judge by branch, solve and merge (Saha et al. 2023): a fork for each quality, then a verdict.

The text is computed once for all qualities.

radixgen run lang.programs.judge
"""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from radixgen.lang import ProgramState, assistant, function, gen, system, user
from radixgen.lang.transcript import show

QUALITIES = ("clarity", "correctness", "style", "structure")
ESSAY = (
    "Cats sleep up to sixteen hours a day. They do so because hunting costs energy, and because "
    "a small hunter must save what it has. A cat that sleeps is not lazy: it waits."
)


class Judgement(BaseModel):
    """Of one quality."""

    reason: str = Field(max_length=120)
    score: int = Field(ge=1, le=10)


@function
def judge(
    s: ProgramState,
    text: str,
    qualities: Sequence[str] = QUALITIES,
    judgement_tokens: int = 96,
    verdict_tokens: int = 48,
) -> dict[str, int]:
    """Scores of a text from 1 to 10 by quality; `s["verdict"]` sums them up in a sentence."""
    s += system("You are a strict but fair judge of short texts.")
    s += user("Read this text:\n" + text)
    s += assistant("I have read it.")
    branches = s.fork(len(qualities))
    branches += [user(f"Judge its {quality}, in JSON.") for quality in qualities]
    branches += assistant(gen("judgement", max_tokens=judgement_tokens, schema=Judgement))
    branches.join()
    found: list[Judgement] = s.get("judgement", list)
    listed = "\n".join(
        f"{quality}: {one.score}/10. {one.reason}"
        for quality, one in zip(qualities, found, strict=True)
    )
    s += user(f"These are the judgements:\n{listed}\nSum them up in one sentence.")
    s += assistant(gen("verdict", max_tokens=verdict_tokens, stop="\n"))
    s.sync()
    return {quality: one.score for quality, one in zip(qualities, found, strict=True)}


def main() -> None:
    """A short essay."""
    state = show(judge.run(ESSAY, temperature=0, stream=True))
    print(state.ret_value)


if __name__ == "__main__":
    main()
