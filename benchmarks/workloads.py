"""Generated work for programs: seeded, from templates and word lists, of known shapes.

    W1  few-shot questions by subject, one letter chosen     W6  chats of short and of long answers
    W2  endings scored after one long prefix                 W7  typed extraction by many schemas
    W3  tree of thought                                      W8  answers from documents, Zipf-chosen
    W4  agents with tools                                    W9  judge; outline and points
    W5  agents whose memory changes in the middle            W10 best of n; lines of thought

Sizes are in words; `Scale` multiplies counts. A workload runs programs against a backend and
returns how many; everything else is counted by whoever runs it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import create_model

from radixgen.lang import function, gen, select
from radixgen.lang.programs.chat import chat
from radixgen.lang.programs.extract import extract
from radixgen.lang.programs.judge import judge
from radixgen.lang.programs.rag import rag
from radixgen.lang.programs.react import react
from radixgen.lang.programs.self_consistency import self_consistency
from radixgen.lang.programs.skeleton_of_thought import skeleton_of_thought
from radixgen.lang.programs.tree_of_thought import tree_of_thought

_TEXT = (
    "the a of to and in is it for on with as at by an be this that from or have not are but "
    "had his they she which you one we all were her would there their will when who him been "
    "has more if no out so what up said about than into them can only other time new some "
    "could these two may then do first any my now such like our over man me even most made "
    "after also did many off before must well back through years much where your way down "
    "should because long each just state people those too good very make world still see own "
    "work men here get both between life being under never day same another know while last "
    "might us great old year come since against go came right used take three river mountain "
    "garden window letter summer winter bridge market teacher "
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of each workload there is; `out` bounds every answer, in tokens."""

    count: int
    out: int


Run = Callable[[Any, random.Random, Scale], int]


def words(rng: random.Random, low: int, high: int | None = None) -> str:
    """A text of `low` to `high` words."""
    number = low if high is None else rng.randint(low, high)
    return " ".join(rng.choice(WORDS) for _ in range(number))


def _batch(program: Any, items: Sequence[dict[str, Any]], backend: Any, **options: Any) -> int:
    """All items at once; raises the first error."""
    options = {"temperature": 0.8, "seed": 1, "num_threads": 32} | options
    for state in program.run_batch(items, backend=backend, **options):
        if state.error() is not None:
            raise state.error()
    return len(items)


@function
def answer_question(s: Any, examples: str, question: str) -> None:
    """One letter, after the examples of its subject."""
    s += examples
    s += question
    s += "\nAnswer: " + select("answer", ["A", "B", "C", "D"])


def few_shot(backend: Any, rng: random.Random, scale: Scale) -> int:
    items = []
    for _ in range(scale.count):
        examples = "".join(
            f"{words(rng, 14, 30)}\nAnswer: {rng.choice('ABCD')}\n\n" for _ in "12345"
        )
        items += [
            {"examples": examples, "question": words(rng, 10, 20)} for _ in range(2 * scale.count)
        ]
    return _batch(answer_question, items, backend)


@function
def choose_ending(s: Any, examples: str, start: str, endings: Sequence[str]) -> None:
    """The likeliest of four endings, after many examples."""
    s += examples
    s += start + " " + select("ending", endings)


def endings(backend: Any, rng: random.Random, scale: Scale) -> int:
    examples = "".join(f"{words(rng, 10, 16)}.\n" for _ in range(20))
    items = [
        {
            "examples": examples,
            "start": words(rng, 8, 14),
            "endings": [words(rng, 3, 6) for _ in range(4)],
        }
        for _ in range(8 * scale.count)
    ]
    return _batch(choose_ending.bind(examples=examples), items, backend)


def thoughts(backend: Any, rng: random.Random, scale: Scale) -> int:
    items = [
        {
            "question": words(rng, 40, 60),
            "width": rng.randint(3, 5),
            "step_tokens": scale.out,
            "answer_tokens": scale.out,
        }
        for _ in range(scale.count)
    ]
    return _batch(tree_of_thought, items, backend)


def _tools(rng: random.Random) -> tuple[Callable[..., Any], ...]:
    seed = rng.random()

    def look_up(topic: Literal["rivers", "bridges", "markets"]) -> str:
        """What is known of a topic."""
        return words(random.Random(f"{seed} {topic}"), 10, 40)

    def count(item: Literal["letters", "words"]) -> int:
        """How many there are."""
        return len(item)

    return look_up, count


def agents(backend: Any, rng: random.Random, scale: Scale) -> int:
    tools = _tools(rng)
    items = [
        {
            "question": words(rng, 10, 20),
            "tools": tools,
            "max_turns": rng.randint(5, 7),
            "thought_tokens": scale.out,
        }
        for _ in range(scale.count)
    ]
    return _batch(react, items, backend)


@function
def act(s: Any, name: str, memory: str, place: str) -> None:
    """A generated agent's next action: its memory stands in the middle of a fixed template."""
    s += "You are a person in a small town and decide what to do next. "
    s += f"Your name is {name}. You remember: {memory}. You are at {place}. "
    s += "Say in a few words what you do now: " + gen("action", max_tokens=8)


def townspeople(backend: Any, rng: random.Random, scale: Scale) -> int:
    names = [words(rng, 2) for _ in range(5 * scale.count)]
    items = [
        {"name": name, "memory": words(rng, 25, 50), "place": words(rng, 2)}
        for _ in range(2)
        for name in names
    ]
    return _batch(act, items, backend)


def chats(backend: Any, rng: random.Random, scale: Scale) -> int:
    done = 0
    for max_tokens in (scale.out // 2, 3 * scale.out):
        items = [
            {
                "questions": [words(rng, 8, 20) for _ in range(4)],
                "instructions": f"You are of use. {words(rng, 30)}",
                "max_tokens": max_tokens,
            }
            for _ in range(scale.count)
        ]
        done += _batch(chat, items, backend)
    return done


def extractions(backend: Any, rng: random.Random, scale: Scale) -> int:
    """Texts that state the values of their schema's members; several texts a schema."""
    items = []
    for number in range(2 * scale.count):
        names = rng.sample(WORDS[40:], 3)
        fields: dict[str, Any] = dict.fromkeys(names[:2], (int, ...))
        fields[names[2]] = (Literal["low", "high"], ...)
        schema = create_model(f"Record{number}", **fields)
        for _ in range(2):
            said = ", ".join(f"{name} is {rng.randint(1, 99)}" for name in names[:2])
            text = f"{words(rng, 15, 30)}; {said}, {names[2]} is {rng.choice(['low', 'high'])}."
            items.append({"text": text, "schema": schema})
    return _batch(extract, items, backend)


def documents(backend: Any, rng: random.Random, scale: Scale) -> int:
    """Four documents a question, by Zipf's law, in the order of their names."""
    library = {f"d{i}": words(rng, 25, 50) for i in range(20 * scale.count)}
    weights = [1 / (rank + 1) for rank in range(len(library))]
    items = []
    for _ in range(4 * scale.count):
        drawn = rng.choices(list(library), weights, k=12)
        names = sorted(dict.fromkeys(drawn), key=lambda name: int(name[1:]))[:4]
        given = {name: library[name] for name in names}
        items.append({"question": words(rng, 6, 12), "documents": given})
    return _batch(rag, items, backend, num_threads=4)


def judges(backend: Any, rng: random.Random, scale: Scale) -> int:
    done = _batch(
        judge,
        [{"text": words(rng, 60, 120), "verdict_tokens": scale.out} for _ in range(scale.count)],
        backend,
    )
    items = [
        {"question": words(rng, 10, 20), "point_tokens": scale.out} for _ in range(scale.count)
    ]
    return done + _batch(skeleton_of_thought, items, backend)


@function
def best_of(s: Any, task: str, num: int, max_tokens: int) -> str:
    """The longest of `num` samples."""
    s += task + gen("samples", n=num, max_tokens=max_tokens)
    return max(s["samples"], key=len)


def samples(backend: Any, rng: random.Random, scale: Scale) -> int:
    done = _batch(
        best_of,
        [
            {"task": words(rng, 40, 80), "num": 8, "max_tokens": scale.out}
            for _ in range(scale.count)
        ],
        backend,
    )
    items = [
        {"question": words(rng, 10, 20), "thought_tokens": scale.out} for _ in range(scale.count)
    ]
    return done + _batch(self_consistency, items, backend)


WORKLOADS: dict[str, tuple[str, Run]] = {
    "W1": ("few-shot by subject", few_shot),
    "W2": ("scored endings", endings),
    "W3": ("tree of thought", thoughts),
    "W4": ("agents with tools", agents),
    "W5": ("memory in the middle", townspeople),
    "W6": ("chats", chats),
    "W7": ("typed extraction", extractions),
    "W8": ("documents", documents),
    "W9": ("judge, skeleton", judges),
    "W10": ("best of n, votes", samples),
}
