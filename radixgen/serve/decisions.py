"""`POST /v1/decisions`: many typed questions about one input, answered with probabilities.

Nothing is generated. The model's probability of each possible answer, up to the end of its turn,
is read from the input's shared prefix, which is computed once; the answers' probabilities are then
scaled so that they add up to one. How much they had before, `label_mass`, says whether the model
would have answered with one of them at all.
"""

import math
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.serve.context import Context, get_context, log_usage, make_job
from radixgen.serve.conversation import Layout, Turn, prompt_ids, turn_end
from radixgen.serve.decisions_request import (
    Asked,
    ChoiceOf,
    DecisionRequest,
    Predicate,
    Score,
    asked,
    conversation,
    with_question,
)
from radixgen.serve.http import json_answer, unless_gone
from radixgen.serve.jobs import Job
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.schemas import DecisionAnswer
from radixgen.types import SamplingParams, ScoreResult

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/decisions", responses=answers(DecisionAnswer))
async def decisions(body: DecisionRequest, request: Request) -> Response:
    """Answer questions about an input with probabilities."""
    context = get_context(request)
    lora = context.adapter_of(body.model)
    turns = conversation(body)
    questions = [asked(question, f"questions[{i}]") for i, question in enumerate(body.questions)]
    with renamed(None, messages="input", prompt="input", prefix="input"):
        job = await _job(context, request, body, turns, questions, lora)
        work = context.jobs.score(job, _continuations(context, questions))
        results = await unless_gone(request, work, context.config.request_seconds)
    log_usage(request, [result.usage for result in results])
    return json_answer(_answer(body, results))


async def _job(
    context: Context,
    request: Request,
    body: DecisionRequest,
    turns: Sequence[Turn],
    questions: Sequence[Asked],
    lora: str,
) -> Job:
    prompts = [
        await prompt_ids(context.client, with_question(turns, question.text), [], Layout())
        for question in questions
    ]
    salt = body.cache_salt or body.prompt_cache_key
    routing = body.model_copy(update={"cache_salt": salt})
    return make_job(request, "dec", prompts, SamplingParams(max_tokens=1), None, routing, lora)


def _continuations(context: Context, questions: Sequence[Asked]) -> list[list[list[int]]]:
    """The ids of each answer of each question, with the token that ends a turn behind it: so no
    answer is the beginning of another."""
    tokenizer = context.client.tokenizer
    end = turn_end(tokenizer)
    return [
        [[*tokenizer.encode(answer, add_special_tokens=False), end] for answer in question.answers]
        for question in questions
    ]


def _answer(body: DecisionRequest, results: Sequence[ScoreResult]) -> dict[str, Any]:
    used = [result.usage for result in results]
    num_input = sum(usage.prompt_tokens for usage in used)
    return {
        "object": "decision",
        "model": body.model,
        "answers": [
            _one(question, result.totals)
            for question, result in zip(body.questions, results, strict=True)
        ],
        "usage": {
            "input_tokens": num_input,
            "input_tokens_details": {
                "cached_tokens": sum(usage.cached_tokens for usage in used),
                "cache_write_tokens": 0,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_input,
        },
    }


def _one(question: Predicate | ChoiceOf | Score, totals: Sequence[float]) -> dict[str, Any]:
    shares, mass = probabilities(totals)
    head = {"type": question.type, "name": question.name, "diagnostics": {"label_mass": mass}}
    best = max(range(len(shares)), key=shares.__getitem__)
    match question:
        case Predicate():
            return head | {"probability": shares[0]}
        case ChoiceOf(choices=choices):
            return head | {
                "choice": choices[best].value,
                "confidence": shares[best],
                "probabilities": [
                    {"value": option.value, "probability": share}
                    for option, share in zip(choices, shares, strict=True)
                ],
            }
        case Score(levels=levels):
            return head | {
                "score": math.fsum(place * share for place, share in enumerate(shares)),
                "confidence": shares[best],
                "probabilities": [
                    {"label": level.label, "value": place, "probability": share}
                    for place, (level, share) in enumerate(zip(levels, shares, strict=True))
                ],
            }


def probabilities(totals: Sequence[float]) -> tuple[list[float], float]:
    """Shares that add up to one, of log-probabilities; and the probability of all together."""
    highest = max(totals)
    if highest == -math.inf:
        return [1 / len(totals)] * len(totals), 0.0
    weights = [math.exp(total - highest) for total in totals]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights], min(1.0, math.exp(highest) * whole)
