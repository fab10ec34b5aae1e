"""Decisions, rendered prompts and routes that are not there, against a live server."""

import math
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from live_server import CONTEXT, shared_server

from radixgen.serve.decisions import probabilities

INPUT = "The parcel arrived broken, and this is the second time. I want my money back."
PREDICATE = {"type": "predicate", "name": "refund", "instructions": "A refund is asked for."}
CHOICE = {
    "type": "choice",
    "instructions": "Which team should answer?",
    "choices": [{"value": "billing"}, {"value": "shipping", "description": "parcels"},
                {"value": "ship"}],
}  # fmt: skip
SCORE = {
    "type": "score",
    "name": "anger",
    "instructions": [{"type": "input_text", "text": "How angry is the writer?"}],
    "levels": [{"label": "calm"}, {"label": "annoyed"}, {"label": "furious"}],
}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with shared_server().client() as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{shared_server().url}/v1", api_key="none", max_retries=0, timeout=200
    ) as client:
        yield client


def decide(client: openai.OpenAI, *questions: Any, **options: Any) -> Any:
    options = {"model": "tiny", "input": INPUT, **options}
    return client.decisions.create(questions=questions, **options)


def test_each_question_is_answered_in_its_place(client: openai.OpenAI) -> None:
    answer = decide(client, PREDICATE, CHOICE, SCORE)
    refund, team, anger = answer.answers
    assert (refund.type, refund.name) == ("predicate", "refund")
    assert 0 <= refund.probability <= 1
    assert [item.value for item in team.probabilities] == ["billing", "shipping", "ship"]
    assert math.fsum(item.probability for item in team.probabilities) == pytest.approx(1)
    best = max(team.probabilities, key=lambda item: item.probability)
    assert (team.choice, team.confidence) == (best.value, best.probability)
    assert [(item.value, item.label) for item in anger.probabilities] == [
        (0, "calm"), (1, "annoyed"), (2, "furious"),
    ]  # fmt: skip
    mean = math.fsum(item.value * item.probability for item in anger.probabilities)
    assert anger.score == pytest.approx(mean)
    assert 0 <= anger.model_extra["diagnostics"]["label_mass"] <= 1
    assert answer.usage.output_tokens == 0


def test_the_input_is_computed_once(client: openai.OpenAI) -> None:
    usage = decide(client, *[PREDICATE] * 5, input=f"{INPUT} Only here.").usage
    alone = decide(client, PREDICATE, input=f"{INPUT} Only here.").usage
    assert usage.input_tokens == 5 * alone.input_tokens
    assert usage.input_tokens_details.cached_tokens >= 4 * len(INPUT)


def test_the_probabilities_are_the_models(client: openai.OpenAI, http: httpx2.Client) -> None:
    """Against the log-probabilities of the rendered prompt with each answer behind it."""
    question = "A refund is asked for.\n\nIs this true? Answer with Yes or No only."
    messages = [{"role": "user", "content": f"{INPUT}\n\n{question}"}]
    rendered = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    totals = []
    for word in ("Yes", "No"):
        body = {"model": "tiny", "prompt": f"{rendered}{word}<|im_end|>", "max_tokens": 0,
                "echo": True, "logprobs": 0}  # fmt: skip
        table = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
        totals.append(math.fsum(table["token_logprobs"][-len(word) - 1 :]))
    shares, mass = probabilities(totals)
    (answer,) = decide(client, PREDICATE).answers
    assert answer.probability == pytest.approx(shares[0], abs=1e-5)
    assert answer.model_extra["diagnostics"]["label_mass"] == pytest.approx(mass, rel=1e-3)


def test_a_conversation_and_json_can_be_asked_about(client: openai.OpenAI) -> None:
    part = {"type": "input_json", "data": {"order": 7}}
    turns = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "I see."}]
    same = [{"value": True}, {"value": "true"}]
    question = {"type": "choice", "instructions": "Well?", "choices": same}
    (answer,) = decide(client, question, input=turns).answers
    assert [item.value for item in answer.probabilities] == [True, "true"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [PREDICATE] * 401}, "questions"),
        ({"questions": [{"type": "essay", "instructions": "x"}]}, "questions[0]"),
        ({"questions": [PREDICATE | {"instructions": " "}]}, "questions[0].instructions"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}] * 2}]}, "questions[0].choices"),
        ({"questions": [SCORE | {"levels": [{"label": ""}, {"label": "x"}]}]},
         "questions[0].levels"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": "x" * 2 * CONTEXT}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0]"),
        ({"temperature": 1}, "temperature"),
    ],
)  # fmt: skip
def test_faults_of_decisions(http: httpx2.Client, options: Any, param: str) -> None:
    body = {"model": "tiny", "input": INPUT, "questions": [PREDICATE], **options}
    answer = http.post("/v1/decisions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


# ---- what a prompt looks like ----


def test_a_conversation_is_rendered_as_it_would_be_answered(http: httpx2.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    shown = http.post("/v1/chat/completions/render", json=body | {"max_tokens": 3}).json()
    assert shown["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    answer = http.post("/v1/chat/completions", json=body | {"max_tokens": 1}).json()
    assert shown["count"] == len(shown["token_ids"]) == answer["usage"]["prompt_tokens"]
    bare = {"messages": body["messages"]}
    assert http.post("/apply-template", json=bare).json() == {"prompt": shown["prompt"]}
    assert http.post("/tokenize", json=bare).json()["tokens"] == shown["token_ids"]
    refused = http.post("/v1/chat/completions/render", json=body | {"messages": []})
    assert refused.status_code == 400


# ---- what is not there ----


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/v1/embeddings", "embeddings"),
        ("POST", "/v1/rerank", "/v1/decisions"),
        ("POST", "/v1/score", "/v1/decisions"),
        ("POST", "/v1/moderations", "/v1/decisions"),
        ("POST", "/v1/audio/transcriptions", "sound"),
        ("POST", "/v1/images/generations", "pictures"),
        ("GET", "/v1/files", "run-batch"),
        ("POST", "/v1/batches", "run-batch"),
        ("POST", "/v1/fine_tuning/jobs", "train"),
        ("GET", "/api/tags", "Ollama"),
    ],
)
def test_a_route_that_is_not_served_says_why(
    http: httpx2.Client, method: str, path: str, said: str
) -> None:
    for content, kind in ((b"{}", "application/json"), (b"--x", "multipart/form-data")):
        if kind != "application/json" and not path.startswith(("/v1/audio", "/v1/images")):
            continue
        answer = http.request(method, path, content=content, headers={"content-type": kind})
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "unsupported_route"


def test_no_response_is_stored(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="none is stored"):
        client.responses.retrieve("resp_1")
