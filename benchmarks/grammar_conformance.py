"""How much of JSON Schema is enforced, and how exactly: public schemas with instances that must and
must not match, and the official test suite.

    python -m benchmarks.grammar_conformance [--quick] [--order declared] [--site DIR] [--alone]

A schema is judged by its instances, written as `json.dumps` writes them. It is *right* when every
valid one is accepted and every invalid one is not, *refused* when it does not compile, *narrowed*
when a valid instance is refused only for how it is written (the order of its members, 1.0 for 1) or
because `radixgen.grammars.formats` documents a narrower format, and *wrong* otherwise. A schema
that nothing satisfies has to be refused; that is right. In the suite's part on formats as
annotations they are annotations.

**How the order of members counts.** To JSON Schema it means nothing, so the goal is measured with
`property_order` "any". The default, "declared", writes members in the order in which the schema
names them: a valid instance in another order is not in that language by design, so its schema is
not counted as right there, but as narrowed, and as wrong if anything else is amiss. Other engines
with a fixed order are given the same: a valid instance that is refused counts as narrowed where it
is one that "declared" excludes, whatever their reason is.

Other engines (`grammar_peers.py`) are judged beside it where they are installed, here or in the
folder of packages `--site`, unless `--alone`.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.grammar_peers import Peer, installed
from benchmarks.harness import ROOT, Report, arguments, table
from radixgen.errors import InvalidGrammar
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

DATA = ROOT.parent / "shared" / "data"
PUBLIC, SUITE = DATA / "maskbench_public.jsonl", DATA / "jsonschema_suite_2020.jsonl"
VERDICTS = ("right", "narrowed", "refused", "wrong")
GOAL_RIGHT = 285  # of the 300 public schemas that other engines were measured on

Row = dict[str, Any]
Recogniser = Callable[[bytes], bool]


@dataclass(slots=True)
class Judgement:
    """One schema's verdict, and its instances' share in it."""

    verdict: str = "right"
    why: str = ""
    tests: int = 0
    accepted_wrongly: list[Any] = field(default_factory=list)
    refused_wrongly: list[Any] = field(default_factory=list)
    narrowed: list[Any] = field(default_factory=list)


def rows_of(path: Path) -> list[Row]:
    """The rows of a data file. Exits with the reason when it is not there."""
    if not path.exists():
        sys.exit(f"{path} is missing: the data lie in a folder `shared` beside the checkout")
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def judge(row: Row, order: str) -> Judgement:
    """Compile one schema and run its instances."""
    options = {"property_order": order}
    if row["dataset"] == "format":
        options["formats"] = "annotate"
    source = json.dumps(row["schema"], ensure_ascii=False)
    found = Judgement(tests=len(row["tests"]))
    try:
        accepts = recogniser(source, options)
        for test in row["tests"]:
            _judge_instance(found, accepts, source, options, test)
    except InvalidGrammar as error:
        return _refused(found, row, str(error))
    if found.accepted_wrongly or found.refused_wrongly:
        found.verdict = "wrong"
    elif found.narrowed:
        found.verdict = "narrowed"
    return found


def _refused(found: Judgement, row: Row, why: str) -> Judgement:
    if why.startswith("no value satisfies"):
        wrong = [test["data"] for test in row["tests"] if test["valid"]]
        return Judgement("wrong" if wrong else "right", why, found.tests, [], wrong)
    return Judgement("refused", why, found.tests)


def _judge_instance(
    found: Judgement, accepts: Recogniser, source: str, options: dict[str, str], test: Row
) -> None:
    data = test["data"]
    accepted = accepts(written(data))
    if accepted == test["valid"]:
        return
    if accepted:
        found.accepted_wrongly.append(data)
        return
    lenient = {**options, "property_order": "any"}
    again = recogniser(source, lenient)
    narrowed = again(written(data)) or again(written(rewritten(data)))
    if not narrowed and "format" in json.loads(source):
        narrowed = recogniser(source, {**lenient, "formats": "annotate"})(written(data))
    (found.narrowed if narrowed else found.refused_wrongly).append(data)


@lru_cache(1)
def compiler() -> GrammarCompiler:
    """A compiler over single bytes: instances are read as texts, not as anyone's tokens."""
    tokens = [bytes((byte,)) for byte in range(256)]
    return GrammarCompiler(Vocabulary.from_tokens([*tokens, None], end_ids=[256]))


def recogniser(source: str, options: Mapping[str, str]) -> Recogniser:
    """Whether a whole text is in the language of a schema. Raises InvalidGrammar."""
    spec = GrammarSpec("json_schema", source, tuple(sorted(options.items())))
    grammar = compiler().compile(spec)

    def accepts(text: bytes) -> bool:
        matcher = grammar.matcher()
        return matcher.accept_bytes(text) and matcher.is_accepting()

    return accepts


def written(data: Any) -> bytes:
    """An instance as `json.dumps` writes it."""
    return json.dumps(data, ensure_ascii=False).encode(errors="surrogatepass")


def rewritten(data: Any) -> Any:
    """The same value with whole numbers as integers."""
    if isinstance(data, float) and data.is_integer():
        return int(data)
    if isinstance(data, list):
        return [rewritten(item) for item in data]
    if isinstance(data, dict):
        return {name: rewritten(item) for name, item in data.items()}
    return data


def judge_all(rows: Iterable[Row], order: str) -> dict[str, Judgement]:
    return {row["id"]: judge(row, order) for row in rows}


_KEYWORDS = """
additionalProperties allOf anyOf const contains dependencies enum exclusiveMaximum exclusiveMinimum
format if items maxItems maxLength maxProperties maximum minItems minLength minProperties minimum
multipleOf not oneOf pattern patternProperties propertyNames properties $ref required uniqueItems
"""
_LISTED = frozenset(_KEYWORDS.split())


def keywords(schema: Any) -> Iterator[str]:
    """The keywords of a schema that the table lists, wherever they stand."""
    if isinstance(schema, dict):
        yield from (key for key in schema if key in _LISTED)
        for inner in schema.values():
            yield from keywords(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from keywords(inner)


def by_keyword(rows: list[Row], found: Mapping[str, Judgement]) -> dict[str, Counter[str]]:
    """Verdicts and wrong instances for the schemas with each keyword, and for all."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        listed = {row["dataset"]} if row["id"].startswith("suite/") else keywords(row["schema"])
        for keyword in {*listed, "ALL"}:
            tally(counts.setdefault(keyword, Counter()), found[row["id"]])
    return counts


def tally(counts: Counter[str], one: Judgement) -> None:
    counts[one.verdict] += 1
    counts["schemas"] += 1
    counts["accepted wrongly"] += len(one.accepted_wrongly)
    counts["refused wrongly"] += len(one.refused_wrongly)
    counts["instances narrowed"] += len(one.narrowed)


def judge_peer(row: Row, peer: Peer, ours: Judgement) -> Judgement:
    """Another engine's verdict; `ours`: in declared order, for what counts as narrowed."""
    tests = row["tests"]
    source = json.dumps(row["schema"], ensure_ascii=False)
    answer = peer.ask(source, [written(t["data"]).decode(errors="surrogatepass") for t in tests])
    found = Judgement(tests=len(tests))
    if isinstance(answer, str):
        nothing_to_accept = "unsatisf" in answer.lower() and not any(t["valid"] for t in tests)
        found.verdict, found.why = "right" if nothing_to_accept else "refused", answer
        return found
    for test, accepted in zip(tests, answer, strict=True):
        if accepted and not test["valid"]:
            found.accepted_wrongly.append(test["data"])
        elif test["valid"] and not accepted:
            by_design = any(test["data"] is data for data in ours.narrowed)
            (found.narrowed if by_design else found.refused_wrongly).append(test["data"])
    if found.accepted_wrongly or found.refused_wrongly:
        found.verdict = "wrong"
    elif found.narrowed:
        found.verdict = "narrowed"
    return found


def judge_peers(
    rows: list[Row], ours: Mapping[str, Judgement], site: str | None
) -> dict[str, dict[str, Judgement]]:
    """Every row by every other engine at hand."""
    found: dict[str, dict[str, Judgement]] = {}
    for name in installed():
        peer = Peer(name, site)
        found[name] = {row["id"]: judge_peer(row, peer, ours[row["id"]]) for row in rows}
        peer.close()
    return found


def show(title: str, engines: Mapping[str, Mapping[str, Counter[str]]]) -> None:
    """One table by keyword with a column an engine, and one of the sums."""
    names = list(engines)
    first = engines[names[0]]
    print(f"\n{title}: schemas right+narrowed/refused/wrong")
    lines = [
        [key, str(first[key]["schemas"]), *(cell(engines[name][key]) for name in names)]
        for key in sorted(first)
    ]
    table(["", "schemas", *names], lines)
    columns = (*VERDICTS, "accepted wrongly", "refused wrongly", "instances narrowed")
    print()
    sums = [[n, *(str(engines[n]["ALL"][c]) for c in columns)] for n in names]
    table(["", *columns], sums)


def cell(counts: Counter[str]) -> str:
    right, narrowed, refused, wrong = (counts[verdict] for verdict in VERDICTS)
    return f"{right}+{narrowed}/{refused}/{wrong}"


def run(name: str, rows: list[Row], orders: Iterable[str], site: str | None, report: Report) -> Any:
    """Judge one data file by this project, and by others if `site` is not None; report it."""
    ours = {order: judge_all(rows, order) for order in orders}
    engines = {f"radixgen {order}": by_keyword(rows, found) for order, found in ours.items()}
    if site is not None and "declared" in ours:
        for peer, found in judge_peers(rows, ours["declared"], site or None).items():
            engines[peer] = by_keyword(rows, found)
    show(name, engines)
    for order, found in ours.items():
        print(f"\n{name}, members in {order} order, what is not right:")
        for key, one in found.items():
            if one.verdict != "right":
                wrong = (one.accepted_wrongly + one.refused_wrongly + one.narrowed)[:1]
                print(f"  {key}: {one.verdict}: {one.why or json.dumps(wrong)[:160]}")
    for engine, counts in engines.items():
        report.results[f"{name}, {engine}"] = dict(counts["ALL"])
    for order in ours:
        whole, title = engines[f"radixgen {order}"]["ALL"], f"{name}, {order}"
        for kind in ("accepted wrongly", "refused wrongly"):
            report.equal(f"{title}: instances {kind}", whole[kind], 0)
    return engines


def main() -> int:
    parser = arguments(str(__doc__).split("\n\n", maxsplit=1)[0])
    parser.add_argument("--order", choices=("any", "declared", "both"), default="both")
    parser.add_argument("--site", default="", help="a folder with the packages of other engines")
    parser.add_argument("--alone", action="store_true", help="without other engines")
    options = parser.parse_args()
    if options.site:
        sys.path.append(options.site)
    step = 3 if options.quick else 1
    report = Report("grammar_conformance", {"quick": options.quick, "order": options.order})
    orders = ("any", "declared") if options.order == "both" else (options.order,)
    site = None if options.alone else options.site
    public = [row for row in rows_of(PUBLIC) if row["bench300"]][::step]
    engines = run("public schemas", public, orders, site, report)
    right = {name: counts["ALL"]["right"] for name, counts in engines.items()}
    if "any" in orders:
        goal = GOAL_RIGHT * len(public) / 300
        report.at_least("public schemas entirely right", right["radixgen any"], goal)
    others = [count for name, count in right.items() if not name.startswith("radixgen")]
    if others:
        name = f"radixgen {orders[0]}"
        report.at_least("more right than any other engine", right[name], max(others) + 1)
    run("test suite 2020-12", rows_of(SUITE)[::step], orders, site, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
