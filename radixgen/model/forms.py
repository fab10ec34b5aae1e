"""In which form numbers meet in the C kernels: the inputs of products with packed weights, and what
KV pages hold. Knows the places of a decoder and settings, no weights.

8-bit inputs are as good as exact to a text's probability but not to the choice between two near
tokens. 16 bits give the float model's answers and cost a second product. bfloat16 is nearly as
exact, and where a matrix unit (AMX) multiplies it the fastest for prompts and many rows; one row
alone takes a tenth longer than with 8 bits. So `auto` is bfloat16 where there is such a unit, and
elsewhere 8 bits with 16 where they cost little of a step. benchmarks/perplexity.py measures what
each place loses and takes.
"""

from collections.abc import Mapping
from typing import Literal

from radixgen.config import ActivationForm
from radixgen.errors import ConfigError
from radixgen.kernels.block_types import Activations

Place = Literal["qkv", "output", "gate_up", "down", "head"]
PLACES: tuple[Place, ...] = ("qkv", "output", "gate_up", "down", "head")
Forms = Mapping[Place, Activations]

# auto's where no matrix unit is.
BY_VECTORS: dict[Place, Activations] = {
    "qkv": "int16",
    "output": "int8",
    "gate_up": "int8",
    "down": "int8",
    "head": "int16",
}


def choose_forms(setting: ActivationForm, by_tiles: bool) -> Forms:
    """The form of each place's input. `by_tiles`: there is a matrix unit (AMX) for bfloat16.

    Raises ConfigError for a form that needs one where there is none.
    """
    if setting == "bfloat16" and not by_tiles:
        raise ConfigError(
            "activations='bfloat16' needs a CPU with a matrix unit (AMX), and C kernels: leave it "
            "out, or take 'int16' (as exact) or 'int8'"
        )
    if setting == "auto":
        return dict.fromkeys(PLACES, "bfloat16") if by_tiles else BY_VECTORS
    return dict.fromkeys(PLACES, setting)


def describe(forms: Forms) -> str:
    """`int16: qkv, head; int8: output, gate_up, down`, in the order of the first place of each."""
    found: dict[str, list[str]] = {}
    for place in PLACES:
        found.setdefault(forms[place], []).append(place)
    return "; ".join(f"{form}: {', '.join(places)}" for form, places in found.items())
