"""The sampling names that a user may write, and the one place that turns them into options.

SGLang's spellings are accepted beside ours: `max_new_tokens`, `return_logprob` and so on.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.lang.ir import GenOptions

_NAMES = {f.name for f in fields(GenOptions)}
_SPELLINGS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_logprobs_num": "logprobs",
    "lora_path": "lora",
}
_REFUSED = {
    "stop_regex": "use regex=… or grammar=… to say what the text may be",
}
_WITHOUT_EFFECT = {"return_text_in_logprobs", "logprob_start_len"}


def run_options(given: Mapping[str, Any], program: str) -> GenOptions:
    """Options from keyword arguments of a run; None counts as not given.

    Raises InvalidRequest for a name that is neither an option nor an argument of the program.
    """
    return GenOptions(
        **_named(given, f"program {program!r} has no argument and no sampling option")
    )


def gen_options(given: Mapping[str, Any]) -> GenOptions:
    """Options from keyword arguments of `gen`."""
    return GenOptions(**_named(given, "gen has no argument"))


def _named(given: Mapping[str, Any], complaint: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name in _REFUSED:
            raise InvalidRequest(f"{name} is not supported: {_REFUSED[name]}", name)
        if name == "return_logprob":
            said.setdefault("logprobs", 0) if value else None
            continue
        known = _SPELLINGS.get(name, name)
        if known not in _NAMES:
            near = get_close_matches(name, [*_NAMES, *_SPELLINGS], 1)
            raise InvalidRequest(
                f"{complaint} {name!r}" + (f"; {near[0]!r}?" if near else ""), name
            )
        said[known] = value
    return said
