"""Tree of thought (Yao et al. 2023): propose steps, score them, go on from the best ones.

A branch is a fork: it shares the tokens of its trunk and only computes its own step.

radixgen run lang.programs.tree_of_thought
"""

from dataclasses import dataclass

from radixgen.lang import ProgramState, assistant_begin, assistant_end, function, gen, user
from radixgen.lang.transcript import show

QUESTION = "Tom has 3 boxes with 12 eggs each. He breaks 5 eggs. How many whole eggs are left?"


@dataclass(frozen=True, slots=True)
class Thought:
    """A branch of the tree: its state, its steps so far and how good they were found."""

    state: ProgramState
    steps: tuple[str, ...] = ()
    score: float = 0.0


def grow(thought: Thought, width: int, step_tokens: int) -> list[Thought]:
    """`width` next steps after a thought, each with the model's score of 1 to 9."""
    branches = thought.state.fork(width)
    branches += f"Step {len(thought.steps) + 1}: "
    for number, branch in enumerate(branches):
        branch += gen("step", max_tokens=step_tokens, stop="\n", temperature=0.8, seed=number)
    judges = [branch.fork() for branch in branches]
    for judge in judges:
        judge += "\nHow promising is this, from 1 to 9? "
        judge += gen("score", max_tokens=1, regex="[1-9]", temperature=0)
    for judge in judges:
        judge.join()
    branches += "\n"
    return [
        Thought(branch, (*thought.steps, branch["step"]), thought.score + int(branch["score"][0]))
        for branch in branches
    ]


@function
def tree_of_thought(
    s: ProgramState,
    question: str,
    depth: int = 3,
    width: int = 3,
    keep: int = 2,
    step_tokens: int = 32,
    answer_tokens: int = 32,
) -> str:
    """The answer after the best chain of `depth` steps; at each step the `keep` best go on."""
    s += user(question + " Think step by step.") + assistant_begin()
    thoughts = [Thought(s)]
    for _ in range(depth):
        grown = [new for thought in thoughts for new in grow(thought, width, step_tokens)]
        thoughts = sorted(grown, key=lambda thought: -thought.score)[:keep]
    best = thoughts[0]
    for number, step in enumerate(best.steps):
        s += f"Step {number + 1}: {step}\n"
    s += "Answer: " + gen("answer", max_tokens=answer_tokens, stop="\n", temperature=0)
    s += assistant_end()
    return s.get("answer", str)


def main() -> None:
    """A small word problem."""
    show(tree_of_thought.run(QUESTION, stream=True))


if __name__ == "__main__":
    main()
