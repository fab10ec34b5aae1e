"""Programs on a real runtime with a tiny random model: what is computed, and what is reused."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import write_tiny_model

import radixgen as rg
from radixgen import AsyncRuntime, Runtime

TURNS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[Runtime]:
    """Without drafts, which are computed and perhaps thrown away: every computed token counts."""
    drafts: Any = {"jump_forward": "off", "prompt_lookup": False, "suffix_drafts": False}
    with Runtime(model, page_size=1, num_pages=8000, threads=1, **drafts) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def paged(model: Path) -> Iterator[Runtime]:
    with Runtime(model, page_size=16, num_pages=1000, threads=1) as runtime:
        yield runtime


def lookup(key: str) -> str:
    """What is known of a key."""
    return f"{key} is 7"


@rg.function
def agent(s: Any) -> None:
    s += rg.system("You are an agent with tools. " * 4)
    for turn in range(TURNS):
        s += rg.user(f"Turn {turn}: {lookup(f'key {turn}')}. Answer.")
        s += rg.assistant(rg.gen(f"a{turn}", max_tokens=9 + turn))


def metas(state: Any) -> list[dict[str, Any]]:
    return [state.get_meta_info(f"a{turn}") for turn in range(TURNS)]


def grown(before: dict[str, float], after: dict[str, float], name: str) -> int:
    return int(after[name] - before[name])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_agent_prefills_its_new_tokens_and_no_others(
    runtime: Runtime, temperature: float
) -> None:
    runtime.flush_cache()
    before = runtime.stats()
    state = agent.run(backend=runtime, temperature=temperature, seed=11)
    after = runtime.stats()
    known, new = 0, 0  # tokens computed when a turn begins, and those it adds
    for meta in metas(state):
        assert meta["cached_tokens"] == known
        new += meta["prompt_tokens"] - known
        known = meta["prompt_tokens"] + meta["completion_tokens"] - 1  # the last is not computed
    decoded = sum(meta["completion_tokens"] - 1 for meta in metas(state))
    assert grown(before, after, "computed_tokens") == new + decoded
    assert grown(before, after, "generated_tokens") == decoded + TURNS


def test_an_agent_over_larger_pages_loses_nothing_either(paged: Runtime) -> None:
    """But a token at the beginning of a page, which is computed sooner than copied."""
    paged.flush_cache()
    state = agent.run(backend=paged, temperature=0)
    known = 0
    for meta in metas(state):
        assert known - 1 <= meta["cached_tokens"] <= known
        known = meta["prompt_tokens"] + meta["completion_tokens"] - 1


def test_the_conversation_is_what_the_template_renders(runtime: Runtime) -> None:
    @rg.function
    def program(s: Any) -> None:
        s += rg.system("Be brief.")
        s += rg.user("Hi.")
        s += rg.assistant("Hello!")
        s += rg.user("Bye.")
        with s.assistant():
            s += "Bye"

    state = program.run(backend=runtime)
    rendered = runtime.tokenizer.render_chat(state.messages(), add_generation_prompt=False)
    assert state.text() == rendered
    ids = list(state.executor.conversation.prompt())
    assert ids == runtime.tokenizer.encode(rendered, add_special_tokens=False)


@pytest.mark.parametrize("width", [8])
def test_forks_prefill_the_shared_prefix_once(runtime: Runtime, width: int) -> None:
    shared = "The shared beginning of all of the branches. " * 8

    @rg.function
    def program(s: Any) -> None:
        s += shared
        forks = s.fork(width)
        forks += lambda index: f"branch {index}: "
        forks += rg.gen("x", max_tokens=4, ignore_eos=True)
        forks.join()

    runtime.flush_cache()
    before = runtime.stats()
    state = program.run(backend=runtime, temperature=0)
    branches = width * len("branch 0: ")
    decoded = width * 3
    # The shared prefix's last token may change with what follows; each branch computes it itself.
    limit = len(shared) + branches + decoded + width
    assert grown(before, runtime.stats(), "computed_tokens") <= limit
    assert len(state["x"]) == width


def test_forks_equal_runs_of_their_own(runtime: Runtime) -> None:
    @rg.function
    def forked(s: Any) -> None:
        s += "shared "
        forks = s.fork(3)
        forks += lambda index: f"branch {index}: "
        forks += rg.gen("x", max_tokens=8, ignore_eos=True)
        forks.join()

    @rg.function
    def alone(s: Any, index: int) -> None:
        s += f"shared branch {index}: " + rg.gen("x", max_tokens=8, ignore_eos=True)

    together = forked.run(backend=runtime, temperature=0)["x"]
    apart = [alone.run(index=i, backend=runtime, temperature=0)["x"] for i in range(3)]
    assert together == apart


def test_select_agrees_with_the_models_scores(runtime: Runtime) -> None:
    choices = ["north", "south-west", "up"]

    @rg.function
    def program(s: Any) -> None:
        s += "The way is " + rg.select("way", choices) + rg.gen("more", max_tokens=3)

    state = program.run(backend=runtime)
    scores = runtime.score("The way is ", choices).logprobs
    means = [sum(row) / len(row) for row in scores]
    assert state["way"] == choices[means.index(max(means))]
    shown = state.get_meta_info("way")["normalized_prompt_logprobs"]
    assert shown == pytest.approx(means, abs=1e-4)
    text = runtime.tokenizer.encode("The way is " + state["way"])
    more = runtime.generate(text, temperature=0, max_tokens=3)
    assert state.get_meta_info("more")["prompt_tokens"] == len(text)
    assert more.usage.prompt_tokens == len(text)


def test_a_batch_warms_its_constant_prefix_once(runtime: Runtime) -> None:
    head = "Classify the following lines as good or bad. " * 6

    @rg.function
    def program(s: Any, line: str) -> None:
        s += head
        s += line + rg.gen("a", max_tokens=2, ignore_eos=True)

    runtime.flush_cache()
    before = runtime.stats()
    states = program.run_batch([{"line": f"line {i} "} for i in range(20)], backend=runtime)
    assert all(state.error() is None for state in states)
    cached = [state.get_meta_info("a")["cached_tokens"] for state in states]
    assert min(cached) >= len(head) - 1
    own = sum(len(f"line {i} ") for i in range(20))
    limit = len(head) + own + 20 * (1 + 1)
    assert grown(before, runtime.stats(), "computed_tokens") <= limit


def test_hints_tell_the_future_that_the_program_knows(runtime: Runtime) -> None:
    @rg.function
    def program(s: Any) -> None:
        s += "start " + rg.gen("a", max_tokens=2)
        s["a"]
        forks = s.fork(4)
        forks += rg.gen("x", max_tokens=2)
        forks.join()
        s += "end " + rg.gen("b", max_tokens=2)
        s["b"]

    program.run(backend=runtime)
    state = program.run(backend=runtime)  # what followed a line is known from the first run
    first, last = (state.get_meta_info(name)["hint"] for name in "ab")
    assert (first.forks, first.last_use) == (4, False)
    assert (last.forks, last.last_use) == (0, True)
    assert first.program == "program"


def come_back(runtime: Runtime, *, foreseeable: bool) -> tuple[int, int]:
    """The prompt that a program would come back to, and what of it was still there: 40 others ran
    in between. If not `foreseeable`, the first of those goes on after its line."""

    @rg.function
    def once(s: Any, i: int) -> None:
        for _ in range(1 if foreseeable or i else 2):
            s += f"{i} is used once and never again, whatever happens " + rg.gen("a", max_tokens=2)
            s["a"]

    @rg.function
    def kept(s: Any) -> None:
        s += "This one will be continued later on " + rg.gen("a", max_tokens=2)
        s["a"]
        once.run_batch([(i,) for i in range(40)], backend=runtime, num_threads=1)
        s += " as promised " + rg.gen("b", max_tokens=2)

    runtime.flush_cache()
    state = kept.run(backend=runtime)
    first, second = (state.get_meta_info(name) for name in "ab")
    return first["prompt_tokens"], second["cached_tokens"]


def test_last_use_leaves_first(model: Path) -> None:
    """Prefixes that their program is done with go before one that its program comes back to."""
    with Runtime(model, page_size=4, num_pages=120, threads=1) as runtime:
        needed, found = come_back(runtime, foreseeable=True)
        hinted = runtime.stats()
        _, without = come_back(runtime, foreseeable=False)
    assert found >= needed - 4
    assert hinted["evicted_dead_pages"] > 0.8 * hinted["evicted_pages"] > 100
    assert hinted["hinted_requests"] >= 40
    assert without == 0


def during_a_tool(runtime: Runtime, seconds: float) -> tuple[int, int]:
    """The prompt that a program comes back to after a tool that is expected to take so long, and
    what of it was still there: 40 others ran in between."""

    @rg.function
    def other(s: Any, i: int) -> None:
        for _ in range(1 if i else 2):  # so that no line is known to be the last
            s += f"{i} is another one, long enough to take pages " + rg.gen("a", max_tokens=2)
            s["a"]

    def crowd() -> str:
        """Let others run."""
        other.run_batch([(i,) for i in range(40)], backend=runtime, num_threads=1)
        return "done"

    @rg.function
    def agent(s: Any) -> None:
        s += "An agent that calls a tool and goes on with what it says. "
        s += rg.call([crowd], "c", max_tokens=80, tool_seconds=seconds)
        s += "And so: " + rg.gen("b", max_tokens=2)

    runtime.flush_cache()
    crowd()
    state = agent.run(backend=runtime, temperature=0)
    first, second = (state.get_meta_info(name) for name in "cb")
    return first["prompt_tokens"], second["cached_tokens"]


def test_a_pause_for_a_tool_keeps_the_conversation(model: Path) -> None:
    with Runtime(model, page_size=4, num_pages=120, threads=1) as runtime:
        needed, found = during_a_tool(runtime, 600.0)
        stats = runtime.stats()
        _, without = during_a_tool(runtime, 0.0)
    assert found >= needed
    assert stats["evicted_pages"] > 100
    assert stats["evicted_due_pages"] == 0
    assert without == 0


def test_async_programs_on_the_runtimes_own_loop(model: Path) -> None:
    @rg.function
    async def program(s: Any, i: int) -> str:
        s += f"item {i}: " + rg.gen("a", max_tokens=3, ignore_eos=True)
        return str(await s["a"])

    async def main() -> list[str]:
        async with AsyncRuntime(model, num_pages=400, threads=1) as runtime:
            states = await asyncio.gather(*(program.arun(i, backend=runtime) for i in range(20)))
            return [state.ret_value for state in states]

    with pytest.raises(rg.InvalidRequest, match="no backend"):
        program.run(0, backend="local")
    assert len(asyncio.run(main())) == 20


def test_wrong_options_are_met_at_the_line(runtime: Runtime) -> None:
    @rg.function
    def program(s: Any, options: dict[str, Any]) -> None:
        s += "x" + rg.gen("a", **options)

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"regex": "("}, "regular expression"),
        ({"stop_token_ids": [10**6]}, "vocabulary"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"namespace": 3}, "namespace"),
    ]
    before = runtime.stats()
    for options, said in wrong:
        with pytest.raises(rg.InvalidRequest, match=said) as caught:
            program.run(options=options, backend=runtime)
        assert any("s += " in str(entry) for entry in caught.traceback)
    assert grown(before, runtime.stats(), "computed_tokens") == 0


def test_cancelled_programs_free_their_pages(runtime: Runtime) -> None:
    @rg.function
    def program(s: Any) -> None:
        s += "never ends " + rg.gen("a", max_tokens=3000, ignore_eos=True)

    with pytest.raises(rg.RequestAborted, match="time_limit"):
        program.run(backend=runtime, time_limit=0.3)
    deadline = time.monotonic() + 60
    while runtime.stats()["open_requests"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert runtime.stats()["held_pages"] == 0


def test_engine_speaks_sglang(model: Path) -> None:
    greedy = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    with rg.Engine(model_path=str(model), num_pages=200, threads=1) as engine:
        one = engine.generate("hello", greedy)
        many = engine.generate(["hello", "world"], greedy, return_logprob=True)
        *_, last = engine.generate("hello", greedy, stream=True)
        ids = engine.generate(input_ids=list(b"hello"), sampling_params=greedy)
        later = asyncio.run(engine.async_generate("hello", greedy))
        assert later["output_ids"] == one["output_ids"]
        assert one["meta_info"]["prompt_tokens"] == 5
        assert len(one["output_ids"]) == 4
        assert many[0]["output_ids"] == one["output_ids"] == last["output_ids"] == ids["output_ids"]
        assert len(many[1]["meta_info"]["output_token_logprobs"]) == 4
        assert len(engine.generate("a", {**greedy, "n": 2})) == 2
        assert engine.get_server_info()["max_context"] > 0
        with pytest.raises(rg.InvalidRequest, match="either prompt or input_ids"):
            engine.generate()
        with pytest.raises(rg.InvalidRequest, match="more than one constraint"):
            engine.generate("x", {"regex": "a", "ebnf": "b"})
