"""What a conversation looks like to the model: `render` as vLLM, and `apply-template` as llama.cpp
has it. Nothing is generated; what a chat request would be refused for is refused here too."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.options import check_length
from radixgen.serve.chat import answer_constraint
from radixgen.serve.chat_request import choice_of, plan_of, tools_of, turns_of
from radixgen.serve.constraints import constraint_of
from radixgen.serve.context import Context, get_context
from radixgen.serve.conversation import prompt_ids
from radixgen.serve.http import json_answer
from radixgen.serve.openapi import answers, renamed
from radixgen.serve.schemas import ChatRequest, RenderAnswer, TemplateAnswer, TemplateRequest

router = APIRouter(tags=["native"])


@router.post("/v1/chat/completions/render", responses=answers(RenderAnswer))
async def render(body: ChatRequest, request: Request) -> Response:
    """The prompt of a chat request, as text and as token ids."""
    context = get_context(request)
    context.check_model(body.model)
    ids = await conversation_ids(context, body)
    text = context.client.tokenizer.decode(ids, skip_special_tokens=False)
    limit = context.client.ready.max_context
    return json_answer(
        {"prompt": text, "token_ids": ids, "count": len(ids), "max_model_len": limit}
    )


@router.post("/apply-template", responses=answers(TemplateAnswer))
async def apply_template(body: TemplateRequest, request: Request) -> Response:
    """The prompt of a conversation, as text."""
    context = get_context(request)
    chat = ChatRequest(model=context.model_name, **dict(body))
    ids = await conversation_ids(context, chat)
    return json_answer({"prompt": context.client.tokenizer.decode(ids, skip_special_tokens=False)})


async def conversation_ids(context: Context, body: ChatRequest) -> list[int]:
    """The ids of a conversation's prompt. Raises what a chat request would."""
    turns, tools, choice = turns_of(body.messages), tools_of(body.tools), choice_of(body)
    constraint = answer_constraint(tools, choice, constraint_of(body))
    with renamed(constraint, prompt="messages"):
        ids = await prompt_ids(context.client, turns, tools, plan_of(body, context.thinker).layout)
        check_length("messages", len(ids), context.client.ready)
    return ids
