"""The sampling names that a user may write, and the one place that turns them into options.

SGLang's spellings are accepted beside ours: `max_new_tokens`, `return_logprob` and so on.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.lang.ir import GenOptions, Thoughts
from radixgen.options import check_request_options
from radixgen.thoughts import EFFORTS, Tags
from radixgen.types import Thinking, check_text, shown

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
# What programs write beside choices: the first two say what holds of a select anyway.
_OF_CHOICES = ("max_tokens", "temperature", "priority", "namespace", "lora", "program")
_NOTHING = GenOptions()
_PLAIN = (str, int, float, bool)
MEMO_SIZE = 1024
GREEDY = 1e-5  # temperatures up to it are 0, as SGLang has it


def run_options(given: Mapping[str, Any], program: str) -> GenOptions:
    """Options from keyword arguments of a run; None counts as not given.

    Raises InvalidRequest for a name that is neither an option nor an argument of the program.
    """
    return _options(given, f"program {program!r} has no argument and no sampling option")


def gen_options(given: Mapping[str, Any]) -> GenOptions:
    """Options from keyword arguments of `gen`. Raises InvalidRequest for what can be no value of
    theirs, whatever the run says of the others."""
    return _options(given, "gen has no argument")


_Key = tuple[tuple[str, Any, Any], ...]
_memo: dict[_Key, GenOptions] = {(): _NOTHING}  # programs say the same again and again


def _options(given: Mapping[str, Any], complaint: str) -> GenOptions:
    key = _key(given)
    if key is None:
        return _checked(GenOptions(**_named(given, complaint)))
    found = _memo.get(key)
    if found is None:
        found = _checked(GenOptions(**_named(given, complaint)))
        if len(_memo) >= MEMO_SIZE:
            _memo.clear()
        _memo[key] = found
    return found


def _key(given: Mapping[str, Any]) -> _Key | None:
    """Equal for what means the same, types included: 1 is not True. None: it may yet change."""
    key: list[tuple[str, Any, Any]] = []
    for name, value in given.items():
        if value is None:
            continue
        kind: Any = type(value)
        if kind in (list, tuple):
            value, kind = tuple(value), tuple(map(type, value))
        if not (kind in _PLAIN or (isinstance(kind, tuple) and all(k in _PLAIN for k in kind))):
            return None
        key.append((name, kind, value))
    return tuple(key)


def choice_options(given: Mapping[str, Any]) -> GenOptions:
    """Options from keyword arguments of a `gen` with choices: those of the request.

    Raises InvalidRequest for what has no meaning where nothing is drawn.
    """
    options = gen_options(given)
    for name in sorted(_NAMES.difference(_OF_CHOICES)):
        if getattr(options, name) is not None:
            raise InvalidRequest(
                f"{name}={shown(getattr(options, name))} says how to write, and choices are only "
                "compared: leave it out, or use regex=… or schema=Literal[…]",
                name,
            )
    if (options.temperature or 0.0) > GREEDY:
        raise InvalidRequest("select is greedy: temperature must be 0", "temperature")
    return replace(options, max_tokens=None, temperature=None)


def _checked(options: GenOptions) -> GenOptions:
    """The same, with what was given as any list or mapping as the tuples and the dict it means."""
    # None: a run may yet allow for min_tokens
    sampling = options.sampling(max_tokens=options.max_tokens)
    said = {name: getattr(options, name) for name in ("priority", "namespace", "lora")}
    check_request_options({name: value for name, value in said.items() if value is not None})
    if options.program is not None:
        checked_text("program", options.program)
    listed: dict[str, Any] = {
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": dict(sorted(sampling.logit_bias)),
    }
    given = {name: value for name, value in listed.items() if getattr(options, name) is not None}
    return replace(options, **given) if given else options


def thoughts_from(thinking: Any) -> Thoughts | None:
    """What `thinking=` asks for: a number of tokens, an effort, or a `Thinking`.

    A budget of 0 is none. Raises InvalidRequest for anything else.
    """
    if thinking is None:
        return None
    if isinstance(thinking, Thinking):
        if not thinking.budget:
            return None
        return Thoughts(thinking.budget, Tags(thinking.begin, thinking.end))
    if isinstance(thinking, str) and thinking in EFFORTS:
        return Thoughts(EFFORTS[thinking], effort=thinking)
    if not isinstance(thinking, int) or isinstance(thinking, bool):
        raise InvalidRequest(
            f"thinking={shown(thinking)} is no number of tokens, no Thinking(budget, begin, end), "
            f"and none of {', '.join(EFFORTS)}",
            "thinking",
        )
    return Thoughts(thinking) if Thinking(thinking).budget else None


def checked_text(name: str, text: Any) -> str:
    """The text. Raises InvalidRequest for what is none."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{name}={shown(text)} is not a text", name)
    check_text(name, text)
    return text


def checked_name(name: Any) -> str | None:
    """The name of a variable, or None. Raises InvalidRequest."""
    if name is not None and not checked_text("name", name):
        raise InvalidRequest("name is empty: name the variable, or leave the name out", "name")
    return name  # type: ignore[no-any-return]


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
