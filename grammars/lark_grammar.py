r"""Lark grammars to expressions.

Read with lark's public parser and a grammar of its own (`data/lark_syntax.lark`); what the file
says is then turned into rules here. Understood: rules with `? ! _` marks and aliases (which shape
trees and change no language), terminals, strings (`"…"i` too), `"a".."z"`, `/…/imsux`, groups,
`[…]`, `* + ?`, `~n`, `~n..m`, templates, `%ignore`, `%import common.NAME` (all of lark's common
terminals), comments.

There is no lexer. A terminal is a regular expression over the text, tried at every place where a
rule mentions it, with every length it can have. So no string is lost because a terminal swallows
what follows, and priorities, which only a lexer needs, mean nothing and are ignored; a keyword
followed by a name may stand without a blank, unless the grammar asks for one. Lazy repeats in a
terminal have the language of greedy ones: write `/\/\*([^*]|\*+[^*\/])*\*+\//` for a comment.
In a terminal, `A & B` are the texts that both denote and `A & ~B` those of A that B does not, which
is how names leave keywords out: `NAME: /[a-z]+/ & ~KEYWORD`. `&` binds tighter than `|`.

`%ignore` lets its texts stand before the first terminal, between any two and after the last, any
number of them, and never within a terminal.

Refused: anchors and look-around in terminals, `%import` of anything but `common`, `%declare`,
`%override` and `%extend`.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.context_free import (
    MAX_NESTING,
    Rules,
    bounded_concat,
    bounded_repeat,
    bounded_union,
    check_source,
    depth_guard,
    factored,
    text_option,
    undefined,
)
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import (
    EPSILON,
    Expr,
    Node,
    Repeat,
    RuleSet,
    Union,
    chars,
    complement,
    concat,
    conj,
    optional,
    star,
    text,
    union,
)
from radixgen.grammars.regex import parse
from radixgen.grammars.regex_symbols import Flags, symbol
from radixgen.grammars.regex_tree import regular
from radixgen.types import OptionValue

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

_MAX_COUNT_DIGITS = 10
_OPERATORS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def compile_lark(source: str, options: Mapping[str, OptionValue], rules: RuleSet) -> Node:
    """The front end of kind "lark". Option: `start`, the rule to begin with."""
    start = text_option(options, "start", "start")
    return lark_grammar(source, start, rules)


def lark_grammar(source: str, start: str = "start", rules: RuleSet | None = None) -> Node:
    """The language of a Lark grammar from its rule `start`, as a byte expression.

    The name of a shipped grammar stands for its text: no grammar is a single word.

    Raises InvalidGrammar with line and column of what cannot be read, for names that are
    mentioned and not defined, and for a grammar that derives no text.
    """
    check_source(source)
    text = shipped(source) if source.isidentifier() else source
    with depth_guard():
        return _Grammar(_parse(text), RuleSet() if rules is None else rules).start(start)


def shipped_names() -> list[str]:
    """The grammars that come with the package, for `shipped`."""
    return ["arithmetic", "json", "python_literal", "sql_subset"]


def shipped(name: str) -> str:
    """The text of a grammar that comes with the package. Raises InvalidGrammar for another name."""
    if name not in shipped_names():
        raise undefined("grammar", name, shipped_names(), "the grammars of the package")
    return _data(f"{name}.lark")


@lru_cache(1)
def _parser() -> "Lark":
    """Made on first use: reading lark and its own tables takes a fifth of a second."""
    from lark import Lark

    return Lark(_data("lark_syntax.lark"), parser="lalr", lexer="basic", propagate_positions=True)


def _data(name: str) -> str:
    return files("radixgen.grammars").joinpath("data", name).read_text(encoding="utf-8")


def _parse(source: str) -> "list[Tree[Token]]":
    """The statements of a grammar. Raises InvalidGrammar with line and column."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput

    try:
        return _parser().parse(source + "\n").children  # type: ignore[return-value]  # trees only
    except UnexpectedInput as error:
        found = (
            error.char if isinstance(error, UnexpectedCharacters) else getattr(error, "token", "")
        )
        raise InvalidGrammar(
            f"cannot read {str(found)!r} here", f"line {error.line}, column {error.column}"
        ) from None


def _where(tree: "Tree[Token] | Token") -> str:
    position: Any = getattr(tree, "meta", tree)
    if getattr(position, "line", None) is None:
        return ""
    return f"line {position.line}, column {position.column}"


@lru_cache(1)
def _common() -> "_Terminals":
    """The terminals of `%import common.…`."""
    found = _Terminals()
    for statement in _parse(_data("common.lark")):
        found.define(str(statement.children[0]), statement)
    return found


class _Terminals:
    """The terminals of one file, by name: regular, so resolved where they are mentioned."""

    def __init__(self) -> None:
        self._trees: dict[str, Tree[Token]] = {}
        self._texts: dict[str, Expr] = {}
        self._open: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._trees or name in self._texts

    def define(self, name: str, statement: "Tree[Token]") -> None:
        self._check_new(name, statement)
        self._trees[name] = statement

    def borrow(self, name: str, item: Expr, statement: "Tree[Token]") -> None:
        """A terminal of another file."""
        self._check_new(name, statement)
        self._texts[name] = item

    def _check_new(self, name: str, statement: "Tree[Token]") -> None:
        if name in self:
            raise InvalidGrammar(f"terminal {name!r} is defined twice", _where(statement))

    def text(self, name: str, where: str) -> Expr:
        """The texts of a terminal, as a text expression."""
        if name not in self._texts:
            if name not in self._trees:
                raise undefined("terminal", name, {**self._trees, **self._texts}, where)
            if name in self._open:
                raise InvalidGrammar(
                    f"terminal {name!r} mentions itself; only a rule may recur", where
                )
            self._open.append(name)
            if len(self._open) > MAX_NESTING:
                raise InvalidGrammar(f"terminals mention each other over {MAX_NESTING} deep", where)
            whole = self._trees[name].children[-1]
            self._texts[name] = regular(_Walk(lambda item: item, self.mention).item(whole))
            self._open.pop()
        return self._texts[name]

    def mention(self, name: "Token") -> Node:
        """A terminal in a terminal."""
        if name.type == "RULE":
            raise InvalidGrammar(f"rule {str(name)!r} in a terminal", _where(name))
        return self.text(str(name), _where(name))


class _Grammar:
    """The rules of one file over its terminals."""

    def __init__(self, statements: "list[Tree[Token]]", rules: RuleSet) -> None:
        self._rules = Rules(rules)
        self._terminals = _Terminals()
        self._templates: dict[str, tuple[list[str], Tree[Token]]] = {}
        self._by_kind: dict[str, list[Tree[Token]]] = {}
        for statement in statements:
            self._by_kind.setdefault(str(statement.data), []).append(statement)
        for statement in self._by_kind.get("directive", ()):
            directive = str(statement.children[0]).split()[0]
            raise InvalidGrammar(f"{directive} is not supported", _where(statement))
        self._import()
        for statement in self._by_kind.get("terminal", ()):
            self._terminals.define(str(statement.children[0]), statement)
        self._ignored = self._read_ignored()
        self._define_rules()

    def start(self, name: str) -> Node:
        return concat(self._ignored, self._rules.start(name))

    def _import(self) -> None:
        for statement in self._by_kind.get("import_one", ()):
            names = _names(statement.children)
            *path, name = _names(statement.children[0].children)  # type: ignore[union-attr]  # a tree
            self._borrow(path, name, names[-1] if len(statement.children) > 1 else name, statement)
        for statement in self._by_kind.get("import_many", ()):
            path = _names(statement.children[0].children)  # type: ignore[union-attr]  # a tree
            for name in _names(statement.children[1:]):
                self._borrow(path, name, name, statement)

    def _borrow(self, path: list[str], name: str, alias: str, statement: "Tree[Token]") -> None:
        if path != ["common"]:
            raise InvalidGrammar(
                f"%import of {'.'.join([*path, name])}: only common.… can be imported",
                _where(statement),
            )
        item = _common().text(name, _where(statement))
        self._terminals.borrow(alias, item, statement)

    def _read_ignored(self) -> Node:
        walk = _Walk(lambda item: item, self._terminals.mention)
        ignored = [walk.item(s.children[0]) for s in self._by_kind.get("ignore", ())]
        parts = [part for item in ignored for part in _alternatives(item)]
        return star(utf8(union(*parts)))

    def _define_rules(self) -> None:
        rules = self._by_kind.get("rule", ())
        for statement in rules:
            name, parameters = _rule_head(statement)
            if parameters:
                if name in self._templates:
                    raise InvalidGrammar(f"rule {name!r} is defined twice", _where(statement))
                self._templates[name] = parameters, statement
        for statement in rules:
            name, parameters = _rule_head(statement)
            if not parameters:
                body = self._walk({}).item(statement.children[-1])
                self._rules.define(name, body, _where(statement))

    def _walk(self, arguments: Mapping[str, Node]) -> "_Walk":
        def mention(name: "Token") -> Node:
            if name.type == "TERMINAL":
                return self._token(self._terminals.text(str(name), _where(name)))
            if str(name) in arguments:
                return arguments[str(name)]
            return self._rules.mention(str(name), _where(name))

        return _Walk(self._token, mention, self._template)

    def _token(self, item: Node) -> Node:
        """A terminal in a rule: its bytes, then what is ignored."""
        return EPSILON if item is EPSILON else concat(utf8(item), self._ignored)

    def _template(self, name: "Token", arguments: list[Node]) -> Node:
        if str(name) not in self._templates:
            raise undefined("template", str(name), self._templates, _where(name))
        parameters, statement = self._templates[str(name)]
        if len(parameters) != len(arguments):
            raise InvalidGrammar(
                f"template {str(name)!r} takes {len(parameters)} arguments, not {len(arguments)}",
                _where(name),
            )
        walk = self._walk(dict(zip(parameters, arguments, strict=True)))
        key = ("template", str(name), *arguments)
        return self._rules.instance(key, lambda: walk.item(statement.children[-1]))


def _alternatives(node: Node) -> list[Node]:
    """What to choose between under a star: x+ there is x, which has fewer readings."""
    found: tuple[Node, ...] = node.args if isinstance(node, Union) else (node,)
    return [
        part.item if isinstance(part, Repeat) and part.low <= 1 and part.high is None else part
        for part in found
    ]


def _names(children: "list[Any]") -> list[str]:
    """The names among the children, without dots and aliases' wrapping."""
    return [str(c.children[0]) for c in children if getattr(c, "data", "") == "name"]


def _rule_head(statement: "Tree[Token]") -> tuple[str, list[str]]:
    """The name and the parameters of a rule."""
    name, parameters = "", []
    for child in statement.children[:-1]:
        if getattr(child, "type", "") == "RULE":
            name = str(child)
        elif getattr(child, "data", "") == "parameters":
            parameters = [str(p) for p in child.children]  # type: ignore[union-attr]  # a tree
    return name, parameters


class _Walk:
    """From a tree of alternatives to an expression: what to make of leaves and names is given."""

    def __init__(
        self,
        leaf: Callable[[Expr], Node],
        mention: "Callable[[Token], Node]",
        template: "Callable[[Token, list[Node]], Node] | None" = None,
    ) -> None:
        self._leaf = leaf
        self._mention = mention
        self._template = template
        self._depth = 0

    def item(self, tree: "Tree[Token] | Token") -> Node:
        """The expression of a part of the tree."""
        group = getattr(tree, "data", "") == "alternatives"
        self._depth += group
        if self._depth > MAX_NESTING + 1:
            raise InvalidGrammar(f"groups nest more than {MAX_NESTING} deep", _where(tree))
        node = self._item(tree, _where(tree))
        self._depth -= group
        return node

    def _item(self, tree: Any, where: str) -> Node:
        children = tree.children
        match str(tree.data):
            case "alternatives":
                return bounded_union([self.item(part) for part in children], where)
            case "sequence":
                parts = [self.item(p) for p in children if p.data != "alias"]
                return bounded_concat(parts, where)
            case "many":
                low, high = _OPERATORS[str(children[1])]
                return bounded_repeat(self.item(children[0]), low, high, where)
            case "counted":
                counts = [_count(token) for token in children[1:]]
                return bounded_repeat(self.item(children[0]), counts[0], counts[-1], where)
            case "conjunction":
                return self._conjunction(children, where)
            case "maybe":
                return optional(self.item(children[0]))
            case "name":
                return self._mention(children[0])
            case "template":
                return self._instance(children)
        return self._leaf(_terminal(tree, where))

    def _conjunction(self, children: Any, where: str) -> Node:
        if self._template is not None:
            raise InvalidGrammar("& in a rule; intersect in a terminal, which is regular", where)
        found = factored(regular(self.item(children[0])))
        for sign, part in zip(children[1::2], children[2::2], strict=True):
            other = factored(regular(self.item(part)))  # many keywords run as one tree
            found = conj(found, complement(other) if str(sign).endswith("~") else other)
        return found

    def _instance(self, children: Any) -> Node:
        if self._template is None:
            raise InvalidGrammar("a template in a terminal", _where(children[0]))
        return self._template(children[0], [self.item(argument) for argument in children[1:]])


def _count(token: "Token") -> int:
    if len(token) > _MAX_COUNT_DIGITS:
        raise InvalidGrammar(f"a repeat of {str(token)[:20]}… is too large", _where(token))
    return int(token)


def _terminal(tree: Any, where: str) -> Expr:
    """A string, a span of characters or a regular expression."""
    tokens = [str(token) for token in tree.children]
    if tree.data == "regexp":
        body, _, flags = tokens[0][1:].rpartition("/")
        kept = "".join(sorted(set(flags) & set("imsx")))
        if "l" in flags:
            raise InvalidGrammar("the flag l (locale) means nothing for text", where)
        try:
            return parse(f"(?{kept}){body}" if kept else body, anchors=False)
        except InvalidGrammar as error:
            raise InvalidGrammar(str(error), where) from None
    values = [_string(token, where) for token in tokens]
    if tree.data == "span":
        return _span(values, where)
    if tokens[0].endswith("i"):
        flags_i = Flags(ignore_case=True)
        return regular(concat(*(symbol(((ord(c), ord(c)),), flags_i) for c in values[0])))
    return regular(text(values[0]))


def _span(values: list[str], where: str) -> Expr:
    low, high = values
    if len(low) != 1 or len(high) != 1 or low > high:
        raise InvalidGrammar(f"{low!r}..{high!r} is no range of characters", where)
    return chars([(ord(low), ord(high))])


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0"}


def _string(token: str, where: str) -> str:
    """The value of a string token, its escapes resolved."""

    def character(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits:
            value = int(digits, 16)
            if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
                raise InvalidGrammar(f"{match[0]} is no character", where)
            return chr(value)
        letter = match[4]
        if letter.isalnum() and letter not in _LETTERS:
            raise InvalidGrammar(f"unknown escape {match[0]} in {token}", where)
        return _LETTERS.get(letter, letter)

    return _ESCAPE.sub(character, token[1 : token.rindex('"')])
