"""JSON Schema to a grammar: drafts 4 to 2020-12.

Owns the options and the order of the work: read, check every schema that can be reached, then make
rules that are expanded where a text goes. See `json_algebra.py` for what a schema denotes.

What is written is JSON by value, in the spellings that printers of JSON produce:

- members in the order in which the schema first names them, undeclared ones behind them, unless
  `property_order` is "any";
- where some undeclared member has to meet a schema, all those behind the first that does;
- names of declared members, and texts listed by `enum` and `const`, without needless escapes;
- integers without a fraction or exponent; numbers under bounds as decimals or with one digit before
  the point and an exponent;
- arrays whose items have to differ, where these have too many values to list, with 256 at most.

A value in another spelling is refused though the schema allows it; nothing is accepted that the
schema does not allow.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.chain import ChainRule
from radixgen.grammars.expr import Node, RuleSet
from radixgen.grammars.json_ahead import dear
from radixgen.grammars.json_algebra import Algebra
from radixgen.grammars.json_blame import impossible, unsatisfied
from radixgen.grammars.json_check import Checker, Note, Notes
from radixgen.grammars.json_document import Document, Schema
from radixgen.grammars.json_hard import Steps, crowded, entwined, hard, looping
from radixgen.grammars.json_keywords import KINDS
from radixgen.grammars.json_layout import layout
from radixgen.grammars.json_shapes import Goal, goal
from radixgen.grammars.json_values import Values
from radixgen.grammars.productive import is_productive, rules_below

MAX_SOURCE = 32 << 20  # characters
MAX_LOOKED_AT = 200  # rules whose objects `describe` tells of
BINDING = (
    "behind an undeclared member that meets it, all undeclared ones are written so that they do: a "
    "name may come twice, of which readers keep the last"
)
OPTIONS = frozenset(
    (
        "whitespace",
        "max_whitespace",
        "item_separator",
        "key_separator",
        "property_order",
        "strict",
        "formats",
    )
)
_CHOICES = {
    "property_order": ("declared", "any"),
    "strict": (True, False),
    "formats": ("assert", "annotate"),
}


def compile_schema(source: str, options: Mapping[str, Any], rules: RuleSet) -> Node:
    """The grammar of the JSON texts that satisfy a schema.

    Options, with the default first: `whitespace` "flexible" or "compact", `max_whitespace` 64,
    `item_separator` and `key_separator` (fixed, such as ", " and ": "), `property_order` "declared"
    or "any", `strict` True or False, `formats` "assert" or "annotate".

    Raises InvalidGrammar, with the keyword and the path, for what is malformed, for a schema that
    nothing satisfies, and under `strict` for what cannot be enforced.
    """
    return _compile(source, options, rules, None)[0]


def describe(source: str, options: Mapping[str, Any], rules: RuleSet) -> tuple[Node, Notes]:
    """`compile_schema`, and what the grammar does not enforce, or never writes."""
    notes = Notes()
    node, schemas, values = _compile(source, options, rules, notes)
    notes.impossible += impossible(schemas, partial(_is_possible, values))
    for _ in islice(rules_below(node), MAX_LOOKED_AT):
        pass  # objects are put together as rules are expanded
    notes.narrowed += (Note(keyword, at, BINDING) for keyword, at in values.binding())
    return node, notes


def _compile(
    source: str, options: Mapping[str, Any], rules: RuleSet, notes: Notes | None
) -> tuple[Node, Iterable[Schema], Values]:
    """The grammar, all schemas that the root reaches, and what they are made to."""
    if options:
        _check_options(options)
    if len(source) > MAX_SOURCE:
        raise InvalidGrammar(f"a schema of over {MAX_SOURCE} characters")
    document = Document(source)
    refuse = _refusal(notes, strict=options.get("strict", True))
    formats = options.get("formats", "assert") == "assert"
    checker = Checker(document, refuse, notes, formats)
    algebra = Algebra(document, refuse, formats)
    any_order = options.get("property_order", "declared") == "any"
    values = Values(algebra, rules, layout(options), any_order)
    try:
        steps = checker.run()
        node = _root(document, steps, values)
        rules.dear = dear(steps, values.value)
    except RecursionError:
        message = (
            "the schema nests too many schemas in each other; move parts to $defs, or flatten it"
        )
        raise InvalidGrammar(message, "#") from None
    return node, steps, values


def _root(document: Document, steps: Steps, values: Values) -> Node:
    """Refuse what has to be refused, and make the grammar of the root."""
    for looped in looping(steps):
        for kind in KINDS:
            values.algebra.evaluate(looped, kind)  # refuses what leads back to itself there
    root, found = goal(document.root), hard(steps)
    if document.root in found:
        values.explore(root, found)
    for wanted in map(goal, entwined(steps)):
        values.doubt(wanted)
    for wanted in map(goal, crowded(steps)):
        values.doubt_inside(wanted)
    node = values.value(root)
    if not is_productive(node, values.rules.decide):
        raise unsatisfied(document.root, partial(_is_possible, values))
    if isinstance(node, ChainRule):  # the engine looks into it when the first text begins
        return values.rules.rule(("root",), lambda: node, productive=True)
    return node


def _is_possible(values: Values, wanted: Goal) -> bool:
    return is_productive(values.value(wanted), values.rules.decide)


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            known = ", ".join(sorted(OPTIONS))
            raise InvalidGrammar(f"there is no option {name!r} of a JSON schema; known: {known}")
    for name, allowed in _CHOICES.items():
        if options.get(name, allowed[0]) not in allowed:
            raise InvalidGrammar(f"{name}={options[name]!r} is none of {allowed}")


def _refusal(notes: Notes | None, strict: bool) -> Callable[[str, Schema, str], None]:
    """Raises, or notes, that a keyword cannot be enforced."""

    def refuse(keyword: str, node: Schema, why: str) -> None:
        path = f"{node.path}/{keyword}"
        if strict:
            raise InvalidGrammar(f"{keyword} cannot be enforced: {why}", path)
        if notes is not None:
            notes.unchecked.append(Note(keyword, node, why))

    return refuse
