"""Answers from documents, with citations that can only name documents that were given.

Documents come in an order of their own, not the order of their ranks: two questions with the same
documents then share them in the cache.

radixgen run lang.programs.rag
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixgen.lang import ProgramState, assistant, function, gen, system, user
from radixgen.lang.transcript import show

LIBRARY = {
    "eiffel": "The Eiffel Tower is a tower of iron in Paris. It is 330 metres high.",
    "louvre": "The Louvre in Paris is the most visited museum of the world.",
    "thames": "The Thames flows through London and is 346 kilometres long.",
    "seine": "The Seine flows through Paris and is 777 kilometres long.",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, and the names of the documents that it rests on."""

    text: str
    citations: tuple[str, ...]


def retrieve(question: str, library: Mapping[str, str], num: int = 2) -> list[str]:
    """The names of the documents that share most words with the question, sorted by name."""
    wanted = _words(question)
    ranked = sorted(library, key=lambda name: (-len(wanted & _words(library[name])), name))
    return sorted(ranked[:num])


def _words(text: str) -> set[str]:
    return {word.strip(".,?!").lower() for word in text.split() if len(word) > 3}


def answer_schema(names: Sequence[str]) -> dict[str, Any]:
    """An answer that cites at least one of `names` and nothing else."""
    properties = {
        "answer": {"type": "string", "minLength": 1, "maxLength": 160},
        "citations": {
            "type": "array",
            "items": {"enum": list(names)},
            "minItems": 1,
            "maxItems": len(names),
        },
    }
    return {
        "type": "object",
        "properties": properties,
        "required": ["answer", "citations"],
        "additionalProperties": False,
    }


@function
def rag(
    s: ProgramState,
    question: str,
    documents: Mapping[str, str],
    max_tokens: int = 120,
) -> Answer:
    """An answer from the documents (name to text), which are shown in the order given."""
    s += system("Answer from the documents alone, as JSON, and cite the ones you use.")
    shown = "\n".join(f"[{name}] {text}" for name, text in documents.items())
    s += user(f"Documents:\n{shown}\n\nQuestion: {question}")
    s += assistant(gen("answer", max_tokens=max_tokens, schema=answer_schema(list(documents))))
    found = s.get("answer", dict)
    return Answer(found["answer"], tuple(dict.fromkeys(found["citations"])))


def main() -> None:
    """A question to a library of four documents."""
    question = "How long is the Seine in Paris?"
    names = retrieve(question, LIBRARY)
    documents = {name: LIBRARY[name] for name in names}
    state = show(rag.run(question, documents, temperature=0, stream=True))
    print(state.ret_value)


if __name__ == "__main__":
    main()
