"""Multi-turn chat: every turn continues the conversation, so only its new text is computed.

radixgen run lang.programs.chat
"""

from collections.abc import Sequence

from radixgen.lang import ProgramState, assistant, function, gen, system, user
from radixgen.lang.transcript import show

SYSTEM = "You are a helpful assistant. Answer in one short sentence."
QUESTIONS = (
    "What is the capital of France?",
    "Which river flows through it?",
    "Name one museum there.",
)


@function
def chat(
    s: ProgramState, questions: Sequence[str], instructions: str = SYSTEM, max_tokens: int = 48
) -> list[str]:
    """Ask the questions one after the other; returns the answers."""
    s += system(instructions)
    for turn, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer_{turn}", max_tokens=max_tokens))
    return [s[f"answer_{turn}"] for turn in range(len(questions))]


def main() -> None:
    """A conversation of three turns."""
    show(chat.run(QUESTIONS, temperature=0, stream=True))


if __name__ == "__main__":
    main()
