"""Structural tags: free text with constrained islands, in the JSON that XGrammar reads.

Two forms are read:

    {"structures": [{"begin": "<f>", "schema": {…}, "end": "</f>"}], "triggers": ["<f"]}
    {"type": "structural_tag", "format": FORMAT}

and a FORMAT is one of

    {"type": "const_string", "value": "…"}
    {"type": "json_schema", "json_schema": {…}}
    {"type": "regex", "pattern": "…"}          {"type": "grammar", "grammar": "root ::= …"}
    {"type": "lark", "grammar": "start: …"}
    {"type": "any_text", "excludes": ["…"]}
    {"type": "sequence", "elements": […]}      {"type": "or", "elements": […]}
    {"type": "optional" | "star" | "plus", "content": FORMAT}
    {"type": "repeat", "content": FORMAT, "min": 0, "max": 3}
    {"type": "tag", "begin": "…", "content": FORMAT, "end": "…" or ["…"]}
    {"type": "triggered_tags", "triggers": ["…"], "tags": [TAG], "excludes": ["…"],
     "at_least_one": false, "stop_after_first": false}
    {"type": "tags_with_separator", "tags": [TAG], "separator": "…",
     "at_least_one": false, "stop_after_first": false}

Free text never holds a trigger: where one occurs, the tag it begins follows. Within a tag it never
holds the tag's end, so the first end closes. `at_least_one` allows free text before the first tag.
Reasoning before an answer is a sequence of a tag of any text and a constraint. Special tokens are
never text; formats that name tokens are refused.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from radixgen.errors import InvalidGrammar
from radixgen.grammars.choice import choice
from radixgen.grammars.context_free import MAX_NESTING, bounded_repeat, depth_guard
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import EPSILON, Node, RuleSet, concat, optional, repeat, star, union
from radixgen.grammars.free_text import FreeText
from radixgen.grammars.gbnf import gbnf
from radixgen.grammars.json_schema import compile_schema
from radixgen.grammars.lark_grammar import lark_grammar
from radixgen.grammars.regex import parse
from radixgen.types import OptionValue

Options = Mapping[str, OptionValue]
Format = Mapping[str, Any]
Stops = tuple[str, ...]  # the ends of the tags around, which free text must not hold

MAX_FORMATS = 10_000


def compile_structural_tag(source: str, options: Options, rules: RuleSet) -> Node:
    """The front end of kind "structural_tag". Options are those of JSON schemas, for all of them.

    Raises InvalidGrammar with the path of what cannot be read or enforced.
    """
    try:
        tag = json.loads(source, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"a structural tag is a JSON object: {error}") from None
    if options:
        compile_schema(
            "true", options, RuleSet()
        )  # an unknown option is an error without schemas too
    with depth_guard():
        form = _modern(tag)
        try:
            return _Builder(options, rules).build(form, "format", ())
        except InvalidGrammar as error:
            raise (_as_written(error) if "structures" in tag else error) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _modern(tag: Any) -> Format:
    """The format of either form."""
    if not isinstance(tag, dict):
        raise InvalidGrammar("a structural tag is a JSON object")
    if tag.get("type", "structural_tag") != "structural_tag":
        return tag
    if "format" in tag:
        _check_keys(tag, {"type", "format"}, set(), "the structural tag")
        return _object(tag["format"], "format")
    _check_keys(tag, {"structures", "triggers"}, {"type"}, "the structural tag")
    tags = [
        _modern_tag(item, f"structures[{i}]") for i, item in enumerate(_list(tag, "structures"))
    ]
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


def _modern_tag(item: Any, path: str) -> Format:
    _check_keys(_object(item, path), {"begin", "schema", "end"}, set(), path)
    content = {"type": "json_schema", "json_schema": item["schema"]}
    return {"type": "tag", "begin": item["begin"], "content": content, "end": item["end"]}


def _as_written(error: InvalidGrammar) -> InvalidGrammar:
    """The error with the path in the older form, which is read as the newer one."""
    message = str(error).removesuffix(f" (at {error.path})")
    inside = re.match(r"format\.tags(\[\d+\])(\.content)?", error.path)
    if inside is None:
        return InvalidGrammar(message, "triggers" if error.path == "format" else error.path)
    return InvalidGrammar(message, f"structures{inside[1]}{'.schema' if inside[2] else ''}")


# --- checks -------------------------------------------------------------------------------------


def _object(value: Any, path: str) -> Format:
    if not isinstance(value, dict):
        raise InvalidGrammar("a JSON object is expected", path)
    return value


def _check_keys(item: Format, needed: set[str], allowed: set[str], path: str) -> None:
    for name in sorted(needed - item.keys()):
        raise InvalidGrammar(f"{name!r} is missing", path)
    for name in sorted(item.keys() - needed - allowed):
        raise InvalidGrammar(f"{name!r} is not known here; it would be ignored", path)


def _list(item: Format, name: str, path: str = "") -> list[Any]:
    value = item.get(name, [])
    if not isinstance(value, list):
        raise InvalidGrammar(f"{name!r} is a list", path)
    return value


def _string(value: Any, name: str, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidGrammar(f"{name!r} is a string", path)
    return value


def _strings(item: Format, name: str, path: str) -> list[str]:
    return [_string(value, name, path) for value in _list(item, name, path)]


def _flag(item: Format, name: str, path: str) -> bool:
    value = item.get(name, False)
    if not isinstance(value, bool):
        raise InvalidGrammar(f"{name!r} is true or false", path)
    return value


# --- formats ------------------------------------------------------------------------------------

_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "const_string": ({"value"}, set()),
    "json_schema": ({"json_schema"}, set()),
    "regex": ({"pattern"}, set()),
    "grammar": ({"grammar"}, set()),
    "lark": ({"grammar"}, set()),
    "any_text": (set(), {"excludes"}),
    "sequence": ({"elements"}, set()),
    "or": ({"elements"}, set()),
    "optional": ({"content"}, set()),
    "star": ({"content"}, set()),
    "plus": ({"content"}, set()),
    "repeat": ({"content", "min", "max"}, set()),
    "tag": ({"begin", "content", "end"}, set()),
    "triggered_tags": (
        {"triggers", "tags"},
        {"at_least_one", "stop_after_first", "excludes"},
    ),
    "tags_with_separator": ({"tags", "separator"}, {"at_least_one", "stop_after_first"}),
}


class _Builder:
    """One structural tag's formats to expressions."""

    def __init__(self, options: Options, rules: RuleSet) -> None:
        self._options = options
        self._rules = rules
        self._depth = 0
        self._count = 0

    def build(self, item: Any, path: str, stops: Stops) -> Node:
        """The language of a format; free text in it never holds one of `stops`."""
        kind = _object(item, path).get("type")
        if not isinstance(kind, str) or kind not in _KEYS:
            raise InvalidGrammar(f"format {kind!r} is none of {', '.join(sorted(_KEYS))}", path)
        needed, allowed = _KEYS[kind]
        _check_keys(item, needed, allowed | {"type"}, path)
        self._depth += 1
        self._count += 1
        if self._depth > MAX_NESTING or self._count > MAX_FORMATS:
            raise InvalidGrammar(
                f"formats nest at most {MAX_NESTING} deep, and are {MAX_FORMATS} at most", path
            )
        make: Callable[[Format, str, Stops], Node] = getattr(self, f"_{kind}")
        node = make(item, path, stops)
        self._depth -= 1
        return node

    def _const_string(self, item: Format, path: str, stops: Stops) -> Node:
        return choice([_string(item["value"], "value", path)])

    def _json_schema(self, item: Format, path: str, stops: Stops) -> Node:
        source, doubts = json.dumps(item["json_schema"]), self._rules.doubts.found
        known = len(doubts)
        node = _at(path, lambda: compile_schema(source, self._options, RuleSet(self._rules)))
        doubts[known:] = ((part, InvalidGrammar(str(why), path)) for part, why in doubts[known:])
        return node

    def _regex(self, item: Format, path: str, stops: Stops) -> Node:
        pattern = _string(item["pattern"], "pattern", path)
        return _at(path, lambda: utf8(parse(pattern)))

    def _grammar(self, item: Format, path: str, stops: Stops) -> Node:
        source = _string(item["grammar"], "grammar", path)
        return _at(path, lambda: gbnf(source, rules=self._rules))

    def _lark(self, item: Format, path: str, stops: Stops) -> Node:
        source = _string(item["grammar"], "grammar", path)
        return _at(path, lambda: lark_grammar(source, rules=self._rules))

    def _any_text(self, item: Format, path: str, stops: Stops) -> Node:
        excluded = [*_strings(item, "excludes", path), *stops]
        return _at(path, lambda: FreeText(self._rules, {}, excluded, may_end=True).node())

    def _sequence(self, item: Format, path: str, stops: Stops) -> Node:
        return concat(*self._elements(item, path, stops))

    def _or(self, item: Format, path: str, stops: Stops) -> Node:
        elements = self._elements(item, path, stops)
        if not elements:
            raise InvalidGrammar("a choice of no formats", path)
        return union(*elements)

    def _elements(self, item: Format, path: str, stops: Stops) -> list[Node]:
        return [
            self.build(element, f"{path}.elements[{i}]", stops)
            for i, element in enumerate(_list(item, "elements", path))
        ]

    def _optional(self, item: Format, path: str, stops: Stops) -> Node:
        return optional(self.build(item["content"], f"{path}.content", stops))

    def _star(self, item: Format, path: str, stops: Stops) -> Node:
        return star(self.build(item["content"], f"{path}.content", stops))

    def _plus(self, item: Format, path: str, stops: Stops) -> Node:
        return repeat(self.build(item["content"], f"{path}.content", stops), 1, None)

    def _repeat(self, item: Format, path: str, stops: Stops) -> Node:
        low, high = item["min"], item["max"]
        for value in (low, high):
            if type(value) is not int or value < -1:
                raise InvalidGrammar("'min' and 'max' are whole numbers; a max of -1 is none", path)
        content = self.build(item["content"], f"{path}.content", stops)
        return bounded_repeat(content, max(low, 0), None if high == -1 else high, path)

    # --- tags ---

    def _tag(self, item: Format, path: str, stops: Stops) -> Node:
        return concat(
            choice([_string(item["begin"], "begin", path)]), self._inside(item, path, stops)
        )

    def _inside(self, item: Format, path: str, stops: Stops) -> Node:
        """What follows a tag's begin: its content and its end."""
        ends = item["end"] if isinstance(item["end"], list) else [item["end"]]
        ends = [_string(end, "end", path) for end in ends]
        if not ends:
            raise InvalidGrammar("a tag needs an end; it may be the empty string", path)
        content = _object(item["content"], f"{path}.content")
        if content.get("type") == "any_text" and all(ends):
            return self._text_until(content, ends, f"{path}.content", stops)
        inner = (*stops, *filter(None, ends))
        return concat(self.build(content, f"{path}.content", inner), choice(ends))

    def _text_until(self, content: Format, ends: list[str], path: str, stops: Stops) -> Node:
        """Any text up to the first end, the end included."""
        _check_keys(content, {"type"}, {"excludes"}, path)
        excluded = {*_strings(content, "excludes", path), *stops} - {*ends}
        return _at(
            path,
            lambda: FreeText(
                self._rules, dict.fromkeys(ends, EPSILON), excluded, may_end=False
            ).node(),
        )

    def _tags(self, item: Format, path: str) -> list[tuple[Format, str]]:
        found = []
        for i, tag in enumerate(_list(item, "tags", path)):
            where = f"{path}.tags[{i}]"
            if _object(tag, where).get("type", "tag") != "tag":
                raise InvalidGrammar(f"a tag is expected, not {tag['type']!r}", where)
            _check_keys(tag, {"begin", "content", "end"}, {"type"}, where)
            _string(tag["begin"], "begin", where)
            found.append((tag, where))
        if not found:
            raise InvalidGrammar("at least one tag is needed", path)
        return found

    def _triggered_tags(self, item: Format, path: str, stops: Stops) -> Node:
        triggers = _strings(item, "triggers", path)
        excluded = [*_strings(item, "excludes", path), *stops]
        by_trigger: dict[str, list[Node]] = {trigger: [] for trigger in triggers}
        for tag, where in self._tags(item, path):
            trigger = _trigger_of(tag["begin"], triggers, where)
            rest = choice([tag["begin"][len(trigger) :]])
            by_trigger[trigger].append(concat(rest, self._inside(tag, where, stops)))
        for trigger, tags in by_trigger.items():
            if not tags:
                raise InvalidGrammar(f"no tag begins with the trigger {trigger!r}", path)
        once, forced = _flag(item, "stop_after_first", path), _flag(item, "at_least_one", path)
        islands = {trigger: union(*tags) for trigger, tags in by_trigger.items()}

        def text(may_end: bool) -> Node:
            after = {trigger: concat(island, more) for trigger, island in islands.items()}
            return FreeText(self._rules, after, excluded, may_end=may_end).node()

        key = (self, "text", path)
        more = EPSILON if once else self._rules.rule(key, lambda: text(True), productive=True)
        return _at(path, lambda: text(not forced))

    def _tags_with_separator(self, item: Format, path: str, stops: Stops) -> Node:
        separator = choice([_string(item["separator"], "separator", path)])
        tags = union(*(self._tag(tag, where, stops) for tag, where in self._tags(item, path)))
        if not _flag(item, "stop_after_first", path):
            tags = concat(tags, star(concat(separator, tags)))
        return tags if _flag(item, "at_least_one", path) else optional(tags)


def _trigger_of(begin: str, triggers: list[str], path: str) -> str:
    found = [trigger for trigger in triggers if begin.startswith(trigger)]
    if len(found) != 1:
        raise InvalidGrammar(
            f"the tag {begin!r} begins with {len(found)} triggers, and needs exactly one", path
        )
    return found[0]


def _at(path: str, make: Callable[[], Node]) -> Node:
    """What is made there; an error in it says where it is."""
    try:
        return make()
    except InvalidGrammar as error:
        raise InvalidGrammar(str(error), path) from None
