"""A request of OpenAI's Decisions API: what each question asks, and the texts that answer it.

The input comes first and the question last, so that all questions share the input's prefix.
Knows no runtime.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from radixgen.serve.conversation import Turn, text_of
from radixgen.serve.errors import bad_request
from radixgen.serve.fields import Closed, RoutingFields, Salt
from radixgen.serve.responses_request import input_turns

MAX_QUESTIONS = 400
MAX_OPTIONS = 255

Instructions = str | list[dict[str, Any]]


class Predicate(Closed):
    """How likely is it that a statement about the input is true?"""

    type: Literal["predicate"]
    instructions: Instructions
    name: str | None = None


class Option(Closed):
    value: str | bool
    description: str | None = None


class ChoiceOf(Closed):
    """Which of the options fits the input?"""

    type: Literal["choice"]
    instructions: Instructions
    choices: list[Option] = Field(min_length=2, max_length=MAX_OPTIONS)
    name: str | None = None


class Level(Closed):
    label: str
    description: str | None = None


class Score(Closed):
    """Where is the input on a scale, whose levels are given in their order?"""

    type: Literal["score"]
    instructions: Instructions
    levels: list[Level] = Field(min_length=2, max_length=MAX_OPTIONS)
    name: str | None = None


Question = Annotated[Predicate | ChoiceOf | Score, Field(discriminator="type")]


class DecisionRequest(RoutingFields):
    """`POST /v1/decisions`"""

    model: str
    input: str | list[dict[str, Any]]
    questions: list[Question] = Field(min_length=1, max_length=MAX_QUESTIONS)
    prompt_cache_key: Salt | None = Field(None, description="the same as cache_salt")
    prompt_cache_options: dict[str, Any] | None = Field(
        None, description="taken and not used: every prefix is kept as long as there is room"
    )
    safety_identifier: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as the model gets it, and the answers that it can give, each by its text."""

    text: str
    answers: tuple[str, ...]


def asked(question: Predicate | ChoiceOf | Score, param: str) -> Asked:
    """Raises ApiError, naming the question, for options that are empty or given twice."""
    text = text_of(question.instructions, f"{param}.instructions")
    if not text.strip():
        raise bad_request(f"{param}.instructions is empty", f"{param}.instructions")
    match question:
        case Predicate():
            return Asked(f"{text}\n\nIs this true? Answer with Yes or No only.", ("Yes", "No"))
        case ChoiceOf():
            where, listed = f"{param}.choices", _choices(question.choices)
            how = "Answer with one of these and nothing else:"
        case Score():
            where = f"{param}.levels"
            listed = [(level.label, level.description) for level in question.levels]
            how = "Answer with one of these levels, the lowest first, and nothing else:"
    answers = tuple(answer for answer, _ in listed)
    if not all(answer.strip() for answer in answers):
        raise bad_request(f"{where} holds an empty text", where)
    if len(set(answers)) < len(answers):
        raise bad_request(f"{where} holds the same text twice", where)
    return Asked(f"{text}\n\n{how}\n{_lines(listed)}", answers)


def _choices(options: Sequence[Option]) -> list[tuple[str, str | None]]:
    """True and "true" are two choices: where both are there, texts are in quotes."""
    values = [option.value for option in options]
    words = {json.dumps(value) for value in values if isinstance(value, bool)}
    quoted = any(value in words for value in values if isinstance(value, str))
    return [(_written(option.value, quoted), option.description) for option in options]


def _written(value: str | bool, quoted: bool) -> str:
    if isinstance(value, str) and not quoted:
        return value
    return json.dumps(value, ensure_ascii=False)


def _lines(listed: Sequence[tuple[str, str | None]]) -> str:
    return "\n".join(f"- {name}: {why}" if why else f"- {name}" for name, why in listed)


def conversation(body: DecisionRequest) -> list[Turn]:
    """The turns that every question is asked about."""
    turns = input_turns(body.input)
    if not any(turn.content.strip() for turn in turns):
        raise bad_request("input is empty", "input")
    return turns


def with_question(turns: Sequence[Turn], text: str) -> list[Turn]:
    """A question at the end of the last turn, if that is the user's, else as a turn of its own."""
    if turns[-1].role == "user":
        return [*turns[:-1], Turn("user", f"{turns[-1].content}\n\n{text}")]
    return [*turns, Turn("user", text)]
