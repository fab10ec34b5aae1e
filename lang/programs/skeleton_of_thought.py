"""Skeleton of thought (Ning et al. 2023): an outline first, then all points written at once.

Every point is a fork: it shares question and outline, which are computed once.

radixgen run lang.programs.skeleton_of_thought
"""

from typing import Annotated

from pydantic import Field

from radixgen.lang import (
    ProgramState,
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    user,
)
from radixgen.lang.transcript import show

Point = Annotated[str, Field(min_length=3, max_length=60)]
Outline = Annotated[list[Point], Field(min_length=3, max_length=5)]


@function
def skeleton_of_thought(
    s: ProgramState, question: str, outline_tokens: int = 96, point_tokens: int = 64
) -> str:
    """An answer of a few points, each with a sentence or two."""
    s += user(question + "\nFirst list the points of your answer, three to five short ones.")
    s += assistant(gen("outline", max_tokens=outline_tokens, schema=Outline, temperature=0))
    points = s.get("outline", list)
    s += user("Now write about them.") + assistant_begin()
    branches = s.fork(len(points))
    branches += [f"{number}. {point}: " for number, point in enumerate(points, 1)]
    branches += gen("text", max_tokens=point_tokens, stop="\n", temperature=0)
    branches += "\n"
    branches.join("concate_and_append")
    s += assistant_end()
    return "\n".join(
        f"{number}. {point}: {branch['text'].strip()}"
        for number, (point, branch) in enumerate(zip(points, branches, strict=True), 1)
    )


def main() -> None:
    """Advice in a few points."""
    state = show(skeleton_of_thought.run("How can I sleep better?", stream=True))
    print(state.ret_value)


if __name__ == "__main__":
    main()
