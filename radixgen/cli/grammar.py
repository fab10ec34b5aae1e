"""`radixgen grammar check`, `explain` and `mask`: what a constraint allows.

Owns reading a constraint from a file or the command line, and saying what was found. Knows the
front ends, the plain automaton and, for `mask`, a vocabulary.
"""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from radixgen.cli import common
from radixgen.cli.common import err, out
from radixgen.errors import InvalidGrammar, InvalidRequest
from radixgen.grammars.automaton import Automaton, State
from radixgen.grammars.compiler import GrammarCompiler, build
from radixgen.grammars.derivative import lowest_bit
from radixgen.grammars.expr import Node, RuleSet
from radixgen.grammars.json_check import Note
from radixgen.grammars.json_schema import describe
from radixgen.grammars.lark_grammar import shipped, shipped_names
from radixgen.grammars.matcher import GrammarMatcher
from radixgen.grammars.oracle import step
from radixgen.grammars.printing import show_bytes, show_rules
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarKind, GrammarSpec

app = typer.Typer(
    help="Try a constraint: a JSON schema, regex, grammar, choice or structural tag.",
    no_args_is_help=True,
)

MAX_FORCED = 200  # bytes of forced text that are shown
_SUFFIXES: dict[str, GrammarKind] = {
    ".json": "json_schema",
    ".lark": "lark",
    ".gbnf": "gbnf",
    ".ebnf": "gbnf",
    ".regex": "regex",
}
_JSON_KINDS = ("json_schema", "choice", "structural_tag")

Source = Annotated[
    str,
    typer.Argument(
        metavar="SCHEMA",
        help="A file, the constraint itself, or the name of a shipped grammar: "
        + ", ".join(shipped_names()),
        show_default=False,
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        "--kind",
        "-k",
        help=f"One of {', '.join(get_args(GrammarKind))}. Default: told from the source.",
        show_default=False,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the kind, such as whitespace=compact or mode=search; may be repeated.",
    ),
]


@app.command()
def check(
    schema: Source,
    text: Annotated[str | None, typer.Argument(help="The text to validate; - reads stdin.")] = None,
    kind: Kind = "",
    option: Options = None,
) -> None:
    """Check that a constraint compiles, and whether a text meets it.

    \b
    Examples:
      radixgen grammar check schema.json
      radixgen grammar check schema.json '{"name": "Ada"}'
      radixgen grammar check '\\[a-z]+@\\[a-z]+' ada@example
      radixgen grammar check sql_subset "select a from t"
      cat answer.json | radixgen grammar check schema.json -

    The exit status is 0 if the text is allowed, 1 if it is not, 2 if the constraint is refused.
    """
    spec = read_spec(schema, kind, option)
    compiler = GrammarCompiler(_bytes_vocabulary())
    started = time.perf_counter()
    compiler.compile(spec)  # as a server does: refuses what no text could be followed under
    took = (time.perf_counter() - started) * 1000
    automaton = Automaton()
    start = _start(automaton, build(spec, RuleSet()))
    out.print(f"[green]compiles[/] as {spec.kind} in {took:.1f} ms")
    if text is None:
        return
    data = sys.stdin.buffer.read().removesuffix(b"\n") if text == "-" else _bytes(text)
    if not _judge(automaton, start, data):
        raise typer.Exit(common.FAILURE)


def _bytes(text: str) -> bytes:
    """The bytes of an argument as they were given, UTF-8 or not."""
    return text.encode(errors="surrogateescape")


def _start(automaton: Automaton, node: Node) -> State:
    start = automaton.start(node)
    if start is None:
        raise InvalidGrammar("the constraint cannot be satisfied: no text at all meets it")
    return start


def _judge(automaton: Automaton, start: State, data: bytes) -> bool:
    """Says whether the text is allowed, or where it departs and what could come there."""
    state = start
    for index in range(len(data)):
        following = step(automaton, state, data, index)
        if following is None:
            _say_departure(automaton, state, data, index)
            return False
        state = following
    if automaton.is_accepting(state):
        out.print("[green]allowed[/]: the text is complete")
        return True
    out.print("[yellow]incomplete[/]: the text is a beginning; it could go on with")
    out.print("  " + escape(show_bytes(automaton.next_bytes(state))))
    return False


def _say_departure(automaton: Automaton, state: State, data: bytes, index: int) -> None:
    before = data[:index].decode("utf-8", "replace")
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    found = data[index : index + 20].decode("utf-8", "replace")
    out.print(f"[red]not allowed[/] from line {line}, column {column} (byte {index}) on:")
    out.print(f"  after   {escape(json.dumps(before[-40:], ensure_ascii=False))}")
    out.print(f"  found   {escape(json.dumps(found, ensure_ascii=False))}")
    allowed, ends = automaton.next_bytes(state), automaton.is_accepting(state)
    if not allowed:
        out.print("  allowed only the end: the text is complete before it")
        return
    out.print(f"  allowed {escape(show_bytes(allowed))}{' or the end' if ends else ''}")


@app.command()
def explain(
    schema: Source,
    kind: Kind = "",
    option: Options = None,
    rules: Annotated[int, typer.Option(min=1, help="Rules to show, at most.")] = 12,
) -> None:
    """Show what a constraint compiles to, and what of it is refused, ignored, left unchecked,
    narrowed or never written, as nothing satisfies it.

    \b
    Examples:
      radixgen grammar explain schema.json
      radixgen grammar explain '(\\d{3}-)?\\d{4}'
      radixgen grammar explain json --rules 30
    """
    spec = read_spec(schema, kind, option)
    node, notes, impossible = _with_notes(spec)
    out.print(f"[bold]kind[/]      {spec.kind}" + "".join(f"  {n}={v}" for n, v in spec.options))
    for title, found in notes:
        for note in found:
            what = f"{note.keyword} at {note.path or '#'}: {note.reason}"
            out.print(f"[yellow]{title:<10}[/]{escape(what)}")
    for error in impossible:
        out.print(f"[yellow]never[/]     {escape(str(error))}")
    automaton = Automaton()
    start = _start(automaton, node)
    forced, state = _forced(automaton, start)
    if forced:
        out.print(f"[bold]begins[/]    {escape(json.dumps(forced, ensure_ascii=False))}")
    ends = "the end, or " if automaton.is_accepting(state) else ""
    out.print(f"[bold]then[/]      {ends}{escape(show_bytes(automaton.next_bytes(state)))}")
    out.print("[bold]rules[/]")
    for line in show_rules(node, rules):
        out.print("  " + escape(line))


def _with_notes(
    spec: GrammarSpec,
) -> tuple[Node, list[tuple[str, list[Note]]], list[InvalidGrammar]]:
    """The grammar, what it leaves out and what it never writes. What is refused is told, then left
    unchecked."""
    if spec.kind != "json_schema":
        return build(spec, RuleSet()), [], []
    options = dict(spec.options)
    try:
        node, notes = describe(spec.source, options, RuleSet())
    except InvalidGrammar as error:
        node, notes = describe(spec.source, {**options, "strict": False}, RuleSet())
        if not notes.unchecked:
            raise
        err.print(f"[red]refused[/]: {escape(str(error))}")
        err.print("with -o strict=false it compiles, and does not enforce what follows:")
    told = [("unchecked", notes.unchecked), ("ignored", notes.ignored)]
    return node, [*told, ("narrowed", notes.narrowed)], notes.impossible


def _forced(automaton: Automaton, state: State) -> tuple[str, State]:
    """The text that every answer begins with, and the state behind it."""
    data = bytearray()
    while len(data) < MAX_FORCED and not automaton.is_accepting(state):
        allowed = automaton.next_bytes(state)
        following = automaton.step(state, lowest_bit(allowed))
        if allowed & (allowed - 1) or following is None:
            break
        data.append(lowest_bit(allowed))
        state = following
    return data.decode("utf-8", "replace"), state


@app.command()
def mask(
    schema: Source,
    prefix: Annotated[str, typer.Argument(help="What has been generated so far.")] = "",
    kind: Kind = "",
    option: Options = None,
    model: common.Model = "",
    tokenizer: Annotated[
        str,
        typer.Option(
            help="A tokenizer.json or its folder, or 'bytes' for one token a byte. "
            "Default: the model's.",
            show_default=False,
        ),
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Tokens to list, at most.")] = 40,
    as_json: common.AsJson = False,
) -> None:
    """Show which tokens are allowed after a prefix.

    \b
    Examples:
      radixgen grammar mask schema.json '{"na'
      radixgen grammar mask 'yes|no|maybe' --tokenizer bytes
      radixgen grammar mask json '[1, ' --limit 100 --json
    """
    spec = read_spec(schema, kind, option)
    vocabulary = _vocabulary(model, tokenizer)
    matcher = GrammarCompiler(vocabulary).compile(spec).matcher()
    _follow(matcher, _bytes(prefix))
    words = np.zeros((1, vocabulary.num_words), np.int32)
    started = time.perf_counter()
    matcher.fill_bitmask(words, 0)
    took = (time.perf_counter() - started) * 1e6
    if matcher.error:
        raise InvalidGrammar(matcher.error)
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
    forced, num_more = matcher.forced_bytes(), matcher.shortest_completion()
    found = {
        "allowed": len(allowed),
        "vocabulary": vocabulary.size,
        "end": any(i in vocabulary.end_ids for i in allowed),
        "forced": forced.decode("utf-8", "replace"),
        "shortest_completion": None if matcher.error else num_more,
        "error": matcher.error,
        "microseconds": round(took, 1),
        "tokens": [[i, _spelled(vocabulary, i)] for i in allowed[:limit]],
    }
    _print_json(found) if as_json else _print_mask(found)


def _follow(matcher: GrammarMatcher, prefix: bytes) -> None:
    """Raises InvalidRequest with the place where a prefix departs from the constraint."""
    for index in range(len(prefix)):
        if not matcher.accept_bytes(prefix[index : index + 1]):
            before = prefix[max(index - 40, 0) : index].decode("utf-8", "replace")
            found = prefix[index : index + 20].decode("utf-8", "replace")
            ends = ", where only the end is allowed: the text is complete"
            why = f"after {before!r} found {found!r}{ends if matcher.is_finished() else ''}"
            raise InvalidRequest(
                f"the prefix is not allowed by the constraint from byte {index} on: "
                f"{matcher.error or why}",
                "prefix",
            )


def _print_json(found: dict[str, Any]) -> None:
    out.print(json.dumps(found, ensure_ascii=False), markup=False)


def _print_mask(found: dict[str, Any]) -> None:
    ends = ", the end token among them" if found["end"] else ""
    out.print(f"[bold]{found['allowed']}[/] of {found['vocabulary']} tokens are allowed{ends}")
    num_more = found["shortest_completion"]
    more = f"the shortest text is {num_more} token{'' if num_more == 1 else 's'} more"
    if found["error"]:
        more = f"how the text ends soonest is not known: {found['error']}"
    elif not num_more:
        more = "the text may end here"
    out.print(f"in {found['microseconds']} µs; {more}", markup=False)
    if found["forced"]:
        out.print(f"forced: {escape(json.dumps(found['forced'], ensure_ascii=False))}")
    table = Table("id", "token", box=None, pad_edge=False)
    for token_id, spelled in found["tokens"]:
        table.add_row(str(token_id), escape(spelled))
    out.print(table)
    if found["allowed"] > len(found["tokens"]):
        out.print(f"… and {found['allowed'] - len(found['tokens'])} more (see --limit)")


def _spelled(vocabulary: Vocabulary, token_id: int) -> str:
    data = vocabulary.tokens[token_id]
    if data is None:
        return "<end>" if token_id in vocabulary.end_ids else "<special>"
    try:
        return json.dumps(data.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return repr(data)


def _bytes_vocabulary() -> Vocabulary:
    return Vocabulary.from_tokens([*(bytes((b,)) for b in range(256)), None], [256])


def _vocabulary(model: str, tokenizer: str) -> Vocabulary:
    if tokenizer == "bytes":
        return _bytes_vocabulary()
    if tokenizer:
        return Vocabulary.from_huggingface(tokenizer)
    from radixgen.model.hub import resolve
    from radixgen.tokenizer import Tokenizer

    loaded = Tokenizer.load(resolve(model).path)
    tokens = [loaded.token_bytes(i) for i in range(loaded.vocab_size)]
    return Vocabulary.from_tokens(tokens, loaded.eos_ids, loaded.special_ids)


# --- reading a constraint -----------------------------------------------------------------------


def read_spec(source: str, kind: str, options: list[str] | None) -> GrammarSpec:
    """The constraint that the command line names. Raises InvalidRequest for what cannot be told."""
    known: dict[str, GrammarKind] = {name: name for name in get_args(GrammarKind)}
    if kind and kind not in known:
        raise InvalidRequest(f"--kind {kind}: it is one of {', '.join(known)}", "kind")
    text, guessed = _read(source, kind)
    pairs = common.parse_settings(options or [], "--option", "mode=search")
    return GrammarSpec(known.get(kind, guessed), text, tuple(sorted(pairs.items())))


_FILE_NAME = re.compile(rf"[\w./~ -]{{1,300}}({'|'.join(map(re.escape, [*_SUFFIXES, '.txt']))})")


def _read(source: str, kind: str) -> tuple[str, GrammarKind]:
    path = Path(source)
    if os.path.isfile(source):  # Path's own would fail for what is too long to be a name
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors begin with a mark
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{source} cannot be read: {error}", "schema") from None
        guessed = _SUFFIXES.get(path.suffix) or guess_kind(text)
        if guessed == "json_schema" and (inner := guess_kind(text)) in _JSON_KINDS:
            guessed = inner
        if (kind or guessed) == "regex":
            text = text.removesuffix("\n").removesuffix("\r")  # editors end the last line
        return text, guessed
    if source in shipped_names():
        return shipped(source), "lark"
    if not kind and _FILE_NAME.fullmatch(source):
        raise InvalidRequest(
            f"there is no file {source}; if that is the constraint itself, name its --kind",
            "schema",
        )
    if not kind and os.path.isdir(source):
        raise InvalidRequest(
            f"{source} is a directory; if that is the constraint itself, name its --kind", "schema"
        )
    source = common.decoded(source.encode(errors="surrogatepass"), "the constraint")
    return source, guess_kind(source)


def guess_kind(text: str) -> GrammarKind:
    """What a constraint is, told from its first look."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "choice"
    if isinstance(value, dict):
        tag = value.get("type") == "structural_tag" or "structures" in value
        return "structural_tag" if tag else "json_schema"
    if isinstance(value, bool) or text.lstrip().startswith("{"):
        return "json_schema"
    if "::=" in text:
        return "gbnf"
    return "lark" if re.search(r"^[?!]*start\s*:", text, re.MULTILINE) else "regex"
