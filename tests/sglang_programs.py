"""Programs as SGLang's users write them: nothing but the import is ours.

`PROGRAMS` holds each with arguments and what must be true of its state, whatever the model says.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

import radixgen as sgl

OCTET = r"(25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])"
ADDRESS = rf"({OCTET}\.){{3}}{OCTET}"
CARD = (
    r"""\{\n"""
    r"""    "name": "[A-Za-z ]{1,12}",\n"""
    r"""    "house": "(North|South|East|West)",\n"""
    r"""    "wand": \{\n"""
    r"""        "wood": "[a-z]{1,8}",\n"""
    r"""        "length": [0-9]{1,2}\.[0-9]\n"""
    r"""    \},\n"""
    r"""    "alive": "(yes|no)"\n"""
    r"""\}"""
)


class City(BaseModel):
    name: str
    population: int


@sgl.function
def multi_turn(s, question_1, question_2):  # type: ignore[no-untyped-def]
    s += sgl.system("You answer briefly.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8))


@sgl.function
def few_shot(s, examples, question):  # type: ignore[no-untyped-def]
    for example in examples:
        s += "Q: " + example["question"] + "\nA: " + example["answer"] + "\n\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop=["\n", "Q:"], max_tokens=8, temperature=0)


@sgl.function
def tool_use(s, question):  # type: ignore[no-untyped-def]
    s += "To answer this question: " + question + ". "
    s += "I need a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", max_tokens=6)
    elif s["tool"] == "search engine":
        s += "The word to search is" + sgl.gen("word", max_tokens=6)


@sgl.function
def tips(s):  # type: ignore[no-untyped-def]
    s += "Two tips for good sleep: 1. Dark rooms. 2. Quiet evenings.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now explain tip {i + 1}:\n"
        f += sgl.gen("detailed_tip", max_tokens=8, stop="\n\n")
    s += "Tip 1: " + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2: " + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=6)


@sgl.function
def address(s):  # type: ignore[no-untyped-def]
    s += "Q: What is the address of the name server?\n"
    s += "A: " + sgl.gen("address", temperature=0, regex=ADDRESS)


@sgl.function
def character(s, name):  # type: ignore[no-untyped-def]
    s += name + " is a wizard. Fill in the card of this wizard.\n"
    s += sgl.gen("card", max_tokens=160, regex=CARD)


@sgl.function
def schema(s):  # type: ignore[no-untyped-def]
    s += "A city, as JSON: "
    s += sgl.gen("city", max_tokens=60, json_schema=json.dumps(City.model_json_schema()))


@sgl.function
def blocks(s, question):  # type: ignore[no-untyped-def]
    with s.user():
        s += question
    with s.assistant():
        s += "I say " + sgl.gen("answer", max_tokens=6, stop=[".", "\n"])
    with s.var_scope("rest"):
        s += sgl.user_begin() + "Why?" + sgl.user_end()
        s += sgl.assistant(sgl.gen("why", max_tokens=6))


@sgl.function
def experts(s, question):  # type: ignore[no-untyped-def]
    s += sgl.user(question)
    forks = s.fork(3)
    forks += sgl.assistant_begin()
    forks += [f"As a {who}: " for who in ("doctor", "lawyer", "cook")]
    forks += sgl.gen("opinion", max_tokens=6)
    forks += sgl.assistant_end()
    forks.join()
    s += sgl.assistant("I asked three: " + " / ".join(s["opinion"]))
    s += sgl.user("Who is right?")
    s += sgl.assistant("Number " + sgl.select("best", choices=["0", "1", "2"]))


@sgl.function
def documents(s, question, docs):  # type: ignore[no-untyped-def]
    s += "Documents:\n"
    forks = s.fork(len(docs))
    forks += lambda i: f"[{i}] {docs[i]}\n"
    forks.join("concate_and_append")
    s += "Q: " + question + "\nA:" + sgl.gen("answer", max_tokens=6)


@sgl.function
def dtypes(s):  # type: ignore[no-untyped-def]
    s += "A name in quotes: " + sgl.gen_string("text", max_tokens=12) + "\n"
    s += "A year: " + sgl.gen_int("year", max_tokens=4) + "\n"
    s += "Pi: " + sgl.gen("pi", dtype=float, max_tokens=6, stop="\n") + "\n"
    s += "Is the sky blue? " + sgl.gen("blue", dtype=bool) + "\n"


def _propose(s, question, num):  # type: ignore[no-untyped-def]
    s += sgl.user("Make a plan for: " + question)
    forks = s.fork(num)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=6, temperature=0.7))
    return forks


def _carry_out(s, num):  # type: ignore[no-untyped-def]
    s += sgl.user("Now carry it out.")
    forks = s.fork(num)
    forks += sgl.assistant(sgl.gen("answer", max_tokens=6, temperature=0.7))
    return forks


@sgl.function
def tree(s, question, num):  # type: ignore[no-untyped-def]
    plans = _propose(s, question, num)  # type: ignore[no-untyped-call]
    groups = [_carry_out(plan, num) for plan in plans]  # type: ignore[no-untyped-call]
    for group in groups:
        group.join()
    plans.join()


@sgl.function
def react(s, question, steps):  # type: ignore[no-untyped-def]
    s += "Solve with Thought, Action and Observation.\nQuestion: " + question + "\n"
    for i, (thought, observation) in enumerate(steps, 1):
        s += f"Thought {i}:" + sgl.gen(name=f"thought_{i}", max_tokens=6, stop="Observation")
        s += thought + f"\nObservation {i}: " + observation + "\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=6)


@sgl.function
def judge(s, essay):  # type: ignore[no-untyped-def]
    s += "Evaluate this essay.\n" + essay + "\n"
    sides = ["clarity", "evidence"]
    forks = s.fork(len(sides))
    for f, side in zip(forks, sides, strict=True):
        f += f"Judge its {side}, and end with END.\nJudgement:"
        f += sgl.gen("judgement", max_tokens=6, stop="END")
    for side, f in zip(sides, forks, strict=True):
        s += f"{side}: " + f["judgement"] + "\n"
    s += "Grade: " + sgl.gen("grade", choices=["A", "B", "C"])


@sgl.function
def endings(s, start, choices):  # type: ignore[no-untyped-def]
    s += start
    s += sgl.select(
        "ending", choices=choices, choices_method=sgl.unconditional_likelihood_normalized
    )
    with s.copy() as aside:
        aside += " Say it again: " + sgl.gen("again", max_tokens=4)
        s["again"] = aside["again"]


@sgl.function
def reasoning(s, question):  # type: ignore[no-untyped-def]
    s += sgl.user(question)
    s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer", max_tokens=8), model_type="qwen3"))


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its arguments, and what holds of its state."""

    program: Any
    arguments: dict[str, Any]
    holds: Callable[[Any], bool]


def _card(s: Any) -> bool:
    card = json.loads(s["card"])
    return card["house"] in ("North", "South", "East", "West") and card["wand"]["length"] < 100


QUESTION = "Is it?"
PROGRAMS = {
    "multi_turn": Case(
        multi_turn,
        {"question_1": "One?", "question_2": "Two?"},
        lambda s: [m["role"] for m in s.messages()] == ["system", *["user", "assistant"] * 2],
    ),
    "few_shot": Case(
        few_shot,
        {"examples": [{"question": "1+1?", "answer": "2"}], "question": "1+2?"},
        lambda s: "\n" not in s["answer"] and s.text().endswith("A:" + s["answer"]),
    ),
    "tool_use": Case(
        tool_use, {"question": "2*3"}, lambda s: ("word" in s) == (s["tool"] == "search engine")
    ),
    "tips": Case(tips, {}, lambda s: s.text().count("Tip ") == 2 and "detailed_tip" not in s),
    "address": Case(address, {}, lambda s: re.fullmatch(ADDRESS, s["address"]) is not None),
    "character": Case(character, {"name": "Ann"}, _card),
    "schema": Case(
        schema, {}, lambda s: City.model_validate_json(s["city"]).population is not None
    ),
    "blocks": Case(
        blocks, {"question": QUESTION}, lambda s: s["why"] in s["rest"] and len(s.messages()) == 4
    ),
    "experts": Case(
        experts,
        {"question": QUESTION},
        lambda s: s["best"] in ("0", "1", "2") and len(s["opinion"]) == 3,
    ),
    "documents": Case(
        documents,
        {"question": QUESTION, "docs": ["red", "blue"]},
        lambda s: s.text().startswith("Documents:\n[0] red\n[1] blue\nQ: "),
    ),
    "dtypes": Case(
        dtypes,
        {},
        lambda s: [type(s[k]) for k in ("text", "year", "pi", "blue")] == [str, int, float, bool],
    ),
    "tree": Case(
        tree, {"question": QUESTION, "num": 2}, lambda s: [len(x) for x in s["answer"]] == [2, 2]
    ),
    "react": Case(
        react,
        {"question": QUESTION, "steps": [(" look", "a"), (" again", "b")]},
        lambda s: "Observation 2: b\nAnswer:" in s.text() and "thought_2" in s,
    ),
    "judge": Case(judge, {"essay": "Cats sleep."}, lambda s: s["grade"] in "ABC"),
    "endings": Case(
        endings,
        {"start": "The cat", "choices": [" sat", " ran away"]},
        lambda s: s["ending"] in (" sat", " ran away") and isinstance(s["again"], str),
    ),
    "reasoning": Case(
        reasoning, {"question": QUESTION}, lambda s: isinstance(s["answer_reasoning_content"], str)
    ),
}
