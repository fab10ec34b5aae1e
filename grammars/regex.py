r"""Regular expressions as text expressions: the dialect, and the one function that reads it.

The dialect is Python's `re` for str patterns, as far as it is regular:

- literals, `.`, classes, `\d \w \s \D \W \S`, and beyond `re` `\p{L} \P{Nd} \p{Letter}` (general
  categories, Any, ASCII, Assigned);
- escapes `\n \t \xhh \uhhhh \Uhhhhhhhh \N{name}`, octal;
- `* + ? {n} {n,} {n,m} {,m}`; a lazy repeat has the same language as a greedy one;
- groups `(…)`, `(?:…)`, `(?P<name>…)`, comments, `(?i) (?m) (?s) (?x) (?a) (?u)` for the whole
  pattern at its start, `(?i:…)` and `(?-i:…)` for a group;
- anchors `^ $ \A \Z \b \B` anywhere, also in groups, alternatives and (up to a limit) repeats.

Refused, with name and position: back-references, look-ahead, look-behind, conditional groups,
atomic groups and possessive repeats (whose language depends on how a matcher searches), and
properties that Python's Unicode data lack, such as scripts.

`dialect="ecma"` reads what JSON Schema's `pattern` holds (ECMA-262 with the u flag, and what is
common in schemas): ASCII `\d \w`, ECMA's `\s`, `.` without any line terminator, `$` at the very
end, `\uhhhh` with surrogate pairs, `\u{…}`, `\cX`, `\/`, `[]` and `[^]`, `(?<name>…)`, and
look-ahead outside repeats, which is exact here since complement and intersection are.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal as Choice

from radixgen.errors import InvalidGrammar
from radixgen.grammars.anchors import resolve
from radixgen.grammars.context_free import check_options
from radixgen.grammars.derivative import facts
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import Expr, Node, RuleSet
from radixgen.grammars.regex_parser import MAX_LEAST, parse_tree
from radixgen.grammars.regex_symbols import Flags
from radixgen.types import OptionValue

MEMO_SIZE = 1024

_OPTIONS = ("dialect", "ignore_case", "mode", "unicode")

Dialect = Choice["python", "ecma"]
Mode = Choice["full", "search"]


def compile_regex(source: str, options: Mapping[str, OptionValue], rules: RuleSet) -> Node:
    """The front end of kind "regex": the whole output matches. Options: those of `parse`."""
    check_options(options, _OPTIONS)
    values = {"dialect": "python", "mode": "full", "unicode": None, "ignore_case": False, **options}
    allowed: dict[str, tuple[OptionValue, ...]] = {
        "dialect": ("python", "ecma"),
        "mode": ("full", "search"),
        "unicode": (None, True, False),
        "ignore_case": (True, False),
    }
    for name, choices in allowed.items():
        if values[name] not in choices:
            raise InvalidGrammar(f"option {name}={values[name]!r} is none of {choices}")
    node = utf8(parse(source, **values))  # type: ignore[arg-type]  # checked above
    least = facts(node).least
    if least > MAX_LEAST:
        raise InvalidGrammar(
            f"all texts have {least} bytes or more, at most {MAX_LEAST} can be followed; lower the "
            f"counts of its repeats"
        )
    return node


def parse(
    pattern: str,
    *,
    dialect: Dialect = "python",
    mode: Mode = "full",
    unicode: bool | None = None,
    ignore_case: bool = False,
    anchors: bool = True,
) -> Expr:
    r"""The language of a regular expression, as a text expression.

    `mode="full"`: the texts that the pattern matches as a whole, as `re.fullmatch` does;
    `mode="search"`: the texts in which it matches somewhere, as `re.search` and JSON Schema do.
    `unicode`: whether `\d \w \s \b` and (?i) go beyond ASCII; by default in "python" they do, and
    in "ecma" they do not. Raises InvalidGrammar with the position of what cannot be read or kept.
    The result may be the empty language (`a^b`), which is for the caller to judge.
    """
    if unicode is None:
        unicode = dialect == "python"
    flags = Flags(unicode, dialect == "ecma", ignore_case)
    return _parse(pattern, flags, mode == "search", anchors)


@lru_cache(MEMO_SIZE)
def _parse(pattern: str, flags: Flags, search: bool, anchors: bool) -> Expr:
    tree = parse_tree(pattern, flags)
    if not anchors and not isinstance(tree, Expr):
        raise InvalidGrammar(f"an anchor in {pattern!r}, which is only a part of the text")
    try:
        return resolve(tree, search)
    except InvalidGrammar as error:
        shown = pattern if len(pattern) <= 80 else pattern[:80] + "…"
        raise InvalidGrammar(f"{error}, in the regular expression {shown!r}") from None
