"""The words of the language: what a program adds to its state. Names and meanings are SGLang's.

@function
def answer(s, question):
    s += user(question)
    s += assistant(gen("answer", max_tokens=64, schema=Answer))
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, overload

from radixgen.errors import InvalidRequest
from radixgen.lang.choices import token_length_normalized
from radixgen.lang.ir import (
    Block,
    ChoicesMethod,
    Gen,
    Node,
    Reasoning,
    Role,
    RoleBegin,
    RoleEnd,
    Select,
    as_nodes,
)
from radixgen.lang.options import (
    checked_name,
    checked_text,
    choice_options,
    gen_options,
    thoughts_from,
)
from radixgen.lang.program import Program
from radixgen.lang.schema import constraint_of, constraint_of_dtype, reader_of
from radixgen.thoughts import THINK, Tags, parser_tags
from radixgen.types import GrammarSpec, Thinking, check_text, shown


@overload
def function(func: Callable[..., Any], *, num_api_spec_tokens: int | None = None) -> Program: ...
@overload
def function(
    func: None = None, *, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    func: Callable[..., Any] | None = None, *, num_api_spec_tokens: int | None = None
) -> Any:
    """Make a program of a function whose first parameter is `s`. Bare, or with arguments.

    `num_api_spec_tokens`, SGLang's speculative use of remote APIs, is refused: it is not exact.
    """
    if num_api_spec_tokens is not None:
        raise InvalidRequest(
            "num_api_spec_tokens is not supported: it guesses at what an API would have said",
            "num_api_spec_tokens",
        )
    if func is not None and not callable(func):
        raise InvalidRequest(f"function is given {shown(func)}, not a function of s", "func")
    return Program if func is None else Program(func)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    schema: Any = None,
    json_schema: str | dict[str, Any] | None = None,
    regex: str | None = None,
    grammar: str | GrammarSpec | None = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    dtype: type | None = None,
    thinking: int | str | Thinking | None = None,
    **options: Any,
) -> Node:
    """Let the model write; the text, or what is read from it, becomes the variable `name`.

    At most one constraint: `schema` (a pydantic model, dataclass, TypedDict, Literal, list[T], or a
    JSON schema as dict or text: the value is parsed), `json_schema` (the value stays text),
    `regex`, `grammar` (GBNF or Lark text, "arithmetic", "json", "python_literal", "sql_subset", or
    a GrammarSpec), `dtype`, or `choices` (as `select`: scored, not written, so that `max_tokens`
    does not bound them).

    `thinking`: at most so many tokens of thoughts before the answer, which the constraint and stop
    strings leave alone; or an effort (minimal, low, medium, high, xhigh), or a `Thinking` with tags
    of its own. They become `<name>_reasoning_content`, and `reasoning_content` in `get_meta_info`.
    The conversation goes on with them only where the chat template keeps them.

    `options`: sampling parameters, which win over those of the run; with `grammar_mass=True`
    `get_meta_info` tells how much of the model's own law the constraint left.

    Raises InvalidRequest.
    """
    given = {
        "schema": schema,
        "json_schema": json_schema,
        "regex": regex,
        "grammar": grammar,
        "choices": choices,
        "dtype": dtype,
    }
    checked_name(name)
    thoughts = thoughts_from(thinking)
    named = [key for key, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidRequest(f"gen takes one constraint, not {' and '.join(named)}", named[1])
    if choices is not None:
        if thoughts is not None and max_tokens is not None:
            raise InvalidRequest(
                f"max_tokens={shown(max_tokens)} bounds nothing here: choices are scored, not "
                "written, and thinking has a budget of its own; leave max_tokens out",
                "max_tokens",
            )
        own = choice_options({"max_tokens": max_tokens, **options})
        chosen = select(name, choices, 0.0, choices_method)
        return replace(chosen, options=own, thoughts=thoughts)
    if choices_method is not None:
        raise InvalidRequest("choices_method decides between choices: give them", "choices_method")
    said = gen_options({"max_tokens": max_tokens, **options})
    if dtype is not None:
        spec, parse, stops = constraint_of_dtype(dtype)
        return Gen(name, said, spec, reader_of(name, parse), stops, thoughts)
    if schema is not None:
        spec, parse = constraint_of(schema)
        return Gen(name, said, spec, reader_of(name, parse), thoughts=thoughts)
    return Gen(name, said, _plain_constraint(json_schema, regex, grammar), thoughts=thoughts)


def _plain_constraint(
    json_schema: str | dict[str, Any] | None, regex: str | None, grammar: str | GrammarSpec | None
) -> GrammarSpec | None:
    if json_schema is not None:
        return constraint_of(json_schema, "json_schema")[0]
    if regex is not None:
        return GrammarSpec("regex", checked_text("regex", regex))
    if grammar is not None and not isinstance(grammar, GrammarSpec):
        checked_text("grammar", grammar)
        return GrammarSpec("gbnf" if _looks_like_gbnf(grammar) else "lark", grammar)
    return grammar


def _looks_like_gbnf(text: str) -> bool:
    """GBNF defines rules with `::=`, Lark with `:`."""
    return re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE) is not None


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Node:
    """`gen` of a whole number; the value is an int."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Node:
    """`gen` of a quoted string; the value is what is between the quotes."""
    return gen(name, max_tokens, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | None = None,
    *,
    lora: str | None = None,
) -> Select:
    """The option that the model finds most likely here, by one of the choices methods:
    `token_length_normalized` when none is given.

    `lora`: the adapter of the runtime to score with. Raises InvalidRequest.
    """
    checked_name(name)
    own = choice_options({"temperature": temperature, "lora": lora})
    if choices_method is not None and not callable(choices_method):
        raise InvalidRequest(
            f"choices_method={shown(choices_method)} is no function of Scores: give "
            "token_length_normalized, greedy_token_selection or unconditional_likelihood_normalized"
            " themselves",
            "choices_method",
        )
    return Select(name, _options_of(choices), choices_method or token_length_normalized, own)


def _options_of(choices: Any) -> tuple[str, ...]:
    if choices is None:
        raise InvalidRequest("select needs at least one choice", "choices")
    if isinstance(choices, str | bytes | Mapping) or not isinstance(choices, Iterable):
        raise InvalidRequest(f"choices={shown(choices)} is not a list of strings", "choices")
    options = tuple(choices)
    if not options:
        raise InvalidRequest("select needs at least one choice", "choices")
    for option in options:
        if not isinstance(option, str):
            message = f"choices is a list of strings; it holds {shown(option)}"
            raise InvalidRequest(message, "choices")
        check_text("choices", option)
        if not option:
            message = "a choice is empty: it has no tokens that could be scored"
            raise InvalidRequest(message, "choices")
    return options


def _message(role: Role, content: Any) -> Node:
    return Block((RoleBegin(role), *as_nodes("" if content is None else content), RoleEnd(role)))


def system(content: Any = None) -> Node:
    """A system message."""
    return _message("system", content)


def user(content: Any = None) -> Node:
    """A user message."""
    return _message("user", content)


def assistant(content: Any = None) -> Node:
    """An assistant message; `assistant(gen("x"))` lets the model answer."""
    return _message("assistant", content)


def system_begin() -> Node:
    return RoleBegin("system")


def system_end() -> Node:
    return RoleEnd("system")


def user_begin() -> Node:
    return RoleBegin("user")


def user_end() -> Node:
    return RoleEnd("user")


def assistant_begin() -> Node:
    return RoleBegin("assistant")


def assistant_end() -> Node:
    return RoleEnd("assistant")


def separate_reasoning(
    content: Node | None = None, model_type: str | None = None, *, delimiters: Sequence[str] = ()
) -> Node:
    """A `gen` whose thought goes to `<name>_reasoning_content` and whose answer to `<name>`.

    `delimiters`: the texts around the thought; those of `model_type`, or `<think>` and `</think>`,
    when not given. `model_type`: a reasoning parser by SGLang's name for it. It reads what a model
    wrote by itself; `gen(thinking=…)` has it think, within a budget, and puts it to the same names.
    """
    if not isinstance(content, Gen):
        raise InvalidRequest("separate_reasoning takes one gen, as in separate_reasoning(gen('x'))")
    tags = THINK if model_type is None else parser_tags(model_type, "model_type")
    if isinstance(delimiters, str) or (delimiters and len(delimiters) != 2):
        raise InvalidRequest("delimiters are two texts: before and after the thought", "delimiters")
    tags = Tags(*delimiters) if delimiters else tags
    return content if content.thoughts else Reasoning(content, tags.begin, tags.end)


def image(content: Any) -> NoReturn:
    """Refused: no model here can see."""
    raise InvalidRequest("image: the models that radixgen runs read text only", "image")


def video(path: str, num_frames: int = 0) -> NoReturn:
    """Refused: no model here can see."""
    raise InvalidRequest("video: the models that radixgen runs read text only", "video")
