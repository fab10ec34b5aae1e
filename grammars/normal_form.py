"""Rule bodies as an automaton runs them: nothing unproductive in them, and no left recursion.

A rule that begins with itself would be entered for ever without reading a byte. The rules of such
a cycle are a left-linear system NE(A_k) = U_i NE(A_i) M_ik | B_k over their nonempty strings, with
the solution NE(A_j) = U_i B_i R_ij, where R_ij = [i = j] | U_k M_ik R_kj reads the continuations
that lead from A_i to A_j. Sources: S. Greibach, JACM 12(1), 1965; the left-corner transform,
D. Rosenkrantz and P. Lewis, SWAT 1970; R. Moore, NAACL 2000.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import partial

from radixgen.errors import InvalidGrammar
from radixgen.grammars.derivative import Lenient, facts
from radixgen.grammars.expr import (
    EMPTY,
    EPSILON,
    Concat,
    Literal,
    Node,
    Repeat,
    Rule,
    Union,
    complement,
    concat,
    conj,
    repeat,
    union,
)
from radixgen.grammars.productive import prune, rules_in

MAX_LEFT_RULES = 10_000
MAX_LEFT_CYCLE = 100  # rules that begin with each other; the solution has their square


def normal_body(rule: Rule) -> Node:
    """The body to run: expanded on the first call, without parts that derive nothing."""
    if rule.normal is None:
        rule.normal = prune(rule.body(), Lenient())
    return rule.normal


def remove_left_recursion(rule: Rule) -> list[Rule]:
    """Rewrite the rules that begin with each other, if `rule` is one of them; returns these."""
    nullable = _nullable_rules(rule)
    cycle = _left_cycle(rule, nullable)
    _check_size(len(cycle))
    if cycle:
        _LeftCycle(cycle, nullable).rewrite()
    return cycle


def _check_size(cycle: int) -> None:
    if cycle > MAX_LEFT_CYCLE:
        raise InvalidGrammar(
            f"{cycle} rules begin with each other, at most {MAX_LEFT_CYCLE} may; "
            "let some begin with what they read first"
        )


def check_left_recursion(rules: Collection[Rule]) -> None:
    """Raise InvalidGrammar where too many of these rules begin with each other.

    So a grammar is refused before a text gets there. Cycles are strongly connected components:
    R. Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1(2), 1972.
    """
    nullable = _all_nullable(rules)
    leads = {rule: list(_leading(rule.body(), nullable)) for rule in rules}
    order: dict[Rule, int] = {}
    lowest: dict[Rule, int] = {}
    path: list[Rule] = []
    done: set[Rule] = set()
    for start in rules:
        waiting = [] if start in order else [(start, iter(leads[start]))]
        while waiting:
            rule, more = waiting[-1]
            if rule not in order:
                order[rule] = lowest[rule] = len(order)
                path.append(rule)
            lead = next((other for other in more if other in leads and other not in done), None)
            if lead is not None and lead not in order:
                waiting.append((lead, iter(leads[lead])))
            elif lead is not None:
                lowest[rule] = min(lowest[rule], order[lead])
            else:
                waiting.pop()
                if waiting:
                    above = waiting[-1][0]
                    lowest[above] = min(lowest[above], lowest[rule])
                if lowest[rule] == order[rule]:
                    place = len(path) - 1
                    while path[place] is not rule:
                        place -= 1
                    cycle = path[place:]
                    del path[place:]
                    done.update(cycle)
                    _check_size(len(cycle))


def _all_nullable(rules: Collection[Rule]) -> set[Rule]:
    """Which of the rules derive the empty string, from the bottom up."""
    mentioned_by: dict[Rule, list[Rule]] = defaultdict(list)
    for rule in rules:
        for other in set(rules_in(rule.body())):
            mentioned_by[other].append(rule)
    nullable: set[Rule] = set()
    waiting = list(rules)
    while waiting:
        rule = waiting.pop()
        if rule not in nullable and _may_be_empty(rule.body(), nullable):
            nullable.add(rule)
            waiting.extend(mentioned_by[rule])
    return nullable


def _leading(node: Node, nullable: Collection[Rule] | None) -> Iterator[Rule]:
    """Rules that may stand before the first byte, but for those that begin with a byte. `nullable`
    None: any of these may be empty."""
    if isinstance(node, Rule):
        if not node.has_begun:
            yield node
    elif facts(node).regular:
        return
    elif isinstance(node, Concat):
        for part in node.args:
            yield from _leading(part, nullable)
            if not _may_be_empty(part, nullable):
                return
    else:
        for part in node.args[:1] if isinstance(node, Repeat) else node.args:
            yield from _leading(part, nullable)


def _may_be_empty(node: Node, nullable: Collection[Rule] | None) -> bool:
    if isinstance(node, Rule):
        return not node.has_begun if nullable is None else node in nullable
    if facts(node).regular:
        return facts(node).nullable
    if isinstance(node, Union):
        return any(_may_be_empty(part, nullable) for part in node.args)
    if isinstance(node, Repeat):
        return node.low == 0 or _may_be_empty(node.item, nullable)
    return all(_may_be_empty(part, nullable) for part in node.args)


def _nullable_rules(start: Rule) -> set[Rule]:
    """Which of the rules that may lead `start` derive the empty string: a least fixpoint."""
    near: dict[Rule, None] = {}
    waiting = [start]
    while waiting:
        rule = waiting.pop()
        if rule not in near:
            near[rule] = None
            waiting.extend(_leading(rule.body(), None))
        if len(near) > MAX_LEFT_RULES:
            raise InvalidGrammar(f"over {MAX_LEFT_RULES} rules may stand before the first byte")
    nullable: set[Rule] = set()
    while True:
        more = {r for r in near if r not in nullable and _may_be_empty(r.body(), nullable)}
        if not more:
            return nullable
        nullable |= more


def _left_cycle(start: Rule, nullable: set[Rule]) -> list[Rule]:
    """The rules that `start` may begin with and that may begin with it; empty without a cycle."""
    edges: dict[Rule, list[Rule]] = {}
    waiting = [start]
    while waiting:
        rule = waiting.pop()
        if rule not in edges:
            edges[rule] = list(_leading(rule.body(), nullable))
            waiting.extend(edges[rule])
    before = defaultdict(list)
    for rule, leads in edges.items():
        for lead in leads:
            before[lead].append(rule)
    reaching: dict[Rule, None] = {}
    waiting = list(before[start])
    while waiting:
        rule = waiting.pop()
        if rule not in reaching:
            reaching[rule] = None
            waiting.extend(before[rule])
    return list(reaching)


class _LeftCycle:
    """The left-linear system of one cycle and its solution."""

    def __init__(self, cycle: list[Rule], nullable: set[Rule]) -> None:
        self._order = cycle
        self._nullable = nullable
        self._steps: dict[tuple[Rule, Rule], list[Node]] = defaultdict(list)  # M_ik
        self._bases: dict[Rule, list[Node]] = {rule: [] for rule in cycle}  # B_k
        self._paths: dict[tuple[Rule, Rule], Rule] = {}  # R_ij
        self._nonempty = {
            rule: Rule(("nonempty", rule), partial(self._starts, rule)) for rule in cycle
        }

    def rewrite(self) -> None:
        for rule in self._order:
            self._split(rule, rule.body(), EPSILON)
        for rule in self._order:
            empty = EPSILON if rule in self._nullable else EMPTY
            rule.normal = prune(union(empty, self._starts(rule)), Lenient())

    def _starts(self, rule: Rule) -> Node:
        """NE(A_j) = U_i B_i R_ij."""
        return union(*(concat(union(*self._bases[i]), self._path(i, rule)) for i in self._order))

    def _path(self, start: Rule, end: Rule) -> Rule:
        found = self._paths.get((start, end))
        if found is None:
            key = ("path", start, end)
            found = self._paths[start, end] = Rule(key, partial(self._path_body, start, end))
        return found

    def _path_body(self, start: Rule, end: Rule) -> Node:
        """R_ij, with the steps that read nothing taken beforehand."""
        near = self._empty_steps(start)
        onward = (
            concat(self.nonempty(union(*self._steps[here, via])), self._path(via, end))
            for here in near
            for via in self._order
            if (here, via) in self._steps
        )
        return union(EPSILON if end in near else EMPTY, *onward)

    def _empty_steps(self, start: Rule) -> dict[Rule, None]:
        near: dict[Rule, None] = {}
        waiting = [start]
        while waiting:
            here = waiting.pop()
            if here not in near:
                near[here] = None
                waiting.extend(
                    via
                    for via in self._order
                    if any(
                        _may_be_empty(n, self._nullable) for n in self._steps.get((here, via), ())
                    )
                )
        return near

    def _split(self, rule: Rule, node: Node, rest: Node) -> None:
        """Sort the nonempty strings of `node`, each followed by `rest`, into bases and steps."""
        if isinstance(node, Rule) and node in self._bases:
            self._steps[node, rule].append(rest)
        elif isinstance(node, Rule) or facts(node).regular:
            self._bases[rule].append(concat(self.nonempty(node), rest))
        elif isinstance(node, Union):
            for part in node.args:
                self._split(rule, part, rest)
        elif isinstance(node, Repeat):
            self._split(rule, node.item, concat(self._one_less(node), rest))
        else:
            for index, part in enumerate(node.args):
                self._split(rule, part, concat(*node.args[index + 1 :], rest))
                if not _may_be_empty(part, self._nullable):
                    break

    def _one_less(self, node: Repeat) -> Node:
        """What is left of a repeat after one nonempty item."""
        low = 0 if _may_be_empty(node.item, self._nullable) else max(node.low - 1, 0)
        return repeat(node.item, low, None if node.high is None else node.high - 1)

    def nonempty(self, node: Node) -> Node:
        """The strings of `node` but the empty one."""
        if not _may_be_empty(node, self._nullable):
            return node
        if isinstance(node, Rule):
            return self._nonempty_rule(node)
        match node:
            case Literal():
                return EMPTY
            case Union():
                return union(*(self.nonempty(part) for part in node.args))
            case Repeat():
                return concat(self.nonempty(node.item), self._one_less(node))
            case Concat():
                parts = node.args
                return union(
                    *(concat(self.nonempty(p), *parts[i + 1 :]) for i, p in enumerate(parts))
                )
        return conj(node, complement(EPSILON))

    def _nonempty_rule(self, rule: Rule) -> Rule:
        found = self._nonempty.get(rule)
        if found is None:
            key = ("nonempty", rule)
            found = self._nonempty[rule] = Rule(key, lambda: self.nonempty(rule.body()))
        return found
