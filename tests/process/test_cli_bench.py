"""`radixgen bench`: the load it makes, what it tells of it, and a run of each kind."""

import contextlib
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import radixgen
from live_server import CONTEXT, shared_server, tiny_model

from radixgen import Runtime
from radixgen.cli import common
from radixgen.cli.bench_load import WORDS, Sample, Workload
from radixgen.cli.bench_report import costs, objectives, results, spread
from radixgen.errors import InvalidRequest


@pytest.fixture(scope="module")
def url() -> str:
    return shared_server().url


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(tiny_model(), threads=1, num_pages=1000) as runtime:
        yield runtime


@pytest.fixture
def started(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands use one runtime, and leave it running."""

    @contextlib.contextmanager
    def given(model: str, settings: list[str] | None) -> Iterator[Runtime]:
        yield runtime

    monkeypatch.setattr(common, "started", given)


def test_prompts_share_what_they_should() -> None:
    load = Workload(6, 5, 1, prefix_tokens=7, num_prefixes=2, seed=4)
    prompts: Any = load.prompts(100)
    assert [len(prompt) for prompt in prompts] == [12] * 6
    assert prompts[0][:7] == prompts[2][:7] == prompts[4][:7] != prompts[1][:7]
    assert len({tuple(prompt[7:]) for prompt in prompts}) == 6
    assert all(0 <= token < 100 for prompt in prompts for token in prompt)
    assert prompts == load.prompts(100)
    assert load.best_hit_rate == pytest.approx(4 * 7 / 72)
    words: Any = load.prompts(None)
    assert all(set(text.split()) <= set(WORDS) and len(text.split()) == 12 for text in words)


def test_arrivals_come_at_their_rate() -> None:
    assert Workload(3, 1, 1).arrivals() == [0, 0, 0]
    times = Workload(4000, 1, 1, rate=50, seed=1).arrivals()
    assert times[0] == 0
    assert times == sorted(times)
    assert 4000 / times[-1] == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize(
    "given",
    [
        {"num_requests": 0},
        {"output_tokens": 0},
        {"prompt_tokens": 0},
        {"num_prefixes": 0},
        {"rate": 0.0},
        {"rate": math.nan},
        {"concurrency": 0},
    ],
)
def test_loads_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Workload(**{"num_requests": 1, "prompt_tokens": 1, "output_tokens": 1} | given)


def test_numbers_of_samples() -> None:
    samples = [
        Sample(0.1, 0.5, [0.1, 0.1, 0.2], 10, 4, 5),
        Sample(0.3, 1.1, [0.2, 0.6], 10, 0, 5),
        Sample(0.2, 0.2, [], 10, 0, 1),
        Sample(error="refused"),
    ]
    found = results(samples, 2.0, objectives(["ttft:250 tpot:150"]), 3.6)
    assert (found["requests"], found["failed"], found["output_tokens"]) == (3, 1, 11)
    assert found["hit_rate"] == pytest.approx(4 / 30)
    assert found["output_tokens_per_second"] == 5.5
    assert found["ttft_ms"]["p50"] == pytest.approx(200)
    assert found["tpot_ms"]["mean"] == pytest.approx(150)  # of 100 and 200
    assert found["itl_ms"]["p99"] <= 600
    assert found["goodput_share"] == 0.5  # the second is too late, the last failed
    assert found["goodput_requests_per_second"] == 1.0
    assert found["dollars_per_million_output_tokens"] == pytest.approx(0.002 / 11 * 1e6)
    assert spread([]) == {}
    assert costs(1.0, 1.0, 0, 0) == {}


def test_percentiles_of_a_known_row() -> None:
    marks = spread([number / 1000 for number in range(101)])
    assert marks == pytest.approx({"mean": 50, "p50": 50, "p90": 90, "p99": 99})


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:-1", "ttft:nan", "speed:3", ":5"])
def test_objectives_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected NAME:MILLISECONDS"):
        objectives([text])


def test_a_server_under_load(url: str) -> None:
    args = ("--url", url, "-N", "6", "-c", "2", "--prefix-tokens", "64", "--prompt-tokens", "5")
    more = ("--output-tokens", "4", "--dollars-per-hour", "1", "--json")
    done = radixgen("bench", "serve", *args, *more, "--goodput", "ttft:1e9", "tpot:1e9")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert told["benchmark"] == "serve"
    assert told["parameters"]["concurrency"] == 2
    found = told["results"]
    assert (found["requests"], found["prompt_tokens"], found["output_tokens"]) == (6, 6 * 69, 24)
    assert found["cached_tokens"] >= 4 * 64  # two may have been the first at once
    assert found["goodput_share"] == 1.0
    assert found["dollars_per_million_tokens"] > 0
    assert set(found["ttft_ms"]) == {"mean", "p50", "p90", "p99"}


def test_a_server_under_a_rate_in_words(url: str) -> None:
    args = ("--url", url, "-N", "3", "--rate", "200", "--chat", "--prompt-tokens", "6")
    done = radixgen("bench", "serve", *args, "--output-tokens", "3")
    assert done.status == 0, done.err
    for said in ("3 requests to tiny", "200 a second", "TTFT, first token", "requests/s"):
        assert said in done.said


def test_failures_are_counted(url: str) -> None:
    args = ("--url", url, "-N", "2", "--prompt-tokens", str(CONTEXT), "--warmup", "0")
    done = radixgen("bench", "serve", *args)
    assert done.status == 1
    assert "2 requests failed; one said:" in done.said
    assert str(CONTEXT) in done.said
    warmed = radixgen("bench", "serve", *args[:-2])
    assert (warmed.status, warmed.out) == (2, "")


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--url", "127.0.0.1:1"), 1, "no server answers"),
        (("--goodput", "fast:1"), 2, "a NAME of ttft, tpot, itl, e2el"),
        (("surplus",), 2, "unexpected argument 'surplus'"),
        (("--rate", "0"), 2, "rate=0.0 must be above 0"),
        (("-N", "0"), 2, "num_requests=0 must be at least 1"),
        (("--dollars-per-hour", "-1"), 2, "must not be negative"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], status: int, said: str) -> None:
    done = radixgen("bench", "serve", *args)
    assert (done.status, done.out) == (status, "")
    assert said in done.said


@pytest.mark.usefixtures("started")
def test_throughput() -> None:
    args = ("-N", "5", "--prompt-tokens", "10", "--prefix-tokens", "32", "--output-tokens", "4",
            "--seed", "7")  # fmt: skip
    found = json.loads(radixgen("bench", "throughput", *args, "--json").out)["results"]
    assert (found["requests"], found["prompt_tokens"], found["output_tokens"]) == (5, 210, 20)
    assert found["cached_tokens"] >= 4 * 32  # chance may let two have more in common
    done = radixgen("bench", "throughput", *args, "--dollars-per-hour", "2")
    assert "% of 61.0% that prompts share" in done.said
    assert "$ per million tokens written" in done.said


@pytest.mark.usefixtures("started")
def test_latency() -> None:
    args = ("--batch-size", "2", "--repeats", "3", "--output-tokens", "4")
    found = json.loads(radixgen("bench", "latency", *args, "--json").out)["results"]
    assert found["batch_ms"]["mean"] == pytest.approx(4 * found["step_ms"]["mean"])
    done = radixgen("bench", "latency", *args)
    assert "3 batches of 2 to tiny: 32 tokens in, 4 out" in done.said
    assert "whole batch" in done.said
