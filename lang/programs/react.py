"""ReAct (Yao et al. 2022): the model thinks, calls a tool, sees its result, and so on.

Each turn continues the text, so a turn costs its own tokens. While a tool runs, the cache knows for
how long it usually does and keeps the conversation.

radixgen run lang.programs.react
"""

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from radixgen.lang import (
    ProgramState,
    ToolCall,
    assistant_begin,
    assistant_end,
    call,
    describe,
    function,
    gen,
    system,
    user,
)
from radixgen.lang.transcript import show

FACTS = {
    "eiffel tower": "The Eiffel Tower in Paris is 330 metres high. It was finished in 1889.",
    "big ben": "The tower of Big Ben in London is 96 metres high. It was finished in 1859.",
    "paris": "Paris is the capital of France and has 2.1 million inhabitants.",
}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def look_up(topic: str) -> str:
    """What is known of a topic."""
    return FACTS.get(topic.lower().strip(), f"Nothing is known of {topic!r}.")


def calculate(expression: str) -> float:
    """The value of an expression of numbers, + - * / and brackets."""
    return _value(ast.parse(expression, mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("only numbers, + - * / and brackets")


def finish(answer: str) -> str:
    """Give the answer; this ends the work."""
    return answer


TOOLS: tuple[Callable[..., Any], ...] = (look_up, calculate, finish)
INSTRUCTIONS = "Answer the question. In each step think, then call one of these tools:\n"


@function
def react(
    s: ProgramState,
    question: str,
    tools: Sequence[Callable[..., Any]] = TOOLS,
    max_turns: int = 6,
    thought_tokens: int = 40,
    call_tokens: int = 80,
) -> str | None:
    """The answer that the model gives with `finish`; None when it has not after `max_turns`."""
    s += system(INSTRUCTIONS + describe(tools))
    s += user(question)
    s += assistant_begin()
    answer = None
    for turn in range(max_turns):
        s += "Thought: " + gen(f"thought_{turn}", max_tokens=thought_tokens, stop="\n")
        s += "\nAction: " + call(
            tools, f"action_{turn}", before="\nResult: ", max_tokens=call_tokens
        )
        made = s.get(f"action_{turn}", ToolCall)
        if made.function == finish.__name__:
            answer = str(made.result)
            break
    s += assistant_end()
    return answer


def main() -> None:
    """Two facts and a subtraction."""
    question = "How much higher is the Eiffel Tower than the tower of Big Ben?"
    state = show(react.run(question, temperature=0, stream=True))
    print("answer:", state.ret_value)


if __name__ == "__main__":
    main()
