"""`radixgen demo`: shared prefixes on a real model, and what the cache made of them."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from radixgen.cli import common
from radixgen.cli.common import out
from radixgen.launch import Runtime
from radixgen.types import GenerateResult

EXAMPLES = [
    ("France", "Paris", "French", "Europe"),
    ("Japan", "Tokyo", "Japanese", "Asia"),
    ("Brazil", "Brasilia", "Portuguese", "South America"),
    ("Kenya", "Nairobi", "Swahili", "Africa"),
    ("Canada", "Ottawa", "English", "North America"),
    ("Austria", "Vienna", "German", "Europe"),
    ("Mexico", "Mexico City", "Spanish", "North America"),
    ("Thailand", "Bangkok", "Thai", "Asia"),
    ("Ghana", "Accra", "English", "Africa"),
    ("Norway", "Oslo", "Norwegian", "Europe"),
    ("Peru", "Lima", "Spanish", "South America"),
    ("Vietnam", "Hanoi", "Vietnamese", "Asia"),
]
COUNTRIES = ["Italy", "Egypt", "Germany", "China", "Spain", "Russia", "Argentina", "Greece"]
SYSTEM = (
    "You are the assistant of a small hardware shop. Answer in one or two short sentences. "
    "The shop is open from 9 to 18 o'clock on weekdays and from 10 to 14 o'clock on Saturdays. "
    "Hammers cost 12 euros, a box of nails costs 3 euros, a saw costs 19 euros, a litre of white "
    "paint costs 8 euros and a brush costs 4 euros. Delivery is free above 50 euros and costs 5 "
    "euros below. Goods can be returned within 30 days with the receipt. The shop does not sell "
    "food, clothes or electronics. Be friendly, and do not invent prices."
)
QUESTIONS = [
    ["When are you open on Saturday?", "And on weekdays?"],
    ["How much is a hammer?", "And a saw?"],
    ["Can I return a brush?", "What do I need for that?"],
]


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the demonstration."""

    what: str
    result: GenerateResult


def demo(
    model: common.Model = "",
    as_json: common.AsJson = False,
    settings: common.Settings = None,
) -> None:
    """Fetch the model, run prompts that share prefixes, and show what was reused.

    \b
    Examples:
      radixgen demo
      radixgen demo --model ./my-model --set policy=lpm
    """
    with common.started(model, settings) as runtime:
        totals = []
        for title, run in SECTIONS.items():
            runtime.flush_cache()
            before, started = runtime.stats(), time.perf_counter()
            rows = run(runtime)
            seconds = time.perf_counter() - started
            totals.append(summary(title, rows, before, runtime.stats(), seconds))
            if not as_json:
                show(title, rows)
                out.print(sentence(totals[-1]), "\n")
    if as_json:
        out.print_json(json.dumps(totals))


def few_shot(runtime: Runtime) -> list[Row]:
    """All at once: the first computes the examples, and the others wait for it and reuse them."""
    head = "Facts about countries.\n\n" + "".join(
        f"Country: {country}\nCapital: {capital}\nLanguage: {language}\nContinent: {continent}\n\n"
        for country, capital, language, continent in EXAMPLES
    )
    prompts = [f"{head}Country: {country}\nCapital:" for country in COUNTRIES]
    results = runtime.generate(prompts, temperature=0, max_tokens=20, stop="\n\n")
    return [Row(country, result) for country, result in zip(COUNTRIES, results, strict=True)]


def agents(runtime: Runtime) -> list[Row]:
    """Conversations side by side: the second turns reuse the first ones, answers included."""
    histories: list[list[dict[str, str]]] = [[{"role": "system", "content": SYSTEM}]] * len(
        QUESTIONS
    )
    rows = []
    for turn in range(2):
        asked = [questions[turn] for questions in QUESTIONS]
        histories = [
            [*history, {"role": "user", "content": question}]
            for history, question in zip(histories, asked, strict=True)
        ]
        prompts = [runtime.tokenizer.chat(history) for history in histories]
        results = runtime.generate(prompts, temperature=0, max_tokens=24)
        rows += [Row(question, result) for question, result in zip(asked, results, strict=True)]
        histories = [
            [*history, {"role": "assistant", "content": result.text}]
            for history, result in zip(histories, results, strict=True)
        ]
    return rows


SECTIONS: dict[str, Callable[[Runtime], list[Row]]] = {
    "Few-shot: one list of examples, many countries": few_shot,
    "Agents: one system prompt, several conversations": agents,
}


def summary(
    title: str,
    rows: Sequence[Row],
    before: dict[str, float],
    after: dict[str, float],
    seconds: float,
) -> dict[str, str | float]:
    """Tokens and seconds of a section."""
    usages = [row.result.usage for row in rows]
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    cached_tokens = sum(usage.cached_tokens for usage in usages)
    generated = sum(usage.completion_tokens for usage in usages)
    return {
        "title": title,
        "requests": len(rows),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "prefilled_tokens": prompt_tokens - cached_tokens,
        "computed_tokens": after["computed_tokens"] - before["computed_tokens"],
        "generated_tokens": generated,
        "hit_rate": cached_tokens / prompt_tokens,
        "seconds": seconds,
        "tokens_per_second": (prompt_tokens + generated) / seconds,
        "generated_per_second": generated / seconds,
    }


def show(title: str, rows: Sequence[Row]) -> None:
    """A table with one request a row."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("request", "prompt", "reused", "prefilled", "answer"):
        number = name in ("prompt", "reused", "prefilled")
        table.add_column(name, justify="right" if number else "left", no_wrap=number)
    for row in rows:
        usage = row.result.usage
        table.add_row(
            row.what,
            str(usage.prompt_tokens),
            str(usage.cached_tokens),
            str(usage.prompt_tokens - usage.cached_tokens),
            " ".join(row.result.text.split()),
        )
    out.print(table)


def sentence(total: dict[str, str | float]) -> str:
    """A section's totals in words."""
    return (
        f"{total['requests']} requests, {total['prompt_tokens']:,} prompt tokens: "
        f"[bold]{total['cached_tokens']:,} reused[/] ({total['hit_rate']:.0%}), "
        f"{total['prefilled_tokens']:,} prefilled. {total['generated_tokens']} tokens written in "
        f"{total['seconds']:.1f} s; {total['tokens_per_second']:,.0f} tokens/s read and written, "
        f"{total['generated_per_second']:.1f} written."
    )
