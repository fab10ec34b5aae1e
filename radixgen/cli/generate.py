"""`radixgen generate`: continue one prompt."""

import dataclasses
import json
from typing import Annotated

import typer

from radixgen.cli import common, constraint
from radixgen.cli.common import err, out
from radixgen.launch import Runtime
from radixgen.options import Prompt
from radixgen.types import GenerateResult, GrammarSpec, SamplingParams, Usage


def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            help="The text to continue; - reads it from stdin.", callback=common.check_utf8
        ),
    ],
    model: common.Model = "",
    max_tokens: common.MaxTokens = 128,
    temperature: common.Temperature = 0.0,
    top_p: common.TopP = 1.0,
    top_k: common.TopK = 0,
    min_p: common.MinP = 0.0,
    seed: common.Seed = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End before this text; may be repeated.",
            rich_help_panel=common.SAMPLING,
            callback=common.check_utf8,
        ),
    ] = None,
    n: Annotated[
        int,
        typer.Option("--num", help="How many continuations.", rich_help_panel=common.SAMPLING),
    ] = 1,
    schema: constraint.Schema = "",
    regex: constraint.Regex = "",
    choice: constraint.Choice = None,
    grammar: constraint.Grammar = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask as a user, through the model's chat template.")
    ] = False,
    as_json: common.AsJson = False,
    settings: common.Settings = None,
) -> None:
    """Continue a prompt, given or piped in, and print the text as it comes.

    \b
    Examples:
      radixgen generate "The capital of France is"
      radixgen generate --chat "Name three rivers." --max-tokens 80
      radixgen generate "Once upon a time" --temperature 0.8 --seed 7
      radixgen generate --chat "Is water wet?" --choice yes --choice no
      radixgen generate "Ann is 34. As JSON:" --schema person.schema.json
      cat notes.txt | radixgen generate - --stop "###"
      radixgen generate "Hello" --model ./my-model --set page_size=8 --json
    """
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        n=n,
    )
    spec = constraint.constraint(schema, regex, choice, grammar)
    text = common.read_stdin() if prompt == "-" else prompt
    with common.started(model, settings) as runtime:
        given: Prompt = text
        if chat:
            given = runtime.tokenizer.chat([{"role": "user", "content": text}])
        if as_json:
            result = runtime.generate(given, sampling, grammar=spec)
            out.print_json(json.dumps(dataclasses.asdict(result)))
        elif n > 1:
            result = runtime.generate(given, sampling, grammar=spec)
            for one in result.choices:
                out.rule(f"{one.index + 1} of {n}", align="left")
                out.print(one.text, markup=False)
        else:
            result = stream(runtime, given, sampling, spec)
    if not as_json:
        err.print(f"[dim]{describe(result.usage)}[/]")


def stream(
    runtime: Runtime, prompt: Prompt, sampling: SamplingParams, grammar: GrammarSpec | None
) -> GenerateResult:
    """Print pieces as they come; returns the whole."""
    result = None
    for piece in runtime.generate(prompt, sampling, stream=True, grammar=grammar):
        common.write(piece.text)
        result = piece.result
    common.write("\n")
    assert result is not None  # the last piece has it, or an error was raised
    return result


def describe(usage: Usage) -> str:
    """One line about what a request cost."""
    seconds, num = usage.total_seconds - usage.first_token_seconds, usage.completion_tokens
    rate = f" at {(num - 1) / seconds:.1f}/s" if num > 1 and seconds > 0 else ""
    return (
        f"{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached; "
        f"first token after {usage.first_token_seconds * 1000:.0f} ms; "
        f"{num} token{'' if num == 1 else 's'}{rate}"
    )
