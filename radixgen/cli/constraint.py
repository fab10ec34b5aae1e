"""The options that constrain an answer, for the commands that generate one.

Knows how a constraint is named on the command line and how OpenAI-compatible servers spell it.
"""

import contextlib
import json
from typing import Annotated, Any

import typer

from radixgen.cli import common
from radixgen.cli.grammar import read_spec
from radixgen.errors import InvalidRequest
from radixgen.types import GrammarSpec

PANEL = "Constraint (at most one)"

Schema = Annotated[
    str,
    typer.Option(
        "--schema",
        metavar="FILE|JSON",
        help="The answer is JSON of this schema.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Regex = Annotated[
    str,
    typer.Option(
        "--regex",
        metavar="PATTERN",
        help="The answer matches this regular expression, whole.",
        callback=common.check_utf8,
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(
        "--choice",
        metavar="TEXT",
        help="The answer is one of these; repeat it.",
        callback=common.check_utf8,
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Grammar = Annotated[
    str,
    typer.Option(
        "--grammar",
        metavar="FILE|TEXT|NAME",
        help="The answer is a text of this grammar (Lark or GBNF).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]


def constraint(
    schema: str, regex: str, choice: list[str] | None, grammar: str
) -> GrammarSpec | None:
    """What the options ask for. Raises InvalidRequest for two, and for what cannot be read."""
    given = {"--schema": schema, "--regex": regex, "--choice": choice, "--grammar": grammar}
    named = [name for name, value in given.items() if value]
    if not named:
        return None
    if len(named) > 1:
        raise InvalidRequest(f"{' and '.join(named)} are both constraints; give one")
    if schema:
        return _of_kind("--schema", schema, ("json_schema", "structural_tag"))
    if grammar:
        return _of_kind("--grammar", grammar, ("lark", "gbnf"))
    if regex:
        return GrammarSpec("regex", regex)
    return GrammarSpec("choice", json.dumps(choice))


def _of_kind(option: str, source: str, kinds: tuple[str, ...]) -> GrammarSpec:
    with contextlib.suppress(InvalidRequest):  # "schma.json" looks like a regex, if like anything
        spec = read_spec(source, "", None)
        if spec.kind in kinds:
            return spec
    what = "a JSON schema" if "json_schema" in kinds else "a grammar, nor one that is shipped"
    raise InvalidRequest(f"{option} {source}: it is neither a file that can be read nor {what}")


def as_field(spec: GrammarSpec) -> dict[str, Any]:
    """The field of a request to an OpenAI-compatible server (`structured_outputs`)."""
    match spec.kind:
        case "json_schema":
            inner: dict[str, Any] = {"json": json.loads(spec.source)}
        case "choice":
            inner = {"choice": json.loads(spec.source)}
        case "regex":
            inner = {"regex": spec.source}
        case "structural_tag":
            inner = {"structural_tag": spec.source}
        case _:
            inner = {"grammar": spec.source}
    return {"structured_outputs": inner}
