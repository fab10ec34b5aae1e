"""Self-consistency (Wang et al. 2022): several lines of thought, and the answer most of them give.

The lines are forks that share the question and its examples, which are computed once.

radixgen run lang.programs.self_consistency
"""

from collections import Counter

from radixgen.lang import ProgramState, function, gen
from radixgen.lang.transcript import show

EXAMPLES = """\
Q: There are 3 cars and 2 more arrive. How many cars are there?
A: There were 3 cars. 2 more arrived. 3 + 2 = 5. The answer is 5.

Q: Leah had 32 chocolates and her sister had 42. They ate 35. How many are left?
A: Together they had 32 + 42 = 74. They ate 35. 74 - 35 = 39. The answer is 39.

"""
QUESTION = "A shelf holds 8 books. There are 6 shelves and 10 books are lent. How many are there?"


@function
def self_consistency(
    s: ProgramState,
    question: str,
    examples: str = EXAMPLES,
    num_lines: int = 5,
    thought_tokens: int = 48,
) -> int:
    """The number that most of `num_lines` lines of thought end with."""
    s += examples
    s += f"Q: {question}\nA:"
    lines = s.fork(num_lines)
    for number, line in enumerate(lines):
        stop = ("The answer is", "\n")
        line += gen("thought", max_tokens=thought_tokens, stop=stop, temperature=0.7, seed=number)
        line += " The answer is " + gen("answer", max_tokens=6, regex="-?[0-9]{1,4}", temperature=0)
    lines.join()
    votes = Counter(int(answer) for answer in s["answer"])
    s["votes"] = dict(votes)
    return votes.most_common(1)[0][0]


def main() -> None:
    """A small word problem."""
    state = show(self_consistency.run(QUESTION, stream=True))
    print("votes:", state["votes"], "answer:", state.ret_value)


if __name__ == "__main__":
    main()
