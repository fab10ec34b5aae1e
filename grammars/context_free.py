"""What the grammar languages share: named rules, sizes within bounds, and the last check.

Knows no syntax. Rules are lazy references, so recursion of any kind is just a name.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import Decide, Search
from radixgen.grammars.expr import (
    Concat,
    Expr,
    Node,
    Rule,
    RuleSet,
    Union,
    concat,
    repeat,
    union,
)
from radixgen.grammars.normal_form import check_left_recursion
from radixgen.grammars.productive import derives, rules_in
from radixgen.types import OptionValue

MAX_SOURCE = 2_000_000  # characters of a grammar
MAX_NESTING = 64  # groups within groups
MAX_RULES = 20_000
MAX_PARTS = 100_000  # of one sequence or choice, once flattened
MAX_REPEAT = 1_000_000
MAX_LEAST = 1 << 18  # of what has to be repeated: a longer text takes more memory than one may


class Rules:
    """The rules of one grammar by name: referred to before they are defined."""

    def __init__(self, rules: RuleSet) -> None:
        self._bodies: dict[str, Node] = {}
        self._mentions: dict[str, str] = {}  # name: where it was first mentioned
        self._rules = rules
        self._scope = object()  # several grammars may share a rule set
        self._all: dict[Rule, None] = {}

    def define(self, name: str, body: Node, where: str) -> None:
        """Raises InvalidGrammar when the name is taken."""
        if name in self._bodies:
            raise InvalidGrammar(f"rule {name!r} is defined twice", where)
        self._bodies[name] = body

    def mention(self, name: str, where: str) -> Rule:
        """The rule of that name, defined or not."""
        self._mentions.setdefault(name, where)
        return self.instance(name, lambda: self._body(name))

    def _body(self, name: str) -> Node:
        if name not in self._bodies:
            raise undefined("rule", name, self._bodies, self._mentions[name])
        return self._bodies[name]

    def instance(self, key: Hashable, expand: Callable[[], Node]) -> Rule:
        """A rule by key; other than a name, it may be a template with its arguments."""
        rule = self._rules.rule((self._scope, key), expand)
        self._all[rule] = None
        if len(self._all) > MAX_RULES:
            raise InvalidGrammar(f"the grammar has over {MAX_RULES} rules")
        return rule

    def start(self, name: str) -> Rule:
        """The start rule of a finished grammar, every rule marked productive or not.

        Raises InvalidGrammar when a rule is mentioned and not defined, or no text is derivable.
        """
        start = self.mention(name, "the start of the grammar")
        rules = self._expanded()
        mark_productive(rules, self._rules.decide)
        if not start.productive:
            raise InvalidGrammar(
                f"rule {name!r} derives no text: every way through it recurs without an end"
            )
        check_left_recursion(rules)
        return start

    def _expanded(self) -> list[Rule]:
        """Every rule, its body built; building one may mention others."""
        done: list[Rule] = []
        while len(done) < len(self._all):
            for rule in list(self._all)[len(done) :]:
                rule.body()
                done.append(rule)
        return done


def mark_productive(rules: list[Rule], decide: Decide | None = None) -> None:
    """Find which rules derive any text, from the bottom up. `rules` holds all that they mention.

    Without recursion over rules, so that a chain of thousands is no deeper than one.
    """
    decide = decide or Search()
    mentioned_by: dict[Rule, list[Rule]] = {}
    for rule in rules:
        for other in set(rules_in(rule.body())):
            mentioned_by.setdefault(other, []).append(rule)
        rule.productive = False
    waiting = list(reversed(rules))
    while waiting:
        rule = waiting.pop()
        if not rule.productive and derives(rule.body(), decide):
            rule.productive = True
            waiting.extend(mentioned_by.get(rule, ()))


def undefined(what: str, name: str, known: Iterable[str], where: str) -> InvalidGrammar:
    near = get_close_matches(name, list(known), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InvalidGrammar(f"{what} {name!r} is not defined{hint}", where)


def text_option(options: Mapping[str, OptionValue], name: str, default: str) -> str:
    """The one option of a kind. Raises InvalidGrammar for another option or another type."""
    check_options(options, [name])
    value = options.get(name, default)
    if not isinstance(value, str):
        raise InvalidGrammar(f"option {name}={value!r} is no text")
    return value


def check_options(options: Mapping[str, OptionValue], known: Iterable[str]) -> None:
    """Raises InvalidGrammar for an option that is not one of `known`."""
    for name in options:
        if name not in known:
            raise undefined("option", name, known, "the options of the grammar")


def check_source(source: str) -> None:
    """Raises InvalidGrammar for a source too large to read."""
    if len(source) > MAX_SOURCE:
        raise InvalidGrammar(
            f"a grammar of {len(source)} characters, at most {MAX_SOURCE} are read"
        )


@contextmanager
def depth_guard() -> Iterator[None]:
    """Turns Python's own limit of depth into InvalidGrammar, where bounds on parts add up."""
    try:
        yield
    except RecursionError:
        raise InvalidGrammar("the grammar nests too deep; name its inner parts as rules") from None


def bounded_concat(items: list[Node], where: str) -> Node:
    """The items in sequence. Raises InvalidGrammar when they flatten to over MAX_PARTS."""
    _check_parts(items, Concat, where)
    return concat(*items)


def bounded_union(items: list[Node], where: str) -> Node:
    """Any of the items. Raises InvalidGrammar when they flatten to over MAX_PARTS."""
    _check_parts(items, Union, where)
    return union(*items)


def _check_parts(items: list[Node], kind: type[Expr], where: str) -> None:
    parts = sum(len(i.args) if isinstance(i, Expr) and type(i) is kind else 1 for i in items)
    if parts > MAX_PARTS:
        raise InvalidGrammar(f"{parts} parts in one place, at most {MAX_PARTS}", where)


def factored(node: Expr) -> Expr:
    """The same choice with common heads of its branches taken out: ab|ac as a(b|c)."""
    if not isinstance(node, Union) or len(node.args) < 3:
        return node
    by_head: dict[Node, list[tuple[Node, ...]]] = {}
    rest: list[Node] = []
    for branch in node.args:
        if isinstance(branch, Concat):
            by_head.setdefault(branch.args[0], []).append(branch.args)
        else:
            rest.append(branch)
    for group in by_head.values():
        size = _common_size(group)
        tails = union(*(concat(*branch[size:]) for branch in group))
        assert isinstance(tails, Expr)
        rest.append(concat(*group[0][:size], factored(tails) if len(group) > 1 else tails))
    whole = union(*rest)
    assert isinstance(whole, Expr)
    return whole


def _common_size(branches: list[tuple[Node, ...]]) -> int:
    """How many leading parts all branches share."""
    size = 0
    for column in zip(*branches, strict=False):
        if any(node is not column[0] for node in column):
            break
        size += 1
    return size


def bounded_repeat(item: Node, low: int, high: int | None, where: str) -> Node:
    """The item repeated. Raises InvalidGrammar for bounds that are too large or backwards."""
    if high is not None and high < low:
        raise InvalidGrammar(f"a repeat from {low} to {high} runs backwards", where)
    if max(low, high or 0) > MAX_REPEAT:
        raise InvalidGrammar(f"a repeat of {max(low, high or 0)}, at most {MAX_REPEAT}", where)
    if low > MAX_LEAST:
        raise InvalidGrammar(
            f"{low} repeats have to come, at most {MAX_LEAST} may; lower it", where
        )
    return repeat(item, low, high)
