"""How much of JSON Schema is enforced, and how exactly: public schemas with instances that must and
must not match, and the official test suite.

    python -m benchmarks.grammar_conformance [--quick] [--order declared]

A schema is judged by its instances, written as `json.dumps` writes them. It is *right* when every
valid one is accepted and every invalid one is not, *refused* when it does not compile, *narrowed*
when a valid instance is refused only for how it is written (the order of its members, 1.0 for 1) or
because `radixgen.grammars.formats` documents a narrower format, and *wrong* otherwise. A schema
that nothing satisfies has to be refused; that is right. In the suite's part on formats as
annotations they are annotations.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

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
    """Verdicts and wrong instances for the schemas with each keyword."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for keyword in {row["dataset"]} if _is_suite(row) else set(keywords(row["schema"])):
            tally(counts.setdefault(keyword, Counter()), found[row["id"]])
    return counts


def _is_suite(row: Row) -> bool:
    return bool(row["id"].startswith("suite/"))


def tally(counts: Counter[str], one: Judgement) -> None:
    counts[one.verdict] += 1
    counts["schemas"] += 1
    counts["accepted wrongly"] += len(one.accepted_wrongly)
    counts["refused wrongly"] += len(one.refused_wrongly)
    counts["instances narrowed"] += len(one.narrowed)


def show(title: str, counts: Mapping[str, Counter[str]]) -> None:
    columns = ("schemas", *VERDICTS, "accepted wrongly", "refused wrongly", "instances narrowed")
    print(f"\n{title}")
    rows = [[name, *(str(counts[name][c]) for c in columns)] for name in sorted(counts)]
    table(["", *columns], rows)


def run(name: str, rows: list[Row], order: str, report: Report) -> Counter[str]:
    """Judge one data file and report it."""
    found = judge_all(rows, order)
    whole: Counter[str] = Counter()
    for one in found.values():
        tally(whole, one)
    title = f"{name}, members in {order} order"
    show(title, {**by_keyword(rows, found), "ALL": whole})
    for key, one in found.items():
        if one.verdict != "right":
            wrong = (one.accepted_wrongly + one.refused_wrongly + one.narrowed)[:1]
            print(f"  {key}: {one.verdict}: {one.why or json.dumps(wrong)[:160]}")
    report.results[title] = dict(whole)
    report.equal(f"{title}: instances accepted wrongly", whole["accepted wrongly"], 0)
    report.equal(f"{title}: instances refused wrongly", whole["refused wrongly"], 0)
    return whole


def main() -> int:
    parser = arguments(str(__doc__).split("\n\n", maxsplit=1)[0])
    parser.add_argument("--order", choices=("any", "declared", "both"), default="both")
    options = parser.parse_args()
    step = 3 if options.quick else 1
    report = Report("grammar_conformance", {"quick": options.quick, "order": options.order})
    orders = ("any", "declared") if options.order == "both" else (options.order,)
    for order in orders:
        public = [row for row in rows_of(PUBLIC) if row["bench300"]][::step]
        counts = run("public schemas", public, order, report)
        if order == "any":
            goal = GOAL_RIGHT * len(public) / 300
            report.at_least("public schemas entirely right", counts["right"], goal)
        run("test suite 2020-12", rows_of(SUITE)[::step], order, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
