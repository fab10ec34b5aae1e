"""What every client is asked for here. Knows the server's address and nothing of radixgen."""

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

URL = os.environ["RADIXGEN_URL"]
BASE = f"{URL}/v1"
KEY = "none"
MODEL = "tiny"  # random weights: what it says is nonsense, so only forms are checked
ASK = "Paris is the capital of France."
MESSAGES = [{"role": "user", "content": ASK}]
# Room enough for any answer of the forms below, and no chance.
MAX_TOKENS, TEMPERATURE = 200, 0.0


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    kind: Literal["capital", "town"]


def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: sunny"
