"""OpenAI's own client against a live server on a tiny random model: what works, what is refused."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live_server import CONTEXT, shared_server
from openai_chat import ASK, MODEL, chat, connect, refused

from radixgen.serve.schemas import ChatAnswer, CompletionAnswer

IMAGE = {"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with connect() as client:
        yield client


# ---- models ----


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="gpt-9")
    assert caught.value.body["param"] == "model"  # type: ignore[index]


# ---- chat ----


def test_an_answer_and_what_it_cost(client: openai.OpenAI) -> None:
    first = chat(client, **GREEDY)
    again = chat(client, **GREEDY)
    assert first.choices[0].message.role == "assistant"
    assert first.choices[0].finish_reason == "length"
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.usage.completion_tokens == 12
    assert first.usage.total_tokens == first.usage.prompt_tokens + 12
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1
    assert first.id != again.id


def test_answers_are_of_their_schema(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=4, logprobs=True, top_logprobs=2
    )
    ChatAnswer.model_validate_json(raw.text, strict=True)
    text = client.completions.with_raw_response.create(
        model=MODEL, prompt="x", max_tokens=4, logprobs=2, echo=True
    )
    CompletionAnswer.model_validate_json(text.text, strict=True)


def test_a_stream_adds_up_to_the_answer(client: openai.OpenAI) -> None:
    whole = chat(client, **GREEDY, n=2, seed=3, logprobs=True, top_logprobs=2)
    chunks = list(
        chat(
            client,
            **GREEDY,
            n=2,
            seed=3,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for index in range(2):
        own = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert all(choice.delta.role is None for choice in own[1:])
        text = "".join(choice.delta.content or "" for choice in own)
        assert text == whole.choices[index].message.content
        assert [c.finish_reason for c in own if c.finish_reason] == ["length"]
        entries = [e for c in own if c.logprobs for e in c.logprobs.content]
        assert entries == whole.choices[index].logprobs.content


def test_seed_fixes_the_choices_and_choices_differ(client: openai.OpenAI) -> None:
    first = chat(client, n=3, seed=7, temperature=1.5)
    again = chat(client, n=3, seed=7, temperature=1.5)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, **GREEDY)
    content = answer.choices[0].logprobs.content
    data = b"".join(bytes(entry.bytes) for entry in content)
    assert data.decode("utf-8", "replace") == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def test_a_stop_string_ends_the_text_and_its_logprobs(client: openai.OpenAI) -> None:
    text = completion(client, "abc", max_tokens=30, logprobs=0, **GREEDY)
    tokens = text.choices[0].logprobs.tokens
    place = next(i for i in range(4, 30) if tokens[i].isascii() and tokens[i] not in tokens[:i])
    stop = tokens[place]
    for stream in (False, True):
        answer = completion(
            client, "abc", max_tokens=30, logprobs=0, stop=[stop], stream=stream, **GREEDY
        )
        parts = list(answer) if stream else [answer]
        tables = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
        got = [token for table in tables for token in table.tokens]
        assert got == tokens[:place]
        assert stop not in "".join(part.choices[0].text for part in parts)
        assert parts[-1].choices[0].finish_reason == "stop"
        assert parts[-1].choices[0].stop_reason == stop
    kept = completion(
        client, "abc", max_tokens=30, stop=[stop], temperature=0,
        extra_body={"include_stop_str_in_output": True, "ignore_eos": True},
    )  # fmt: skip
    assert kept.choices[0].text.endswith(stop)


def test_biases_and_stop_tokens_act(client: openai.OpenAI) -> None:
    answer = chat(client, logit_bias={"65": 100}, temperature=0)
    assert answer.choices[0].message.content == "A" * 12
    answer = chat(
        client, logit_bias={"65": 100}, temperature=0, extra_body={"stop_token_ids": [65]}
    )
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].stop_reason == 65


def test_roles_parts_and_earlier_calls_reach_the_prompt(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = chat(
        client,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
    )  # fmt: skip
    assert answer.usage.prompt_tokens > 150


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"65": 1000}}, "logit_bias"),
        ({"logit_bias": {"no": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x" * 2 * CONTEXT}]}, "messages"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"top_q": 1}}, "top_q"),
        ({"extra_body": {"functions": []}}, "functions"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"extra_body": {"chat_template_kwargs": {"x": 1}}}, "chat_template_kwargs.x"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"cache_salt": "x" * 1000}}, "cache_salt"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_parameter(
    client: openai.OpenAI, options: Any, param: str
) -> None:
    try:
        body = refused(client, **options)
    except UnicodeEncodeError:  # the client itself cannot send a lone surrogate
        return
    assert body["param"] == param
    assert body["type"] == "invalid_request_error"
    assert body["message"]


def test_a_fault_of_a_stream_has_its_status(client: openai.OpenAI) -> None:
    body = refused(client, stream=True, extra_body={"guided_regex": "a("})
    assert body["param"] == "guided_regex"


def test_bookkeeping_is_taken(client: openai.OpenAI) -> None:
    answer = chat(
        client, user="u", metadata={"a": "b"}, store=False, service_tier="auto", max_tokens=1,
        extra_body={"priority": 3, "cache_salt": "s", "top_k": -1, "min_p": 0.0, "rid": "mine"},
    )  # fmt: skip
    assert answer.id == "mine"


def test_a_salt_keeps_prefixes_apart(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "a prefix to be shared, or not, by those who come"}]

    def cached(salt: str) -> int:
        body = {"cache_salt": salt}
        answer = chat(client, messages=messages, max_tokens=1, extra_body=body)
        return int(answer.usage.prompt_tokens_details.cached_tokens)

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == 0


def test_no_top_p_leaves_the_likeliest_token(client: openai.OpenAI) -> None:
    likeliest = chat(client, temperature=0).choices[0].message.content
    drawn = chat(client, temperature=2, top_p=0, seed=3).choices[0].message.content
    assert drawn == likeliest


def test_many_streams_at_once_each_get_their_own(client: openai.OpenAI) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(
            model=MODEL, prompt=f"{number}", max_tokens=8, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def everyone() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{shared_server().url}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(*(one(client, number) for number in range(40)))

    texts = asyncio.run(everyone())
    for number in (0, 17, 39):
        alone = client.completions.create(
            model=MODEL, prompt=f"{number}", max_tokens=8, temperature=0
        )
        assert texts[number] == alone.choices[0].text


# ---- completions ----


def completion(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": prompt, **options})


def test_every_form_of_prompt(client: openai.OpenAI) -> None:
    ids = list(b"hello")
    one = completion(client, "hello", max_tokens=6, temperature=0).choices[0].text
    assert completion(client, ids, max_tokens=6, temperature=0).choices[0].text == one
    many = completion(client, ["hello", "world"], max_tokens=6, temperature=0, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == one
    lists = completion(client, [ids, [1, 2]], max_tokens=6, temperature=0)
    assert lists.choices[0].text == one
    assert lists.usage.prompt_tokens == 7
    assert completion(client, "hello").usage.completion_tokens <= 16


def test_prompts_are_scored_as_evaluations_ask(client: openai.OpenAI) -> None:
    ids = list(b"The cat sat")
    answer = completion(client, [ids], max_tokens=1, echo=True, logprobs=1, seed=1, temperature=0)
    table = answer.choices[0].logprobs
    assert len(table.token_logprobs) == len(ids) + 1
    assert table.token_logprobs[0] is None
    assert all(math.isfinite(value) and value <= 0 for value in table.token_logprobs[1:])
    assert "".join(table.tokens[: len(ids)]) == "The cat sat"
    assert table.text_offset[: len(ids)] == list(range(len(ids)))
    for token, value, top in zip(
        table.tokens, table.token_logprobs, table.top_logprobs, strict=True
    ):
        assert top is None or top[token] == value
    only = completion(client, [ids], max_tokens=0, echo=True, logprobs=1)
    assert only.choices[0].text == "The cat sat"
    assert only.choices[0].logprobs.token_logprobs == pytest.approx(
        table.token_logprobs[:-1], abs=1e-4
    )


def test_a_score_has_a_row_behind_the_prompt_even_if_the_text_ends_there(
    client: openai.OpenAI,
) -> None:
    answer = completion(
        client, "The cat", max_tokens=1, echo=True, logprobs=1, temperature=0,
        logit_bias={"258": 100},
    )  # fmt: skip
    assert answer.choices[0].text == "The cat"
    assert answer.choices[0].stop_reason == 258
    assert len(answer.choices[0].logprobs.token_logprobs) == len("The cat") + 1


def test_echo_and_streams_of_many_prompts(client: openai.OpenAI) -> None:
    whole = completion(client, ["ab", "cd"], max_tokens=5, temperature=0, echo=True)
    texts = ["", ""]
    for chunk in completion(
        client, ["ab", "cd"], max_tokens=5, temperature=0, echo=True, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert texts[0].startswith("ab")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [259]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a"] * 2000}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 5}, "best_of"),
        ({"logprobs": 99}, "logprobs"),
        ({"echo": True, "stream": True, "logprobs": 1}, "echo"),
    ],
)
def test_faults_of_completions(client: openai.OpenAI, options: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        completion(client, **{"prompt": "x", **options})
    body: Any = caught.value.body
    assert body["param"] == param
