"""Typed extraction: a text becomes a value of a class, whatever the model would rather have said.

radixgen run lang.programs.extract
"""

from typing import Literal, TypeVar

from pydantic import BaseModel, Field

from radixgen.lang import ProgramState, assistant, function, gen, system, user
from radixgen.lang.transcript import show


class Item(BaseModel):
    """One line of an order."""

    name: str = Field(max_length=40)
    quantity: int = Field(ge=1, le=999)


class Order(BaseModel):
    """What a customer's mail asks for."""

    customer: str = Field(max_length=40)
    urgency: Literal["low", "normal", "high"]
    items: list[Item] = Field(min_length=1, max_length=5)


Value = TypeVar("Value")

MAIL = (
    "Hello, this is Ada Park. Please send me 2 hammers and 12 brushes as soon as you can, "
    "we need them tomorrow. Thank you!"
)


@function
def extract(s: ProgramState, text: str, schema: type[Value]) -> Value:
    """The value of type `schema` (a pydantic model, dataclass, TypedDict …) that a text holds."""
    s += system("You read texts and answer with JSON only.")
    s += user("Extract what this text says:\n" + text)
    s += assistant(gen("value", max_tokens=200, schema=schema, temperature=0))
    return s.get("value", schema)


def main() -> None:
    """An order from a mail."""
    state = show(extract.run(MAIL, Order, stream=True))
    print(repr(state["value"]))


if __name__ == "__main__":
    main()
